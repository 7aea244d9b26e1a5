/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One key: its entries (which pieces there should be), the arrays its records led to, and what
 * comes of them.
 *
 * Copies of a piece (replicas, files of several ranks) are tried one after the other. A piece
 * that cannot be had is no loss when others cover its elements: two cuts of one tensor can
 * stand in metadata. From generation C on pieces may overlap (3.2 stores a flattened shard as
 * all rows it touches); an older one that overlaps was recorded wrongly, so it is left to the
 * index to refuse it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/format/format.h"
#include "core/format/paddle_dist_int.h"
#include "core/model/cover.h"
#include "core/model/tensor.h"

struct joined {
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t volume;     /* of shape */
	struct dcp_err why;  /* the key is broken */
	struct dcp_err lost; /* the first piece that cannot be had */
	bool sized;          /* its dtype has been looked up */
};

void dcp_pdist_box_text(char *buf, size_t size, const uint64_t *lo, const uint64_t *len,
			uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < ndim && n + 48 < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64 ":%" PRIu64,
				      d ? ", " : "", lo[d], lo[d] + len[d]);
	snprintf(buf + n, size - n, "]");
}

static void say_dims(char *buf, size_t size, const uint64_t *dims, uint32_t ndim)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (uint32_t d = 0; d < ndim && n + 24 < size; d++)
		n += (size_t)snprintf(buf + n, size - n, d ? ", %" PRIu64 : "%" PRIu64,
				      dims[d]);
	snprintf(buf + n, size - n, "]");
}

#define fail(j, ...) dcp_fail(&(j)->why, -EBADMSG, DCP_ERR_NO_OFFSET, __VA_ARGS__)

/* The first reason counts. */
#define lose(j, ...)                                                                           \
	do {                                                                                   \
		if (!(j)->lost.msg[0])                                                         \
			dcp_fail(&(j)->lost, -EBADMSG, DCP_ERR_NO_OFFSET, __VA_ARGS__);        \
	} while (0)

static bool is_broken(const struct joined *j)
{
	return j->why.msg[0] != '\0';
}

/* ---- dtype and shape ---- */

static void set_dtype(struct joined *j, const char *name)
{
	enum dcp_dtype dtype = dcp_dtype_from_torch(name, strlen(name));

	if (j->sized && dtype == j->t.dtype)
		return;
	if (j->sized)
		fail(j, "its pieces are of different dtypes, %.32s among them", name);
	j->sized = true;
	j->t.dtype = dtype;
	j->t.dtype_name = dtype == DCP_DTYPE_OTHER ? name : dcp_dtype_info(dtype)->name;
	j->t.itemsize = dcp_dtype_info(dtype)->size;
}

/* Without a word in metadata u2 is bfloat16: Paddle had no uint16 then. */
static void set_stored_dtype(struct dcp_pdist *d, struct joined *j, const struct dcp_ploc *loc)
{
	enum dcp_dtype dtype = loc->dtype == DCP_DTYPE_U16 ? DCP_DTYPE_BF16 : loc->dtype;

	if (j->sized && j->t.dtype != dtype)
		fail(j, "its pieces are stored as different dtypes, %s and %s", j->t.dtype_name,
		     dcp_intern_text(&d->dtypes, loc->dtype_name));
	j->sized = true;
	j->t.dtype = dtype;
	j->t.dtype_name = dtype == DCP_DTYPE_OTHER
				  ? dcp_intern_text(&d->dtypes, loc->dtype_name)
				  : dcp_dtype_info(dtype)->name;
	j->t.itemsize = loc->itemsize;
}

/* numpy has no bfloat16 and no float8: they are stored as integers of their size. */
static bool stands_for(enum dcp_dtype stored, enum dcp_dtype meant)
{
	if (stored == meant)
		return true;
	switch (dcp_dtype_info(meant)->size) {
	case 1:
		return (stored == DCP_DTYPE_I8 || stored == DCP_DTYPE_U8) &&
		       dcp_dtype_info(meant)->widened;
	case 2:
		return stored == DCP_DTYPE_U16 && meant == DCP_DTYPE_BF16;
	default:
		return meant == DCP_DTYPE_OTHER;
	}
}

