/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the wrapped optimizer keeps of every flat tensor. A state is flat when its tensor is as
 * long as the master weights or, where their padding was cut off, longer; of one element it is
 * common to all parameters (step). Everything else is emitted as it stands.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/format/deepspeed/emit.h"
#include "core/parse/pyjson/pyjson.h"

enum { MAX_STATES = 64 };

/* What all states of one file are, however it lists them. */
struct entries {
	const struct dcp_pv *item; /* pairs of number and states, or (listed) states alone */
	size_t n;
	bool listed;
};

const struct dcp_pv *dcp_ds_param_groups(const struct dcp_ds_reading *r, size_t *n)
{
	return dcp_pv_items(dcp_pv_at(r->base, "param_groups"), n);
}

bool dcp_ds_is_muon(const struct dcp_ds_reading *r, size_t i)
{
	size_t n;
	const struct dcp_pv *group = dcp_ds_param_groups(r, &n), *muon;

	muon = i < n && !r->waves ? dcp_pv_get(group[i], "use_muon") : NULL;
	return muon && muon->type == DCP_PV_BOOL && muon->b;
}

/* The elements of a list's lists, in order. */
static int flatten(struct dcp_ds_reading *r, struct entries *e)
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

static int find_entries(struct dcp_ds_reading *r, struct entries *e)
{
	*e = (struct entries){ .listed = r->base.type == DCP_PV_LIST };
	if (e->listed) {
		e->item = dcp_pv_items(r->base, &e->n);
		return e->n && e->item->type == DCP_PV_LIST ? flatten(r, e) : 0;
	}
	e->item = dcp_pv_pairs(dcp_pv_at(r->base, "state"), &e->n);
	return 0;
}

/* Before torch 1.6 parameters were called by their addresses: the param_groups number them. */
static uint64_t number_of(const struct dcp_ds_reading *r, struct dcp_pv id)
{
	uint64_t number = UINT64_MAX, other;
	size_t n, m, at = 0;
	const struct dcp_pv *group = dcp_ds_param_groups(r, &n), *item;

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

/*
 * The states of entry @i and which flat tensor they are of. The wrapped optimizer has one
 * parameter for each, numbered in order.
 */
static const struct dcp_pv *entry(const struct dcp_ds_reading *r, const struct entries *e,
				  size_t i, uint64_t *flat, size_t *n)
{
	*n = 0;
	*flat = e->listed ? i : number_of(r, e->item[2 * i]);
	if (*flat >= r->nflat)
		return NULL;
	return dcp_pv_pairs(e->item[e->listed ? i : 2 * i + 1], n);
}

static int number_states(struct dcp_ds_reading *r, const struct entries *e)
{
	uint64_t flat;
	size_t n;
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < e->n; i++) {
		const struct dcp_pv *kv = entry(r, e, i, &flat, &n);

		for (size_t k = 0; rc >= 0 && kv && k < n; k++) {
			const char *name = dcp_pv_str(kv[2 * k]);

			if (name && r->ds->states.n < MAX_STATES)
				rc = dcp_intern_str(&r->ds->states, name, NULL);
		}
	}
	return rc < 0 ? -ENOMEM : 0;
}

static int add_common(struct dcp_ds_reading *r, const struct dcp_ds_common *c)
{
	return dcp_buf_add(&r->part->common, c, sizeof(*c));
}

static int add_value(struct dcp_ds_reading *r, uint32_t flat, uint32_t state, struct dcp_pv v)
{
	struct dcp_ds_common c = { .flat = flat, .state = state };
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

/* No value for each element (scales of quantized moments, factors): emitted as it stands. */
static int emit_odd(struct dcp_ds_reading *r, uint32_t flat, uint32_t state, struct dcp_pv v)
{
	char number[16];
	const char *path[] = { r->rank->name->name,
			       "optimizer_state_dict",
			       r->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state",
			       "state",
			       number,
			       dcp_intern_text(&r->ds->states, state) };

	snprintf(number, sizeof(number), "%" PRIu32, flat);
	return dcp_ds_emit_value(r->ds, r->in, v, path, DCP_LEN(path));
}

static int take_state(struct dcp_ds_reading *r, uint32_t flat, uint32_t state, struct dcp_pv v)
{
	struct dcp_ds_place *row = r->rank->place + (size_t)flat * r->rank->nstates;
	struct dcp_ds_common c = { .flat = flat, .state = state };
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
	dcp_ds_place_tensor(r->in, &tt, &c.place);
	c.ndim = tt.ndim;
	if (c.place.n == 1 && (tt.ndim == 0 || row[0].n != 1))
		return first ? add_common(r, &c) : 0;
	if (tt.ndim != 1 || !c.place.there ||
	    (c.place.n < row[0].n && !dcp_ds_is_muon(r, flat)))
		return emit_odd(r, flat, state, v);
	row[state] = c.place;
	return 0;
}

static int take_states(struct dcp_ds_reading *r, const struct entries *e)
{
	uint64_t flat;
	size_t n;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < e->n; i++) {
		const struct dcp_pv *kv = entry(r, e, i, &flat, &n);

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

/* A step that a whole group has, or all of them, is that of its flat tensors. */
static int add_step(struct dcp_ds_reading *r, struct dcp_pv step, uint32_t *flat, size_t n)
{
	uint32_t state;
	int rc = 0;

	if (dcp_intern_str(&r->ds->states, "step", &state) < 0)
		return -ENOMEM;
	for (; rc == 0 && n > 0 && *flat < r->nflat; n--, ++*flat)
		rc = add_value(r, *flat, state, step);
	return rc;
}

/* Fused optimizers count steps in their groups, elastic checkpoints once. */
static int take_group_steps(struct dcp_ds_reading *r)
{
	const struct dcp_pv *once = dcp_pv_get(r->dict, "base_optimizer_state_step");
	size_t n = 0;
	const struct dcp_pv *group = dcp_ds_param_groups(r, &n);
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

static int take_master(struct dcp_ds_reading *r)
{
	for (size_t i = 0; i < r->nflat; i++)
		if (dcp_ds_take_place(r->in, r->flat[i],
				      &r->rank->place[i * r->rank->nstates]) < 0)
			return -ENOMEM;
	return 0;
}

int dcp_ds_read_moments(struct dcp_ds_reading *r)
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
