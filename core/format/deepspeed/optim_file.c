/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer files. The names in them show how they are cut:
 *
 *	single_partition_of_fp32_groups  stages 1 and 2: one slice of each parameter group
 *	  base_optimizer_state           {"state": {number: {name: ..}}, "param_groups": [..]},
 *	                                 or (elastic) a list of what stands in "state"
 *	local_sub_partitions_of_fp32_groups
 *	                                 stage 1 before 0.5.9: of each group a list, a slice of
 *	                                 every communication interval ("wave")
 *	  base_optimizer_state           the same, one parameter a slice; or lists of lists
 *	fp32_flat_groups                 stage 3: consecutive slices, one of each parameter
 *	  optimizer_state_dict           as base_optimizer_state
 *
 * BF16_Optimizer writes the names of stage 1 and no zero_stage.
 */
#include <inttypes.h>

#include "core/base/number.h"
#include "core/base/text.h"
#include "core/format/deepspeed/emit.h"

static int useless(struct dcp_ds_reading *r, const char *why)
{
	r->rank->why = why;
	return why ? 0 : -ENOMEM;
}

/* ---- what is where ---- */

/* Lists of flat tensors, one a group. */
static int flatten(struct dcp_ds_reading *r, struct dcp_pv v)
{
	const struct dcp_pv *group = dcp_pv_items(v, &r->nlists), *item;
	struct dcp_pv *flat;
	uint32_t *waves;
	size_t n, total = 0;

	for (size_t g = 0; g < r->nlists; g++) {
		dcp_pv_items(group[g], &n);
		total += n;
	}
	flat = dcp_arena_calloc(&r->ds->arena, total + 1, sizeof(*flat));
	waves = dcp_arena_calloc(&r->ds->arena, r->nlists + 1, sizeof(*waves));
	if (!flat || !waves)
		return -ENOMEM;
	for (size_t g = 0; g < r->nlists; g++) {
		item = dcp_pv_items(group[g], &n);
		waves[g] = item ? (uint32_t)n : 0;
		for (size_t i = 0; i < waves[g]; i++)
			flat[r->nflat++] = item[i];
	}
	r->flat = flat;
	r->waves = waves;
	return 0;
}

static int find_flat(struct dcp_ds_reading *r)
{
	const struct dcp_pv *v = dcp_pv_get(r->dict, "single_partition_of_fp32_groups");
	const struct dcp_pv *old = dcp_pv_get(r->dict, "local_sub_partitions_of_fp32_groups");

	r->stage = 1;
	r->base = dcp_pv_at(r->dict, "base_optimizer_state");
	if (!v && old && old->type == DCP_PV_LIST)
		return flatten(r, *old);
	if (!v) {
		v = dcp_pv_get(r->dict, "fp32_flat_groups");
		r->base = dcp_pv_at(r->dict, "optimizer_state_dict");
		r->stage = 3;
	}
	if (v && v->type == DCP_PV_LIST) {
		r->flat = dcp_pv_items(*v, &r->nflat);
		r->nlists = r->nflat;
		return 0;
	}
	return useless(r, dcp_ds_text(r->ds,
				      "%s has no master weights: neither "
				      "single_partition_of_fp32_groups nor fp32_flat_groups",
				      r->rank->name->name));
}

/* ---- how it is cut ---- */

/* What the newest releases say of sub-group @i of stage 3, or NONE. */
static struct dcp_pv own_words(const struct dcp_ds_reading *r, size_t i, const char *what)
{
	const char *groups = r->stage == 3 ? "ds_zero_partition_groups" : "";

	return dcp_pv_at(dcp_pv_item(dcp_pv_at(r->dict, groups), i), what);
}

/* How many ranks group @i is cut over, as this file says; 0: it does not. */
static uint32_t count_of(const struct dcp_ds_reading *r, size_t i)
{
	struct dcp_pv v = own_words(r, i, "partition_count");
	uint64_t n;

	if (v.type == DCP_PV_NONE)
		v = dcp_pv_at(r->dict, "partition_count");
	if (v.type == DCP_PV_LIST)
		v = dcp_pv_item(v, i);
	return dcp_pv_u64(v, &n) && n <= UINT32_MAX ? (uint32_t)n : 0;
}

