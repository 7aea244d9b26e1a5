/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/ds_world.h"

#include "tests/unit/t.h"
#include "tests/unit/t/format/torch.h"

static const char *const suffixes[] = { "rows",   "columns", "copied", "averaged",
					"halves", "subs",    "mapped" };

uint32_t t_ds_next(struct t_ds_world *w, uint32_t below)
{
	w->seed = w->seed * 1664525 + 1013904223;
	return (w->seed >> 8) % below;
}

/* The element of the whole that element @i of rank @r is. */
static size_t element_of(const struct t_ds_global *g, unsigned r, size_t i)
{
	int64_t at[3] = { 0 }, shape[3];
	size_t whole = 0;

	memcpy(shape, g->shape, sizeof(shape));
	shape[g->dim] = 0;
	for (size_t s = 0; s < g->nsubs; s++)
		shape[g->dim] += g->width[s][r];
	for (size_t d = g->ndim; d-- > 0; i /= (size_t)shape[d])
		at[d] = (int64_t)(i % (size_t)shape[d]);
	if (g->kind != T_DS_COPIED && g->kind != T_DS_AVERAGED) {
		int64_t before = 0, in = at[g->dim];

		for (size_t s = 0; s < g->nsubs; s++) {
			int64_t all = 0, mine = 0;

			for (unsigned k = 0; k < T_DS_MAX_TP; k++) {
				all += g->width[s][k];
				mine += k < r ? g->width[s][k] : 0;
			}
			if (in < g->width[s][r]) {
				at[g->dim] = before + mine + in;
				break;
			}
			in -= g->width[s][r];
			before += all;
		}
	}
	for (size_t d = 0; d < g->ndim; d++)
		whole = whole * (size_t)g->shape[d] + (size_t)at[d];
	return whole;
}

static void local_shape(const struct t_ds_global *g, unsigned r, int64_t *shape)
{
	memcpy(shape, g->shape, sizeof(g->shape));
	shape[g->dim] = 0;
	for (size_t s = 0; s < g->nsubs; s++)
		shape[g->dim] += g->width[s][r];
}

void t_ds_make_param(struct t_ds_world *w, struct t_ds_global *g, const char *stem,
		     enum t_ds_kind kind)
{
	*g = (struct t_ds_global){ .kind = kind, .ndim = 1 + t_ds_next(w, 3), .nsubs = 1 };
	snprintf(g->name, sizeof(g->name), "%s.%s", stem, suffixes[kind]);
	if (kind == T_DS_COLUMNS && g->ndim < 2)
		g->ndim = 2;
	for (size_t d = 0; d < g->ndim; d++)
		g->shape[d] = 1 + t_ds_next(w, 5);
	g->dim = kind == T_DS_COLUMNS                       ? 1
		 : kind == T_DS_SUBS || kind == T_DS_MAPPED ? t_ds_next(w, (uint32_t)g->ndim)
							    : 0;
	if (kind == T_DS_SUBS || kind == T_DS_MAPPED)
		g->nsubs = 1 + t_ds_next(w, T_DS_MAX_SUBS);
	if (kind == T_DS_HALVES)
		g->nsubs = 2;
	for (size_t s = 0; s < g->nsubs; s++)
		for (unsigned r = 0; r < w->tp; r++) {
			g->width[s][r] = 1 + t_ds_next(w, 3);
			/* halves are halves, and rows of a map may be all of one rank's */
			if (kind == T_DS_HALVES)
				g->width[s][r] = s ? g->width[0][r] : g->width[s][r];
			if (kind == T_DS_MAPPED && w->tp > 1 && t_ds_next(w, 4) == 0)
				g->width[s][r] = 0;
			if (kind == T_DS_COPIED || kind == T_DS_AVERAGED)
				g->width[s][r] = g->shape[0];
		}
	if (kind != T_DS_COPIED && kind != T_DS_AVERAGED) {
		g->shape[g->dim] = 0;
		for (size_t s = 0; s < g->nsubs; s++)
			for (unsigned r = 0; r < w->tp; r++)
				g->shape[g->dim] += g->width[s][r];
	}
	if (g->shape[g->dim] == 0) /* the map left nothing to any rank */
		g->shape[g->dim] = g->width[0][0] = 1;
}

/* ---- what is recorded of it ---- */

static void push_list_of(struct dcp_buf *b, const char *key, const char *pattern)
{
	t_pk_str(b, key);
	t_pk_list(b);
	t_pk_mark(b);
	t_pk_str(b, pattern);
	t_pk_appends(b);
}

