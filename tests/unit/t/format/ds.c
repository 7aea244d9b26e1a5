/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/ds.h"

#include "tests/unit/t.h"
#include "tests/unit/t/format/torch.h"

static const char *const states[] = { "fp32", "exp_avg", "exp_avg_sq" };

static void fill_param(float *to, const struct t_ds *c, const char *state,
		       const struct t_ds_param *p, unsigned share)
{
	for (size_t i = 0; i < t_ds_numel(p); i++)
		to[i] = c->value ? c->value(c, state, p, share, i)
				 : t_ds_value(state, p->name, i) +
					   (p->same ? 0 : T_DS_RANK * (float)c->mp);
}

/* ---- optimizer files ---- */

/* How the group of a rank is cut, and which slice that rank has. */
struct cut {
	unsigned share, count, index;
};

static bool has_experts(const struct t_ds *c, unsigned group)
{
	return c->ep && group + 1 == c->ngroups;
}

static struct cut cut_of(const struct t_ds *c, unsigned group, unsigned rank)
{
	unsigned lanes = c->by_stage ? (unsigned)c->tp : 1, r = rank * lanes + c->mp % lanes;
	struct cut cut = { 0, c->world, rank };

	if (!has_experts(c, group))
		return cut;
	cut.count = c->world * lanes / c->ep;
	cut.share = c->before ? r / cut.count : r % c->ep;
	cut.index = c->before ? r % cut.count : r / c->ep;
	return cut;
}

struct flat {
	float *v;
	size_t n;    /* with padding */
	size_t lean; /* without that at the end */
};

/* Stages 1 and 2: a whole group. */
static struct flat whole_group(const struct t_ds *c, unsigned group, const char *state,
			       struct cut cut)
{
	size_t unit = (size_t)cut.count * (c->waves ? c->waves : c->odd_unit ? 1 : 2);
	struct flat f = { .v = calloc(1 << 16, sizeof(float)) };

	assert_non_null(f.v);
	for (size_t i = 0; i < c->nparams; i++) {
		if (c->param[i].group != group || c->param[i].frozen)
			continue;
		while (c->align && f.lean % c->align)
			f.v[f.lean++] = -7;
		fill_param(f.v + f.lean, c, state, &c->param[i], cut.share);
		f.lean += t_ds_numel(&c->param[i]);
	}
	for (f.n = f.lean; f.n % unit; f.n++)
		f.v[f.n] = -9;
	assert_true(f.n < 1 << 16);
	return f;
}

/* Stage 3: what one rank holds of a group. */
static struct flat rank_slices(const struct t_ds *c, unsigned group, const char *state,
			       struct cut cut)
{
	struct flat f = { .v = calloc(1 << 16, sizeof(float)) };
	float *whole = calloc(1 << 16, sizeof(float));

	assert_non_null(f.v);
	assert_non_null(whole);
	for (size_t i = 0; i < c->nparams; i++) {
		size_t n, each;

		if (c->param[i].group != group || c->param[i].frozen)
			continue;
		n = t_ds_numel(&c->param[i]);
		each = (n + cut.count - 1) / cut.count;
		for (size_t k = 0; k < each * cut.count; k++)
			whole[k] = -9;
		fill_param(whole, c, state, &c->param[i], cut.share);
		memcpy(f.v + f.n, whole + cut.index * each, each * sizeof(float));
		f.n += each;
	}
	f.lean = f.n;
	free(whole);
	return f;
}