static int take_gaps(struct dcp_ds_reading *r, struct dcp_ds_list *list)
{
	const struct dcp_pv all = dcp_pv_at(r->dict, "param_alignment_paddings");
	size_t n, m;
	const struct dcp_pv *of = dcp_pv_items(all, &n), *item;

	if (all.type != DCP_PV_LIST || r->stage != 1)
		return 0;
	for (size_t g = 0; g < r->nlists && g < n; g++) {
		uint64_t *to;

		item = dcp_pv_items(of[g], &m);
		to = dcp_arena_calloc(&r->ds->arena, m + 1, sizeof(*to));
		if (!to)
			return -ENOMEM;
		for (size_t i = 0; i < m; i++)
			if (!dcp_pv_u64(item[i], &to[i]) || to[i] > INT32_MAX)
				to[i] = UINT64_MAX / 4; /* cannot fit: the group is broken */
		list[g].gap = to;
		list[g].ngap = (uint32_t)m;
	}
	return 0;
}

/* The groups of experts have the name of their expert-parallel group: "ep_size_4". */
static void take_shares(const struct dcp_ds_reading *r, struct dcp_ds_list *list)
{
	size_t n;
	const struct dcp_pv *group = dcp_ds_param_groups(r, &n);

	for (size_t i = 0; i < n && i < r->nlists; i++) {
		const char *name = dcp_pv_str(dcp_pv_at(group[i], "name"));
		uint64_t shares;

		if (name && dcp_take_text(&name, "ep_size_") &&
		    dcp_take_number(&name, NULL, 4, &shares))
			list[i].shares = (uint32_t)shares;
	}
}

/* Ranks that all parameters but experts are cut over. */
static uint32_t find_world(const struct dcp_ds_reading *r, const struct dcp_ds_list *list)
{
	uint64_t said;
	uint32_t world = 0;

	if (dcp_pv_u64(dcp_pv_at(r->dict, "partition_count"), &said) && said <= UINT32_MAX)
		world = (uint32_t)said;
	for (size_t i = 0; i < r->nlists; i++)
		if (!list[i].shares)
			world = DCP_MAX(world, list[i].count);
	/* not said: there are as many as there are files */
	return world ? world : r->part->rank[r->part->nranks - 1].name->dp + 1;
}

/* What the first readable file says holds for the others, too. */
static int take_first(struct dcp_ds_reading *r)
{
	struct dcp_ds_part *part = r->part;
	struct dcp_ds_list *list =
		dcp_arena_calloc(&r->ds->arena, r->nlists + 1, sizeof(*list));
	uint32_t flat = 0;

	if (!list)
		return -ENOMEM;
	part->stage = r->stage;
	part->nflat = (uint32_t)r->nflat;
	part->first = r->rank->name;
	for (size_t i = 0; i < r->nlists; i++) {
		list[i].count = count_of(r, i);
		list[i].flat = flat;
		list[i].waves = r->waves ? r->waves[i] : 1;
		list[i].muon = dcp_ds_is_muon(r, i);
		flat += list[i].waves;
	}
	take_shares(r, list);
	part->world = find_world(r, list);
	for (size_t i = 0; i < r->nlists; i++)
		if (list[i].count == 0)
			list[i].count = part->world;
	part->list = list;
	part->nlists = (uint32_t)r->nlists;
	return take_gaps(r, list);
}

/* Which slice of each sub-group it has, if it says so. */
static int take_slices(struct dcp_ds_reading *r)
{
	uint64_t slice;

	if (own_words(r, 0, "partition_rank").type == DCP_PV_NONE)
		return 0;
	r->rank->slice = dcp_arena_calloc(&r->ds->arena, r->nflat, sizeof(*r->rank->slice));
	if (!r->rank->slice)
		return -ENOMEM;
	for (size_t i = 0; i < r->nflat; i++)
		r->rank->slice[i] = dcp_pv_u64(own_words(r, i, "partition_rank"), &slice)
					    ? slice
					    : UINT64_MAX;
	return 0;
}