static void write_exact(const struct t_ds_global *g, char out[160])
{
	size_t n = 0;

	out[n++] = '^';
	for (const char *p = g->name; *p; p++) {
		if (*p == '.')
			out[n++] = '\\';
		out[n++] = *p;
	}
	strcpy(out + n, "$");
}

static int64_t sub_width(const struct t_ds_world *w, const struct t_ds_global *g, size_t s)
{
	int64_t sum = 0;

	for (unsigned r = 0; r < w->tp; r++)
		sum += g->width[s][r];
	return sum;
}

static void push_sub(struct dcp_buf *b, const struct t_ds_world *w, const struct t_ds_global *g)
{
	int64_t sums[T_DS_MAX_SUBS];
	char pattern[160];

	write_exact(g, pattern);
	t_pk_dict(b);
	t_pk_mark(b);
	push_list_of(b, "patterns", pattern);
	t_pk_str(b, "shape");
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t s = 0; s < g->nsubs; s++)
		sums[s] = sub_width(w, g, s);
	for (size_t d = 0; d < g->ndim; d++)
		if (d == g->dim)
			t_pk_dims(b, sums, g->nsubs);
		else
			t_pk_int(b, g->shape[d]);
	t_pk_appends(b);
	t_pk_str(b, "partition_dim");
	t_pk_int(b, (int64_t)g->dim);
	t_pk_setitems(b);
}

static void push_widths(struct dcp_buf *b, const struct t_ds_world *w,
			const struct t_ds_global *g)
{
	char pattern[160];

	write_exact(g, pattern);
	t_pk_str(b, pattern);
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t s = 0; s < g->nsubs; s++)
		t_pk_numbers(b, g->width[s], w->tp);
	t_pk_appends(b);
}

/* [offset, strides] of a box that begins at @at along the dimension. */
static void push_corner(struct dcp_buf *b, const char *key, const struct t_ds_global *g,
			const int64_t *shape, int64_t at)
{
	int64_t stride[3], step = 1;

	for (size_t d = g->ndim; d-- > 0; step *= shape[d])
		stride[d] = step;
	t_pk_str(b, key);
	t_pk_list(b);
	t_pk_mark(b);
	t_pk_int(b, at * stride[g->dim]);
	t_pk_numbers(b, stride, g->ndim);
	t_pk_appends(b);
}

static void push_rank(struct dcp_buf *b, const struct t_ds_world *w,
		      const struct t_ds_global *g, unsigned r)
{
	int64_t shape[3], from = 0, before = 0, holder = r;

	local_shape(g, r, shape);
	t_pk_int(b, r);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "shard_shape");
	t_pk_numbers(b, shape, g->ndim);
	t_pk_str(b, "pieces");
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t s = 0; s < g->nsubs; s++) {
		int64_t at = before, len[3];

		for (unsigned k = 0; k < r; k++)
			at += g->width[s][k];
		memcpy(len, g->shape, sizeof(len));
		len[g->dim] = g->width[s][r];
		t_pk_dict(b);
		t_pk_mark(b);
		t_pk_str(b, "shape");
		t_pk_numbers(b, len, g->ndim);
		push_corner(b, "source", g, g->shape, at);
		push_corner(b, "dest", g, shape, from);
		t_pk_str(b, "locations");
		t_pk_numbers(b, &holder, 1);
		t_pk_setitems(b);
		from += g->width[s][r];
		before += sub_width(w, g, s);
	}
	t_pk_appends(b);
	t_pk_setitems(b);
}

static void push_map(struct dcp_buf *b, const struct t_ds_world *w, const struct t_ds_global *g)
{
	char pattern[160];

	write_exact(g, pattern);
	t_pk_str(b, pattern);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "logical_shape");
	t_pk_numbers(b, g->shape, g->ndim);
	t_pk_str(b, "ranks");
	t_pk_dict(b);
	t_pk_mark(b);
	for (unsigned r = 0; r < w->tp; r++)
		push_rank(b, w, g, r);
	t_pk_setitems(b);
	t_pk_setitems(b);
}

static void push_each(struct dcp_buf *b, const struct t_ds_world *w, enum t_ds_kind kind,
		      void (*push)(struct dcp_buf *, const struct t_ds_world *,
				   const struct t_ds_global *))
{
	for (size_t i = 0; i < w->n; i++)
		if (w->param[i].kind == kind)
			push(b, w, &w->param[i]);
}