static void push_flat(struct t_stream *s, const struct t_ds *c, unsigned group,
		      const char *state, unsigned rank, unsigned wave, bool lean)
{
	struct cut cut = cut_of(c, group, rank);
	struct flat f = c->stage == 3 ? rank_slices(c, group, state, cut)
				      : whole_group(c, group, state, cut);
	size_t slices = (size_t)cut.count * (c->waves ? c->waves : 1);
	size_t each = c->stage == 3 ? f.n : f.n / slices;
	size_t lo = c->stage == 3 ? 0 : (wave * (size_t)cut.count + cut.index) * each;
	size_t n = each;
	int64_t shape;

	if (lean && c->stage != 3)
		n = f.lean <= lo ? 0 : f.lean - lo < each ? f.lean - lo : each;
	if (c->short_flat == rank + 1 && group == 0 && n > 0)
		n--;
	shape = (int64_t)n;
	/* The storage is longer than the tensor, as it is where padding was cut off. */
	t_stream_tensor(s, "FloatStorage", f.v + lo, each, sizeof(float), 0, &shape, 1);
	free(f.v);
}

static void push_states(struct t_stream *s, const struct t_ds *c, unsigned group, unsigned rank,
			unsigned wave)
{
	float step = 12;

	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	if (!c->int_step) {
		t_stream_key(s, "step");
		t_stream_tensor(s, "FloatStorage", &step, 1, sizeof(step), 0, NULL, 0);
	}
	for (size_t i = 1; i < DCP_LEN(states); i++) {
		if (i == 1 && c->no_moment == rank + 1)
			continue;
		t_stream_key(s, states[i]);
		push_flat(s, c, group, states[i], rank, wave, c->elastic);
	}
	t_pk_setitems(&s->pk);
}

static unsigned waves_of(const struct t_ds *c)
{
	return c->waves ? c->waves : 1;
}

/* Of every group what @push pushes for each wave; before 0.5.9 in a list of its own. */
static void push_waves(struct t_stream *s, const struct t_ds *c, unsigned rank,
		       void (*push)(struct t_stream *s, const struct t_ds *c, unsigned group,
				    unsigned rank, unsigned wave))
{
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++) {
		if (c->waves) {
			t_pk_list(&s->pk);
			t_pk_mark(&s->pk);
		}
		for (unsigned w = 0; w < waves_of(c); w++)
			push(s, c, g, rank, w);
		if (c->waves)
			t_pk_appends(&s->pk);
	}
	t_pk_appends(&s->pk);
}

/* Addresses of parameters, before torch 1.6, or their numbers. */
static int64_t id_of(const struct t_ds *c, unsigned group, unsigned wave)
{
	int64_t number = group * waves_of(c) + wave;

	return c->addresses ? 140000000000000 - 64 * number : number;
}

static void push_param_group(struct t_stream *s, const struct t_ds *c, unsigned group)
{
	char name[24];

	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	t_stream_key(s, "lr");
	t_pk_float(&s->pk, 0.5);
	if (c->int_step) {
		t_stream_key(s, "step");
		t_pk_int(&s->pk, 12);
	}
	if (has_experts(c, group) && !c->no_name) {
		snprintf(name, sizeof(name), "ep_size_%u", c->ep);
		t_stream_key(s, "name");
		t_pk_str(&s->pk, name);
	}
	t_stream_key(s, "params");
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned w = 0; w < waves_of(c); w++)
		t_pk_int(&s->pk, id_of(c, group, w));
	t_pk_appends(&s->pk);
	t_pk_setitems(&s->pk);
}

static void push_base(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	if (c->elastic) {
		push_waves(s, c, rank, push_states);
		return;
	}
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	t_stream_key(s, "state");
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++)
		for (unsigned w = 0; w < waves_of(c); w++) {
			t_pk_int(&s->pk, id_of(c, g, w));
			push_states(s, c, g, rank, w);
		}
	t_pk_setitems(&s->pk);
	t_stream_key(s, "param_groups");
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++)
		push_param_group(s, c, g);
	t_pk_appends(&s->pk);
	t_pk_setitems(&s->pk);
}

