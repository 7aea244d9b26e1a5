/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which elements of the flat tensors are a parameter.
 *
 * Stages 1 and 2: a group is its parameters one behind the other (with recorded gaps between
 * them where parameter_alignment was on), padded to a multiple of 2 * ranks and cut into equal
 * slices. Later releases cut the padding off the master weights again ("lean"), so their slices
 * at the end may be short or empty. Older ones padded to other multiples: the length of a slice
 * is the one that fits most files.
 *
 * Stage 3: every parameter is cut by itself into slices of ceil(elements / ranks); a rank's
 * flat tensor has one slice of each, one behind the other.
 *
 * Experts (MoE): their group is cut over the ranks that hold the same experts, so each set of
 * such ranks has parameters of its own. Rank r holds share r % shares of them (or, with
 * use_data_before_expert_parallelism, r / ranks of a share), and numbers its experts from 0.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/format/deepspeed_int.h"

static const char experts[] = ".deepspeed_experts.";

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

uint64_t dcp_ds_lean(const struct dcp_ds_group *g, uint32_t slice)
{
	uint64_t before;

	if (dcp_ckd_mul(&before, slice, g->slice) || before >= g->numel)
		return 0;
	return DCP_MIN(g->numel - before, g->slice);
}

const struct dcp_ds_rank *dcp_ds_rank_of(const struct dcp_ds_part *part, uint64_t dp)
{
	size_t lo = 0, hi = part->nranks;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (part->rank[mid].name->dp < dp)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < part->nranks && part->rank[lo].name->dp == dp ? &part->rank[lo] : NULL;
}

/* The master weights that @slice of @g should be; NULL: its file is of no use. */
static const struct dcp_ds_place *master(const struct dcp_ds_part *part,
					 const struct dcp_ds_group *g, uint32_t slice)
{
	const struct dcp_ds_rank *r = dcp_ds_rank_of(part, g->base + (uint64_t)slice * g->step);
	const struct dcp_ds_place *p =
		r && !r->why ? &r->place[(size_t)g->flat * r->nstates] : NULL;

	return p && p->there ? p : NULL;
}

/* ---- stages 1 and 2 ---- */

/* How many of the files fit a slice of @length. */
static size_t fits(const struct dcp_ds_part *part, const struct dcp_ds_group *g,
		   uint64_t length)
{
	struct dcp_ds_group try = *g;
	size_t n = 0;

	try.slice = length;
	for (size_t i = 0; i < part->nranks; i++) {
		uint64_t slice = part->rank[i].name->dp - g->base;
		const struct dcp_ds_place *p;

		if (part->rank[i].name->dp < g->base || slice % g->step ||
		    slice / g->step >= g->count)
			continue;
		slice /= g->step;
		p = master(part, g, (uint32_t)slice);
		n += p && (p->n == length || p->n == dcp_ds_lean(&try, (uint32_t)slice));
	}
	return n;
}

static void find_slice(const struct dcp_ds_part *part, struct dcp_ds_group *g)
{
	uint64_t usual = ceil_div(g->numel, 2 * (uint64_t)g->count) * 2, longest = 0, room;

	for (size_t i = 0; i < part->nranks; i++)
		if (!part->rank[i].why)
			longest = DCP_MAX(
				longest,
				part->rank[i].place[(size_t)g->flat * part->rank[i].nstates].n);
	g->slice = usual;
	if (longest != usual && !dcp_ckd_mul(&room, longest, g->count) && room >= g->numel &&
	    fits(part, g, longest) > fits(part, g, usual))
		g->slice = longest;
}

/* Parameters [first, first + n) one behind the other, with the gaps of flat tensor g->flat. */
static int place_behind(struct dcp_ds *ds, struct dcp_ds_part *part, struct dcp_ds_group *g,
			struct dcp_ds_param *p, size_t n)
{
	const uint64_t *gap = part->gap ? part->gap[g->flat] : NULL;
	uint64_t end = 0;

	if (gap && part->ngap[g->flat] != n)
		g->why = dcp_ds_text(ds,
				     "%s has %" PRIu32
				     " param_alignment_paddings for group %" PRIu32
				     ", which has %zu parameters",
				     part->first->name, part->ngap[g->flat], g->flat, n);
	for (size_t i = 0; !g->why && i < n; i++) {
		p[i].off = end;
		if (dcp_ckd_add(&end, end, p[i].numel) ||
		    (gap && dcp_ckd_add(&end, end, gap[i])) || end > INT64_MAX / 16)
			g->why = "the sum of its group's sizes makes no sense";
	}
	g->numel = end;
	return 0;
}

