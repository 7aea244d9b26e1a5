/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer files. What they call things tells how they are cut:
 *
 *	single_partition_of_fp32_groups  stages 1 and 2: one slice of each parameter group
 *	  base_optimizer_state           {"state": {number: {name: ..}}, "param_groups": [..]},
 *	                                 or (elastic) a list of what stands in "state"
 *	fp32_flat_groups                 stage 3: a slice of each parameter, one behind the
 *other optimizer_state_dict           as base_optimizer_state
 *
 * BF16_Optimizer writes the names of stage 1 and no zero_stage. A state is flat when its tensor
 * is as long as the master weights or, where their padding was cut off, longer; of one element
 * it is common to all parameters (step).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed_int.h"
#include "core/parse/pyjson.h"

enum { MAX_STATES = 64 };

/* One optimizer file while it is read. */
struct reading {
	struct dcp_ds *ds;
	struct dcp_ds_part *part;
	struct dcp_ds_rank *rank;
	const struct dcp_ds_input *in;
	struct dcp_pv dict;        /* optimizer_state_dict */
	const struct dcp_pv *base; /* what the wrapped optimizer said */
	const struct dcp_pv *flat; /* master weights */
	size_t nflat;
	unsigned stage;
	const struct dcp_pv *entries; /* pairs of number and states, or (listed) states alone */
	size_t nentries;
	bool listed;
};

static int useless(struct reading *r, const char *why)
{
	r->rank->why = why;
	return why ? 0 : dcp_ds_no_memory(r->ds);
}

static void place_tensor(const struct dcp_ds_input *in, const struct dcp_torch_tensor *tt,
			 struct dcp_ds_place *out)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < tt->ndim; d++)
		volume *= tt->shape[d];
	*out = (struct dcp_ds_place){
		.off = tt->off,
		.n = volume,
		.file = in->file,
		.dtype = (uint8_t)tt->dtype,
		.swap = tt->swap,
		.there = tt->row_major && tt->dtype != DCP_DTYPE_OTHER &&
			 tt->filter == DCP_FILTER_NONE,
	};
}

int dcp_ds_take_place(const struct dcp_ds_input *in, struct dcp_pv v, struct dcp_ds_place *out)
{
	struct dcp_torch_tensor tt;
	int rc = dcp_torch_tensor(in->t, v, &tt, NULL);

	if (rc == 1)
		place_tensor(in, &tt, out);
	return rc == -ENOMEM ? rc : 0;
}

/* ---- what is where ---- */

static int find_flat(struct reading *r)
{
	const struct dcp_pv *v = dcp_pv_get(r->dict, "single_partition_of_fp32_groups");

	r->stage = 1;
	r->base = dcp_pv_get(r->dict, "base_optimizer_state");
	if (!v) {
		v = dcp_pv_get(r->dict, "fp32_flat_groups");
		r->base = dcp_pv_get(r->dict, "optimizer_state_dict");
		r->stage = 3;
	}
	if (v && v->type == DCP_PV_LIST) {
		r->flat = dcp_pv_items(*v, &r->nflat);
		return 0;
	}
	if (dcp_pv_get(r->dict, "local_sub_partitions_of_fp32_groups"))
		return useless(
			r, dcp_ds_text(r->ds,
				       "%s: stage 1 as DeepSpeed before 0.5.9 cut it "
				       "(local_sub_partitions_of_fp32_groups), not supported",
				       r->rank->name->name));
	return useless(r, dcp_ds_text(r->ds,
				      "%s has no master weights: neither "
				      "single_partition_of_fp32_groups nor fp32_flat_groups",
				      r->rank->name->name));
}

/* What the newest releases say of sub-group @i of stage 3, or NULL. */
static const struct dcp_pv *own_words(const struct reading *r, size_t i, const char *what)
{
	const struct dcp_pv *v = dcp_pv_get(r->dict, "ds_zero_partition_groups"), *item;
	size_t n = 0;

	item = v && r->stage == 3 ? dcp_pv_items(*v, &n) : NULL;
	return i < n ? dcp_pv_get(item[i], what) : NULL;
}

