/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an entry, which says what a piece is, to a record of storage_metadata whose array is
 * that piece. Copies of a piece (replicas, files of several ranks) are tried one after the
 * other; the next one after that is what is read when its file cannot be.
 */
#include <stdlib.h>

#include "core/base/sort.h"
#include "core/format/paddle/dist/key.h"

/* How many records after the one that fits are looked at for another copy of the piece: a bound for
 * metadata that repeats the same ones for ever. */
enum { OTHERS = 16 };

/* By what an entry is looked up with: offset and run. */
static int compare_boxes(const struct dcp_pmeta *m, const struct dcp_pmeta_box *a,
			 const struct dcp_pmeta_box *b)
{
	return DCP_CMP(a->ndim, b->ndim) ?:
	       dcp_dims_compare(dcp_pmeta_dims(m, a->lo), dcp_pmeta_dims(m, b->lo), a->ndim) ?:
	       DCP_CMP(a->flat, b->flat) ?: DCP_CMP(a->run_lo, b->run_lo) ?:
	       DCP_CMP(a->run_hi, b->run_hi);
}

static int compare_records(const void *pa, const void *pb, void *meta)
{
	const struct dcp_pmeta *m = meta;
	uint32_t x = *(const uint32_t *)pa, y = *(const uint32_t *)pb;
	const struct dcp_pmeta_record *a = dcp_pmeta_record(m, x), *b = dcp_pmeta_record(m, y);

	/* of equal ones the last that was read counts */
	return compare_boxes(m, &a->box, &b->box) ?: DCP_CMP(a->replica, b->replica) ?:
	       DCP_CMP(y, x);
}

/* The key's records in order, in d->found. */
int dcp_pjoin_sort(struct dcp_pdist *d, const struct dcp_pmeta_key *k, size_t *n)
{
	dcp_buf_reset(&d->found);
	for (uint32_t i = k->record; i != DCP_PMETA_NONE;
	     i = dcp_pmeta_record(&d->meta, i)->next)
		dcp_buf_add(&d->found, &i, sizeof(i));
	if (dcp_buf_error(&d->found))
		return -ENOMEM;
	*n = DCP_NITEMS(d->found, uint32_t);
	if (*n > 1)
		qsort_r(d->found.p, *n, sizeof(uint32_t), compare_records, &d->meta);
	return 0;
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

/* Is the array of @r the piece that @e describes? If not, why. */
static bool fits(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_entry *e,
		 const struct dcp_pmeta_record *r, const struct dcp_parray *loc)
{
	const char *file = dcp_intern_text(&d->meta.files, r->file);
	uint64_t run = e->box.run_hi - e->box.run_lo;
	const uint64_t *want = e->box.flat ? &run : j->len;
	uint32_t nwant = e->box.flat ? 1 : e->box.ndim;

	if (r->box.len != DCP_PMETA_NO_DIMS &&
	    dcp_dims_compare(dcp_pmeta_dims(&d->meta, r->box.len),
			     dcp_pmeta_dims(&d->meta, e->box.len), e->box.ndim) != 0)
		return false; /* of another cut of the same tensor */
	if (loc->error) {
		dcp_join_lose(&d->join, -EBADMSG, "%s", loc->error);
		return false;
	}
	if (loc->ndim != nwant || dcp_dims_compare(loc->shape, want, nwant) != 0) {
		dcp_pjoin_misfit(d, j, e, r, loc);
		return false;
	}
	if (e->dtype != DCP_PMETA_NONE && !stands_for(loc->dtype, j->t.dtype)) {
		dcp_join_lose(&d->join, -EBADMSG, "%.100s says it is %s, %.100s holds %s",
			      d->meta_name, j->t.dtype_name, file, loc->dtype_name);
		return false;
	}
	return true;
}

static bool same_dtype(const struct dcp_parray *a, const struct dcp_parray *b)
{
	return a->dtype == b->dtype && strcmp(a->dtype_name, b->dtype_name) == 0;
}

uint32_t dcp_pjoin_find(struct dcp_pdist *d, struct dcp_pjoin *j,
			const struct dcp_pmeta_entry *e, size_t n, uint32_t *other)
{
	uint32_t first = DCP_PMETA_NONE;
	const uint32_t *found = DCP_ITEMS(d->found, uint32_t);
	size_t i, tried = 0;
	char at[200];

	*other = DCP_PMETA_NONE;
	DCP_BISECT(i, 0, n,
		   compare_boxes(&d->meta, &dcp_pmeta_record(&d->meta, found[i])->box,
				 &e->box) < 0);
	for (; i < n; i++) {
		const struct dcp_pmeta_record *r = dcp_pmeta_record(&d->meta, found[i]);

		if (compare_boxes(&d->meta, &r->box, &e->box) != 0)
			break;
		if (first == DCP_PMETA_NONE) {
			if (fits(d, j, e, r, dcp_pdist_loc(d, found[i])))
				first = found[i];
			continue;
		}
		if (tried++ == OTHERS)
			break;
		if (r->file == dcp_pmeta_record(&d->meta, first)->file ||
		    !same_dtype(dcp_pdist_loc(d, first), dcp_pdist_loc(d, found[i])) ||
		    !fits(d, j, e, r, dcp_pdist_loc(d, found[i])))
			continue;
		*other = found[i];
		break;
	}
	if (first != DCP_PMETA_NONE)
		return first;
	dcp_box_text(at, sizeof(at), dcp_pmeta_dims(&d->meta, e->box.lo),
		     dcp_pmeta_dims(&d->meta, e->box.len), e->box.ndim);
	dcp_join_lose(&d->join, -EBADMSG,
		      "storage_metadata of %.100s names no file for its piece %s", d->meta_name,
		      at);
	return DCP_PMETA_NONE;
}