static int compare_first(struct dcp_ds_reading *r)
{
	const struct dcp_ds_part *part = r->part;
	const char *a = r->rank->name->name, *b = part->first->name;

	if (r->stage != part->stage)
		return useless(r,
			       dcp_ds_text(r->ds, "%s is of another ZeRO stage than %s", a, b));
	if (r->nflat != part->nflat || r->nlists != part->nlists)
		return useless(r, dcp_ds_text(r->ds,
					      "%s has %zu flat groups, %s has %" PRIu32
					      ": are they of one save?",
					      a, r->nflat, b, part->nflat));
	for (size_t i = 0; i < r->nlists; i++) {
		uint32_t n = count_of(r, i);

		if (n && n != part->list[i].count)
			return useless(r, dcp_ds_text(r->ds,
						      "%s was saved by %" PRIu32
						      " ranks, %s by %" PRIu32
						      ": are they of one save?",
						      a, n, b, part->list[i].count));
		if (r->waves && r->waves[i] != part->list[i].waves)
			return useless(r,
				       dcp_ds_text(r->ds,
						   "%s has %" PRIu32
						   " slices of group %zu, %s has %" PRIu32
						   ": are they of one save?",
						   a, r->waves[i], i, b, part->list[i].waves));
	}
	if (r->rank->name->dp >= part->world)
		return useless(r, dcp_ds_text(r->ds,
					      "%s is not of this save: by %s there are %" PRIu32
					      " ranks",
					      a, b, part->world));
	return 0;
}

static int read_rank(struct dcp_ds_reading *r)
{
	const struct dcp_pv *dict =
		dcp_pv_get(dcp_torch_root(r->in->t), "optimizer_state_dict");
	int rc;

	if (!dict)
		return useless(r, dcp_ds_text(r->ds, "%s has no optimizer_state_dict",
					      r->rank->name->name));
	r->dict = *dict;
	rc = find_flat(r);
	if (rc < 0 || r->rank->why)
		return rc;
	rc = r->part->first ? compare_first(r) : take_first(r);
	if (rc == 0 && !r->rank->why)
		rc = take_slices(r);
	if (rc == 0 && !r->rank->why)
		rc = dcp_ds_take_rules(r->ds, r->dict);
	return rc < 0 || r->rank->why ? rc : dcp_ds_read_moments(r);
}

int dcp_ds_read_optims(struct dcp_ds *ds, struct dcp_ds_part *part)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < part->nranks; i++) {
		struct dcp_ds_rank *rank = &part->rank[i];
		struct dcp_err why = { 0 };
		struct dcp_ds_input in;
		struct dcp_ds_reading r = { .ds = ds, .part = part, .rank = rank, .in = &in };

		if (i > 0 && rank[-1].name->dp == rank->name->dp) {
			rc = useless(&r, dcp_ds_text(ds, "%s and %s are both of rank %" PRIu32,
						     rank[-1].name->name, rank->name->name,
						     rank->name->dp));
			if (rc == 0)
				rc = dcp_ds_emit_broken(ds, rank->name->name, rank->why);
			continue;
		}
		rc = dcp_ds_open(ds, rank->name->name, &in, &why);
		if (rc < 0)
			break;
		if (rc == 1) {
			rc = useless(&r, dcp_arena_strdup(&ds->arena, why.msg));
		} else {
			rc = read_rank(&r);
			if (rc == 0)
				rc = dcp_ds_emit_rest(ds, rank->name, &in);
			dcp_ds_close(&in);
		}
		if (rc == 0 && rank->why)
			rc = dcp_ds_emit_broken(ds, rank->name->name, rank->why);
	}
	return rc;
}