/* How many ranks flat tensor @i is cut over, as this file says; 0: it does not. */
static uint32_t count_of(const struct reading *r, size_t i)
{
	const struct dcp_pv *own = own_words(r, i, "partition_count");
	const struct dcp_pv *v = own ? own : dcp_pv_get(r->dict, "partition_count");
	uint64_t n = 0;
	size_t len = 0;

	if (v && v->type == DCP_PV_LIST) {
		const struct dcp_pv *item = dcp_pv_items(*v, &len);

		v = i < len ? &item[i] : NULL;
	}
	return v && dcp_pv_u64(*v, &n) && n <= UINT32_MAX ? (uint32_t)n : 0;
}

static int take_gaps(struct reading *r)
{
	const struct dcp_pv *all = dcp_pv_get(r->dict, "param_alignment_paddings"), *of, *item;
	const uint64_t **gap;
	uint32_t *ngap;
	size_t n = 0, m = 0;

	if (!all || all->type != DCP_PV_LIST)
		return 0;
	of = dcp_pv_items(*all, &n);
	gap = dcp_arena_calloc(&r->ds->arena, r->nflat, sizeof(*gap));
	ngap = dcp_arena_calloc(&r->ds->arena, r->nflat, sizeof(*ngap));
	if (!gap || !ngap)
		return dcp_ds_no_memory(r->ds);
	for (size_t g = 0; g < r->nflat && g < n; g++) {
		uint64_t *to;

		item = dcp_pv_items(of[g], &m);
		to = dcp_arena_calloc(&r->ds->arena, m + 1, sizeof(*to));
		if (!to)
			return dcp_ds_no_memory(r->ds);
		for (size_t i = 0; i < m; i++)
			if (!dcp_pv_u64(item[i], &to[i]) || to[i] > INT32_MAX)
				to[i] = UINT64_MAX / 4; /* cannot fit: the group is broken */
		gap[g] = to;
		ngap[g] = (uint32_t)m;
	}
	r->part->gap = gap;
	r->part->ngap = ngap;
	return 0;
}

/* What the first readable file says holds for the others, too. */
static int take_first(struct reading *r)
{
	struct dcp_ds_part *part = r->part;
	uint32_t *count = dcp_arena_calloc(&r->ds->arena, r->nflat + 1, sizeof(*count));

	if (!count)
		return dcp_ds_no_memory(r->ds);
	part->stage = r->stage;
	part->nflat = (uint32_t)r->nflat;
	part->first = r->rank->name;
	for (size_t i = 0; i < r->nflat; i++) {
		count[i] = count_of(r, i);
		part->world = DCP_MAX(part->world, count[i]);
	}
	part->count = count;
	if (part->world == 0) /* not said: there are as many as there are files */
		part->world = part->rank[part->nranks - 1].name->dp + 1;
	for (size_t i = 0; i < r->nflat; i++)
		if (count[i] == 0)
			count[i] = part->world;
	return r->stage == 1 ? take_gaps(r) : 0;
}

/* Every rank has the slice of its number. */
static int check_slices(struct reading *r)
{
	uint64_t slice;

	for (size_t i = 0; i < r->nflat; i++) {
		const struct dcp_pv *v = own_words(r, i, "partition_rank");

		if (v && dcp_pv_u64(*v, &slice) && slice != r->rank->name->dp &&
		    r->part->count[i] == r->part->world)
			return useless(r, dcp_ds_text(r->ds,
						      "%s has slice %" PRIu64
						      " of group %zu, not that of its rank",
						      r->rank->name->name, slice, i));
	}
	return 0;
}

static int compare_first(struct reading *r)
{
	const struct dcp_ds_part *part = r->part;
	const char *a = r->rank->name->name, *b = part->first->name;

	if (r->stage != part->stage)
		return useless(r,
			       dcp_ds_text(r->ds, "%s is of another ZeRO stage than %s", a, b));
	if (r->nflat != part->nflat)
		return useless(r, dcp_ds_text(r->ds,
					      "%s has %zu flat groups, %s has %" PRIu32
					      ": are they of one save?",
					      a, r->nflat, b, part->nflat));
	for (size_t i = 0; i < r->nflat; i++) {
		uint32_t n = count_of(r, i);

		if (n && n != part->count[i])
			return useless(r, dcp_ds_text(r->ds,
						      "%s was saved by %" PRIu32
						      " ranks, %s by %" PRIu32
						      ": are they of one save?",
						      a, n, b, part->count[i]));
	}
	if (r->rank->name->dp >= part->world)
		return useless(r, dcp_ds_text(r->ds,
					      "%s is not of this save: by %s there are %" PRIu32
					      " ranks",
					      a, b, part->world));
	return 0;
}

