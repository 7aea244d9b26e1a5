/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a spread from a rule, and checks which shapes it can cut. */
#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/model/layout/spread/spread.h"

enum { CUT_MEMORY = 256 << 20 }; /* of one rank's cut */

/* ---- who has the key ---- */

/* Coordinates outside of all ranges do not have the key; ranges of one mesh dimension are
 * alternatives. */
static void keep_ranges(struct dcp_spread *s, const struct place *p)
{
	const struct dcp_mesh *mesh = dcp_layout_mesh(s->l);

	for (size_t i = 0, next; i < p->nrange; i = next) {
		uint32_t dim = p->range[i].mesh_dim;

		for (next = i; next < p->nrange && p->range[next].mesh_dim == dim;)
			next++;
		for (uint32_t at = 0; at < mesh->size[dim]; at++) {
			bool hit = false;

			for (size_t k = i; k < next && !hit; k++)
				hit = dcp_layout_range_has(s->l, &p->range[k], at);
			s->has[dim][at] &= hit;
		}
	}
}

static void keep_stage(struct dcp_spread *s, const struct place *p, uint64_t number)
{
	uint32_t parts = dcp_layout_mesh(s->l)->size[p->mesh_dim];

	if (number >= p->arg || !dcp_deal_fits(p, parts, p->arg)) {
		s->odd = true;
		return;
	}
	for (uint32_t i = 0; i < parts; i++) {
		struct slice part;
		char why[128];

		dcp_layout_part(p->split, p, parts, i, p->arg, &part, why, sizeof(why));
		s->has[p->mesh_dim][i] &= number >= part.lo && number - part.lo < part.n;
	}
}

static void find_holders(struct dcp_spread *s, const struct rule *r)
{
	size_t nstage = 0;

	for (uint32_t i = 0; i < r->nplace; i++) {
		const struct place *p = &s->l->place[r->place + i];

		if (p->kind == PLACE_ONLY)
			keep_ranges(s, p);
		else if (p->kind == PLACE_STAGE)
			keep_stage(s, p, s->rule.stage[nstage++]);
	}
}

/* ---- who holds what ---- */

static struct spread_step step_of(const struct dcp_spread *s, const struct place *p)
{
	uint32_t size = dcp_layout_mesh(s->l)->size[p->mesh_dim];
	const bool *has = s->has[p->mesh_dim];

	return (struct spread_step){ p, size, s->stride[p->mesh_dim], has,
				     !memchr(has, false, size) };
}

/* Write the steps of an axis, or of the flattening (@dim LAYOUT_DIM_NONE), to @out; returns their
 * number. */
static uint32_t find_steps(struct dcp_spread *s, const struct rule *r, int dim,
			   struct spread_step *out)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < r->nplace; i++) {
		const struct place *p = &s->l->place[r->place + i];
		int of;

		if (p->kind == PLACE_ONLY || p->kind == PLACE_STAGE)
			continue;
		if (p->kind == PLACE_FLAT)
			of = p->optional && s->ndim == 0 ? LAYOUT_DIM_WHOLE : LAYOUT_DIM_NONE;
		else
			of = dcp_layout_dim(p, s->ndim);
		if (p->kind != PLACE_FLAT && of == LAYOUT_DIM_NONE)
			s->odd = true;
		else if (of == dim)
			out[n++] = step_of(s, p);
	}
	for (uint32_t k = 0; k < n; k++)
		s->cutting |= 1u << out[k].p->mesh_dim;
	return n;
}

static int make_steps(struct dcp_spread *s, const struct rule *r, struct dcp_arena *arena)
{
	struct spread_step *step = dcp_arena_calloc(arena, r->nplace, sizeof(*step));

	s->axis = dcp_arena_calloc(arena, s->ndim, sizeof(*s->axis));
	if (!step || !s->axis)
		return -ENOMEM;
	for (uint32_t d = 0; d < s->ndim; d++) {
		s->axis[d].step = step;
		s->axis[d].nstep = find_steps(s, r, (int)d, step);
		step += s->axis[d].nstep;
	}
	s->flat = step;
	s->nflat = find_steps(s, r, LAYOUT_DIM_NONE, step);
	return 0;
}

/* Write each offset once for each of the @n coordinates that have the key, in order. */
static uint32_t multiply_copies(uint32_t *copies, uint32_t n, const bool *has, uint32_t size,
				uint32_t stride)
{
	uint32_t with = 0;

	for (uint32_t i = 0; i < size; i++)
		with += has[i];
	for (uint32_t j = n; j-- > 0;) {
		uint32_t offset = copies[j], k = (j + 1) * with;

		for (uint32_t i = size; i-- > 0;)
			if (has[i])
				copies[--k] = offset + i * stride;
	}
	return n * with;
}

/* The ranks of the first part: the ranks that differ only in mesh dimensions that cut nothing. */
static int make_copies(struct dcp_spread *s, struct dcp_arena *arena)
{
	const struct dcp_mesh *mesh = dcp_layout_mesh(s->l);
	uint32_t room = 1, n = 1;
	bool held = !s->odd;

	for (uint32_t d = 0; d < mesh->ndim; d++)
		room *= s->cutting >> d & 1 ? 1 : mesh->size[d];
	s->copies = dcp_arena_calloc(arena, room, sizeof(*s->copies));
	if (!s->copies)
		return -ENOMEM;
	s->complete = true;
	for (uint32_t d = 0; d < mesh->ndim; d++) {
		const bool *gap = memchr(s->has[d], false, mesh->size[d]);

		held = held && memchr(s->has[d], true, mesh->size[d]);
		if (s->cutting >> d & 1)
			s->complete = s->complete && !gap;
		else
			n = multiply_copies(s->copies, n, s->has[d], mesh->size[d],
					    s->stride[d]);
	}
	s->ncopies = held ? n : 0;
	s->complete = s->complete && held;
	s->base = s->ncopies ? s->copies[0] : 0;
	for (uint32_t i = 0; i < s->ncopies; i++)
		s->copies[i] -= s->base;
	return 0;
}

