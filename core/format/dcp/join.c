/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks of one tensor (what state_dict_metadata says) and its records (where
 * storage_data says they lie), ready to be matched by offsets. Both are sorted once, so a key
 * with n chunks costs n log n. Chunks without elements are left out: torch stores all of them
 * as one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/format/dcp/dcp_int.h"
#include "core/parse/torch/torch.h"

static void set_dtype(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j, uint32_t dtype,
		      uint32_t dname)
{
	const char *name = w->m->dtypes.n ? dcp_intern_text(&w->m->dtypes, dname) : "";

	j->t.dtype = (enum dcp_dtype)dtype;
	if (dtype != DCP_DTYPE_OTHER) {
		j->t.dtype_name = dcp_dtype_info(j->t.dtype)->name;
		j->t.itemsize = dcp_dtype_info(j->t.dtype)->size;
		return;
	}
	snprintf(j->dtype_name, sizeof(j->dtype_name), "%s", name);
	j->t.dtype_name = j->dtype_name;
	j->t.itemsize = dcp_torch_itemsize(name);
}

/* The head of an entry: taken from the first, compared with it in the others. */
static void read_head(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j,
		      struct dcp_tmeta_entry *e, bool first)
{
	uint32_t dtype = (uint32_t)dcp_cur_varint(&e->c);
	uint32_t dname = (uint32_t)dcp_cur_varint(&e->c);
	uint32_t ndim = (uint32_t)dcp_cur_varint(&e->c);
	bool same = !first && ndim == j->t.ndim && dtype == j->t.dtype;
	uint64_t len;

	if (first) {
		set_dtype(w, j, dtype, dname);
		j->t.ndim = ndim;
	}
	for (uint32_t k = 0; k < ndim; k++) {
		uint64_t d = dcp_cur_varint(&e->c);

		if (first)
			j->shape[k] = d;
		else
			same = same && j->shape[k] == d;
	}
	len = dcp_cur_varint(&e->c);
	if (len) {
		const uint8_t *text = dcp_cur_take(&e->c, len);

		dcp_fail(&j->why, -EBADMSG, "%.*s", (int)len, (const char *)text);
	} else if (!first && !same) {
		dcp_fail(&j->why, -EBADMSG, "ranks disagree about its dtype or shape");
	}
}

/* Chunks that hold elements go to w->join; lo is a place in dims until all are there. */
static int read_chunks(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j,
		       struct dcp_tmeta_entry *e)
{
	uint64_t n = dcp_cur_varint(&e->c);
	uint32_t ndim = j->t.ndim;

	for (uint64_t i = 0; i < n; i++) {
		struct dcp_piece c = { .file = e->rank_file, .enc = DCP_ENC_TORCH };
		uintptr_t at = w->dims.n;
		uint64_t *d = dcp_buf_grow(&w->dims, 2 * sizeof(uint64_t) * ndim);

		if (!d && ndim)
			return -ENOMEM;
		for (uint32_t k = 0; k < 2 * ndim; k++)
			d[k] = dcp_cur_varint(&e->c);
		if (!dcp_shape_volume(d + ndim, ndim, &c.run_n)) {
			dcp_fail(&j->why, -EBADMSG,
				 "a chunk's number of elements does not fit in 64 bits");
			return 0;
		}
		if (c.run_n == 0) {
			w->dims.n = at;
			continue;
		}
		c.lo = (uint64_t *)at;
		dcp_join_add(&w->join, &c);
	}
	return dcp_buf_error(&w->join.added);
}

/* Entries of a key from the first rank file to the last; they are chained the other way. */
static int read_entries(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j, uint32_t key)
{
	uint32_t at = w->m->keys[key].entry;
	struct dcp_buf *order = &w->places; /* not needed yet */
	int rc = 0;

	dcp_buf_reset(order);
	for (; at; at = dcp_tmeta_entry(w->m, at).before)
		dcp_buf_add(order, &at, sizeof(at));
	if (dcp_buf_error(order))
		return -ENOMEM;
	for (size_t i = order->n / sizeof(at); i-- > 0 && rc == 0 && !dcp_tdcp_is_broken(j);) {
		struct dcp_tmeta_entry e;

		memcpy(&at, order->p + i * sizeof(at), sizeof(at));
		e = dcp_tmeta_entry(w->m, at);
		if (e.kind != DCP_TMETA_TENSOR) {
			dcp_fail(&j->why, -EBADMSG,
				 "some ranks stored a tensor, others an object");
			return 0;
		}
		read_head(w, j, &e, (i + 1) * sizeof(at) == order->n);
		if (!dcp_tdcp_is_broken(j))
			rc = read_chunks(w, j, &e);
	}
	return rc;
}

