/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/format/deepspeed/deepspeed_int.h"

/* Ranks of a stage are numbered through its tensor-parallel ranks first. */
struct dcp_ds_slice dcp_ds_slice(const struct dcp_ds *ds, const struct dcp_ds_part *part,
				 const struct dcp_ds_group *g, uint64_t k)
{
	uint64_t rank = g->base + k % g->count * g->step;
	struct dcp_ds_slice s = { .dp = (uint32_t)DCP_MIN(rank / g->lanes, UINT32_MAX),
				  .flat = g->flat + (uint32_t)(k / g->count) };

	s.mp = part->mp - part->mp % g->lanes + (uint32_t)(rank % g->lanes);
	if (g->lanes == 1)
		s.mp = part->mp;
	s.part = s.mp == part->mp ? part : dcp_ds_part_of(ds, s.mp);
	return s;
}

uint64_t dcp_ds_lean(const struct dcp_ds_group *g, uint64_t k)
{
	uint64_t before;

	if (dcp_ckd_mul(&before, k, g->slice) || before >= g->numel)
		return 0;
	return DCP_MIN(g->numel - before, g->slice);
}

/* ---- how long slices are ---- */

/* What the files say: the longest, and how many fit two lengths. */
struct lengths {
	struct dcp_ds_group a, b; /* the same group, of those slices */
	size_t fit_a, fit_b;
	uint64_t longest;
};

static bool fits(const struct dcp_ds_group *g, uint64_t k, uint64_t n)
{
	return n == g->slice || n == dcp_ds_lean(g, k);
}

/* The master weights that one file has of the group. */
static void look_at(struct lengths *l, const struct dcp_ds_rank *r, uint64_t rank)
{
	const struct dcp_ds_group *g = &l->a;

	if (r->why || rank < g->base || (rank - g->base) % g->step ||
	    (rank - g->base) / g->step >= g->count)
		return;
	for (uint32_t w = 0; w < g->waves; w++) {
		const struct dcp_ds_place *p = &r->place[(size_t)(g->flat + w) * r->nstates];
		uint64_t k = (rank - g->base) / g->step + (uint64_t)w * g->count;

		if (!p->there)
			continue;
		l->longest = DCP_MAX(l->longest, p->n);
		l->fit_a += fits(&l->a, k, p->n);
		l->fit_b += fits(&l->b, k, p->n);
	}
}

static void look_at_all(struct lengths *l, const struct dcp_ds *ds,
			const struct dcp_ds_part *part)
{
	uint32_t lanes = l->a.lanes, first = part->mp - part->mp % lanes;

	for (uint32_t lane = 0; lane < lanes; lane++) {
		const struct dcp_ds_part *p =
			lanes == 1 ? part : dcp_ds_part_of(ds, first + lane);

		/* nothing is known of an optimizer with other groups */
		for (size_t i = 0; p && p->nflat == part->nflat && i < p->nranks; i++)
			look_at(l, &p->rank[i],
				(uint64_t)p->rank[i].name->dp * lanes + (lanes > 1 ? lane : 0));
	}
}

/* The length of slices that fits most files. */
static void find_slice(const struct dcp_ds *ds, const struct dcp_ds_part *part,
		       struct dcp_ds_group *g, bool usual)
{
	uint64_t unit = 2 * (uint64_t)g->count, room;
	struct lengths l = { .a = *g, .b = *g };

	l.a.slice = l.b.slice = dcp_div_up(g->numel, unit) * 2;
	g->slice = l.a.slice;
	look_at_all(&l, ds, part);
	if (l.longest == g->slice && usual)
		return;
	l = (struct lengths){ .a = l.a, .b = l.b, .longest = l.longest };
	l.b.slice = l.longest;
	look_at_all(&l, ds, part);
	if (!dcp_ckd_mul(&room, l.longest, g->count) && !dcp_ckd_mul(&room, room, g->waves) &&
	    room >= g->numel && (!usual || l.fit_b > l.fit_a))
		g->slice = l.longest;
}

/* Consecutive parameters, with the gaps that were recorded. */
static void place_whole(struct dcp_ds_laying *l, const struct dcp_ds_list *list,
			struct dcp_ds_group *g, struct dcp_ds_param *p, size_t n)
{
	uint64_t end = 0;

	if (list->gap && list->ngap != n)
		g->why = dcp_ds_text(l->ds,
				     "%s has %" PRIu32
				     " param_alignment_paddings for group %" PRIu32
				     ", which has %zu parameters",
				     l->part->first->name, list->ngap, list->flat, n);
	for (size_t i = 0; !g->why && i < n; i++) {
		p[i].off = end;
		if (dcp_ckd_add(&end, end, p[i].numel) ||
		    (list->gap && dcp_ckd_add(&end, end, list->gap[i])) || end > INT64_MAX / 16)
			g->why = "the sum of its group's sizes is invalid";
	}
	g->numel = end;
}

/* Stage 3: consecutive slices of parameters. */
static void place_slices(struct dcp_ds_group *g, struct dcp_ds_param *p, size_t n)
{
	g->numel = 0;
	for (size_t i = 0; i < n; i++) {
		p[i].off = g->numel;
		g->numel += dcp_div_up(p[i].numel, g->count); /* each is below 2^59 */
		if (g->numel > INT64_MAX / 16) {
			g->why = "the sum of its group's sizes is invalid";
			g->numel = 0;
		}
	}
	g->slice = g->numel;
}

void dcp_ds_place_params(struct dcp_ds_laying *l, const struct dcp_ds_list *list,
			 struct dcp_ds_group *g, struct dcp_ds_param *p, size_t n)
{
	if (l->part->stage == 3) {
		place_slices(g, p, n);
		return;
	}
	place_whole(l, list, g, p, n);
	find_slice(l->ds, l->part, g, list->waves == 1);
}

int dcp_ds_add_group(struct dcp_ds_laying *l, const struct dcp_ds_group *g,
		     struct dcp_ds_param *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i].group = (uint32_t)l->ngroups;
	dcp_buf_add(&l->groups, g, sizeof(*g));
	dcp_buf_add(&l->params, p, n * sizeof(*p));
	l->ngroups++;
	return dcp_buf_error(&l->groups) || dcp_buf_error(&l->params) ? -ENOMEM : 0;
}
