/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole jobs of every shape: what is read back is the model that was cut.
 * covers: expert, module, slice, state, rule
 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/ds_world.h"
#include "tests/unit/t/format/torch.h"

/* ---- reading it back ---- */

static void check_tensor(const struct t_sink *s, const char *state, const char *name,
			 const int64_t *shape, size_t ndim)
{
	char key[120];
	const struct dcp_tensor *t;
	uint64_t n = 1;

	snprintf(key, sizeof(key), "%s.%s", state, name);
	t = t_sink_tensor(s, key);
	if (!t)
		fail_msg("%s was not told", key);
	assert_int_equal(t->ndim, ndim);
	for (size_t d = 0; d < ndim; d++) {
		assert_int_equal(t->shape[d], shape[d]);
		n *= (uint64_t)shape[d];
	}
	t_ds_check_one(s, key, state, name, n);
}

static void check_step(const struct t_sink *s, const char *name)
{
	char key[100];

	snprintf(key, sizeof(key), "step.%s", name);
	assert_non_null(t_sink_tensor(s, key));
}

static void check_param(const struct t_ds_world *w, const struct t_sink *s,
			const struct t_ds_global *g)
{
	static const char *const roles[] = { "fp32", "exp_avg", "exp_avg_sq", "module" };
	bool expert = g >= &w->param[w->first_expert];
	unsigned copies = expert && !w->autoep ? w->ep : 1;
	int64_t shape[3];

	memcpy(shape, g->shape, sizeof(shape));
	if (expert && w->autoep)
		shape[0] = w->ep * w->local_experts;
	for (size_t i = 0; i < DCP_LEN(roles); i++)
		for (unsigned k = 0; k < copies; k++) {
			char name[80];

			/* weights of stage 3 are nowhere */
			if (i == 3 && w->stage == 3)
				continue;
			snprintf(name, sizeof(name), "%s", g->name);
			if (expert && !w->autoep)
				t_ds_expert_name(w, g, k, name);
			check_tensor(s, roles[i], name, shape, g->ndim);
			if (i == 0)
				check_step(s, name);
		}
}

static void describe(const struct t_ds_world *w)
{
	print_message("           stage %u tp %u pp %u dp %u ep %u%s%s%s\n", w->stage, w->tp,
		      w->pp, w->dp, w->ep, w->by_stage ? " by stage" : "",
		      w->autoep ? " AutoEP" : "", w->before ? " data before experts" : "");
}

static void check(const struct t_ds_world *w)
{
	struct t_ds_loaded l;

	describe(w);
	t_ds_make(&l, NULL);
	t_ds_write_world(w, &l.tree);
	t_ds_load(&l, NULL, false);
	if (l.rc < 0)
		fail_msg("%s", l.err.msg);
	t_ds_no_errors(&l.s);
	if (t_sink_fact(&l.s, "unjoined"))
		fail_msg("%s", t_sink_fact(&l.s, "unjoined"));
	for (size_t i = 0; i < w->n; i++)
		check_param(w, &l.s, &w->param[i]);
	t_ds_unload(&l);
}

static void make_dense(struct t_ds_world *w)
{
	w->n = 2 + t_ds_next(w, 10);
	for (size_t i = 0; i < w->n; i++) {
		char stem[24];

		snprintf(stem, sizeof(stem), "p%zu", i);
		t_ds_make_param(w, &w->param[i], stem,
				(enum t_ds_kind)t_ds_next(w, w->tp > 1 ? T_DS_KINDS : 1));
	}
	w->first_expert = w->n;
}

/* Experts of their own names, or all of a rank in one tensor. */
static void make_experts(struct t_ds_world *w)
{
	w->local_experts = 1 + t_ds_next(w, 3);
	for (unsigned e = 0; e < (w->autoep ? 2 : w->local_experts); e++) {
		char stem[40];

		if (w->autoep)
			snprintf(stem, sizeof(stem), "moe.experts");
		else
			snprintf(stem, sizeof(stem), "moe.deepspeed_experts.%u.w", e);
		t_ds_make_param(w, &w->param[w->n], stem,
				w->by_stage || w->autoep
					? T_DS_COPIED
					: (enum t_ds_kind)t_ds_next(w, T_DS_SUBS));
		if (w->autoep)
			snprintf(w->param[w->n].name, sizeof(w->param->name), "%s.w%u", stem,
				 e + 1);
		w->n++;
	}
}

