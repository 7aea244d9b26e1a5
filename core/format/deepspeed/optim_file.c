/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer files. The keys in a file show how it is cut:
 *
 *	single_partition_of_fp32_groups  stages 1 and 2: one slice of each parameter group
 *	  base_optimizer_state           {"state": {number: {name: ..}}, "param_groups": [..]},
 *	                                 or (elastic) a list of the values of "state"
 *	local_sub_partitions_of_fp32_groups
 *	                                 stage 1 before 0.5.9: for each group a list, with a slice
 *	                                 of every communication interval ("wave")
 *	  base_optimizer_state           as above, one parameter for each slice; or lists of lists
 *	fp32_flat_groups                 stage 3: consecutive slices, one of each parameter
 *	  optimizer_state_dict           as base_optimizer_state
 *
 * BF16_Optimizer writes the keys of stage 1, but no zero_stage.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/text.h"
#include "core/format/deepspeed/deepspeed_int.h"
#include "core/parse/pyjson/pyjson.h"

/*
 * The states that the wrapped optimizer keeps for every flat tensor. A state is flat if its tensor
 * is as long as the master weights, or longer because only their padding was cut off. A state of
 * one element is common to all parameters (step). All other states are emitted unchanged.
 */

enum { MAX_STATES = 64 };

/* The states of one file, in either form of listing. */
struct entries {
	const struct dcp_pv *item; /* pairs of number and states, or (listed) states alone */
	size_t n;
	bool listed;
};

/* The param_groups of the wrapped optimizer. */
static const struct dcp_pv *dcp_deepspeed_param_groups(const struct dcp_deepspeed_reading *r,
						       size_t *n)
{
	return dcp_pv_items(dcp_pv_at(r->base, "param_groups"), n);
}

/* Does the param_group of flat tensor @i say that Muon is its optimizer? */
static bool dcp_deepspeed_is_muon(const struct dcp_deepspeed_reading *r, size_t i)
{
	size_t n;
	const struct dcp_pv *group = dcp_deepspeed_param_groups(r, &n), *muon;

	muon = i < n && !r->waves ? dcp_pv_get(group[i], "use_muon") : NULL;
	return muon && muon->type == DCP_PV_BOOL && muon->b;
}

/* Replace a list of lists by the elements of the inner lists, in order. */
static int flatten_lists(struct dcp_deepspeed_reading *r, struct entries *e)
{
	struct dcp_pv *all;
	size_t n = 0, m, total = 0;

	for (size_t i = 0; i < e->n; i++) {
		dcp_pv_items(e->item[i], &m);
		total += m;
	}
	all = dcp_arena_calloc(&r->ds->arena, total + 1, sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (size_t i = 0; i < e->n; i++) {
		const struct dcp_pv *item = dcp_pv_items(e->item[i], &m);

		for (size_t k = 0; item && k < m; k++)
			all[n++] = item[k];
	}
	e->item = all;
	e->n = n;
	return 0;
}

static int find_entries(struct dcp_deepspeed_reading *r, struct entries *e)
{
	*e = (struct entries){ .listed = r->base.type == DCP_PV_LIST };
	if (e->listed) {
		e->item = dcp_pv_items(r->base, &e->n);
		return e->n && e->item->type == DCP_PV_LIST ? flatten_lists(r, e) : 0;
	}
	e->item = dcp_pv_pairs(dcp_pv_at(r->base, "state"), &e->n);
	return 0;
}

/* The number of the parameter @id. Before torch 1.6, @id was the parameter's address: its place in
 * the param_groups gives the number. */
static uint64_t number_of(const struct dcp_deepspeed_reading *r, struct dcp_pv id)
{
	uint64_t number = UINT64_MAX, other;
	size_t n, m, at = 0;
	const struct dcp_pv *group = dcp_deepspeed_param_groups(r, &n), *item;

	if (!dcp_pv_u64(id, &number) || number < r->nflat)
		return number;
	for (size_t i = 0; i < n; i++) {
		item = dcp_pv_items(dcp_pv_at(group[i], "params"), &m);
		for (size_t k = 0; k < m; k++, at++)
			if (dcp_pv_u64(item[k], &other) && other == number)
				return at;
	}
	return number;
}

/* The states of entry @i, and the number of their flat tensor. The wrapped optimizer has one
 * parameter for each flat tensor, numbered in order. */
static const struct dcp_pv *find_states(const struct dcp_deepspeed_reading *r,
					const struct entries *e, size_t i, uint64_t *flat,
					size_t *n)
{
	*n = 0;
	*flat = e->listed ? i : number_of(r, e->item[2 * i]);
	if (*flat >= r->nflat)
		return NULL;
	return dcp_pv_pairs(e->item[e->listed ? i : 2 * i + 1], n);
}

static int number_states(struct dcp_deepspeed_reading *r, const struct entries *e)
{
	uint64_t flat;
	size_t n;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < e->n; i++) {
		const struct dcp_pv *kv = find_states(r, e, i, &flat, &n);

		for (size_t k = 0; rc >= 0 && kv && k < n; k++) {
			const char *name = dcp_pv_str(kv[2 * k]);

			if (name && r->ds->states.n < MAX_STATES)
				rc = dcp_intern_str(&r->ds->states, name, NULL);
		}
	}
	return rc < 0 ? -ENOMEM : 0;
}