static void push_gaps(struct t_stream *s, const struct t_ds *c)
{
	t_stream_key(s, "param_alignment_paddings");
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++) {
		size_t at = 0, last = c->nparams;

		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
		for (size_t i = 0; i < c->nparams; i++)
			if (c->param[i].group == g && !c->param[i].frozen)
				last = i;
		for (size_t i = 0; i < c->nparams; i++) {
			size_t gap;

			if (c->param[i].group != g || c->param[i].frozen)
				continue;
			at += t_ds_numel(&c->param[i]);
			gap = i == last ? 0 : (c->align - at % c->align) % c->align;
			t_pk_int(&s->pk, (int64_t)gap);
			at += gap;
		}
		t_pk_appends(&s->pk);
	}
	t_pk_appends(&s->pk);
}

/* What AutoEP's stage 3 says of every sub-group. */
static void push_own_words(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	t_stream_key(s, "ds_zero_partition_groups");
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++) {
		struct cut cut = cut_of(c, g, rank);

		t_pk_dict(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, "partition_count");
		t_pk_int(&s->pk, cut.count);
		t_stream_key(s, "partition_rank");
		t_pk_int(&s->pk, cut.index);
		t_pk_setitems(&s->pk);
	}
	t_pk_appends(&s->pk);
}

static void push_counts(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	if (c->waves && !c->elastic)
		return; /* the rigid one of old did not say */
	t_stream_key(s, "partition_count");
	if (c->stage == 3 || c->waves) {
		t_pk_int(&s->pk, c->wrong_count && rank == 1 ? c->wrong_count : c->world);
		if (c->ep)
			push_own_words(s, c, rank);
		return;
	}
	t_pk_list(&s->pk);
	t_pk_mark(&s->pk);
	for (unsigned g = 0; g < c->ngroups; g++)
		t_pk_int(&s->pk, c->wrong_count && rank == 1 ? c->wrong_count
							     : cut_of(c, g, rank).count);
	t_pk_appends(&s->pk);
}

static void push_fp32(struct t_stream *s, const struct t_ds *c, unsigned group, unsigned rank,
		      unsigned wave)
{
	push_flat(s, c, group, states[0], rank, wave, c->lean || c->elastic);
}

static void push_master(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	t_stream_key(s, c->stage == 3 ? "fp32_flat_groups"
			: c->waves    ? "local_sub_partitions_of_fp32_groups"
				      : "single_partition_of_fp32_groups");
	push_waves(s, c, rank, push_fp32);
}

