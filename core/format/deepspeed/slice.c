/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/deepspeed/deepspeed_int.h"

#include <errno.h>
#include <inttypes.h>

#include "core/base/base.h"
#include "core/base/bytes.h"

/* With several lanes, ranks are numbered through the whole stage, tensor-parallel ranks first. */
struct dcp_deepspeed_slice dcp_deepspeed_slice(const struct dcp_deepspeed *ds,
					       const struct dcp_deepspeed_part *part,
					       const struct dcp_deepspeed_group *g, uint64_t k)
{
	uint64_t rank = g->base + k % g->count * g->step;
	struct dcp_deepspeed_slice s = { .dp = (uint32_t)DCP_MIN(rank / g->lanes, UINT32_MAX),
					 .flat = g->flat + (uint32_t)(k / g->count) };

	s.mp = part->mp - part->mp % g->lanes + (uint32_t)(rank % g->lanes);
	if (g->lanes == 1)
		s.mp = part->mp;
	s.part = s.mp == part->mp ? part : dcp_deepspeed_part_of(ds, s.mp);
	return s;
}

/* Elements of a slice of a group without padding (stages 1 and 2). */
static uint64_t dcp_deepspeed_lean(const struct dcp_deepspeed_group *g, uint64_t k)
{
	uint64_t before;

	if (dcp_ckd_mul(&before, k, g->slice) || before >= g->numel)
		return 0;
	return DCP_MIN(g->numel - before, g->slice);
}

/* ---- how long slices are ---- */

/* The longest slice in all files, and the number of files that fit two assumed lengths. */
struct lengths {
	struct dcp_deepspeed_group a, b; /* the same group with either length of slices */
	size_t fit_a, fit_b;
	uint64_t longest;
};

static bool fits_slice(const struct dcp_deepspeed_group *g, uint64_t k, uint64_t n)
{
	return n == g->slice || n == dcp_deepspeed_lean(g, k);
}

/* Count the lengths of the master weights that one file has of the group. */
static void look_at(struct lengths *l, const struct dcp_deepspeed_rank *r, uint64_t rank)
{
	const struct dcp_deepspeed_group *g = &l->a;

	if (r->why || rank < g->base || (rank - g->base) % g->step ||
	    (rank - g->base) / g->step >= g->count)
		return;
	for (uint32_t w = 0; w < g->waves; w++) {
		const struct dcp_deepspeed_place *p =
			&r->place[(size_t)(g->flat + w) * r->nstates];
		uint64_t k = (rank - g->base) / g->step + (uint64_t)w * g->count;

		if (!p->there)
			continue;
		l->longest = DCP_MAX(l->longest, p->n);
		l->fit_a += fits_slice(&l->a, k, p->n);
		l->fit_b += fits_slice(&l->b, k, p->n);
	}
}

static void look_at_all(struct lengths *l, const struct dcp_deepspeed *ds,
			const struct dcp_deepspeed_part *part)
{
	uint32_t lanes = l->a.lanes, first = part->mp - part->mp % lanes;

	for (uint32_t lane = 0; lane < lanes; lane++) {
		const struct dcp_deepspeed_part *p =
			lanes == 1 ? part : dcp_deepspeed_part_of(ds, first + lane);

		/* an optimizer with other groups tells nothing about this group */
		for (size_t i = 0; p && p->nflat == part->nflat && i < p->nranks; i++)
			look_at(l, &p->rank[i],
				(uint64_t)p->rank[i].name->dp * lanes + (lanes > 1 ? lane : 0));
	}
}

/* Set the length of slices to the one that fits most files. */
static void find_slice(const struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
		       struct dcp_deepspeed_group *g, bool usual)
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

/* Stages 1 and 2: place consecutive parameters, with the gaps that were recorded. */
static void place_whole(struct dcp_deepspeed_laying *l, const struct dcp_deepspeed_list *list,
			struct dcp_deepspeed_group *g, struct dcp_deepspeed_param *p, size_t n)
{
	uint64_t end = 0;

