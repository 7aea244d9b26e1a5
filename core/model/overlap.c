/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/overlap.h"

#include "core/base/base.h"

#define BEHIND UINT64_MAX /* a coordinate behind all of the tensor's */

bool dcp_cut_ascends(const struct dcp_cut *cut)
{
	for (uint32_t d = 0; d < cut->ndim; d++)
		for (size_t i = 1; i < cut->axis[d].n; i++) {
			const struct dcp_span *s = &cut->axis[d].span[i];

			if (s->lo < s[-1].lo + s[-1].n)
				return false;
		}
	return true;
}

/* How many places of the axis have a coordinate below @x. */
static uint64_t below(const struct dcp_axis *a, uint64_t x)
{
	size_t lo = 0, hi = a->n;
	const struct dcp_span *s;

	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;

		if (a->span[mid].lo <= x)
			lo = mid;
		else
			hi = mid;
	}
	if (a->n == 0 || x < a->span[lo].lo)
		return 0;
	s = &a->span[lo];
	return s->at + DCP_MIN(x - s->lo, s->n);
}

/* Coordinates below @end that both axes have. */
static uint64_t shared(const struct dcp_axis *a, const struct dcp_axis *b, uint64_t end)
{
	uint64_t n = 0;

	if (a->n == 1 && b->n == 1) {
		uint64_t lo = DCP_MAX(a->span->lo, b->span->lo);
		uint64_t hi = DCP_MIN(a->span->lo + a->span->n, b->span->lo + b->span->n);

		hi = DCP_MIN(hi, end);
		return lo < hi ? hi - lo : 0;
	}
	if (a->n < b->n) {
		const struct dcp_axis *few = a;

		a = b;
		b = few;
	}
	for (size_t i = 0; i < b->n && b->span[i].lo < end; i++)
		n += below(a, DCP_MIN(b->span[i].lo + b->span[i].n, end)) -
		     below(a, b->span[i].lo);
	return n;
}

/* Where in the tensor element @e of the array lies, as coordinates that order as elements do:
 * padding, and what is behind the array, lies behind all of the tensor. */
static void place_of(const struct dcp_cut *cut, uint64_t e, uint64_t *at)
{
	for (uint32_t d = cut->ndim; d-- > 0;) {
		const struct dcp_axis *a = &cut->axis[d];
		uint64_t i = d ? e % a->len : e;
		const struct dcp_span *s;

		e = d ? e / a->len : 0;
		at[d] = BEHIND;
		if (i >= dcp_axis_filled(a))
			continue;
		s = dcp_axis_find(a, i, a->span);
		at[d] = s->lo + (i - s->at);
	}
}

static bool before(const uint64_t *a, const uint64_t *b, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (a[d] != b[d])
			return a[d] < b[d];
	return false;
}

/* Elements of both products, flat or not, in front of the place @at. */
static uint64_t in_front(const struct dcp_cut *a, const struct dcp_cut *b,
			 const uint64_t *inner, const uint64_t *at)
{
	uint64_t n = 0;

	for (uint32_t d = 0; d < a->ndim; d++) {
		uint64_t lower = shared(&a->axis[d], &b->axis[d], at[d]);

		n += lower * inner[d];
		if (at[d] == BEHIND || shared(&a->axis[d], &b->axis[d], at[d] + 1) == lower)
			break;
	}
	return n;
}

/* The later of the beginnings, the earlier of the ends. */
static void limits(const struct dcp_cut *cut, uint64_t *from, uint64_t *to)
{
	uint64_t lo[DCP_MAX_NDIM], hi[DCP_MAX_NDIM];

	if (!cut->flat)
		return;
	place_of(cut, cut->flat_lo, lo);
	place_of(cut, cut->flat_lo + cut->flat_n, hi);
	for (uint32_t d = 0, later = before(from, lo, cut->ndim); later && d < cut->ndim; d++)
		from[d] = lo[d];
	for (uint32_t d = 0, earlier = before(hi, to, cut->ndim); earlier && d < cut->ndim; d++)
		to[d] = hi[d];
}

static bool has_elements(const struct dcp_cut *cut)
{
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (cut->axis[d].n == 0)
			return false;
	return !cut->flat || cut->flat_n != 0;
}

uint64_t dcp_overlap(const struct dcp_cut *a, const struct dcp_cut *b)
{
	uint64_t inner[DCP_MAX_NDIM], n = 1;
	uint64_t from[DCP_MAX_NDIM], to[DCP_MAX_NDIM], first, last;

	if (!has_elements(a) || !has_elements(b))
		return 0;
	for (uint32_t d = a->ndim; d-- > 0;) {
		inner[d] = n;
		n *= shared(&a->axis[d], &b->axis[d], BEHIND);
		if (n == 0)
			return 0;
	}
	if (a->ndim == 0 || (!a->flat && !b->flat))
		return n;
	for (uint32_t d = 0; d < a->ndim; d++) {
		from[d] = 0;
		to[d] = BEHIND;
	}
	limits(a, from, to);
	limits(b, from, to);
	first = in_front(a, b, inner, from);
	last = in_front(a, b, inner, to);
	return first < last ? last - first : 0;
}

uint64_t dcp_cut_held(const struct dcp_cut *cut)
{
	uint64_t n = 1;

	if (cut->flat)
		return dcp_cut_is_padded(cut) ? dcp_overlap(cut, cut) : cut->flat_n;
	for (uint32_t d = 0; d < cut->ndim; d++)
		n *= dcp_axis_filled(&cut->axis[d]);
	return n;
}

void dcp_piece_cut_part(struct dcp_piece_cut *out, const struct dcp_piece *p, uint32_t ndim,
			uint64_t first, uint64_t n)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < ndim; d++) {
		out->span[d] = (struct dcp_span){ 0, p->lo[d], p->len[d] };
		out->axis[d] = (struct dcp_axis){ &out->span[d], p->len[d] != 0, p->len[d] };
		volume *= p->len[d];
	}
	out->cut = (struct dcp_cut){ .ndim = ndim,
				     .axis = out->axis,
				     .flat = n != volume,
				     .flat_lo = p->run_lo + first,
				     .flat_n = n };
}

void dcp_piece_cut(struct dcp_piece_cut *out, const struct dcp_piece *p, uint32_t ndim)
{
	dcp_piece_cut_part(out, p, ndim, 0, p->run_n);
}
