/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays that are flattened and cut once more. A box of an array is one run of its flattening
 * or many of them; how many of its elements come before a place of the flattening has a
 * closed form all the same.
 */
#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/model/layout/spread/spread_int.h"

struct run {
	uint64_t lo, n, pad; /* zeros after it */
};

/* The box in the flattening: from the first of its elements to after the last. */
struct flattened {
	const struct spread_range *at;
	uint32_t ndim;
	uint64_t lo, hi, all;
	bool solid; /* it has all that is between them */
};

static void flatten(const struct dcp_spread *s, const struct spread_range *at,
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

/* How many elements of the box come before place @x? */
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
	for (uint32_t d = f->ndim; d-- > 0;) { /* from inside: all of it, none, or as it was */
		const struct spread_range *h = &f->at[d];
		uint64_t before = DCP_MIN(DCP_MAX(i[d], h->lo), h->hi) - h->lo;

		n = before * inner + (i[d] >= h->lo && i[d] < h->hi ? n : 0);
		inner *= h->hi - h->lo;
	}
	return n;
}

static uint64_t count(const struct flattened *f, const struct run *r)
{
	return in_front(f, r->lo + r->n) - in_front(f, r->lo);
}

/* Elements a part, zeros counted. Fits: dcp_spread_set() saw it. */
static uint64_t each(const struct spread_step *step, const struct run *r)
{
	uint64_t c = dcp_div_up(r->n + r->pad, step->parts), m = step->p->arg;

	return m > 1 ? dcp_div_up(c, m) * m : c;
}

static struct run part(const struct spread_step *step, const struct run *r, uint64_t c,
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

uint64_t dcp_spread_flat_count(const struct dcp_spread *s, uint32_t rank,
			       const struct spread_range *at)
{
	struct flattened f;
	struct run r = { 0 };

	flatten(s, at, &f);
	r.n = f.all;
	for (uint32_t k = 0; k < s->nflat && r.n; k++) {
		const struct spread_step *step = &s->flat[k];

		r = part(step, &r, each(step, &r), rank / step->stride % step->parts);
	}
	return count(&f, &r);
}

/* How many parts from @i on are full, and lie in the box with all they have? */
static uint32_t full_parts(const struct flattened *f, const struct run *r, uint64_t c,
			   uint32_t i)
{
	uint64_t end = DCP_MIN(f->hi, r->lo + r->n) - r->lo, lo = c * i;

	return f->solid && r->lo + lo >= f->lo ? (uint32_t)((end - lo) / c) : 0;
}

static void meet(struct spread_walk *w, uint32_t k, const struct flattened *f,
		 const struct run *r)
{
	const struct spread_step *step = &w->s->flat[k];
	uint64_t c = each(step, r), lo = DCP_MAX(f->lo, r->lo);
	uint64_t hi = DCP_MIN(f->hi, r->lo + r->n);
	struct dcp_spread_hit before = w->hit;
	bool last = k + 1 == w->s->nflat;
	uint32_t i, next, end;

	if (lo >= hi)
		return;
	end = (uint32_t)((hi - 1 - r->lo) / c) + 1;
	for (i = (uint32_t)((lo - r->lo) / c); i < end; i = next) {
		struct run mine = part(step, r, c, i);
		uint32_t alike = last ? full_parts(f, r, c, i) : 1;

		next = i + DCP_MAX(alike, 1u);
		if (!dcp_spread_step(w, step, i, &next))
			continue;
		w->hit.n = count(f, &mine);
		if (!last)
			meet(w, k + 1, f, &mine);
		else if (w->hit.n)
			w->fn(w->ctx, &w->hit);
		w->hit = before;
	}
}

void dcp_spread_flat_meet(struct spread_walk *w)
{
	struct flattened f;
	struct run all = { 0 };

	flatten(w->s, w->at, &f);
	all.n = f.all;
	meet(w, 0, &f, &all);
}