	if (list->gap && list->ngap != n)
		g->why = dcp_deepspeed_text(l->ds,
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

/* Stage 3: place consecutive slices of parameters. */
static void place_slices(struct dcp_deepspeed_group *g, struct dcp_deepspeed_param *p, size_t n)
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

void dcp_deepspeed_place_params(struct dcp_deepspeed_laying *l,
				const struct dcp_deepspeed_list *list,
				struct dcp_deepspeed_group *g, struct dcp_deepspeed_param *p,
				size_t n)
{
	if (l->part->stage == 3) {
		place_slices(g, p, n);
		return;
	}
	place_whole(l, list, g, p, n);
	find_slice(l->ds, l->part, g, list->waves == 1);
}

int dcp_deepspeed_add_group(struct dcp_deepspeed_laying *l, const struct dcp_deepspeed_group *g,
			    struct dcp_deepspeed_param *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i].group = (uint32_t)l->ngroups;
	dcp_buf_add(&l->groups, g, sizeof(*g));
	dcp_buf_add(&l->params, p, n * sizeof(*p));
	l->ngroups++;
	return dcp_buf_error(&l->groups) || dcp_buf_error(&l->params) ? -ENOMEM : 0;
}

/*
 * DeepSpeed's Muon works on matrices: a rank keeps, one after the other, the whole momentum of
 * every parameter that has an element in its slice. Returns the elements of all these parameters
 * for slice @k. @before: the elements of those before @p, if @p is among them.
 */
static uint64_t count_touching(const struct dcp_deepspeed_part *part,
			       const struct dcp_deepspeed_group *g, uint64_t k,
			       const struct dcp_deepspeed_param *p, uint64_t *before)
{
	uint64_t lo, sum = 0;

	if (g->waves != 1 || dcp_ckd_mul(&lo, k, g->slice))
		return UINT64_MAX;
	for (size_t i = 0; i < part->nparams; i++) {
		const struct dcp_deepspeed_param *x = &part->param[i];

		if (&part->group[x->group] != g || x->numel == 0 || x->off >= lo + g->slice ||
		    x->off + x->numel <= lo)
			continue;
		if (x == p)
			*before = sum;
		sum += x->numel; /* below 2^60 in all: see place_whole() */
	}
	return sum;
}

/* Does the flat tensor @place of slice @k hold whole parameters? Its group says that it uses Muon,
 * or it does not have the length of a slice; and the length is that of the whole parameters. */
static bool holds_whole(const struct dcp_deepspeed_part *part,
			const struct dcp_deepspeed_group *g, uint64_t k,
			const struct dcp_deepspeed_param *p,
			const struct dcp_deepspeed_place *place, uint64_t *before)
{
	bool muon = place->n != g->slice && place->n != dcp_deepspeed_lean(g, k);

	for (uint32_t i = 0; i < part->nlists; i++)
		muon |= part->list[i].flat == g->flat && part->list[i].muon;
	return muon && place->n == count_touching(part, g, k, p, before);
}

/* The flat tensor of one state that is slice @k of a group; NULL: there is none, see @why. */
static const struct dcp_deepspeed_place *
slice_of(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
	 const struct dcp_deepspeed_group *g, uint64_t k, uint32_t state, struct dcp_err *why)
{
	struct dcp_deepspeed_slice s = dcp_deepspeed_slice(ds, part, g, k);
	const struct dcp_deepspeed_rank *r =
		s.part ? dcp_deepspeed_rank_of(s.part, s.dp) : NULL;
	const char *what = dcp_intern_text(&ds->states, state);
	const struct dcp_deepspeed_place *p = NULL;
	char name[DCP_DEEPSPEED_NAME_MAX];

	if (!r) {
		dcp_deepspeed_name_of_rank(part->first, s.dp, s.mp, name);
		dcp_fail(why, -EBADMSG,
			 "%s is missing: rank %" PRIu32 " of %" PRIu32
			 " holds a part of it there",
			 name, s.dp, part->world);
		return NULL;
	}
	if (r->why) {
		dcp_fail(why, -EBADMSG, "rank %" PRIu32 ": %s", s.dp, r->why);
		return NULL;
	}
	if (state < r->nstates && s.flat < s.part->nflat)
		p = &r->place[(size_t)s.flat * r->nstates + state];
	if (!p || !p->there) {
		dcp_fail(why, -EBADMSG, "%s (rank %" PRIu32 ") has no %.40s of group %" PRIu32,
			 r->name->name, s.dp, what, s.flat);
		return NULL;
	}
	if (r->slice && r->slice[s.flat] != k && r->slice[s.flat] != UINT64_MAX) {
		dcp_fail(why, -EBADMSG,
			 "%s (rank %" PRIu32 ") has slice %" PRIu64 " of group %" PRIu32
			 ", expected %" PRIu64,
			 r->name->name, s.dp, r->slice[s.flat], s.flat, k);
		return NULL;
	}
	if (p->n != g->slice && p->n != dcp_deepspeed_lean(g, k) &&
	    (part->stage == 3 || p->n != count_touching(part, g, k, NULL, NULL))) {
		dcp_fail(why, -EBADMSG,
			 "%s (rank %" PRIu32 "): its %.40s of group %" PRIu32 " has %" PRIu64
			 " elements, expected %" PRIu64
			 " by param_shapes: are they of one save?",
			 r->name->name, s.dp, what, s.flat, p->n, g->slice);
		return NULL;
	}
	return p;
}

/* One more run, of elements [@at, @at + @n) of @p. */
static int add_run(const struct dcp_deepspeed_place *p, uint64_t first, uint64_t at, uint64_t n,
		   struct dcp_buf *out, uint8_t *dtype, struct dcp_err *why)
{
	struct dcp_deepspeed_run run = {
		.first = first,
		.n = n,
		.off = p->off + at * dcp_dtype_info((enum dcp_dtype)p->dtype)->size,
		.file = p->file,
		.swap = p->swap,
	};

