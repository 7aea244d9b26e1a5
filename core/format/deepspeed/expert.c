/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the ranks that hold each expert (MoE).
 *
 * Experts are dealt to expert-parallel ranks. All ranks that hold the same experts are a "share",
 * and the optimizer's group of these experts is cut over these ranks alone. With S shares, rank r
 * holds slice r / S of share r % S; with use_data_before_expert_parallelism, rank r holds slice
 * r % slices of share r / slices. The ranks that are counted as r are:
 *
 *	without tensor parallelism   the data-parallel ranks
 *	if tp cuts experts, too      the data-parallel ranks of each tensor-parallel rank by itself
 *	if tp does not cut experts   all ranks of a pipeline stage: r = data-parallel rank * tp +
 *	                             tensor-parallel rank. AutoEP counts like this.
 *
 * The last two cases are told apart by shares * (ranks that a group is cut over).
 *
 * DeepSpeed's own layers have separate parameters for each expert, and number the experts of a
 * share from 0: "....deepspeed_experts.0.fc.weight". AutoEP (since 0.18) has one tensor for all
 * experts of a share. The list ds_autoep_layers in model files names these experts:
 *
 *	{"expert_key_prefix": "model.layers.0.mlp.experts", "moe_layer_id": 0, "num_experts": 4,
 *	 "ep_size": 2, "expert_placement": {"ranks": [{"rank": 0, "experts": [0, 1]}, ...]}}
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/text.h"
#include "core/format/deepspeed/deepspeed_int.h"

enum { MAX_EXPERTS = 1 << 16, MAX_SHARES = 1 << 12 };

static const char numbered[] = ".deepspeed_experts.";

/* ---- AutoEP's layers ---- */

static bool take_number(struct dcp_pv v, const char *key, uint32_t most, uint32_t *out)
{
	uint64_t n;

	if (!dcp_pv_u64(dcp_pv_at(v, key), &n) || n > most)
		return false;
	*out = (uint32_t)n;
	return true;
}

/* Read the experts of one share, in the order in which the share holds them. */
static int take_list(struct dcp_deepspeed *ds, const struct dcp_deepspeed_experts *e,
		     struct dcp_pv v, const uint32_t **has, uint32_t *nhas)
{
	size_t n = 0;
	const struct dcp_pv *item = dcp_pv_items(v, &n);
	uint32_t *out = dcp_arena_calloc(&ds->arena, n + 1, sizeof(*out));
	uint64_t number;

	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (!dcp_pv_u64(item[i], &number) || number >= e->total)
			return -EINVAL;
		out[i] = (uint32_t)number;
	}
	*has = out;
	*nhas = (uint32_t)n;
	return 0;
}

static int take_placement(struct dcp_deepspeed *ds, const struct dcp_deepspeed_experts *e,
			  struct dcp_pv placement, const uint32_t **has, uint32_t *nhas)
{
	uint32_t rank;
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(placement, "ranks"), &n), *list;
	int rc = 0;

	if (n != e->shares)
		return -EINVAL;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		list = dcp_pv_get(item[i], "experts");
		if (!list || !take_number(item[i], "rank", e->shares - 1, &rank) || has[rank])
			return -EINVAL;
		rc = take_list(ds, e, *list, &has[rank], &nhas[rank]);
	}
	return rc;
}

/* The first releases had no placement: experts were dealt in order. */
static int deal_experts(struct dcp_deepspeed *ds, const struct dcp_deepspeed_experts *e,
			const uint32_t **has, uint32_t *nhas)
{
	uint32_t each = e->total / e->shares;
	uint32_t *all = dcp_arena_calloc(&ds->arena, e->total, sizeof(*all));

	if (!all)
		return -ENOMEM;
	if (e->total % e->shares)
		return -EINVAL;
	for (uint32_t i = 0; i < e->total; i++)
		all[i] = i;
	for (uint32_t s = 0; s < e->shares; s++) {
		has[s] = all + (size_t)s * each;
		nhas[s] = each;
	}
	return 0;
}