/* ---- experts ---- */

static bool is_expert(const char *name)
{
	return strstr(name, experts) != NULL;
}

static uint64_t local_expert(const char *name)
{
	return strtoull(strstr(name, experts) + strlen(experts), NULL, 10);
}

/* Experts that a rank has: those its parameters number. */
static uint64_t count_experts(const struct dcp_ds_param *p, size_t n)
{
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++)
		most = DCP_MAX(most, local_expert(p[i].name) + 1);
	return most;
}

/* The name of @name, an expert of a rank of share @share, in the whole model. */
static const char *global_name(struct dcp_ds *ds, const char *name, uint64_t share,
			       uint64_t each)
{
	const char *at = strstr(name, experts) + strlen(experts);
	size_t digits = strspn(at, "0123456789");

	return dcp_ds_text(ds, "%.*s%" PRIu64 "%s", (int)(at - name), name,
			   share * each + local_expert(name), at + digits);
}

struct laying {
	struct dcp_ds *ds;
	struct dcp_ds_part *part;
	struct dcp_buf params, groups; /* struct dcp_ds_param, struct dcp_ds_group */
	size_t ngroups;
};

static int add_group(struct laying *l, const struct dcp_ds_group *g, struct dcp_ds_param *p,
		     size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i].group = (uint32_t)l->ngroups;
	dcp_buf_add(&l->groups, g, sizeof(*g));
	dcp_buf_add(&l->params, p, n * sizeof(*p));
	l->ngroups++;
	return dcp_buf_error(&l->groups) || dcp_buf_error(&l->params) ? -ENOMEM : 0;
}

static int add_experts(struct laying *l, struct dcp_ds_group g, const struct dcp_ds_param *p,
		       size_t n)
{
	uint32_t shares = l->part->world / g.count;
	uint64_t each = count_experts(p, n);
	int rc = 0;

	for (uint32_t s = 0; rc == 0 && s < shares; s++) {
		struct dcp_ds_param *mine = dcp_arena_calloc(&l->ds->arena, n, sizeof(*mine));

		if (!mine)
			return -ENOMEM;
		memcpy(mine, p, n * sizeof(*p));
		g.base = l->ds->before_expert ? s * g.count : s;
		g.step = l->ds->before_expert ? 1 : shares;
		for (size_t i = 0; i < n; i++) {
			mine[i].name = global_name(l->ds, p[i].name, s, each);
			if (!mine[i].name)
				return -ENOMEM;
		}
		find_slice(l->part, &g);
		rc = add_group(l, &g, mine, n);
	}
	return rc;
}

static bool all_experts(const struct dcp_ds_param *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!is_expert(p[i].name) || local_expert(p[i].name) > 100000)
			return false;
	return true;
}

/* One group of parameters, flat tensor @flat of stages 1 and 2. */
static int lay_group(struct laying *l, uint32_t flat, struct dcp_ds_param *p, size_t n)
{
	struct dcp_ds_part *part = l->part;
	struct dcp_ds_group g = { .flat = flat, .count = part->count[flat], .step = 1 };
	int rc = place_behind(l->ds, part, &g, p, n);
	bool partly = g.count != part->world;

	if (rc < 0)
		return rc;
	if (partly && n && all_experts(p, n) && l->ds->nparts == 1 &&
	    part->world % g.count == 0 && part->world / g.count <= part->nranks + 1)
		return add_experts(l, g, p, n);
	if (partly && !g.why)
		g.why = dcp_ds_text(l->ds,
				    "its group is cut over %" PRIu32 " of %" PRIu32
				    " ranks, and nothing says which",
				    g.count, part->world);
	find_slice(part, &g);
	return add_group(l, &g, p, n);
}

/* ---- one list of parameters for several flat tensors (before 0.5) ---- */

/* Parameters that flat tensor @flat has room for. Where its padding was not cut off it may seem
 * to have room for a few more, tiny ones: then their lengths do not fit and they are broken. */