static void join_shape(struct joined *j, const uint64_t *shape, bool *said)
{
	if (*said && memcmp(j->shape, shape, j->t.ndim * sizeof(*shape)) != 0)
		fail(j, "its pieces disagree about global_shape");
	memcpy(j->shape, shape, j->t.ndim * sizeof(*shape));
	*said = true;
}

/* The smallest shape that all pieces fit in. */
static void grow_shape(struct dcp_pdist *d, struct joined *j, const struct dcp_pmeta_box *box)
{
	const uint64_t *lo = dcp_pmeta_dims(&d->meta, box->lo);
	const uint64_t *len = dcp_pmeta_dims(&d->meta, box->len);

	for (uint32_t k = 0; k < j->t.ndim; k++) {
		uint64_t end;

		if (dcp_ckd_add(&end, lo[k], len[k]))
			fail(j, "a piece ends beyond any shape");
		else
			j->shape[k] = DCP_MAX(j->shape[k], end);
	}
}

/* What the entries say in common. */
static void join_head(struct dcp_pdist *d, struct joined *j, const struct dcp_pmeta_key *k)
{
	bool said = false;
	uint32_t i;

	if (k->entry == DCP_PMETA_NONE) {
		fail(j, "%.100s lists no piece of it", d->meta_name);
		return;
	}
	j->t.ndim = dcp_pmeta_entry(&d->meta, k->entry)->box.ndim;
	for (i = k->entry; i != DCP_PMETA_NONE && !is_broken(j);) {
		const struct dcp_pmeta_entry *e = dcp_pmeta_entry(&d->meta, i);

		i = e->next;
		if (e->box.ndim != j->t.ndim)
			fail(j, "its pieces are of different numbers of dimensions");
		else if (e->shape != DCP_PMETA_NO_DIMS)
			join_shape(j, dcp_pmeta_dims(&d->meta, e->shape), &said);
		if (e->dtype != DCP_PMETA_NONE)
			set_dtype(j, dcp_intern_text(&d->meta.dtypes, e->dtype));
	}
	for (i = k->entry; i != DCP_PMETA_NONE && !is_broken(j) && !said;) {
		const struct dcp_pmeta_entry *e = dcp_pmeta_entry(&d->meta, i);

		i = e->next;
		grow_shape(d, j, &e->box);
	}
	if (!is_broken(j) && !dcp_shape_volume(j->shape, j->t.ndim, &j->volume))
		fail(j, "its shape does not fit in 64 bits");
}

/* ---- records ---- */

static int compare_dims(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		if (a[k] != b[k])
			return a[k] < b[k] ? -1 : 1;
	return 0;
}

/* By what an entry is looked up with: offset and run. */
static int compare_boxes(const struct dcp_pmeta *m, const struct dcp_pmeta_box *a,
			 const struct dcp_pmeta_box *b)
{
	int way;

	if (a->ndim != b->ndim)
		return a->ndim < b->ndim ? -1 : 1;
	way = compare_dims(dcp_pmeta_dims(m, a->lo), dcp_pmeta_dims(m, b->lo), a->ndim);
	if (way)
		return way;
	if (a->flat != b->flat)
		return a->flat < b->flat ? -1 : 1;
	if (a->run_lo != b->run_lo)
		return a->run_lo < b->run_lo ? -1 : 1;
	return (a->run_hi > b->run_hi) - (a->run_hi < b->run_hi);
}

static int compare_records(const void *pa, const void *pb, void *meta)
{
	const struct dcp_pmeta *m = meta;
	uint32_t x = *(const uint32_t *)pa, y = *(const uint32_t *)pb;
	const struct dcp_pmeta_record *a = dcp_pmeta_record(m, x), *b = dcp_pmeta_record(m, y);
	int way = compare_boxes(m, &a->box, &b->box);

	if (way)
		return way;
	if (a->replica != b->replica)
		return a->replica < b->replica ? -1 : 1;
	return (x > y) - (x < y);
}