static int add_common(struct dcp_deepspeed_reading *r, const struct dcp_deepspeed_common *c)
{
	return dcp_buf_add(&r->part->common, c, sizeof(*c));
}

static int add_value(struct dcp_deepspeed_reading *r, uint32_t flat, uint32_t state,
		     struct dcp_pv v)
{
	struct dcp_deepspeed_common c = { .flat = flat, .state = state };
	dcp_auto_buf struct dcp_buf json = DCP_BUF_INIT;
	int rc = dcp_pyjson_write(&json, NULL, v, NULL, 0);

	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		return 0;
	c.type = dcp_arena_strdup(&r->ds->arena, dcp_pyjson_type(v));
	c.json = dcp_arena_strdup(&r->ds->arena, json.p);
	return c.type && c.json ? add_common(r, &c) : -ENOMEM;
}

/* Emit a state that does not have a value for each element (scales of quantized moments, factors)
 * unchanged. */
static int emit_odd(struct dcp_deepspeed_reading *r, uint32_t flat, uint32_t state,
		    struct dcp_pv v)
{
	char number[16];
	const char *path[] = { r->rank->name->name,
			       "optimizer_state_dict",
			       r->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state",
			       "state",
			       number,
			       dcp_intern_text(&r->ds->states, state) };

	snprintf(number, sizeof(number), "%" PRIu32, flat);
	return dcp_deepspeed_emit_value(r->ds, r->in, v, path, DCP_LEN(path));
}

static int take_state(struct dcp_deepspeed_reading *r, uint32_t flat, uint32_t state,
		      struct dcp_pv v)
{
	struct dcp_deepspeed_place *row = r->rank->place + (size_t)flat * r->rank->nstates;
	struct dcp_deepspeed_common c = { .flat = flat, .state = state };
	bool first = r->rank->name == r->part->first;
	struct dcp_torch_tensor tt;
	struct dcp_err why = { 0 };
	int rc = dcp_torch_tensor(r->in->t, v, &tt, &why);

	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc == 0)
		return first ? add_value(r, flat, state, v) : 0;
	if (rc < 0)
		return emit_odd(r, flat, state, v);
	dcp_deepspeed_place_tensor(r->in, &tt, &c.place);
	c.ndim = tt.ndim;
	if (c.place.n == 1 && (tt.ndim == 0 || row[0].n != 1))
		return first ? add_common(r, &c) : 0;
	if (tt.ndim != 1 || !c.place.there ||
	    (c.place.n < row[0].n && !dcp_deepspeed_is_muon(r, flat)))
		return emit_odd(r, flat, state, v);
	row[state] = c.place;
	return 0;
}