static void write_optim(const struct t_ds *c, const struct t_dir *d, const char *at,
			unsigned rank)
{
	struct t_stream *s = calloc(1, sizeof(*s));
	char name[160];

	assert_non_null(s);
	t_pk_start(&s->pk);
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	t_stream_key(s, "optimizer_state_dict");
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	if (!c->no_stage) {
		t_stream_key(s, "zero_stage");
		t_pk_global(&s->pk, "deepspeed.runtime.zero.config", "ZeroStageEnum");
		t_pk_mark(&s->pk);
		t_pk_int(&s->pk, c->stage);
		t_pk_tuple(&s->pk);
		t_pk_reduce(&s->pk);
	}
	push_counts(s, c, rank);
	if (c->align)
		push_gaps(s, c);
	t_stream_key(s, c->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
	push_base(s, c, rank);
	push_master(s, c, rank);
	t_pk_setitems(&s->pk);
	t_stream_key(s, "ds_version");
	t_pk_str(&s->pk, "0.0.1");
	t_pk_setitems(&s->pk);
	snprintf(name, sizeof(name), "%s%szero_pp_rank_%u_mp_rank_%02u%soptim_states.pt", at,
		 c->prefix ? c->prefix : "", rank, (unsigned)c->mp, c->old_name ? "" : "_");
	t_stream_put(s, d, name);
	free(s);
}

/* ---- model files ---- */

static void push_size(struct t_stream *s, const struct t_ds_param *p, int64_t more)
{
	int64_t shape[4];

	memcpy(shape, p->shape, sizeof(shape));
	shape[p->ndim ? p->ndim - 1 : 0] += more;
	t_pk_global(&s->pk, "torch", "Size");
	t_pk_mark(&s->pk);
	t_pk_dims(&s->pk, shape, p->ndim);
	t_pk_tuple(&s->pk);
	t_pk_reduce(&s->pk);
}

static void push_ordered(struct t_stream *s)
{
	t_pk_global(&s->pk, "collections", "OrderedDict");
	t_pk_mark(&s->pk);
	t_pk_tuple(&s->pk);
	t_pk_reduce(&s->pk);
	t_pk_mark(&s->pk);
}

static void push_shapes(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	bool wrong = c->wrong_shape == rank + 1;

	t_stream_key(s, "param_shapes");
	if (!c->one_list) {
		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
	} else {
		push_ordered(s);
	}
	for (unsigned g = 0; g < c->ngroups; g++) {
		if (!c->one_list)
			push_ordered(s);
		for (size_t i = 0; i < c->nparams; i++)
			/* of one without elements the optimizer knows nothing */
			if (c->param[i].group == g && !c->param[i].frozen &&
			    t_ds_numel(&c->param[i])) {
				t_stream_key(s, c->param[i].name);
				push_size(s, &c->param[i], wrong && i + 1 == c->nparams);
			}
		if (!c->one_list)
			t_pk_setitems(&s->pk);
	}
	if (c->one_list)
		t_pk_setitems(&s->pk);
	else
		t_pk_appends(&s->pk);
}

/* Weights are one storage for a name and what is tied to it; empty in stage 3. */
static void push_module(struct t_stream *s, const struct t_ds *c)
{
	int64_t none = 0;

	t_stream_key(s, "module");
	push_ordered(s);
	for (size_t i = 0; i < c->nparams; i++) {
		const struct t_ds_param *p = &c->param[i];
		float *v = calloc(t_ds_numel(p) + 1, sizeof(*v));
		char key[16];
		int64_t stride[8], step = 1;

		assert_non_null(v);
		if (has_experts(c, p->group)) { /* they have files of their own */
			free(v);
			continue;
		}
		fill_param(v, c, "module", p, 0);
		for (size_t d = p->ndim; d-- > 0; step *= p->shape[d])
			stride[d] = step;
		snprintf(key, sizeof(key), "%zu", s->n);
		t_stream_key(s, p->name);
		if (c->stage == 3)
			t_stream_tensor(s, "FloatStorage", v, 0, sizeof(*v), 0, &none, 1);
		else
			t_stream_tensor(s, "FloatStorage", v, t_ds_numel(p), sizeof(*v), 0,
					p->shape, p->ndim);
		if (p->tied) {
			t_stream_key(s, p->tied);
			if (c->stage == 3)
				t_pk_tensor(&s->pk, "FloatStorage", key, 0, 0, &none, &none, 1);
			else
				t_pk_tensor(&s->pk, "FloatStorage", key, (int64_t)t_ds_numel(p),
					    0, p->shape, stride, p->ndim);
		}
		free(v);
	}
	t_pk_setitems(&s->pk);
}

static void push_ties(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	t_stream_key(s, "shared_params");
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	for (size_t i = 0; rank == 0 && i < c->nparams; i++)
		if (c->param[i].tied) {
			t_stream_key(s, c->param[i].tied);
			t_stream_key(s, c->param[i].name);
		}
	t_pk_setitems(&s->pk);
}

static void push_fragments(struct t_stream *s, const struct t_ds *c, unsigned rank)
{
	t_stream_key(s, "frozen_param_shapes");
	push_ordered(s);
	for (size_t i = 0; i < c->nparams; i++)
		if (c->param[i].frozen) {
			t_stream_key(s, c->param[i].name);
			push_size(s, &c->param[i], 0);
		}
	t_pk_setitems(&s->pk);
	t_stream_key(s, "frozen_param_fragments");
	push_ordered(s);
	for (size_t i = 0; i < c->nparams; i++) {
		size_t n = t_ds_numel(&c->param[i]), each = (n + c->world - 1) / c->world;
		float *v = calloc(each * c->world + 1, sizeof(*v));
		int64_t shape = (int64_t)each;

		assert_non_null(v);
		fill_param(v, c, "module", &c->param[i], 0);
		if (c->param[i].frozen) {
			t_stream_key(s, c->param[i].name);
			t_stream_tensor(s, "FloatStorage", v + rank * each, each, sizeof(*v), 0,
					&shape, 1);
		}
		free(v);
	}
	t_pk_setitems(&s->pk);
}

static void write_model(const struct t_ds *c, const struct t_dir *d, const char *at,
			unsigned rank)
{
	struct t_stream *s = calloc(1, sizeof(*s));
	char name[160];

	assert_non_null(s);
	t_pk_start(&s->pk);
	t_pk_dict(&s->pk);
	t_pk_mark(&s->pk);
	push_module(s, c);
	if (c->stage > 0)
		push_shapes(s, c, rank);
	if (!c->no_ties)
		push_ties(s, c, rank);
	if (c->stage == 3)
		push_fragments(s, c, rank);
	if (c->tp) {
		t_stream_key(s, "checkpoint_parallel_dimensions");
		t_pk_dict(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, "tp_degree");
		t_pk_int(&s->pk, c->tp);
		t_stream_key(s, "pp_degree");
		t_pk_int(&s->pk, c->pp);
		t_pk_setitems(&s->pk);
	}
	if (c->buffer) {
		t_stream_key(s, "buffer_names");
		t_pk_list(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, c->buffer);
		t_pk_appends(&s->pk);
	}
	if (c->uc_info) {
		t_stream_key(s, "universal_checkpoint_info");
		dcp_buf_add(&s->pk, c->uc_info, c->uc_n);
	}
	if (c->neox) {
		static const char *const names[] = { "hidden_size", "model_parallel_size",
						     "padded_vocab_size", "tokenizer_type" };

		t_stream_key(s, "args");
		t_pk_dict(&s->pk);
		t_pk_mark(&s->pk);
		for (size_t i = 0; i < DCP_LEN(names); i++) {
			t_stream_key(s, names[i]);
			t_pk_int(&s->pk, c->neox);
		}
		t_pk_setitems(&s->pk);
	}
	if (c->autoep) {
		t_stream_key(s, "ds_autoep_layers");
		dcp_buf_add(&s->pk, c->autoep, c->autoep_n);
	}
	if (c->before) {
		t_stream_key(s, "ds_config");
		t_pk_dict(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, "use_data_before_expert_parallelism");
		t_pk_bool(&s->pk, true);
		t_pk_setitems(&s->pk);
	}
	t_stream_key(s, "global_steps");
	t_pk_int(&s->pk, 12);
	t_stream_key(s, "rank_note");
	t_pk_int(&s->pk, rank);
	t_pk_setitems(&s->pk);
	if (c->stage == 3)
		snprintf(name, sizeof(name), "%szero_pp_rank_%u_mp_rank_%02u_model_states.pt",
			 at, rank, (unsigned)c->mp);
	else
		snprintf(name, sizeof(name), "%smp_rank_%02u_model_states.pt", at,
			 (unsigned)c->mp);
	t_stream_put(s, d, name);
	free(s);
}

void t_ds_write(const struct t_ds *c, const struct t_dir *d, const char *at)
{
	for (unsigned r = 0; r < (c->stage == 3 ? c->world : 1); r++)
		write_model(c, d, at, r);
	for (unsigned r = 0; c->stage > 0 && r < c->world; r++)
		write_optim(c, d, at, r);
}

void t_ds_write_neox(const struct t_dir *d, const char *at, const struct t_ds_param *param,
		     size_t n, unsigned tp, unsigned width)
{
	for (unsigned mp = 0; mp < tp; mp++) {
		struct t_ds c = { .stage = 1,
				  .world = 1,
				  .param = param,
				  .nparams = n,
				  .ngroups = 1,
				  .lean = true,
				  .mp = mp,
				  .neox = width };

		t_ds_write(&c, d, at);
	}
}
