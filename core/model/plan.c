/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step: find the piece of the element at the current position, then grow from the last
 * dimension outward. While neighbours are dense the run grows; the first stride that is not
 * starts a series of runs; a second one ends the step. A dimension may be left behind only
 * when the region's whole row of it was covered, or the destination would have a gap.
 */
#include "core/model/plan.h"

#include "core/base/base.h"
#include "core/model/tiling.h"

void dcp_plan_start(struct dcp_plan_iter *it, const struct dcp_tiling *tl, const uint64_t *lo,
		    const uint64_t *len, uint64_t off, uint64_t n)
{
	*it = (struct dcp_plan_iter){
		.tl = tl, .lo = lo, .len = len, .pos = off, .end = off + n
	};
}

/* Coordinates of element number @e of the region, in the tensor. */
static void locate(const struct dcp_plan_iter *it, uint64_t e, uint64_t *at)
{
	for (uint32_t d = it->tl->t->ndim; d-- > 0; e /= it->len[d])
		at[d] = it->lo[d] + e % it->len[d];
}

/* Longest series from @at on that stays in @p, in bytes and runs of the file. */
static void grow(const struct dcp_plan_iter *it, const struct dcp_piece *p, const uint64_t *at,
		 const uint64_t *stride, struct dcp_seg *s)
{
	uint64_t itemsize = it->tl->t->itemsize;

	s->run = itemsize;
	s->count = 1;
	s->stride = 0;
	for (uint32_t d = it->tl->t->ndim; d-- > 0;) {
		uint64_t region_end = it->lo[d] + it->len[d];
		uint64_t piece_end = p->lo[d] + p->len[d];
		uint64_t n = DCP_MIN(region_end, piece_end) - at[d];
		uint64_t step = stride[d] * itemsize;

		if (n > 1) {
			if (s->count == 1 && step == s->run) {
				s->run *= n;
			} else if (s->count == 1) {
				s->count = n;
				s->stride = step;
			} else if (step == s->count * s->stride) {
				s->count *= n;
			} else {
				return;
			}
		}
		if (n != it->len[d])
			return;
	}
}

bool dcp_plan_next(struct dcp_plan_iter *it, struct dcp_seg *s)
{
	const struct dcp_tensor *t = it->tl->t;
	uint64_t at[DCP_MAX_NDIM], dense[DCP_MAX_NDIM];
	const uint64_t *stride;
	const struct dcp_piece *p;
	uint64_t inside, want, element = 0, volume = 1;

	if (it->pos >= it->end)
		return false;
	locate(it, it->pos / t->itemsize, at);
	inside = it->pos % t->itemsize;
	p = dcp_tiling_find(it->tl, at);
	stride = p->stride;
	if (!stride) {
		for (uint32_t d = t->ndim; d-- > 0; volume *= p->len[d])
			dense[d] = volume;
		stride = dense;
	}
	for (uint32_t d = 0; d < t->ndim; d++)
		element += (at[d] - p->lo[d]) * stride[d];
	grow(it, p, at, stride, s);
	if (p->run_n != volume && !p->stride) { /* a run of the box: dense, and it ends */
		s->run = DCP_MIN(s->run, (p->run_lo + p->run_n - element) * t->itemsize);
		s->count = 1;
		element -= p->run_lo;
	}
	s->piece = p;
	s->off = p->off + element * t->itemsize;

	want = it->end - it->pos;
	if (inside) {
		s->off += inside;
		s->run = DCP_MIN(s->run - inside, want);
		s->count = 1;
	} else if (want < s->run) {
		s->run = want;
		s->count = 1;
	} else {
		s->count = DCP_MIN(s->count, want / s->run);
	}
	it->pos += s->run * s->count;
	return true;
}