/* At first all ranks have the key. */
static int make_mesh(struct dcp_spread *s, struct dcp_arena *arena)
{
	const struct dcp_mesh *mesh = dcp_layout_mesh(s->l);
	uint32_t stride = 1;

	s->has = dcp_arena_calloc(arena, mesh->ndim, sizeof(*s->has));
	s->stride = dcp_arena_calloc(arena, mesh->ndim, sizeof(*s->stride));
	if (!s->has || !s->stride)
		return -ENOMEM;
	for (uint32_t d = mesh->ndim; d-- > 0; stride *= mesh->size[d]) {
		s->has[d] = dcp_arena_alloc(arena, mesh->size[d]);
		if (!s->has[d])
			return -ENOMEM;
		memset(s->has[d], true, mesh->size[d]);
		s->stride[d] = stride;
	}
	return 0;
}

int dcp_spread_make(const struct dcp_layout *l, const struct dcp_layout_rule *rule,
		    uint32_t ndim, struct dcp_arena *arena, struct dcp_spread **out)
{
	struct dcp_spread *s = dcp_arena_calloc(arena, 1, sizeof(*s));
	const struct rule *r = &l->rule[rule->number];
	int rc;

	if (!s)
		return -ENOMEM;
	*s = (struct dcp_spread){ .l = l, .rule = *rule, .ndim = ndim };
	*out = s;
	s->odd = rule->number >= l->nrule || ndim > DCP_MAX_NDIM;
	if (s->odd || r->drop)
		return 0;
	rc = make_mesh(s, arena);
	if (rc < 0)
		return rc;
	find_holders(s, r);
	rc = make_steps(s, r, arena);
	return rc < 0 ? rc : make_copies(s, arena);
}

/* ---- shapes ---- */

static bool may_refuse(const struct place *p)
{
	return p->grouped || p->split == SPLIT_EVEN || p->split == SPLIT_LAST ||
	       p->split == SPLIT_SIZES;
}

/* The length of an array, or of a flattened array, after some steps. */
struct length {
	uint64_t n; /* the longest */
	bool same;  /* the length is the same on all ranks */
};

/* Can all ranks do these steps? If lengths differ, a placement that may refuse counts as unsure.
 * @spans: increased by an upper limit of the spans of a rank. */
static bool axis_is_sure(const struct spread_axis *a, struct length *len, uint64_t *spans)
{
	for (uint32_t k = 0; k < a->nstep; k++) {
		const struct place *p = a->step[k].p;
		uint32_t parts = a->step[k].parts;
		uint64_t each;

		if (may_refuse(p) && (!len->same || !dcp_deal_fits(p, parts, len->n)))
			return false;
		if (dcp_ckd_add(spans, *spans, dcp_deal_slices(p, parts, len->n)))
			return false;
		len->same = len->same && dcp_deal_same(p, parts, len->n, &each);
		if (len->same)
			len->n = each;
	}
	return true;
}

static bool flat_is_sure(const struct dcp_spread *s, struct length len)
{
	for (uint32_t k = 0; k < s->nflat; k++) {
		const struct place *p = s->flat[k].p;
		uint32_t parts = s->flat[k].parts;

		if (p->split == SPLIT_EVEN && (!len.same || len.n % parts != 0))
			return false;
		if (p->split == SPLIT_TIGHT)
			len.same = len.same && len.n % parts == 0;
		len.n = dcp_div_up(len.n, parts);
		if (p->arg > 1 && dcp_ckd_mul(&len.n, dcp_div_up(len.n, p->arg), p->arg))
			return false;
	}
	return true;
}

static bool is_sure(const struct dcp_spread *s, const uint64_t *shape)
{
	struct length all = { 1, true };
	uint64_t spans = 0;

	if (s->odd || !s->axis)
		return !s->odd;
	for (uint32_t d = 0; d < s->ndim; d++) {
		struct length len = { shape[d], true };

		spans++;
		if (!axis_is_sure(&s->axis[d], &len, &spans))
			return false;
		if (s->nflat && dcp_ckd_mul(&all.n, all.n, len.n))
			return false;
		all.same = all.same && len.same;
	}
	return spans <= DCP_LAYOUT_MAX_SPANS && flat_is_sure(s, all);
}

/* Try one rank after the other: the first that fails gives the reason. */
static int try_ranks(const struct dcp_spread *s, const char *key, const uint64_t *shape,
		     struct dcp_err *err)
{
	struct dcp_layout_rule rule = s->rule;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(CUT_MEMORY);
	int rc = 0;

	rule.key = key;
	for (uint32_t r = 0; rc >= 0 && r < s->l->nranks; r++) {
		struct dcp_cut cut;

		dcp_arena_reset(&arena);
		rc = dcp_layout_cut_by_rule(s->l, &rule, r, s->ndim, shape, &arena, &cut, err);
	}
	return DCP_MIN(rc, 0);
}

int dcp_spread_set(struct dcp_spread *s, const char *key, const uint64_t *shape,
		   struct dcp_err *err)
{
	int rc = is_sure(s, shape) ? 0 : try_ranks(s, key, shape, err);

	s->shape = shape;
	for (uint32_t d = 0; rc == 0 && s->ncopies && d < s->ndim; d++)
		if (s->axis[d].nstep)
			dcp_deal(&s->axis[d].deal, s->axis[d].step->p, s->axis[d].step->parts,
				 shape[d]);
	return rc;
}