	if (at > p->n || n > p->n - at)
		return dcp_fail(why, -EBADMSG,
				"a flat tensor of %" PRIu64 " elements ends before it", p->n);
	if (out->n > 0 && *dtype != p->dtype)
		return dcp_fail(why, -EBADMSG, "one rank holds it as %s, another as %s",
				dcp_dtype_info((enum dcp_dtype) * dtype)->name,
				dcp_dtype_info((enum dcp_dtype)p->dtype)->name);
	*dtype = p->dtype;
	return dcp_buf_add(out, &run, sizeof(run));
}

static int add_whole_runs(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
			  const struct dcp_deepspeed_group *g,
			  const struct dcp_deepspeed_param *p, uint32_t state,
			  struct dcp_buf *out, uint8_t *dtype, struct dcp_err *why)
{
	uint64_t done = 0;
	int rc = 0;

	while (rc == 0 && done < p->numel) {
		uint64_t at = p->off + done, n, before = 0;
		const struct dcp_deepspeed_place *place;

		if (g->slice == 0 || at / g->slice >= (uint64_t)g->count * g->waves)
			return dcp_fail(why, -EBADMSG,
					"its group of %" PRIu64 " slices of %" PRIu64
					" elements ends before it",
					(uint64_t)g->count * g->waves, g->slice);
		n = DCP_MIN(p->numel - done, g->slice - at % g->slice);
		place = slice_of(ds, part, g, at / g->slice, state, why);
		if (!place)
			return why->code;
		if (state != 0 && holds_whole(part, g, at / g->slice, p, place, &before))
			return add_run(place, 0, before, p->numel, out, dtype, why);
		rc = add_run(place, done, at % g->slice, n, out, dtype, why);
		done += n;
	}
	return rc;
}

static int add_sliced_runs(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
			   const struct dcp_deepspeed_group *g,
			   const struct dcp_deepspeed_param *p, uint32_t state,
			   struct dcp_buf *out, uint8_t *dtype, struct dcp_err *why)
{
	uint64_t each = dcp_div_up(p->numel, g->count), done = 0;
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && done < p->numel; k++) {
		uint64_t n = DCP_MIN(each, p->numel - done);
		const struct dcp_deepspeed_place *place = slice_of(ds, part, g, k, state, why);

		if (!place)
			return why->code;
		rc = add_run(place, done, p->off, n, out, dtype, why);
		done += n;
	}
	return rc;
}

static bool anybody_has(const struct dcp_deepspeed_part *part,
			const struct dcp_deepspeed_group *g, uint32_t state, uint8_t *dtype)
{
	for (size_t i = 0; g->flat < part->nflat && i < part->nranks; i++) {
		const struct dcp_deepspeed_rank *r = &part->rank[i];

		if (!r->why && state < r->nstates &&
		    r->place[(size_t)g->flat * r->nstates + state].there) {
			*dtype = r->place[(size_t)g->flat * r->nstates + state].dtype;
			return true;
		}
	}
	return false;
}

int dcp_deepspeed_runs(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
		       const struct dcp_deepspeed_param *p, uint32_t state, struct dcp_buf *out,
		       uint8_t *dtype, struct dcp_err *why)
{
	const struct dcp_deepspeed_group *g = &part->group[p->group];
	int rc;

	*dtype = DCP_DTYPE_F32;
	if (!anybody_has(part, g, state, dtype) && state != 0)
		return 0;
	if (p->why || g->why)
		return dcp_fail(why, -EBADMSG, "%s", p->why ? p->why : g->why);
	rc = part->stage == 3 ? add_sliced_runs(ds, part, g, p, state, out, dtype, why)
			      : add_whole_runs(ds, part, g, p, state, out, dtype, why);
	return rc < 0 ? rc : 1;
}

int dcp_deepspeed_frozen_runs(struct dcp_deepspeed *ds, const struct dcp_deepspeed_part *part,
			      const struct dcp_deepspeed_frozen *f, struct dcp_buf *out,
			      uint8_t *dtype, struct dcp_err *why)
{
	uint32_t last = part->model[part->nmodels - 1].dp + 1;
	uint64_t world = part->world ? part->world : last, done = 0;
	uint64_t each = dcp_div_up(f->numel, world);
	size_t at = 0;
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && done < f->numel; k++) {
		uint64_t n = DCP_MIN(each, f->numel - done);
		char name[DCP_DEEPSPEED_NAME_MAX];

		while (at < part->nmodels && part->model[at].dp < k)
			at++;
		dcp_deepspeed_name_of_rank(part->model, k, part->mp, name);
		if (at == part->nmodels || part->model[at].dp != k)
			return dcp_fail(why, -EBADMSG,
					"%s is missing: rank %" PRIu32 " of %" PRIu64
					" holds a part of it there",
					name, k, world);
		if (!f->fragment[at].there || f->fragment[at].n < n)
			return dcp_fail(why, -EBADMSG,
					"%s (rank %" PRIu32
					") has no fragment of it, or too short a one",
					name, k);
		rc = add_run(&f->fragment[at], done, 0, n, out, dtype, why);
		done += n;
	}
	return rc < 0 ? rc : 1;
}
