/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole jobs of every shape: what is read back is the model that was cut.
 * covers: deepspeed_expert, deepspeed_stack, deepspeed_slice, deepspeed_joined, deepspeed_map
 */
#include "tests/unit/t.h"

#include "tests/unit/t_ds_world.h"

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

static void tensor_and_pipeline(void **state)
{
	struct t_ds_world w = { .seed = 20250801 };

	(void)state;
	for (int round = 0; round < 60; round++) {
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

static void experts(void **state)
{
	struct t_ds_world w = { .seed = 20250802, .pp = 1 };

	(void)state;
	for (int round = 0; round < 80; round++) {
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensor_and_pipeline),
		cmocka_unit_test(experts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