/* The key's records in order, in d->found. */
static int sort_records(struct dcp_pdist *d, const struct dcp_pmeta_key *k, size_t *n)
{
	dcp_buf_reset(&d->found);
	for (uint32_t i = k->record; i != DCP_PMETA_NONE;
	     i = dcp_pmeta_record(&d->meta, i)->next)
		dcp_buf_add(&d->found, &i, sizeof(i));
	if (dcp_buf_error(&d->found))
		return dcp_pdist_no_memory(d);
	*n = d->found.n / sizeof(uint32_t);
	if (*n > 1)
		qsort_r(d->found.p, *n, sizeof(uint32_t), compare_records, &d->meta);
	return 0;
}

/* Is the array of @r the piece that @e describes? If not, why. */
static bool fits(struct dcp_pdist *d, struct joined *j, const struct dcp_pmeta_entry *e,
		 const struct dcp_pmeta_record *r, const struct dcp_ploc *loc)
{
	const uint64_t *len = dcp_pmeta_dims(&d->meta, e->box.len);
	const uint64_t *shape = (const uint64_t *)(const void *)d->dims.p + loc->shape;
	const char *file = dcp_intern_text(&d->meta.files, r->file);
	uint64_t run = e->box.run_hi - e->box.run_lo;
	const uint64_t *want = e->box.flat ? &run : len;
	uint32_t nwant = e->box.flat ? 1 : e->box.ndim;
	char is[100], said[100], at[100];

	if (r->box.len != DCP_PMETA_NO_DIMS &&
	    compare_dims(dcp_pmeta_dims(&d->meta, r->box.len), len, e->box.ndim) != 0)
		return false; /* of another cut of the same tensor */
	if (loc->error != DCP_PMETA_NONE) {
		lose(j, "%s", dcp_intern_text(&d->errors, loc->error));
		return false;
	}
	if (loc->ndim != nwant || compare_dims(shape, want, nwant) != 0) {
		say_dims(is, sizeof(is), shape, loc->ndim);
		say_dims(said, sizeof(said), want, nwant);
		dcp_pdist_box_text(at, sizeof(at), dcp_pmeta_dims(&d->meta, e->box.lo), len,
				   e->box.ndim);
		lose(j,
		     "%.100s says its piece %s is an array of shape %s, %.100s holds %s: stale "
		     "metadata, the data was saved again in another cut",
		     d->meta_name, at, said, file, is);
		return false;
	}
	if (e->dtype != DCP_PMETA_NONE && !stands_for(loc->dtype, j->t.dtype)) {
		lose(j, "%.100s says it is %s, %.100s holds %s", d->meta_name, j->t.dtype_name,
		     file, dcp_intern_text(&d->dtypes, loc->dtype_name));
		return false;
	}
	return true;
}

/* Number of the record whose array is the piece, or DCP_PMETA_NONE. */
static uint32_t find_record(struct dcp_pdist *d, struct joined *j,
			    const struct dcp_pmeta_entry *e, size_t n)
{
	const uint32_t *found = (const uint32_t *)(const void *)d->found.p;
	size_t lo = 0, hi = n;
	char at[200];

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (compare_boxes(&d->meta, &dcp_pmeta_record(&d->meta, found[mid])->box,
				  &e->box) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < n; lo++) {
		const struct dcp_pmeta_record *r = dcp_pmeta_record(&d->meta, found[lo]);

		if (compare_boxes(&d->meta, &r->box, &e->box) != 0)
			break;
		if (fits(d, j, e, r, dcp_pdist_loc(d, found[lo])))
			return found[lo];
	}
	dcp_pdist_box_text(at, sizeof(at), dcp_pmeta_dims(&d->meta, e->box.lo),
			   dcp_pmeta_dims(&d->meta, e->box.len), e->box.ndim);
	lose(j, "storage_metadata of %.100s names no file for its piece %s", d->meta_name, at);
	return DCP_PMETA_NONE;
}

/* ---- pieces ---- */

