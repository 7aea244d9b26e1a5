/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes may overlap: 3.2 stores a flattened shard as all rows that it touches, and metadata of
 * several saves or ranks may be read together. Paddle copies the pieces into a tensor one after
 * another, in the order in which metadata lists them, so the last one listed counts. Copies
 * are not compared here: that would read the data.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/format/paddle/dist/key.h"

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

/* The parts of @record, and before each the one of @other that holds the same, if one does. */
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
		if (copy.run_n)
			dcp_buf_add(&d->pieces, &copy, sizeof(copy));
		dcp_buf_add(&d->pieces, &p, sizeof(p));
	}
	return dcp_buf_error(&d->pieces);
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

int dcp_pjoin_settle(struct dcp_pdist *d, struct dcp_pjoin *j)
{
	int rc;

	/* the last listed first: that one counts */
	for (size_t i = DCP_NITEMS(d->pieces, struct dcp_piece); i-- > 0;)
		dcp_join_add(&d->join, DCP_ITEMS(d->pieces, struct dcp_piece) + i);
	rc = dcp_join_end(&d->join, &j->t, &d->arena, NULL, &j->why);
	if (rc == 1 && !d->noverlaps++)
		snprintf(d->overlaps, sizeof(d->overlaps), "%.200s", j->t.key);
	return rc < 0 ? rc : 0;
}