static int take_layer(struct dcp_deepspeed *ds, struct dcp_pv v)
{
	const struct dcp_pv placement = dcp_pv_at(v, "expert_placement");
	const char *prefix = dcp_pv_str(dcp_pv_at(v, "expert_key_prefix"));
	struct dcp_deepspeed_experts *e = &ds->experts[ds->nexperts];
	const uint32_t **has;
	uint32_t *nhas, number;
	int rc;

	if (!prefix || !take_number(v, "num_experts", MAX_EXPERTS, &e->total) ||
	    !take_number(v, "ep_size", MAX_SHARES, &e->shares) || !e->shares || !e->total ||
	    !take_number(v, "moe_layer_id", UINT32_MAX, &e->layer))
		return -EINVAL;
	e->prefix = dcp_arena_strdup(&ds->arena, prefix);
	has = dcp_arena_calloc(&ds->arena, e->shares, sizeof(*has));
	nhas = dcp_arena_calloc(&ds->arena, e->shares, sizeof(*nhas));
	if (!e->prefix || !has || !nhas)
		return -ENOMEM;
	rc = dcp_pv_is_mapping(placement) ? take_placement(ds, e, placement, has, nhas)
					  : deal_experts(ds, e, has, nhas);
	if (rc < 0)
		return rc;
	e->has = has;
	e->nhas = nhas;
	rc = dcp_intern_str(&ds->expert_layers, e->prefix, &number);
	ds->nexperts += rc == 1;
	return rc < 0 ? -ENOMEM : 0;
}

/* A layer whose counts contradict each other is left out: then nothing is known of its
 * parameters. */
int dcp_deepspeed_take_experts(struct dcp_deepspeed *ds, struct dcp_pv root)
{
	const struct dcp_pv *all = dcp_pv_get(root, "ds_autoep_layers"), *item;
	size_t n = 0;
	int rc = 0;

	all = all ? all : dcp_pv_get(root, "autoep_layers");
	item = all ? dcp_pv_items(*all, &n) : NULL;
	if (!item || n == 0 || ds->experts)
		return 0;
	ds->experts = dcp_arena_calloc(&ds->arena, n, sizeof(*ds->experts));
	if (!ds->experts)
		return -ENOMEM;
	for (size_t i = 0; (rc == 0 || rc == -EINVAL) && i < n; i++)
		rc = take_layer(ds, item[i]);
	return rc == -EINVAL ? 0 : rc;
}

const struct dcp_deepspeed_experts *dcp_deepspeed_experts_of(const struct dcp_deepspeed *ds,
							     const char *name)
{
	const char *dot = ds->nexperts ? strrchr(name, '.') : NULL;
	uint32_t number = dot ? dcp_intern_find(&ds->expert_layers, name, (size_t)(dot - name))
			      : DCP_INTERN_NONE;

	return number == DCP_INTERN_NONE ? NULL : &ds->experts[number];
}

/* ---- numbered experts ---- */

static bool is_numbered(const char *name)
{
	return strstr(name, numbered) != NULL;
}

static uint64_t local_number(const char *name)
{
	const char *s = strstr(name, numbered) + strlen(numbered);
	uint64_t n = dcp_is_digit(*s) ? UINT64_MAX : 0; /* too large; none */

	dcp_take_number(&s, NULL, DCP_ANY_DIGITS, &n);
	return n;
}

/* The number of experts that a rank has, from the numbers in the names of its parameters. */
static uint64_t count_numbers(const struct dcp_deepspeed_param *p, size_t n)
{
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++)
		most = DCP_MAX(most, local_number(p[i].name) + 1);
	return most;
}

/* The name in the whole model of @name, a parameter of an expert of share @share. */
static const char *global_name(struct dcp_deepspeed *ds, const char *name, uint64_t share,
			       uint64_t each)
{
	const char *at = strstr(name, numbered) + strlen(numbered);
	size_t digits = strspn(at, "0123456789");

	return dcp_deepspeed_text(ds, "%.*s%" PRIu64 "%s", (int)(at - name), name,
				  share * each + local_number(name), at + digits);
}

bool dcp_deepspeed_all_experts(const struct dcp_deepspeed *ds,
			       const struct dcp_deepspeed_param *p, size_t n)
{
	const struct dcp_deepspeed_experts *first = dcp_deepspeed_experts_of(ds, p->name), *e;

	for (size_t i = 0; i < n; i++) {
		e = dcp_deepspeed_experts_of(ds, p[i].name);
		if (first ? !e || e->shares != first->shares || p[i].ndim == 0
			  : !is_numbered(p[i].name) || local_number(p[i].name) > MAX_EXPERTS)
			return false;
	}
	return true;
}

/* ---- where shares lie ---- */

/* The number of shares, from AutoEP's list, the group's name, the names of files, or by
 * counting. */
