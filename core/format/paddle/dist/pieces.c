/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes may overlap: 3.2 stores a flattened shard as all rows that it touches, and metadata of
 * several saves or ranks may be read together. Paddle copies the pieces into a tensor one after
 * another, in the order in which metadata lists them, so the last one listed counts. Copies
 * are not compared here: that would read the data.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/sort.h"
#include "core/format/paddle/dist/key.h"
#include "core/model/geometry/cover.h"

/* The piece @e, or a part of it from element @run on, as @record holds it. */
static struct dcp_piece piece_of(const struct dcp_pdist *d, const struct dcp_pjoin *j,
				 const struct dcp_pmeta_entry *e, uint32_t record, uint32_t i,
				 uint64_t run)
{
	const struct dcp_parray *loc = dcp_pdist_loc(d, record);
	const struct dcp_ppart *part = &loc->part[i];
	struct dcp_piece p = {
		.lo = dcp_pmeta_dims(&d->meta, e->box.lo),
		.len = j->len,
		.run_lo = run,
		.run_n = part->n,
		.off = part->off,
		.nbytes = part->nbytes,
		.filter = part->filter,
		.swap = part->swap,
	};

	memcpy(&p.file,
	       d->numbers.p + dcp_pmeta_record(&d->meta, record)->file * sizeof(p.file),
	       sizeof(p.file));
	if (!e->box.flat)
		p.stride = loc->stride;
	return p;
}

/* The parts of @record, and beside each the one of @other that holds the same, or nothing. */
static int add_parts(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_entry *e,
		     uint32_t record, uint32_t other)
{
	const struct dcp_parray *loc = dcp_pdist_loc(d, record);
	uint64_t run = e->box.flat ? e->box.run_lo : 0;
	bool twice = other != DCP_PMETA_NONE && dcp_pdist_loc(d, other)->nparts == loc->nparts;

	if (e->dtype == DCP_PMETA_NONE)
		dcp_pjoin_stored_dtype(d, j, loc);
	if (j->t.dtype == DCP_DTYPE_OTHER)
		j->t.itemsize = loc->itemsize;
	for (uint32_t i = 0; i < loc->nparts; i++) {
		struct dcp_piece p = piece_of(d, j, e, record, i, run), copy = { 0 };

		if (twice)
			copy = piece_of(d, j, e, other, i, run);
		if (copy.run_n != p.run_n)
			copy.run_n = 0;
		run += p.run_n;
		if (!p.run_n)
			continue;
		dcp_buf_add(&d->pieces, &p, sizeof(p));
		dcp_buf_add(&d->copies, &copy, sizeof(copy));
	}
	return dcp_buf_error(&d->pieces) || dcp_buf_error(&d->copies) ? -ENOMEM : 0;
}

static void fail_outside(struct dcp_pdist *d, struct dcp_pjoin *j,
			 const struct dcp_pmeta_entry *e)
{
	char at[200], is[200];

	dcp_box_text(at, sizeof(at), dcp_pmeta_dims(&d->meta, e->box.lo),
		     dcp_pmeta_dims(&d->meta, e->box.len), j->t.ndim);
	dcp_dims_text(is, sizeof(is), j->shape, j->t.ndim);
	dcp_pjoin_fail(j, "its piece %s does not lie inside its shape %s", at, is);
}

/* A box that leaves the shape, or a run that leaves its box. */
static bool check_entry(struct dcp_pdist *d, struct dcp_pjoin *j,
			const struct dcp_pmeta_entry *e, uint64_t *volume)
{
	const uint64_t *lo = dcp_pmeta_dims(&d->meta, e->box.lo);
	bool ok = dcp_shape_volume(j->len, j->t.ndim, volume);
	char at[200];

	for (uint32_t k = 0; k < j->t.ndim; k++)
		ok = ok && dcp_range_ok(lo[k], j->len[k], j->shape[k]);
	if (ok && (!e->box.flat || e->box.run_hi <= *volume))
		return true;
	if (!ok) {
		fail_outside(d, j, e);
		return false;
	}
	dcp_box_text(at, sizeof(at), lo, j->len, j->t.ndim);
	dcp_pjoin_fail(j, "its piece %s has a flattened_range that ends at %" PRIu64, at,
		       e->box.run_hi);
	return false;
}

/*
 * Paddle 3.3 records the local_shape that an even cut would have for the last rank's piece of
 * some tensors (float8): what of it lies inside the shape, if that is what the array has.
 */
static bool clip(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_entry *e)
{
	const uint64_t *lo = dcp_pmeta_dims(&d->meta, e->box.lo);
	uint32_t n = j->t.ndim;
	uint64_t *len;
	bool out = false;

	j->len = dcp_pmeta_dims(&d->meta, e->box.len);
	for (uint32_t k = 0; k < n; k++) {
		if (e->box.flat || lo[k] >= j->shape[k])
			return false;
		out |= j->len[k] > j->shape[k] - lo[k];
	}
	len = out ? dcp_arena_calloc(&d->arena, n, sizeof(*len)) : NULL;
	if (!len)
		return false;
	for (uint32_t k = 0; k < n; k++)
		len[k] = DCP_MIN(j->len[k], j->shape[k] - lo[k]);
	j->len = len;
	return true;
}