static void tensor_and_pipeline_ranks_are_joined(void **state)
{
	struct t_ds_world w = { .seed = 20250801 };

	(void)state;
	for (int round = 0; round < T_ROUNDS(60); round++) {
		w.tp = 1 + t_ds_next(&w, 3);
		w.pp = 1 + t_ds_next(&w, 3);
		w.dp = 1 + t_ds_next(&w, 5);
		w.stage = w.pp > 1 ? 1 : 1 + t_ds_next(&w, 3);
		w.lean = t_ds_next(&w, 2);
		w.elastic = t_ds_next(&w, 4) == 0;
		make_dense(&w);
		check(&w);
	}
}

static void experts_are_placed(void **state)
{
	struct t_ds_world w = { .seed = 20250802, .pp = 1 };

	(void)state;
	for (int round = 0; round < T_ROUNDS(80); round++) {
		unsigned ranks;

		w.autoep = t_ds_next(&w, 2);
		w.tp = 1 + t_ds_next(&w, 3);
		w.by_stage = w.tp > 1 && (w.autoep || t_ds_next(&w, 2));
		w.ep = 1 + t_ds_next(&w, 4);
		/* as many ranks as have whole shares */
		for (w.dp = 1 + t_ds_next(&w, 4);; w.dp++) {
			ranks = w.by_stage ? w.dp * w.tp : w.dp;
			if (ranks % w.ep == 0)
				break;
		}
		w.before = !w.by_stage && t_ds_next(&w, 2);
		w.stage = 1 + t_ds_next(&w, w.autoep ? 3 : 2);
		w.lean = t_ds_next(&w, 2);
		w.no_name = t_ds_next(&w, 3) == 0;
		make_dense(&w);
		make_experts(&w);
		check(&w);
	}
}

/* ---- what is missing or invalid ---- */

static void lose(struct t_ds_loaded *l, const struct t_ds_world *w, const char *name,
		 const char *junk)
{
	t_ds_make(l, NULL);
	t_ds_write_world(w, &l->tree);
	if (junk)
		t_dir_text(&l->tree, name, junk);
	else
		t_dir_delete(&l->tree, name);
	t_ds_load(l, NULL, false);
	assert_int_equal(l->rc, 0);
}

static void says(const struct t_sink *s, const char *key, const char *why)
{
	const struct dcp_tensor *t = t_sink_tensor(s, key);

	if (!t || !t->error)
		fail_msg("%s: %s", key, t ? "no error" : "not told");
	if (!strstr(t->error, why))
		fail_msg("%s: \"%s\" does not say \"%s\"", key, t->error, why);
}