static uint32_t count_shares(const struct dcp_deepspeed_laying *l,
			     const struct dcp_deepspeed_list *list,
			     const struct dcp_deepspeed_param *p, uint64_t each)
{
	const struct dcp_deepspeed_experts *e = dcp_deepspeed_experts_of(l->ds, p->name);
	const struct dcp_deepspeed_name *f;
	uint64_t total = 0;
	size_t n;

	if (e)
		return e->shares;
	if (list->shares)
		return list->shares;
	f = dcp_deepspeed_files(l->ds, DCP_DEEPSPEED_EXPERT, &n);
	for (size_t i = 0; i < n; i++)
		total = DCP_MAX(total, (uint64_t)f[i].expert + 1);
	if (total && total % each == 0)
		return (uint32_t)(total / each);
	return list->count <= l->part->world ? l->part->world / list->count : 1;
}

/* The parts that take turns, see struct dcp_deepspeed_group; 0 if the numbers do not fit. */
static uint32_t count_lanes(const struct dcp_deepspeed_laying *l,
			    const struct dcp_deepspeed_list *list, uint32_t shares)
{
	uint64_t ranks = (uint64_t)list->count * shares;

	if (shares > 0 && shares <= MAX_SHARES && ranks == l->part->world)
		return 1;
	return shares > 0 && shares <= MAX_SHARES &&
			       ranks == (uint64_t)l->part->world * l->ds->tp
		       ? l->ds->tp
		       : 0;
}

/* Has an earlier part of the stage named its parameters? Groups that the whole stage shares are
 * emitted for the first such part. */
static bool is_emitted_before(const struct dcp_deepspeed_laying *l)
{
	uint32_t mp = l->part->mp, tp = l->ds->tp;

	for (uint32_t other = mp - mp % tp; other < mp; other++) {
		const struct dcp_deepspeed_part *p = dcp_deepspeed_part_of(l->ds, other);

		if (p && p->named && p->first)
			return true;
	}
	return false;
}

/* Make @p the parameters of share @share: numbered experts get their names in the whole model,
 * tensors of AutoEP their shapes. */
static int rename_params(struct dcp_deepspeed_laying *l, struct dcp_deepspeed_param *p,
			 size_t n, uint32_t share, uint64_t each)
{
	for (size_t i = 0; i < n; i++) {
		const struct dcp_deepspeed_experts *e =
			dcp_deepspeed_experts_of(l->ds, p[i].name);
		uint64_t *shape;

		if (!e) {
			p[i].name = global_name(l->ds, p[i].name, share, each);
			if (!p[i].name)
				return -ENOMEM;
			continue;
		}
		p[i].experts = e;
		p[i].next = (uint32_t)n;
		p[i].hidden = share > 0;
		shape = dcp_arena_dup(&l->ds->arena, p[i].shape, p[i].ndim, sizeof(*shape));
		if (!shape)
			return -ENOMEM;
		shape[0] = e->nhas[share];
		p[i].shape = shape;
		if (!dcp_shape_volume(shape, p[i].ndim, &p[i].numel) ||
		    p[i].numel > INT64_MAX / 16) {
			p[i].numel = 0;
			p[i].why = "its shape in param_shapes is invalid";
		}
	}
	return 0;
}

int dcp_deepspeed_add_experts(struct dcp_deepspeed_laying *l,
			      const struct dcp_deepspeed_list *list,
			      struct dcp_deepspeed_group *g,
			      const struct dcp_deepspeed_param *p, size_t n)
{
	uint64_t each = dcp_deepspeed_experts_of(l->ds, p->name) ? 1 : count_numbers(p, n);
	uint32_t shares = count_shares(l, list, p, each), lanes = count_lanes(l, list, shares);
	int rc = 0;

	if (!lanes) {
		g->why = dcp_deepspeed_text(l->ds,
					    "its experts are cut over %" PRIu32
					    " ranks, of %" PRIu32 " data-parallel and %" PRIu32
					    " tensor-parallel ones: nothing says which",
					    list->count, l->part->world, l->ds->tp);
		shares = lanes = 1;
	}
	g->lanes = lanes;
	l->ds->expert_lanes = lanes;
	if (lanes > 1 && is_emitted_before(l))
		return 0;
	for (uint32_t s = 0; rc == 0 && s < shares; s++) {
		struct dcp_deepspeed_param *mine =
			dcp_arena_dup(&l->ds->arena, p, n, sizeof(*p));

		if (!mine)
			return -ENOMEM;
		g->base = l->ds->before_expert ? s * g->count : s;
		g->step = l->ds->before_expert ? 1 : shares;
		for (size_t i = 0; i < n; i++)
			mine[i].whole = lanes > 1;
		rc = g->why ? 0 : rename_params(l, mine, n, s, each);
		if (rc == 0)
			dcp_deepspeed_place_params(l, list, g, mine, n);
		if (rc == 0)
			rc = dcp_deepspeed_add_group(l, g, mine, n);
	}
	return rc;
}