int dcp_pjoin_collect(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_key *k)
{
	size_t n = 0;
	int rc = dcp_pjoin_sort(d, k, &n);

	dcp_buf_reset(&d->pieces);
	dcp_buf_reset(&d->copies);
	for (uint32_t i = k->entry; rc == 0 && i != DCP_PMETA_NONE && !dcp_pjoin_broken(j);) {
		const struct dcp_pmeta_entry *e = dcp_pmeta_entry(&d->meta, i);
		bool clipped = clip(d, j, e);
		uint64_t volume;
		uint32_t record, other;

		i = e->next;
		if (!check_entry(d, j, e, &volume) || volume == 0)
			continue;
		record = dcp_pjoin_find(d, j, e, n, &other);
		if (record != DCP_PMETA_NONE)
			rc = add_parts(d, j, e, record, other);
		else if (clipped)
			fail_outside(d, j, e);
	}
	return rc;
}

/* Where they lie in the tensor; of equal ones the last that was listed first. */
static int by_place(const void *pa, const void *pb, void *join)
{
	const struct dcp_pjoin *j = join;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	return dcp_piece_compare(&j->t.pieces[a], &j->t.pieces[b], j->t.ndim) ?: DCP_CMP(b, a);
}

/*
 * Numbers of the pieces that differ, by place, into @order; metadata of several ranks lists
 * one more than once. @sum: their elements.
 */
static size_t emit_apart(struct dcp_pjoin *j, uint32_t *order, uint64_t *sum)
{
	const struct dcp_piece *p = j->t.pieces;
	size_t kept = 0;

	for (uint32_t i = 0; i < j->t.npieces; i++)
		order[i] = i;
	if (j->t.npieces > 1)
		qsort_r(order, j->t.npieces, sizeof(*order), by_place, j);
	*sum = 0;
	for (size_t i = 0; i < j->t.npieces; i++) {
		const struct dcp_piece *at = &p[order[i]];

		if (kept && dcp_piece_compare(&p[order[kept - 1]], at, j->t.ndim) == 0)
			continue;
		if (dcp_ckd_add(sum, *sum, at->run_n))
			*sum = UINT64_MAX;
		order[kept++] = order[i];
	}
	return kept;
}

/* The pieces @order names, in that order, in place of those of @j, and where they are stored again. */
static int take(struct dcp_pdist *d, struct dcp_pjoin *j, const uint32_t *order, size_t n)
{
	const struct dcp_piece *copies = DCP_ITEMS(d->copies, struct dcp_piece);
	struct dcp_piece *p = dcp_arena_calloc(&d->arena, 2 * n + 1, sizeof(*p));
	size_t ncopies = 0;

	if (!p)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		p[i] = j->t.pieces[order[i]];
		if (copies[order[i]].run_n)
			p[n + ncopies++] = copies[order[i]];
	}
	j->t.pieces = p;
	j->t.npieces = n;
	j->t.copies = p + n;
	j->t.ncopies = ncopies;
	return 0;
}

/* Give each element to the last piece listed that holds it. @sum: the elements that any has. */
static int cut_overlaps(struct dcp_pdist *d, struct dcp_pjoin *j, uint64_t *sum)
{
	struct dcp_piece *cut;
	size_t n;
	int rc = dcp_cover(&j->t, &d->arena, &cut, &n, &j->why);

	if (rc < 0)
		return rc == -ENOMEM ? -ENOMEM : 0;
	j->t.pieces = cut;
	j->t.npieces = n;
	*sum = 0;
	for (size_t i = 0; i < n; i++)
		*sum += cut[i].run_n;
	if (!d->noverlaps++)
		snprintf(d->overlaps, sizeof(d->overlaps), "%.200s", j->t.key);
	return 0;
}

int dcp_pjoin_settle(struct dcp_pdist *d, struct dcp_pjoin *j)
{
	uint32_t *order;
	uint64_t sum;
	size_t n;
	int rc;

	j->t.pieces = DCP_ITEMS(d->pieces, struct dcp_piece);
	j->t.npieces = d->pieces.n / sizeof(*j->t.pieces);
	order = dcp_arena_calloc(&d->arena, j->t.npieces + 1, sizeof(*order));
	if (!order)
		return -ENOMEM;
	n = emit_apart(j, order, &sum);
	if (sum > j->volume && n > 1)
		DCP_SORT(order, n, dcp_by_u32);
	rc = take(d, j, order, n);
	if (rc == 0 && sum > j->volume)
		rc = cut_overlaps(d, j, &sum);
	if (rc == 0 && !dcp_pjoin_broken(j) && sum != j->volume && j->lost.msg[0])
		j->why = j->lost;
	return rc;
}