static void push_rules(struct dcp_buf *b, const struct t_ds_world *w)
{
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "universal_checkpoint_version");
	t_pk_float(b, 0.4);
	push_list_of(b, "parameter_with_row_parallelism_patterns", ".*\\.columns$");
	push_list_of(b, "tp_replicated_parameter_patterns", ".*\\.copied$");
	push_list_of(b, "parameter_to_average_patterns", ".*\\.averaged$");
	push_list_of(b, "parameter_with_2_sub_params_cat_dim_0", ".*\\.halves$");
	t_pk_str(b, "parameter_with_sub_params");
	t_pk_list(b);
	t_pk_mark(b);
	push_each(b, w, T_DS_SUBS, push_sub);
	t_pk_appends(b);
	t_pk_str(b, "sub_param_shard_widths");
	t_pk_dict(b);
	t_pk_mark(b);
	push_each(b, w, T_DS_SUBS, push_widths);
	t_pk_setitems(b);
	t_pk_str(b, "affine_map");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "params");
	t_pk_dict(b);
	t_pk_mark(b);
	push_each(b, w, T_DS_MAPPED, push_map);
	t_pk_setitems(b);
	t_pk_setitems(b);
	t_pk_setitems(b);
}

/* ---- experts ---- */

/* The expert of the whole that the @i-th of a share is: AutoEP's are placed anyhow. */
static unsigned find_placed(const struct t_ds_world *w, unsigned share, unsigned i)
{
	unsigned total = w->ep * w->local_experts, at = share * w->local_experts + i;

	return w->autoep && total % 2 ? (at * 2) % total : w->autoep ? total - 1 - at : at;
}

static void push_layers(struct dcp_buf *b, const struct t_ds_world *w)
{
	t_pk_list(b);
	t_pk_mark(b);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "moe_layer_id");
	t_pk_int(b, 0);
	t_pk_str(b, "expert_key_prefix");
	t_pk_str(b, "moe.experts");
	t_pk_str(b, "num_experts");
	t_pk_int(b, w->ep * w->local_experts);
	t_pk_str(b, "ep_size");
	t_pk_int(b, w->ep);
	t_pk_str(b, "expert_placement");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "ranks");
	t_pk_list(b);
	t_pk_mark(b);
	for (unsigned s = 0; s < w->ep; s++) {
		int64_t has[8];

		for (unsigned i = 0; i < w->local_experts; i++)
			has[i] = find_placed(w, s, i);
		t_pk_dict(b);
		t_pk_mark(b);
		t_pk_str(b, "rank");
		t_pk_int(b, s);
		t_pk_str(b, "experts");
		t_pk_numbers(b, has, w->local_experts);
		t_pk_setitems(b);
	}
	t_pk_appends(b);
	t_pk_setitems(b);
	t_pk_setitems(b);
	t_pk_appends(b);
}

void t_ds_expert_name(const struct t_ds_world *w, const struct t_ds_global *g, unsigned share,
		      char out[80])
{
	unsigned local =
		(unsigned)strtoul(g->name + strlen("moe.deepspeed_experts."), NULL, 10);

	snprintf(out, 80, "moe.deepspeed_experts.%u.w%s", share * w->local_experts + local,
		 strrchr(g->name, '.'));
}

/* ---- what one rank writes ---- */

static float make_value(const struct t_ds *c, const char *state, const struct t_ds_param *p,
			unsigned share, size_t i)
{
	const struct t_ds_global *g = p->of;
	const struct t_ds_world *w = c->world_of;
	unsigned rank = c->by_stage && g >= &w->param[w->first_expert] ? 0 : c->mp % w->tp;
	char name[80];

	if (g < &w->param[w->first_expert] || !w->ep)
		return t_ds_value(state, g->name, element_of(g, rank, i));
	if (w->autoep) {
		size_t each = t_ds_numel(p) / w->local_experts;

		return t_ds_value(state, g->name,
				  find_placed(w, share, (unsigned)(i / each)) * each +
					  i % each);
	}
	t_ds_expert_name(w, g, share, name);
	return t_ds_value(state, name, element_of(g, rank, i));
}

static bool is_mine(const struct t_ds_world *w, size_t i, unsigned stage)
{
	return i >= w->first_expert || i % w->pp == stage;
}

