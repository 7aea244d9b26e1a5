/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step: find the piece of the element at the current position, then grow from the last
 * dimension outward. While neighbours are dense the run grows; the first stride that is not
 * starts a series of runs; a second one ends the step. A dimension may be left behind only
 * when the array's whole row of it was covered, or the destination would have a gap.
 */
#include "core/model/geometry/plan.h"

#include "core/base/base.h"
#include "core/model/geometry/tiling.h"

void dcp_plan_start(struct dcp_plan_iter *it, const struct dcp_tiling *tl,
		    const struct dcp_cut *cut, uint64_t off, uint64_t n)
{
	uint64_t itemsize = tl->t->itemsize, e;

	it->tl = tl;
	it->cut = cut;
	it->left = n;
	it->zeros = 0;
	if (cut->flat) {
		uint64_t data = cut->flat_n * itemsize;

		it->left = off < data ? DCP_MIN(n, data - off) : 0;
		it->zeros = n - it->left;
		off += cut->flat_lo * itemsize;
	}
	if (it->left == 0)
		return;
	it->padded = dcp_cut_is_padded(cut);
	it->inside = off % itemsize;
	e = off / itemsize;
	for (uint32_t d = cut->ndim; d-- > 0; e /= cut->axis[d].len) {
		it->index[d] = e % cut->axis[d].len;
		it->span[d] = cut->axis[d].span;
		it->cell[d] = 0;
	}
}

/*
 * How many elements follow each other in the tensor along one dimension: from @i, in span @s,
 * at most @most. Neighbouring spans that continue each other count as one.
 */
static uint64_t follow(const struct dcp_axis *a, const struct dcp_span *s, uint64_t i,
		       uint64_t most)
{
	uint64_t n = s->at + s->n - i;

	while (n < most && s + 1 < a->span + a->n && s[1].lo == s->lo + s->n)
		n += (++s)->n;
	return DCP_MIN(n, most);
}

/* Longest series from @at on that stays in @p, in bytes and runs of the file. */
static void grow(const struct dcp_plan_iter *it, const struct dcp_piece *p, const uint64_t *at,
		 struct dcp_seg *s)
{
	uint64_t itemsize = it->tl->t->itemsize, dense = itemsize;

	s->run = itemsize;
	s->count = 1;
	s->stride = 0;
	for (uint32_t d = it->cut->ndim; d-- > 0; dense *= p->len[d]) {
		const struct dcp_axis *a = &it->cut->axis[d];
		uint64_t step = p->stride ? p->stride[d] * itemsize : dense;
		uint64_t room = DCP_MIN(p->lo[d] + p->len[d] - at[d], a->len - it->index[d]);
		uint64_t n = it->span[d]->at + it->span[d]->n - it->index[d];

		if (n > room)
			n = room;
		else if (n < room)
			n = follow(a, it->span[d], it->index[d],
				   DCP_MIN(room, it->left / s->run + 1));
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
		if (n != a->len)
			return;
	}
}

/* Move @n elements on in the array. */
static void advance(struct dcp_plan_iter *it, uint64_t n)
{
	for (uint32_t d = it->cut->ndim; n && d-- > 0;) {
		uint64_t len = it->cut->axis[d].len, i = it->index[d] + n;

		n = i < len ? 0 : i == len ? 1 : i / len;
		it->index[d] = i - n * len;
	}
}

static bool next_zeros(struct dcp_plan_iter *it, struct dcp_seg *s)
{
	*s = (struct dcp_seg){ .run = it->zeros, .count = 1 };
	it->zeros = 0;
	return s->run != 0;
}

/* Elements from the current one on that lie in the zeros after the spans of one axis. */
static uint64_t zeros_here(const struct dcp_plan_iter *it)
{
	uint64_t inner = 1, before = 0, n = 0;

	for (uint32_t d = it->cut->ndim; d-- > 0;) {
		const struct dcp_axis *a = &it->cut->axis[d];

		if (it->index[d] >= dcp_axis_filled(a))
			n = (a->len - it->index[d]) * inner - before;
		before += it->index[d] * inner;
		inner *= a->len;
	}
	return n;
}

static bool skip_zeros(struct dcp_plan_iter *it, uint64_t n, struct dcp_seg *s)
{
	uint64_t itemsize = it->tl->t->itemsize;

	*s = (struct dcp_seg){ .run = DCP_MIN(n * itemsize - it->inside, it->left),
			       .count = 1 };
	it->left -= s->run;
	if (it->left)
		advance(it, n);
	it->inside = 0;
	return true;
}

bool dcp_plan_next(struct dcp_plan_iter *it, struct dcp_seg *s)
{
	uint64_t itemsize = it->tl->t->itemsize, element = 0, volume = 1, emitted;
	uint32_t ndim = it->cut->ndim;
	uint64_t at[DCP_MAX_NDIM];
	const struct dcp_piece *p;

	if (it->left == 0)
		return next_zeros(it, s);
	if (it->padded && (volume = zeros_here(it)) != 0)
		return skip_zeros(it, volume, s);
	volume = 1;
	for (uint32_t d = 0; d < ndim; d++) {
		it->span[d] = dcp_axis_find(&it->cut->axis[d], it->index[d], it->span[d]);
		at[d] = it->span[d]->lo + (it->index[d] - it->span[d]->at);
	}
	p = dcp_tiling_walk(it->tl, at, it->cell);
	grow(it, p, at, s);
	if (p->stride) {
		for (uint32_t d = 0; d < ndim; d++)
			element += (at[d] - p->lo[d]) * p->stride[d];
	} else {
		for (uint32_t d = 0; d < ndim; d++) {
			element = element * p->len[d] + (at[d] - p->lo[d]);
			volume *= p->len[d];
		}
		if (p->run_n != volume) { /* a run of the box: dense, and it ends */
			s->run = DCP_MIN(s->run, (p->run_lo + p->run_n - element) * itemsize);
			s->count = 1;
			element -= p->run_lo;
		}
	}
	s->piece = p;
	s->off = p->off + element * itemsize;

	if (it->inside) {
		s->off += it->inside;
		s->run = DCP_MIN(s->run - it->inside, it->left);
		s->count = 1;
	} else if (it->left < s->run) {
		s->run = it->left;
		s->count = 1;
	} else if (s->count > 1) {
		s->count = DCP_MIN(s->count, it->left / s->run);
	}
	emitted = s->run * s->count;
	it->left -= emitted;
	if (it->left) /* so the segment ends with an element */
		advance(it, (it->inside + emitted) / itemsize);
	it->inside = 0;
	return true;
}