/* ---- states ---- */

static void find_entries(struct reading *r)
{
	const struct dcp_pv *v = r->base;

	if (!v)
		return;
	r->listed = v->type == DCP_PV_LIST;
	if (r->listed) {
		r->entries = dcp_pv_items(*v, &r->nentries);
		return;
	}
	v = dcp_pv_get(*v, "state");
	if (v)
		r->entries = dcp_pv_pairs(*v, &r->nentries);
}

/*
 * The states of entry @i and which flat tensor they are of. The wrapped optimizer has one
 * parameter for each, numbered in order.
 */
static const struct dcp_pv *entry(const struct reading *r, size_t i, uint64_t *flat, size_t *n)
{
	*flat = i;
	*n = 0;
	if (r->listed)
		return dcp_pv_pairs(r->entries[i], n);
	if (!dcp_pv_u64(r->entries[2 * i], flat) || *flat >= r->nflat)
		return NULL;
	return dcp_pv_pairs(r->entries[2 * i + 1], n);
}

static int number_states(struct reading *r)
{
	uint64_t flat;
	size_t n;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < r->nentries; i++) {
		const struct dcp_pv *kv = entry(r, i, &flat, &n);

		for (size_t k = 0; rc >= 0 && kv && k < n; k++) {
			const char *name = dcp_pv_str(kv[2 * k]);
			uint32_t number;

			if (name && r->ds->states.n < MAX_STATES)
				rc = dcp_intern_add(&r->ds->states, name, strlen(name),
						    DCP_INTERN_NONE, &number);
		}
	}
	return rc < 0 ? dcp_ds_no_memory(r->ds) : 0;
}

static int add_common(struct reading *r, const struct dcp_ds_common *c)
{
	dcp_buf_add(&r->part->common, c, sizeof(*c));
	return dcp_buf_error(&r->part->common) ? dcp_ds_no_memory(r->ds) : 0;
}

static int add_value(struct reading *r, uint32_t flat, uint32_t state, struct dcp_pv v)
{
	struct dcp_ds_common c = { .flat = flat, .state = state };
	dcp_auto_buf struct dcp_buf json = DCP_BUF_INIT;
	int rc = dcp_pyjson_write(&json, NULL, v, NULL, 0);

	if (rc == -ENOMEM)
		return dcp_ds_no_memory(r->ds);
	if (rc < 0)
		return 0;
	c.type = dcp_ds_keep(r->ds, dcp_pyjson_type(v));
	c.json = dcp_ds_keep(r->ds, json.p);
	return c.type && c.json ? add_common(r, &c) : dcp_ds_no_memory(r->ds);
}

/* No value for each element (scales of quantized moments, factors): told as it stands. */
static int tell_odd(struct reading *r, uint32_t flat, uint32_t state, struct dcp_pv v)
{
	char number[16];
	const char *path[] = { r->rank->name->name,
			       "optimizer_state_dict",
			       r->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state",
			       "state",
			       number,
			       dcp_intern_text(&r->ds->states, state) };

	snprintf(number, sizeof(number), "%" PRIu32, flat);
	return dcp_ds_tell_value(r->ds, r->in, v, path, DCP_LEN(path));
}

static int take_state(struct reading *r, uint32_t flat, uint32_t state, struct dcp_pv v)
{
	struct dcp_ds_place *row = r->rank->place + (size_t)flat * r->rank->nstates;
	struct dcp_ds_common c = { .flat = flat, .state = state };
	bool first = r->rank->name == r->part->first;
	struct dcp_torch_tensor tt;
	struct dcp_err why = { 0 };
	int rc = dcp_torch_tensor(r->in->t, v, &tt, &why);

	if (rc == -ENOMEM)
		return dcp_ds_no_memory(r->ds);
	if (rc == 0)
		return first ? add_value(r, flat, state, v) : 0;
	if (rc < 0)
		return tell_odd(r, flat, state, v);
	place_tensor(r->in, &tt, &c.place);
	c.ndim = tt.ndim;
	if (c.place.n == 1 && (tt.ndim == 0 || row[0].n != 1))
		return first ? add_common(r, &c) : 0;
	if (tt.ndim != 1 || !c.place.there || c.place.n < row[0].n)
		return tell_odd(r, flat, state, v);
	row[state] = c.place;
	return 0;
}