static int take_states(struct dcp_deepspeed_reading *r, const struct entries *e)
{
	uint64_t flat;
	size_t n;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < e->n; i++) {
		const struct dcp_pv *kv = find_states(r, e, i, &flat, &n);

		for (size_t k = 0; rc == 0 && kv && k < n; k++) {
			const char *name = dcp_pv_str(kv[2 * k]);
			uint32_t state =
				name ? dcp_intern_find(&r->ds->states, name, strlen(name))
				     : DCP_INTERN_NONE;

			if (state != DCP_INTERN_NONE && state != 0)
				rc = take_state(r, (uint32_t)flat, state, kv[2 * k + 1]);
		}
	}
	return rc;
}

/* Add a step of one group, or of all groups, to each of its flat tensors. */
static int add_step(struct dcp_deepspeed_reading *r, struct dcp_pv step, uint32_t *flat,
		    size_t n)
{
	uint32_t state;
	int rc = 0;

	if (dcp_intern_str(&r->ds->states, "step", &state) < 0)
		return -ENOMEM;
	for (; rc == 0 && n > 0 && *flat < r->nflat; n--, ++*flat)
		rc = add_value(r, *flat, state, step);
	return rc;
}

/* Read steps: fused optimizers have one in each group, elastic checkpoints one for all groups. */
static int take_group_steps(struct dcp_deepspeed_reading *r)
{
	const struct dcp_pv *once = dcp_pv_get(r->dict, "base_optimizer_state_step");
	size_t n = 0;
	const struct dcp_pv *group = dcp_deepspeed_param_groups(r, &n);
	uint32_t flat = 0;
	int rc = 0;

	if (r->rank->name != r->part->first ||
	    dcp_intern_find(&r->ds->states, "step", 4) != DCP_INTERN_NONE)
		return 0;
	if (once)
		return add_step(r, *once, &flat, r->nflat);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const struct dcp_pv *step = dcp_pv_get(group[i], "step");
		const struct dcp_pv *params = dcp_pv_get(group[i], "params");
		size_t has = 1;

		if (params)
			dcp_pv_items(*params, &has);
		if (step)
			rc = add_step(r, *step, &flat, has);
		else
			flat += (uint32_t)DCP_MIN(has, r->nflat);
	}
	return rc;
}

static int take_master(struct dcp_deepspeed_reading *r)
{
	for (size_t i = 0; i < r->nflat; i++)
		if (dcp_deepspeed_take_place(r->in, r->flat[i],
					     &r->rank->place[i * r->rank->nstates]) < 0)
			return -ENOMEM;
	return 0;
}

/* Read all states of the file: flat states are placed, common states are kept, others are
 * emitted. */
static int dcp_deepspeed_read_moments(struct dcp_deepspeed_reading *r)
{
	struct entries e;
	int rc = find_entries(r, &e);

	if (rc == 0)
		rc = number_states(r, &e);
	if (rc < 0)
		return rc;
	r->rank->nstates = r->ds->states.n;
	r->rank->place = dcp_arena_calloc(&r->ds->arena, r->nflat * (size_t)r->ds->states.n,
					  sizeof(*r->rank->place));
	if (!r->rank->place)
		return -ENOMEM;
	rc = take_master(r);
	if (rc == 0)
		rc = take_states(r, &e);
	return rc == 0 ? take_group_steps(r) : rc;
}

static int spoil_rank(struct dcp_deepspeed_reading *r, const char *why)
{
	r->rank->why = why;
	return why ? 0 : -ENOMEM;
}

/* ---- what is where ---- */

/* Read the flat tensors from lists, one list for each group. */
static int flatten_groups(struct dcp_deepspeed_reading *r, struct dcp_pv v)
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

