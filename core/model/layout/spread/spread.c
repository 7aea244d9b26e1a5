/* SPDX-License-Identifier: Apache-2.0 */
/* A box of the tensor is a box of the array of every rank: along each dimension the placements turn
 * the interval into an interval of the remaining part. */
#include "core/model/layout/spread/spread.h"

#include "core/base/base.h"
#include "core/base/bytes.h"

/* hit: makes and reads the hits of a walk over ranks. */

/* Add coordinates [@i, *@end) of the next step to the hit, or as many as also have the key. Returns
 * false if they do not have the key. *@end: the end of these coordinates. The caller restores the
 * hit. */
static bool dcp_spread_step(struct spread_walk *w, const struct spread_step *step, uint32_t i,
			    uint32_t *end)
{
	struct dcp_spread_hit *hit = &w->hit;
	bool has = step->has[i];
	uint32_t last = step->all ? *end : i + 1;

	while (last < *end && step->has[last] == has)
		last++;
	*end = last;
	if (!has)
		return false;
	hit->first += i * step->stride;
	if (last - i > 1) {
		hit->dim[hit->ndim].count = last - i;
		hit->dim[hit->ndim++].stride = step->stride;
	}
	return true;
}

uint32_t dcp_spread_parts(const struct dcp_spread_hit *hit)
{
	uint32_t n = 1;

	for (uint32_t k = 0; k < hit->ndim; k++)
		n *= hit->dim[k].count;
	return n;
}

uint32_t dcp_spread_part(const struct dcp_spread_hit *hit, uint32_t i)
{
	uint32_t first = hit->first;

	for (uint32_t k = hit->ndim; k-- > 0; i /= hit->dim[k].count)
		first += i % hit->dim[k].count * hit->dim[k].stride;
	return first;
}

static void add_hit(const struct dcp_spread *s, const struct dcp_spread_hit *hit, uint32_t k,
		    uint32_t first, uint64_t v, uint64_t *sums)
{
	uint32_t count = k < hit->ndim ? hit->dim[k].count : 1;
	uint32_t stride = k < hit->ndim ? hit->dim[k].stride : 0;

	if (k + 1 < hit->ndim || (k < hit->ndim && s->ncopies > 1))
		for (uint32_t i = 0; i < count; i++)
			add_hit(s, hit, k + 1, first + i * stride, v, sums);
	else if (k == hit->ndim)
		for (uint32_t i = 0; i < s->ncopies; i++)
			sums[first + s->copies[i]] += v;
	else
		for (uint32_t i = 0; i < count; i++)
			sums[first + i * stride] += v;
}

void dcp_spread_add(const struct dcp_spread *s, const struct dcp_spread_hit *hit, uint64_t v,
		    uint64_t *sums)
{
	add_hit(s, hit, 0, hit->first, v, sums);
}

/* Arrays that are flattened and cut once more. A box of an array is one or many runs of its
 * flattening. A closed form gives the number of its elements before a place of the flattening. */

struct run {
	uint64_t lo, n, pad; /* zeros after it */
};

/* The box in the flattening: from the first of its elements to after the last. */
struct flattened {
	const struct spread_range *at;
	uint32_t ndim;
	uint64_t lo, hi, all;
	bool solid; /* no other elements lie between the ends */
};

static void flatten_box(const struct dcp_spread *s, const struct spread_range *at,
			struct flattened *out)
{
	uint64_t last = 0, volume = 1;

	*out = (struct flattened){ .at = at, .ndim = s->ndim, .all = 1 };
	for (uint32_t d = 0; d < s->ndim; d++) {
		out->lo = out->lo * at[d].len + at[d].lo;
		last = last * at[d].len + at[d].hi - 1;
		out->all *= at[d].len;
		volume *= at[d].hi - at[d].lo;
	}
	out->hi = last + 1;
	out->solid = out->hi - out->lo == volume;
}

/* The number of elements of the box before position @x. */
static uint64_t in_front(const struct flattened *f, uint64_t x)
{
	uint64_t i[DCP_MAX_NDIM], inner = 1, n = 0;

	x = DCP_MIN(DCP_MAX(x, f->lo), f->hi);
	if (f->solid)
		return x - f->lo;
	for (uint32_t d = f->ndim; d-- > 0;) {
		i[d] = d ? x % f->at[d].len : x;
		x = d ? x / f->at[d].len : 0;
	}
	/* From the innermost: all, none, or the count so far. */
	for (uint32_t d = f->ndim; d-- > 0;) {
		const struct spread_range *h = &f->at[d];
		uint64_t before = DCP_MIN(DCP_MAX(i[d], h->lo), h->hi) - h->lo;

		n = before * inner + (i[d] >= h->lo && i[d] < h->hi ? n : 0);
		inner *= h->hi - h->lo;
	}
	return n;
}

