/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box of the tensor is a box of every rank's array: along each dimension the interval goes
 * through the placements that cut it, and becomes an interval of what they leave.
 */
#include "core/model/spread.h"

#include "core/base/base.h"
#include "core/model/spread_int.h"

/* The axes of a box, as far as the walk over parts has come. */
struct walk {
	const struct dcp_spread *s;
	struct spread_hit at[DCP_MAX_NDIM]; /* for the flattening */
	uint32_t axis[DCP_MAX_NDIM], naxis; /* those that are cut, and their hits */
	size_t nhit[DCP_MAX_NDIM];
	dcp_spread_fn fn;
	void *ctx;
};

/* ---- one rank ---- */

/* The interval, after one step at coordinate @i. */
static void narrow(const struct deal *deal, uint32_t i, bool length, struct spread_hit *h)
{
	struct deal_mark mark;

	dcp_deal_mark(deal, h->lo, &mark);
	h->lo = dcp_deal_below(deal, i, &mark);
	dcp_deal_mark(deal, h->hi, &mark);
	h->hi = dcp_deal_below(deal, i, &mark);
	if (length && h->lo < h->hi) {
		dcp_deal_mark(deal, h->len, &mark);
		h->len = dcp_deal_length(deal, i, &mark);
	}
}

uint64_t dcp_spread_count(const struct dcp_spread *s, uint32_t rank,
			  const struct dcp_spread_box *box)
{
	struct spread_hit at[DCP_MAX_NDIM];
	uint64_t n = 1;

	for (uint32_t d = 0; d < s->ndim; d++) {
		const struct spread_axis *a = &s->axis[d];
		struct spread_hit h = { 0, box->lo[d], box->lo[d] + box->len[d], s->shape[d] };

		for (uint32_t k = 0; k < a->nstep && h.lo < h.hi; k++) {
			const struct spread_step *step = &a->step[k];
			struct deal next;

			if (k)
				dcp_deal(&next, step->p, step->parts, h.len);
			narrow(k ? &next : &a->deal, rank / step->stride % step->parts,
			       k + 1 < a->nstep || s->nflat, &h);
		}
		if (h.lo >= h.hi)
			return 0;
		n *= h.hi - h.lo;
		if (s->nflat)
			at[d] = h;
	}
	return s->nflat ? dcp_spread_flat_count(s, rank, at) : n;
}

/* ---- all ranks ---- */

/* The parts of dimension @d that have any of the interval, step by step. */
static size_t hit_parts(const struct dcp_spread *s, const struct spread_axis *a, uint32_t k,
			const struct spread_hit *in, size_t n)
{
	const struct spread_step *step = &a->step[k];
	bool last = k + 1 == a->nstep, length = !last || s->nflat;
	const struct deal *deal = &a->deal;
	struct deal_mark lo, hi, all;
	struct deal next;
	uint32_t i, end;

	if (k) {
		dcp_deal(&next, step->p, step->parts, in->len);
		deal = &next;
	}
	dcp_deal_mark(deal, in->lo, &lo);
	dcp_deal_mark(deal, in->hi, &hi);
	if (length)
		dcp_deal_mark(deal, in->len, &all);
	for (dcp_deal_parts(deal, in->lo, in->hi, &i, &end); i < end; i++) {
		struct spread_hit h = { .first = in->first + i * step->stride };

		if (!step->has[i])
			continue;
		h.lo = dcp_deal_below(deal, i, &lo);
		h.hi = dcp_deal_below(deal, i, &hi);
		if (h.lo >= h.hi)
			continue;
		if (length)
			h.len = dcp_deal_length(deal, i, &all);
		if (last)
			a->hit[n++] = h;
		else
			n = hit_parts(s, a, k + 1, &h, n);
	}
	return n;
}

/* Of the axes from @k on: every hit of one with every hit of the others. */
static void product(struct walk *w, uint32_t k, uint32_t first, uint64_t n)
{
	const struct dcp_spread *s = w->s;
	const struct spread_hit *hit, *end;

	if (k == w->naxis) {
		if (s->nflat)
			dcp_spread_flat_meet(s, first, w->at, w->fn, w->ctx);
		else
			w->fn(w->ctx, first, n);
		return;
	}
	hit = s->axis[w->axis[k]].hit;
	end = hit + w->nhit[k];
	if (k + 1 == w->naxis && !s->nflat) {
		for (; hit < end; hit++)
			w->fn(w->ctx, first + hit->first, n * (hit->hi - hit->lo));
		return;
	}
	for (; hit < end; hit++) {
		if (s->nflat)
			w->at[w->axis[k]] = *hit;
		product(w, k + 1, first + hit->first, n * (hit->hi - hit->lo));
	}
}

void dcp_spread_meet(const struct dcp_spread *s, const struct dcp_spread_box *box,
		     dcp_spread_fn fn, void *ctx)
{
	struct walk w;
	uint64_t n = 1;

	w.s = s;
	w.naxis = 0;
	w.fn = fn;
	w.ctx = ctx;
	if (!s->ncopies)
		return;
	for (uint32_t d = 0; d < s->ndim; d++) {
		struct spread_hit h = { 0, box->lo[d], box->lo[d] + box->len[d], s->shape[d] };

		if (h.lo >= h.hi)
			return;
		if (!s->axis[d].nstep) {
			n *= h.hi - h.lo;
			if (s->nflat)
				w.at[d] = h;
			continue;
		}
		w.nhit[w.naxis] = hit_parts(s, &s->axis[d], 0, &h, 0);
		if (!w.nhit[w.naxis])
			return;
		w.axis[w.naxis++] = d;
	}
	product(&w, 0, s->base, n);
}

/* ---- who ---- */

const uint32_t *dcp_spread_copies(const struct dcp_spread *s, uint32_t *n)
{
	*n = s->ncopies;
	return s->copies;
}

bool dcp_spread_is_complete(const struct dcp_spread *s)
{
	return s->complete;
}

uint32_t dcp_spread_first(const struct dcp_spread *s, uint32_t rank)
{
	const struct dcp_mesh *mesh = dcp_layout_mesh(s->l);
	uint32_t first = s->base;

	if (!s->ncopies || rank >= dcp_layout_ranks(s->l))
		return UINT32_MAX;
	for (uint32_t d = 0; d < mesh->ndim; d++) {
		uint32_t at = rank / s->stride[d] % mesh->size[d];

		if (!s->has[d][at])
			return UINT32_MAX;
		if (s->cutting >> d & 1)
			first += at * s->stride[d];
	}
	return first;
}