static void lost_files_break_their_keys_only(void **state)
{
	struct t_ds_world w = {
		.seed = 7, .tp = 1, .pp = 1, .dp = 4, .ep = 2, .stage = 1, .autoep = true
	};
	struct t_ds_loaded l;
	unsigned broken = 0;

	(void)state;
	make_dense(&w);
	make_experts(&w);
	t_case("an optimizer file with experts");
	lose(&l, &w, "zero_pp_rank_3_mp_rank_00_optim_states.pt", NULL);
	says(&l.s, "fp32.moe.experts.w1",
	     "zero_pp_rank_3_mp_rank_00_optim_states.pt is missing");
	assert_null(t_sink_tensor(&l.s, "module.moe.experts.w1")->error);
	t_ds_unload(&l);

	t_case("the file of an expert");
	lose(&l, &w, "layer_0_expert_1_mp_rank_00_model_states.pt", NULL);
	says(&l.s, "module.moe.experts.w2", "layer_0_expert_1_mp_rank_");
	assert_null(t_sink_tensor(&l.s, "exp_avg.moe.experts.w2")->error);
	t_ds_unload(&l);

	t_case("a damaged one");
	lose(&l, &w, "layer_0_expert_1_mp_rank_00_model_states.pt", "PK");
	says(&l.s, "module.moe.experts.w1", "missing or damaged");
	assert_non_null(
		t_sink_object(&l.s, "layer_0_expert_1_mp_rank_00_model_states.pt")->error);
	t_ds_unload(&l);

	t_case("of experts that all ranks of a stage share, one of another tensor-parallel "
	       "rank");
	w = (struct t_ds_world){
		.seed = 8, .tp = 2, .pp = 1, .dp = 2, .ep = 2, .stage = 2, .by_stage = true
	};
	make_dense(&w);
	make_experts(&w);
	for (size_t k = w.first_expert; k < w.n; k++) { /* so long that both slices have some */
		w.param[k].ndim = 1;
		w.param[k].shape[0] = w.param[k].width[0][0] = w.param[k].width[0][1] = 9;
	}
	lose(&l, &w, "zero_pp_rank_1_mp_rank_01_optim_states.pt", NULL);
	for (size_t i = 0; i < l.s.ntensors; i++) {
		const struct dcp_tensor *t = &l.s.tensor[i];

		/* all of that rank's are of the second share */
		if (t->error && strncmp(t->key, "fp32.moe.", 9) == 0) {
			unsigned number = (unsigned)strtoul(
				t->key + strlen("fp32.moe.deepspeed_experts."), NULL, 10);

			assert_true(number >= w.local_experts);
			says(&l.s, t->key, "zero_pp_rank_1_mp_rank_01_optim_states.pt");
			broken++;
		}
	}
	assert_true(broken > 0);
	t_ds_unload(&l);
}

/* A layer of AutoEP of which one entry is @value. */
static void push_layer(struct dcp_buf *b, const char *key, int64_t value)
{
	static const struct {
		const char *key;
		int64_t value;
	} numbers[] = { { "moe_layer_id", 0 }, { "num_experts", 4 }, { "ep_size", 2 } };

	t_pk_list(b);
	t_pk_mark(b);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "expert_key_prefix");
	t_pk_str(b, "moe");
	for (size_t i = 0; i < DCP_LEN(numbers); i++) {
		t_pk_str(b, numbers[i].key);
		t_pk_int(b, strcmp(key, numbers[i].key) ? numbers[i].value : value);
	}
	t_pk_setitems(b);
	t_pk_appends(b);
}

/* What is invalid is as if nothing was said. */
static void invalid_expert_counts_are_ignored(void **state)
{
	static const struct {
		const char *key;
		int64_t value;
		const char *why; /* NULL: it can be read */
	} rows[] = {
		{ "none", 0, NULL },
		{ "num_experts", 3, "nothing says which" },
		{ "num_experts", -4, "nothing says which" },
		{ "num_experts", (int64_t)1 << 40, "nothing says which" },
		{ "ep_size", 0, "nothing says which" },
		{ "ep_size", 4, "nothing says which" },
		{ "moe_layer_id", -1, "nothing says which" },
	};
	static const struct t_ds_param params[] = {
		{ "dense", { 5 }, 1, 0, false, NULL },
		{ "moe.w1", { 2, 3 }, 2, 1, false, NULL },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		dcp_auto_buf struct dcp_buf layers = DCP_BUF_INIT;
		struct t_ds c = { .stage = 1,
				  .world = 4,
				  .param = params,
				  .nparams = 2,
				  .ngroups = 2,
				  .ep = 2 };
		struct t_ds_loaded l;

		t_case(rows[i].key);
		push_layer(&layers, rows[i].key, rows[i].value);
		c.autoep = layers.p;
		c.autoep_n = layers.n;
		t_ds_make(&l, &c);
		t_ds_load(&l, NULL, false);
		assert_int_equal(l.rc, 0);
		assert_null(t_sink_tensor(&l.s, "fp32.dense")->error);
		if (rows[i].why)
			says(&l.s, "fp32.moe.w1", rows[i].why);
		else
			assert_int_equal(t_sink_tensor(&l.s, "fp32.moe.w1")->shape[0], 4);
		t_ds_unload(&l);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensor_and_pipeline_ranks_are_joined),
		cmocka_unit_test(experts_are_placed),
		cmocka_unit_test(lost_files_break_their_keys_only),
		cmocka_unit_test(invalid_expert_counts_are_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