static int find_flat(struct dcp_deepspeed_reading *r)
{
	const struct dcp_pv *v = dcp_pv_get(r->dict, "single_partition_of_fp32_groups");
	const struct dcp_pv *old = dcp_pv_get(r->dict, "local_sub_partitions_of_fp32_groups");

	r->stage = 1;
	r->base = dcp_pv_at(r->dict, "base_optimizer_state");
	if (!v && old && old->type == DCP_PV_LIST)
		return flatten_groups(r, *old);
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
	return spoil_rank(
		r, dcp_deepspeed_text(r->ds,
				      "%s has no master weights: neither "
				      "single_partition_of_fp32_groups nor fp32_flat_groups",
				      r->rank->name->name));
}

/* ---- how it is cut ---- */

/* The field @what of sub-group @i of stage 3, which only the newest releases write; or NONE. */
static struct dcp_pv own_words(const struct dcp_deepspeed_reading *r, size_t i,
			       const char *what)
{
	const char *groups = r->stage == 3 ? "ds_zero_partition_groups" : "";

	return dcp_pv_at(dcp_pv_item(dcp_pv_at(r->dict, groups), i), what);
}

/* The number of ranks that group @i is cut over; 0: the file does not say it. */
static uint32_t count_of(const struct dcp_deepspeed_reading *r, size_t i)
{
	struct dcp_pv v = own_words(r, i, "partition_count");
	uint64_t n;

	if (v.type == DCP_PV_NONE)
		v = dcp_pv_at(r->dict, "partition_count");
	if (v.type == DCP_PV_LIST)
		v = dcp_pv_item(v, i);
	return dcp_pv_u64(v, &n) && n <= UINT32_MAX ? (uint32_t)n : 0;
}

static int take_gaps(struct dcp_deepspeed_reading *r, struct dcp_deepspeed_list *list)
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
				to[i] = UINT64_MAX / 4; /* never fits, so the group is broken */
		list[g].gap = to;
		list[g].ngap = (uint32_t)m;
	}
	return 0;
}

/* Read the number of shares: groups of experts have the name of their expert-parallel group, such
 * as "ep_size_4". */
static void take_shares(const struct dcp_deepspeed_reading *r, struct dcp_deepspeed_list *list)
{
	size_t n;
	const struct dcp_pv *group = dcp_deepspeed_param_groups(r, &n);

	for (size_t i = 0; i < n && i < r->nlists; i++) {
		const char *name = dcp_pv_str(dcp_pv_at(group[i], "name"));
		uint64_t shares;

		if (name && dcp_take_text(&name, "ep_size_") &&
		    dcp_take_number(&name, NULL, 4, &shares))
			list[i].shares = (uint32_t)shares;
	}
}

/* The number of ranks that all parameters except experts are cut over. */
static uint32_t find_world(const struct dcp_deepspeed_reading *r,
			   const struct dcp_deepspeed_list *list)
{
	uint64_t said;
	uint32_t world = 0;

	if (dcp_pv_u64(dcp_pv_at(r->dict, "partition_count"), &said) && said <= UINT32_MAX)
		world = (uint32_t)said;
	for (size_t i = 0; i < r->nlists; i++)
		if (!list[i].shares)
			world = DCP_MAX(world, list[i].count);
	/* if the file does not say it, there are as many ranks as files */
	return world ? world : r->part->rank[r->part->nranks - 1].name->dp + 1;
}