static int read_places(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j, uint32_t key)
{
	const struct dcp_tmeta *m = w->m;
	uint64_t lo[DCP_MAX_NDIM];

	for (uint32_t i = m->keys[key].first; i < m->keys[key + 1].first; i++) {
		struct dcp_tmeta_record r = dcp_tmeta_record(m, i, lo);
		struct dcp_tdcp_place p = { .rank_file = r.rank_file, .i = i };

		if (r.ndim != j->t.ndim)
			continue; /* no chunk's: the index is of another shape */
		p.lo = (const uint64_t *)(uintptr_t)w->dims.n;
		dcp_buf_add(&w->dims, lo, sizeof(*lo) * r.ndim);
		dcp_buf_add(&w->places, &p, sizeof(p));
	}
	if (dcp_buf_error(&w->dims) || dcp_buf_error(&w->places))
		return -ENOMEM;
	return 0;
}

static void point_at_dims(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j)
{
	char *dims = w->dims.p;
	struct dcp_piece *chunk = DCP_ITEMS(w->join.added, struct dcp_piece);

	j->place = DCP_ITEMS(w->places, struct dcp_tdcp_place);
	j->nplaces = w->places.n / sizeof(*j->place);
	for (size_t i = 0; i < DCP_NITEMS(w->join.added, struct dcp_piece); i++) {
		chunk[i].lo = (uint64_t *)(void *)(dims + (uintptr_t)chunk[i].lo);
		chunk[i].len = chunk[i].lo + j->t.ndim;
	}
	for (size_t i = 0; i < j->nplaces; i++)
		j->place[i].lo =
			(const uint64_t *)(const void *)(dims + (uintptr_t)j->place[i].lo);
}

static int compare_places(const void *pa, const void *pb, void *ndim)
{
	const struct dcp_tdcp_place *a = pa, *b = pb;

	return DCP_CMP(a->rank_file, b->rank_file)
		       ?: dcp_dims_compare(a->lo, b->lo, *(const uint32_t *)ndim);
}

static void sort_places(struct dcp_tdcp_join *j)
{
	for (size_t i = 1; i < j->nplaces; i++)
		if (compare_places(&j->place[i - 1], &j->place[i], &j->t.ndim) > 0) {
			qsort_r(j->place, j->nplaces, sizeof(*j->place), compare_places,
				&j->t.ndim);
			return;
		}
}

/* The last of equal ones: a later pair replaces an earlier one in a dict. */
const struct dcp_tdcp_place *dcp_tdcp_find_place(const struct dcp_tdcp_join *j,
						 const struct dcp_piece *c, size_t *hint)
{
	struct dcp_tdcp_place want = { .lo = c->lo, .rank_file = c->file };
	uint32_t ndim = j->t.ndim;
	size_t n = j->nplaces, end;

	if (*hint < n && compare_places(&j->place[*hint], &want, &ndim) == 0 &&
	    (*hint + 1 == n || compare_places(&j->place[*hint + 1], &want, &ndim) > 0))
		return &j->place[(*hint)++];
	DCP_BISECT(end, 0, n, compare_places(&j->place[end], &want, &ndim) <= 0);
	*hint = end;
	if (end == 0 || compare_places(&j->place[end - 1], &want, &ndim) != 0)
		return NULL;
	return &j->place[end - 1];
}

int dcp_tdcp_join(struct dcp_tdcp_emitter *w, uint32_t key, struct dcp_tdcp_join *j)
{
	int rc;

	*j = (struct dcp_tdcp_join){ 0 };
	j->t.dtype_name = "";
	j->t.shape = j->shape;
	dcp_buf_reset(&w->dims);
	dcp_join_begin(&w->join);
	rc = read_entries(w, j, key);
	dcp_buf_reset(&w->places);
	if (rc == 0 && !dcp_tdcp_is_broken(j))
		rc = read_places(w, j, key);
	if (rc < 0 || dcp_tdcp_is_broken(j))
		return rc;
	point_at_dims(w, j);
	sort_places(j);
	return dcp_join_end(&w->join, &j->t, NULL, w->d->missing, &j->why);
}