static int add_parts(struct dcp_pdist *d, struct joined *j, const struct dcp_pmeta_entry *e,
		     uint32_t record)
{
	const struct dcp_ploc *loc = dcp_pdist_loc(d, record);
	const struct dcp_ppart *part =
		(const struct dcp_ppart *)(const void *)d->parts.p + loc->part;
	uint64_t run = e->box.flat ? e->box.run_lo : 0;

	if (e->dtype == DCP_PMETA_NONE)
		set_stored_dtype(d, j, loc);
	if (j->t.dtype == DCP_DTYPE_OTHER)
		j->t.itemsize = loc->itemsize;
	for (uint32_t i = 0; i < loc->nparts; i++) {
		struct dcp_piece p = {
			.lo = dcp_pmeta_dims(&d->meta, e->box.lo),
			.len = dcp_pmeta_dims(&d->meta, e->box.len),
			.run_lo = run,
			.run_n = part[i].n,
			.off = part[i].off,
			.nbytes = part[i].nbytes,
			.filter = part[i].filter,
			.swap = part[i].swap,
		};

		memcpy(&p.file,
		       d->numbers.p + dcp_pmeta_record(&d->meta, record)->file * sizeof(p.file),
		       sizeof(p.file));
		if (loc->stride != DCP_PMETA_NO_DIMS && !e->box.flat)
			p.stride = (const uint64_t *)(const void *)d->dims.p + loc->stride;
		run += p.run_n;
		if (p.run_n)
			dcp_buf_add(&d->pieces, &p, sizeof(p));
	}
	return dcp_buf_error(&d->pieces) ? dcp_pdist_no_memory(d) : 0;
}

/* A box that leaves the shape, or a run that leaves its box. */
static bool check_entry(struct dcp_pdist *d, struct joined *j, const struct dcp_pmeta_entry *e,
			uint64_t *volume)
{
	const uint64_t *lo = dcp_pmeta_dims(&d->meta, e->box.lo);
	const uint64_t *len = dcp_pmeta_dims(&d->meta, e->box.len);
	char at[200], is[200];
	bool ok = dcp_shape_volume(len, j->t.ndim, volume);

	for (uint32_t k = 0; k < j->t.ndim; k++)
		ok = ok && dcp_range_ok(lo[k], len[k], j->shape[k]);
	if (ok && (!e->box.flat || e->box.run_hi <= *volume))
		return true;
	dcp_pdist_box_text(at, sizeof(at), lo, len, j->t.ndim);
	say_dims(is, sizeof(is), j->shape, j->t.ndim);
	if (ok)
		fail(j, "its piece %s has a flattened_range that ends at %" PRIu64, at,
		     e->box.run_hi);
	else
		fail(j, "its piece %s does not lie inside its shape %s", at, is);
	return false;
}

static int collect(struct dcp_pdist *d, struct joined *j, const struct dcp_pmeta_key *k)
{
	size_t n = 0;
	int rc = sort_records(d, k, &n);

	dcp_buf_reset(&d->pieces);
	for (uint32_t i = k->entry; rc == 0 && i != DCP_PMETA_NONE && !is_broken(j);) {
		const struct dcp_pmeta_entry *e = dcp_pmeta_entry(&d->meta, i);
		uint64_t volume;
		uint32_t record;

		i = e->next;
		if (!check_entry(d, j, e, &volume) || volume == 0)
			continue;
		record = find_record(d, j, e, n);
		if (record != DCP_PMETA_NONE)
			rc = add_parts(d, j, e, record);
	}
	return rc;
}

static int compare_pieces(const void *pa, const void *pb, void *ndim)
{
	const struct dcp_piece *a = pa, *b = pb;
	uint32_t n = *(const uint32_t *)ndim;
	int way = compare_dims(a->lo, b->lo, n);

	if (!way)
		way = compare_dims(a->len, b->len, n);
	if (way)
		return way;
	if (a->run_lo != b->run_lo)
		return a->run_lo < b->run_lo ? -1 : 1;
	if (a->run_n != b->run_n)
		return a->run_n > b->run_n ? -1 : 1;
	return (a->file > b->file) - (a->file < b->file);
}