static size_t take_some(const struct dcp_ds_part *part, uint32_t flat,
			const struct dcp_ds_param *p, size_t n)
{
	struct dcp_ds_group g = { .flat = flat, .count = part->count[flat], .step = 1 };
	uint64_t total = 0;
	size_t i = 0;

	for (uint32_t k = 0; k < part->nranks; k++) {
		const struct dcp_ds_place *m = master(part, &g, k);

		total += m ? m->n : 0;
	}
	for (; i < n && p[i].numel <= total; i++)
		total -= p[i].numel;
	return i;
}

/* ---- stage 3 ---- */

static uint64_t flat_length(const struct dcp_ds_part *part, uint32_t flat)
{
	for (size_t i = 0; i < part->nranks; i++)
		if (!part->rank[i].why &&
		    part->rank[i].place[flat * part->rank[i].nstates].there)
			return part->rank[i].place[flat * part->rank[i].nstates].n;
	return 0;
}

/* Sub-groups as listed, or where one list stands for all, as their lengths part it. */
static int lay_slices(struct laying *l)
{
	struct dcp_ds_part *part = l->part;
	bool listed = part->nlisted == part->nflat;
	size_t at = 0;
	int rc = 0;

	for (uint32_t f = 0; rc == 0 && f < part->nflat; f++) {
		struct dcp_ds_group g = { .flat = f, .count = part->count[f], .step = 1 };
		uint64_t length = flat_length(part, f);
		size_t n = 0;

		if (g.count != part->world)
			g.why = dcp_ds_text(l->ds,
					    "its group is cut over %" PRIu32 " of %" PRIu32
					    " ranks, and nothing says which",
					    g.count, part->world);
		for (; at + n < part->nparams; n++) {
			struct dcp_ds_param *p = &part->param[at + n];
			uint64_t slice = ceil_div(p->numel, g.count);

			if (listed ? n == part->group_n[f]
				   : g.numel + slice > length && f + 1 < part->nflat)
				break;
			p->off = g.numel;
			g.numel += slice; /* each is below 2^59 */
			if (g.numel > INT64_MAX / 16) {
				g.why = "the sum of its group's sizes makes no sense";
				g.numel = 0;
			}
		}
		g.slice = g.numel;
		rc = add_group(l, &g, part->param + at, n);
		at += n;
	}
	return rc;
}

static int lay_flats(struct laying *l)
{
	struct dcp_ds_part *part = l->part;
	bool listed = part->nlisted == part->nflat;
	size_t at = 0;
	int rc = 0;

	for (uint32_t f = 0; rc == 0 && f < part->nflat; f++) {
		size_t n = listed ? part->group_n[f]
				  : take_some(part, f, part->param + at, part->nparams - at);

		rc = lay_group(l, f, part->param + at, n);
		at += n;
	}
	for (; rc == 0 && at < part->nparams; at++) {
		struct dcp_ds_group none = { .count = 1,
					     .step = 1,
					     .why = "no flat group has room for it" };

		rc = add_group(l, &none, part->param + at, 1);
	}
	return rc;
}

int dcp_ds_lay_out(struct dcp_ds *ds, struct dcp_ds_part *part)
{
	struct laying l = { .ds = ds, .part = part };
	int rc = 0;

	if (!part->first || !part->named)
		return 0;
	if (part->nlisted != part->nflat && part->nlisted != 1)
		return dcp_ds_tell_broken(
			ds, part->first->name,
			dcp_ds_text(ds, "it has %" PRIu32 " flat groups, %s lists %" PRIu32,
				    part->nflat, part->named->name, part->nlisted));
	rc = part->stage == 3 ? lay_slices(&l) : lay_flats(&l);
	if (rc == 0) {
		part->nparams = l.params.n / sizeof(struct dcp_ds_param);
		part->ngroups = l.ngroups;
		part->param = dcp_arena_calloc(&ds->arena, part->nparams, sizeof(*part->param));
		part->group = dcp_arena_calloc(&ds->arena, part->ngroups, sizeof(*part->group));
		if (!part->param || !part->group) {
			rc = -ENOMEM;
		} else if (part->nparams) {
			memcpy(part->param, l.params.p, l.params.n);
			memcpy(part->group, l.groups.p, l.groups.n);
		}
	}
	dcp_buf_finish(&l.params);
	dcp_buf_finish(&l.groups);
	return rc < 0 ? dcp_ds_no_memory(ds) : 0;
}