static int take_states(struct reading *r)
{
	uint64_t flat;
	size_t n;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < r->nentries; i++) {
		const struct dcp_pv *kv = entry(r, i, &flat, &n);

		for (size_t k = 0; rc == 0 && kv && flat < r->nflat && k < n; k++) {
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

/* Fused optimizers count steps in their groups, elastic checkpoints once. */
static int take_group_steps(struct reading *r)
{
	const struct dcp_pv *groups = r->base ? dcp_pv_get(*r->base, "param_groups") : NULL;
	const struct dcp_pv *once = dcp_pv_get(r->dict, "base_optimizer_state_step");
	const struct dcp_pv *group = NULL;
	uint32_t state, flat = 0;
	size_t n = 0;
	int rc = 0;

	if (r->rank->name != r->part->first ||
	    dcp_intern_find(&r->ds->states, "step", 4) != DCP_INTERN_NONE)
		return 0;
	if (groups)
		group = dcp_pv_items(*groups, &n);
	for (size_t i = 0; rc == 0 && flat < r->nflat && (once ? i < r->nflat : i < n); i++) {
		const struct dcp_pv *step = once ? once : dcp_pv_get(group[i], "step");
		const struct dcp_pv *params = once ? NULL : dcp_pv_get(group[i], "params");
		size_t has = 1;

		if (params)
			dcp_pv_items(*params, &has);
		if (step &&
		    dcp_intern_add(&r->ds->states, "step", 4, DCP_INTERN_NONE, &state) < 0)
			return dcp_ds_no_memory(r->ds);
		for (; rc == 0 && has > 0 && flat < r->nflat; has--, flat++)
			if (step)
				rc = add_value(r, flat, state, *step);
	}
	return rc;
}

static int take_master(struct reading *r)
{
	for (size_t i = 0; i < r->nflat; i++)
		if (dcp_ds_take_place(r->in, r->flat[i],
				      &r->rank->place[i * r->rank->nstates]) < 0)
			return dcp_ds_no_memory(r->ds);
	return 0;
}

static int read_rank(struct reading *r)
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
		rc = check_slices(r);
	if (rc == 0 && !r->rank->why)
		rc = dcp_ds_take_rules(r->ds, r->dict);
	if (rc < 0 || r->rank->why)
		return rc;
	find_entries(r);
	rc = number_states(r);
	if (rc < 0)
		return rc;
	r->rank->nstates = r->ds->states.n;
	r->rank->place = dcp_arena_calloc(&r->ds->arena, r->nflat * (size_t)r->ds->states.n,
					  sizeof(*r->rank->place));
	if (!r->rank->place)
		return dcp_ds_no_memory(r->ds);
	rc = take_master(r);
	if (rc == 0)
		rc = take_states(r);
	return rc == 0 ? take_group_steps(r) : rc;
}

int dcp_ds_read_optims(struct dcp_ds *ds, struct dcp_ds_part *part)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < part->nranks; i++) {
		struct dcp_ds_rank *rank = &part->rank[i];
		struct dcp_err why = { 0 };
		struct dcp_ds_input in;
		struct reading r = { .ds = ds, .part = part, .rank = rank, .in = &in };

		if (i > 0 && rank[-1].name->dp == rank->name->dp) {
			rc = useless(&r, dcp_ds_text(ds, "%s and %s are both of rank %" PRIu32,
						     rank[-1].name->name, rank->name->name,
						     rank->name->dp));
			if (rc == 0)
				rc = dcp_ds_tell_broken(ds, rank->name->name, rank->why);
			continue;
		}
		rc = dcp_ds_open(ds, rank->name->name, &in, &why);
		if (rc < 0)
			break;
		if (rc == 1) {
			rc = useless(&r, dcp_ds_keep(ds, why.msg));
		} else {
			rc = read_rank(&r);
			if (rc == 0)
				rc = dcp_ds_tell_rest(ds, rank->name, &in);
			dcp_ds_close(&in);
		}
		if (rc == 0 && rank->why)
			rc = dcp_ds_tell_broken(ds, rank->name->name, rank->why);
	}
	return rc;
}