/* Equal pieces of several metadata files: one is enough. Returns the elements of the rest. */
static uint64_t drop_equal(struct dcp_pdist *d, struct joined *j)
{
	struct dcp_piece *p = (struct dcp_piece *)(void *)d->pieces.p;
	size_t n = d->pieces.n / sizeof(*p), kept = 0;
	uint64_t sum = 0;

	if (n > 1)
		qsort_r(p, n, sizeof(*p), compare_pieces, &j->t.ndim);
	for (size_t i = 0; i < n; i++) {
		const struct dcp_piece *q = kept ? &p[kept - 1] : NULL;

		if (q && q->run_lo == p[i].run_lo && q->run_n == p[i].run_n &&
		    compare_dims(q->lo, p[i].lo, j->t.ndim) == 0 &&
		    compare_dims(q->len, p[i].len, j->t.ndim) == 0)
			continue;
		if (dcp_ckd_add(&sum, sum, p[i].run_n))
			sum = UINT64_MAX;
		p[kept++] = p[i];
	}
	j->t.pieces = p;
	j->t.npieces = kept;
	return sum;
}

/* Where pieces overlap, cut them; then a lost one shows as elements that are missing. */
static int settle(struct dcp_pdist *d, struct joined *j)
{
	uint64_t sum = drop_equal(d, j);
	struct dcp_piece *cut;
	size_t n;
	int rc;

	if (sum > j->volume && d->meta.generation == 'C') {
		rc = dcp_cover(&j->t, &d->arena, &cut, &n, &j->why);
		if (rc == -ENOMEM)
			return dcp_pdist_no_memory(d);
		if (rc < 0)
			return 0;
		j->t.pieces = cut;
		j->t.npieces = n;
		sum = 0;
		for (size_t i = 0; i < n; i++)
			sum += cut[i].run_n;
		if (!d->noverlaps++)
			snprintf(d->overlaps, sizeof(d->overlaps), "%.200s", j->t.key);
	}
	if (sum != j->volume && j->lost.msg[0])
		j->why = j->lost;
	return 0;
}

/* ---- telling ---- */

const char *const *dcp_pdist_path(struct dcp_pdist *d, const char *key, uint32_t number,
				  size_t *n)
{
	const struct dcp_pmeta_key *k = dcp_pmeta_key(&d->meta, number);
	const char *text = k->npath ? d->meta.paths.p + k->path : NULL;
	const char **path = dcp_arena_calloc(&d->arena, k->npath + 1, sizeof(*path));

	if (!path)
		return NULL;
	*n = DCP_MAX(k->npath, 1);
	path[0] = key;
	for (uint32_t i = 0; i < k->npath; i++) {
		path[i] = text;
		text += strlen(text) + 1;
	}
	return path;
}

int dcp_pdist_tell_key(struct dcp_pdist *d, uint32_t key)
{
	const struct dcp_sink *sink = d->in->sink;
	const struct dcp_pmeta_key *k = dcp_pmeta_key(&d->meta, key);
	struct joined j = { .t = { .dtype_name = "" } };
	int rc = 0;

	if (!k->named)
		return 0; /* only the other sections know it: Paddle does not load it either */
	dcp_arena_reset(&d->arena);
	j.t.key = dcp_intern_text(&d->meta.names, key);
	j.t.shape = j.shape;
	if (k->error != DCP_PMETA_NONE)
		fail(&j, "%.100s: %s", d->meta_name,
		     dcp_intern_text(&d->meta.errors, k->error));
	if (!is_broken(&j))
		join_head(d, &j, k);
	if (!is_broken(&j))
		rc = collect(d, &j, k);
	if (rc == 0 && !is_broken(&j))
		rc = settle(d, &j);
	if (rc < 0)
		return rc;
	j.t.path = dcp_pdist_path(d, j.t.key, key, &j.t.npath);
	if (!j.t.path)
		return dcp_pdist_no_memory(d);
	if (is_broken(&j)) {
		j.t.error = j.why.msg;
		j.t.npieces = 0;
	}
	return sink->tensor(sink->ctx, &j.t);
}