static uint64_t count_elements(const struct flattened *f, const struct run *r)
{
	return in_front(f, r->lo + r->n) - in_front(f, r->lo);
}

/* Elements of a part, zeros included. It fits in 64 bits: dcp_spread_set() checked that. */
static uint64_t count_part(const struct spread_step *step, const struct run *r)
{
	uint64_t c = dcp_div_up(r->n + r->pad, step->parts), m = step->p->arg;

	return m > 1 ? dcp_div_up(c, m) * m : c;
}

static struct run cut_part(const struct spread_step *step, const struct run *r, uint64_t c,
			   uint32_t i)
{
	uint64_t n = r->n + r->pad, lo, filled;

	if (dcp_ckd_mul(&lo, c, i) || lo > n)
		lo = n;
	if (step->p->split == SPLIT_TIGHT)
		c = DCP_MIN(c, n - lo);
	filled = lo < r->n ? DCP_MIN(c, r->n - lo) : 0;
	return (struct run){ r->lo + DCP_MIN(lo, r->n), filled, c - filled };
}

/* The number of elements in the ranges @at of the array, flattened and cut, that @rank holds. */
static uint64_t dcp_spread_flat_count(const struct dcp_spread *s, uint32_t rank,
				      const struct spread_range *at)
{
	struct flattened f;
	struct run r = { 0 };

	flatten_box(s, at, &f);
	r.n = f.all;
	for (uint32_t k = 0; k < s->nflat && r.n; k++) {
		const struct spread_step *step = &s->flat[k];

		r = cut_part(step, &r, count_part(step, &r), rank / step->stride % step->parts);
	}
	return count_elements(&f, &r);
}

/* The number of parts from @i on that are full and entirely inside the box. */
static uint32_t full_parts(const struct flattened *f, const struct run *r, uint64_t c,
			   uint32_t i)
{
	uint64_t end = DCP_MIN(f->hi, r->lo + r->n) - r->lo, lo = c * i;

	return f->solid && r->lo + lo >= f->lo ? (uint32_t)((end - lo) / c) : 0;
}

static void walk_parts(struct spread_walk *w, uint32_t k, const struct flattened *f,
		       const struct run *r)
{
	const struct spread_step *step = &w->s->flat[k];
	uint64_t c = count_part(step, r), lo = DCP_MAX(f->lo, r->lo);
	uint64_t hi = DCP_MIN(f->hi, r->lo + r->n);
	struct dcp_spread_hit before = w->hit;
	bool last = k + 1 == w->s->nflat;
	uint32_t i, next, end;

	if (lo >= hi)
		return;
	end = (uint32_t)((hi - 1 - r->lo) / c) + 1;
	for (i = (uint32_t)((lo - r->lo) / c); i < end; i = next) {
		struct run mine = cut_part(step, r, c, i);
		uint32_t alike = last ? full_parts(f, r, c, i) : 1;

		next = i + DCP_MAX(alike, 1u);
		if (!dcp_spread_step(w, step, i, &next))
			continue;
		w->hit.n = count_elements(f, &mine);
		if (!last)
			walk_parts(w, k + 1, f, &mine);
		else if (w->hit.n)
			w->fn(w->ctx, &w->hit);
		w->hit = before;
	}
}

static void dcp_spread_flat_meet(struct spread_walk *w)
{
	struct flattened f;
	struct run all = { 0 };

	flatten_box(w->s, w->at, &f);
	all.n = f.all;
	walk_parts(w, 0, &f, &all);
}

/* ---- one rank ---- */

/* Turn the interval into that after one step at coordinate @i. */
static void narrow_range(const struct deal *deal, uint32_t i, bool length,
			 struct spread_range *h)
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
			narrow_range(k ? &next : &a->deal, rank / step->stride % step->parts,
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

/* Walk step @k of dimension @d: coordinates that leave the same number of elements are walked as
 * one. */
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

/* Walk dimension @d, the dimensions after it, and the flattened array. */
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