/* Read the lists and numbers of the first readable file, which hold for the other files, too. */
static int take_first(struct dcp_deepspeed_reading *r)
{
	struct dcp_deepspeed_part *part = r->part;
	struct dcp_deepspeed_list *list =
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
		list[i].muon = dcp_deepspeed_is_muon(r, i);
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

/* Read which slice of each sub-group the file has, if it says so. */
static int take_slices(struct dcp_deepspeed_reading *r)
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

static int compare_first(struct dcp_deepspeed_reading *r)
{
	const struct dcp_deepspeed_part *part = r->part;
	const char *a = r->rank->name->name, *b = part->first->name;

	if (r->stage != part->stage)
		return spoil_rank(
			r,
			dcp_deepspeed_text(r->ds, "%s is of another ZeRO stage than %s", a, b));
	if (r->nflat != part->nflat || r->nlists != part->nlists)
		return spoil_rank(r,
				  dcp_deepspeed_text(r->ds,
						     "%s has %zu flat groups, %s has %" PRIu32
						     ": are they of one save?",
						     a, r->nflat, b, part->nflat));
	for (size_t i = 0; i < r->nlists; i++) {
		uint32_t n = count_of(r, i);

		if (n && n != part->list[i].count)
			return spoil_rank(r, dcp_deepspeed_text(r->ds,
								"%s was saved by %" PRIu32
								" ranks, %s by %" PRIu32
								": are they of one save?",
								a, n, b, part->list[i].count));
		if (r->waves && r->waves[i] != part->list[i].waves)
			return spoil_rank(
				r,
				dcp_deepspeed_text(r->ds,
						   "%s has %" PRIu32
						   " slices of group %zu, %s has %" PRIu32
						   ": are they of one save?",
						   a, r->waves[i], i, b, part->list[i].waves));
	}
	if (r->rank->name->dp >= part->world)
		return spoil_rank(
			r, dcp_deepspeed_text(r->ds,
					      "%s is not of this save: by %s there are %" PRIu32
					      " ranks",
					      a, b, part->world));
	return 0;
}

static int read_rank(struct dcp_deepspeed_reading *r)
{
	const struct dcp_pv *dict =
		dcp_pv_get(dcp_torch_root(r->in->t), "optimizer_state_dict");
	int rc;

	if (!dict)
		return spoil_rank(r, dcp_deepspeed_text(r->ds, "%s has no optimizer_state_dict",
							r->rank->name->name));
	r->dict = *dict;
	rc = find_flat(r);
	if (rc < 0 || r->rank->why)
		return rc;
	rc = r->part->first ? compare_first(r) : take_first(r);
	if (rc == 0 && !r->rank->why)
		rc = take_slices(r);
	if (rc == 0 && !r->rank->why)
		rc = dcp_deepspeed_take_rules(r->ds, r->dict);
	return rc < 0 || r->rank->why ? rc : dcp_deepspeed_read_moments(r);
}

int dcp_deepspeed_read_optims(struct dcp_deepspeed *ds, struct dcp_deepspeed_part *part)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < part->nranks; i++) {
		struct dcp_deepspeed_rank *rank = &part->rank[i];
		struct dcp_err why = { 0 };
		struct dcp_deepspeed_input in;
		struct dcp_deepspeed_reading r = {
			.ds = ds, .part = part, .rank = rank, .in = &in
		};

		if (i > 0 && rank[-1].name->dp == rank->name->dp) {
			rc = spoil_rank(&r, dcp_deepspeed_text(
						    ds, "%s and %s are both of rank %" PRIu32,
						    rank[-1].name->name, rank->name->name,
						    rank->name->dp));
			if (rc == 0)
				rc = dcp_deepspeed_emit_broken(ds, rank->name->name, rank->why);
			continue;
		}
		rc = dcp_deepspeed_open(ds, rank->name->name, &in, &why);
		if (rc < 0)
			break;
		if (rc == 1) {
			rc = spoil_rank(&r, dcp_arena_strdup(&ds->arena, why.msg));
		} else {
			rc = read_rank(&r);
			if (rc == 0)
				rc = dcp_deepspeed_emit_rest(ds, rank->name, &in);
			dcp_deepspeed_close(&in);
		}
		if (rc == 0 && rank->why)
			rc = dcp_deepspeed_emit_broken(ds, rank->name->name, rank->why);
	}
	return rc;
}