/* A model-parallel rank's share of everything. */
static void write_part(const struct t_ds_world *w, const struct t_dir *d, unsigned mp,
		       const struct dcp_buf *rules, const struct dcp_buf *layers)
{
	struct t_ds_param local[T_DS_MAX_PARAMS];
	struct t_ds c = { .stage = w->stage,
			  .world = w->dp,
			  .param = local,
			  .ngroups = w->ep ? 3 : 2,
			  .lean = w->lean,
			  .elastic = w->elastic,
			  .mp = mp,
			  .tp = w->tp,
			  .pp = w->pp,
			  .prefix = w->pp > 1 ? "bf16_" : NULL,
			  .uc_info = w->tp > 1 ? rules->p : NULL,
			  .uc_n = rules->n,
			  .ep = w->ep,
			  .by_stage = w->by_stage,
			  .before = w->before,
			  .no_name = w->no_name,
			  .autoep = w->autoep ? layers->p : NULL,
			  .autoep_n = layers->n,
			  .world_of = w,
			  .value = make_value };

	for (size_t i = 0; i < w->n; i++) {
		struct t_ds_param *p = &local[c.nparams];

		*p = (struct t_ds_param){ .name = w->param[i].name,
					  .ndim = w->param[i].ndim,
					  .of = (void *)(uintptr_t)&w->param[i] };
		p->group = i >= w->first_expert ? 2 : i > w->first_expert / 2;
		local_shape(&w->param[i], i >= w->first_expert && w->by_stage ? 0 : mp % w->tp,
			    p->shape);
		if (i >= w->first_expert && w->autoep)
			p->shape[0] = w->local_experts;
		c.nparams += is_mine(w, i, mp / w->tp);
	}
	t_ds_write(&c, d, "");
}

static bool is_of(const struct t_ds_world *w, const struct t_ds_global *g, unsigned expert)
{
	unsigned local =
		(unsigned)strtoul(g->name + strlen("moe.deepspeed_experts."), NULL, 10);

	return w->autoep || local == expert % w->local_experts;
}

/* What the file of an expert has of a parameter. */
static void push_weight(struct t_stream *s, const struct t_ds_world *w,
			const struct t_ds_global *g, unsigned expert, unsigned r)
{
	float v[T_DS_MAX_NUMEL];
	int64_t shape[3] = { 1, 1, 1 };
	char name[80], key[100];
	size_t n = 1, ndim = g->ndim;

	t_ds_expert_name(w, g, expert / w->local_experts, name);
	if (w->autoep)
		snprintf(name, sizeof(name), "%s", g->name);
	if (w->autoep)
		memcpy(shape, g->shape + 1, --ndim * sizeof(*shape));
	else
		local_shape(g, w->by_stage ? 0 : r, shape);
	for (size_t d = 0; d < ndim; d++)
		n *= (size_t)shape[d];
	assert_true(n <= T_DS_MAX_NUMEL);
	for (size_t i = 0; i < n; i++)
		v[i] = t_ds_value("module", name,
				  w->autoep     ? expert * n + i
				  : w->by_stage ? i
						: element_of(g, r, i));
	snprintf(key, sizeof(key), "%s", name);
	if (w->autoep)
		snprintf(key, sizeof(key), "%s.%u", name, expert);
	t_stream_key(s, key);
	t_stream_tensor(s, "FloatStorage", v, n, sizeof(*v), 0, shape, ndim);
}

/* A file an expert; of experts that are cut, one a tensor-parallel rank. */
static void write_experts(const struct t_ds_world *w, const struct t_dir *d)
{
	struct t_stream *s = calloc(1, sizeof(*s));
	char name[80];

	assert_non_null(s);
	for (unsigned e = 0; e < w->ep * w->local_experts; e++)
		for (unsigned r = 0; r < (w->by_stage ? 1 : w->tp); r++) {
			t_pk_start(&s->pk);
			t_pk_dict(&s->pk);
			t_pk_mark(&s->pk);
			for (size_t i = w->first_expert; i < w->n; i++)
				if (is_of(w, &w->param[i], e))
					push_weight(s, w, &w->param[i], e, r);
			t_pk_setitems(&s->pk);
			snprintf(name, sizeof(name),
				 "layer_0_expert_%u_mp_rank_%02u_model_states.pt", e,
				 w->by_stage ? e / w->local_experts % w->tp : r);
			t_stream_put(s, d, name);
		}
	free(s);
}

void t_ds_write_world(const struct t_ds_world *w, const struct t_dir *d)
{
	dcp_auto_buf struct dcp_buf rules = DCP_BUF_INIT, layers = DCP_BUF_INIT;

	push_rules(&rules, w);
	push_layers(&layers, w);
	for (unsigned mp = 0; mp < w->tp * w->pp; mp++)
		write_part(w, d, mp, &rules, &layers);
	if (w->ep && w->stage < 3)
		write_experts(w, d);
}
