/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box of the tensor is a box of every rank's array: along each dimension the interval goes
 * through the placements that cut it, and becomes an interval of what they leave.
 */

#include "core/model/layout/spread/spread_int.h"

/* ---- one rank ---- */

/* The interval, after one step at coordinate @i. */
static void narrow(const struct deal *deal, uint32_t i, bool length, struct spread_range *h)
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
	struct spread_range at[DCP_MAX_NDIM];
	uint64_t n = 1;

	for (uint32_t d = 0; d < s->ndim; d++) {
		const struct spread_axis *a = &s->axis[d];
		struct spread_range h = { box->lo[d], box->lo[d] + box->len[d], s->shape[d] };

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

static void walk_axis(struct spread_walk *w, uint32_t d);

/* Step @k of dimension @d: coordinates that leave as much are walked as one. */
static void walk_step(struct spread_walk *w, uint32_t d, uint32_t k,
		      const struct spread_range *in)
{
	const struct spread_axis *a = &w->s->axis[d];
	const struct spread_step *step = &a->step[k];
	bool length = k + 1 < a->nstep || w->s->nflat;
	struct dcp_spread_hit before = w->hit;
	const struct deal *deal = &a->deal;
	struct deal_mark mark[3];
	struct deal next;

	if (k) {
		dcp_deal(&next, step->p, step->parts, in->len);
		deal = &next;
	}
	dcp_deal_mark(deal, in->lo, &mark[0]);
	dcp_deal_mark(deal, in->hi, &mark[1]);
	if (length)
		dcp_deal_mark(deal, in->len, &mark[2]);
	for (uint32_t i = 0, end; i < step->parts; i = end) {
		struct spread_range h = { .lo = dcp_deal_below(deal, i, &mark[0]),
					  .hi = dcp_deal_below(deal, i, &mark[1]) };

		end = dcp_deal_alike(deal, i, mark, length ? 3 : 2);
		if (h.lo >= h.hi || !dcp_spread_step(w, step, i, &end))
			continue;
		if (length)
			h.len = dcp_deal_length(deal, i, &mark[2]);
		w->hit.n *= k + 1 == a->nstep ? h.hi - h.lo : 1;
		w->at[d] = h;
		if (k + 1 == a->nstep)
			walk_axis(w, d + 1);
		else
			walk_step(w, d, k + 1, &h);
		w->hit = before;
	}
}

/* Dimension @d and those after it, and the flattening. */
static void walk_axis(struct spread_walk *w, uint32_t d)
{
	const struct dcp_spread *s = w->s;

	for (; d < s->ndim; d++) {
		struct spread_range h = { w->box->lo[d], w->box->lo[d] + w->box->len[d],
					  s->shape[d] };

		if (h.lo >= h.hi)
			return;
		if (s->axis[d].nstep) {
			walk_step(w, d, 0, &h);
			return;
		}
		w->at[d] = h;
		w->hit.n *= h.hi - h.lo;
	}
	if (s->nflat)
		dcp_spread_flat_meet(w);
	else
		w->fn(w->ctx, &w->hit);
}

void dcp_spread_meet(const struct dcp_spread *s, const struct dcp_spread_box *box,
		     dcp_spread_fn fn, void *ctx)
{
	struct spread_walk w;

	w.s = s;
	w.hit.n = 1;
	w.hit.first = s->base;
	w.hit.ndim = 0;
	w.box = box;
	w.fn = fn;
	w.ctx = ctx;
	if (s->ncopies)
		walk_axis(&w, 0);
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
