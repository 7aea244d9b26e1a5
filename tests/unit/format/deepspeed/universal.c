/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Universal checkpoints: one file a parameter and state.
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/format/formats.h"
#include "tests/unit/t/format/ds.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"

static void load(struct t_ds_loaded *l, const char *path)
{
	enum dcp_match match;

	t_ds_load(l, path, false);
	assert_true(dcp_format_probe(&l->dir, &match, NULL, 0) ==
		    &dcp_format_deepspeed_universal);
}

static void universal_golden_files_are_read(void **state)
{
	static const struct {
		const char *version;
		unsigned tensors;
	} versions[] = { { "z1-global_step20", 41 }, { "z3-global_step20", 27 } };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(versions); i++) {
		struct t_ds_loaded l = { 0 };
		char path[120];

		t_case(versions[i].version);
		snprintf(path, sizeof(path), "tests/golden/deepspeed-universal/ckpt/%s",
			 versions[i].version);
		load(&l, path);
		if (l.rc < 0)
			fail_msg("%s", l.err.msg);
		assert_int_equal(
			t_manifest_check(&l.s, "deepspeed-universal", versions[i].version, ""),
			versions[i].tensors);
		for (size_t k = 0; k < l.s.ntensors; k++)
			if (l.s.tensor[k].error)
				fail_msg("%s: %s", l.s.tensor[k].key, l.s.tensor[k].error);
		/* Weights that no parameter file has come from the model files. */
		assert_non_null(t_sink_tensor(&l.s, "fp32.frozen.weight"));
		assert_non_null(t_sink_tensor(&l.s, "fp32.table"));
		assert_non_null(t_sink_tensor(&l.s, "fp32.head.weight"));
		t_ds_unload(&l);
	}
}

static const struct t_ds_param two[] = {
	{ "a", { 2, 3 }, 2, 0, false, "tied" },
	{ "b", { 4 }, 1, 0, false, NULL },
};

static void push_values(struct t_stream *s, const char *state, const struct t_ds_param *p,
			bool flat)
{
	float v[6];
	int64_t n = p->ndim == 2 ? 6 : 4;

	for (int64_t i = 0; i < n; i++)
		v[i] = t_ds_value(state, p->name, (uint64_t)i);
	t_stream_tensor(s, "FloatStorage", v, (size_t)n, sizeof(*v), 0, flat ? &n : p->shape,
			flat ? 1 : p->ndim);
}

/* zero/<name>/<state>.pt */
static void put_state(const struct t_dir *tree, const char *state, const struct t_ds_param *p,
		      bool wrapped)
{
	struct t_stream *s = calloc(1, sizeof(*s));
	char name[80];

	assert_non_null(s);
	t_pk_start(&s->pk);
	if (wrapped) {
		t_pk_dict(&s->pk);
		t_pk_mark(&s->pk);
		t_stream_key(s, "cat_dim");
		t_pk_int(&s->pk, 0);
		t_stream_key(s, "param");
	}
	push_values(s, state, p, !wrapped);
	if (wrapped)
		t_pk_setitems(&s->pk);
	snprintf(name, sizeof(name), "zero/%s/%s.pt", p->name, state);
	t_stream_put(s, tree, name);
	free(s);
}

static void put_step(const struct t_dir *tree, const char *param)
{
	struct t_stream *s = calloc(1, sizeof(*s));
	char name[80];

	assert_non_null(s);
	t_pk_start(&s->pk);
	t_pk_int(&s->pk, 77);
	snprintf(name, sizeof(name), "zero/%s/step.pt", param);
	t_stream_put(s, tree, name);
	free(s);
}

static void make(struct t_ds_loaded *l, bool wrapped)
{
	const struct t_dir *tree = &l->tree;

	t_ds_make(l, NULL);
	for (size_t i = 0; i < DCP_LEN(two); i++) {
		put_state(tree, "fp32", &two[i], wrapped);
		put_state(tree, "exp_avg", &two[i], wrapped);
		put_state(tree, "exp_avg_sq", &two[i], wrapped);
		put_step(tree, two[i].name);
	}
	t_dir_text(tree, "zero/optimizer_state.pt", "");
}

/* With the model files of a stage, which tell shapes and ties. */
static void add_model(const struct t_dir *tree, const struct t_ds *c)
{
	t_ds_write(c, tree, "");
	for (unsigned r = 0; r < c->world; r++) {
		char name[80];

		snprintf(name, sizeof(name), "zero_pp_rank_%u_mp_rank_00_optim_states.pt", r);
		t_dir_delete(tree, name);
	}
}

static void handmade_universal_files_are_read(void **state)
{
	struct t_ds c = { .stage = 3, .world = 2, .param = two, .nparams = 2, .ngroups = 1 };
	struct t_ds_loaded l;

	(void)state;
	t_case("flat tensors get the shape that the model files tell");
	make(&l, false);
	add_model(&l.tree, &c);
	load(&l, NULL);
	if (l.rc < 0)
		fail_msg("%s", l.err.msg);
	assert_int_equal(t_ds_check(&c, &l.s), 9);
	assert_string_equal(t_sink_object(&l.s, "step.a")->json, "77");
	assert_string_equal(t_sink_object(&l.s, "step.tied")->json, "77");
	assert_non_null(t_sink_object(&l.s, "optimizer_state.pt")->error);
	t_ds_unload(&l);

	t_case("shapes of their own");
	c.stage = 1;
	make(&l, true);
	add_model(&l.tree, &c);
	load(&l, NULL);
	assert_int_equal(t_ds_check(&c, &l.s), 9);
	t_ds_unload(&l);

	t_case("no shapes are given");
	make(&l, false);
	load(&l, NULL);
	if (l.rc < 0)
		fail_msg("%s", l.err.msg);
	assert_int_equal(t_sink_tensor(&l.s, "fp32.a")->ndim, 1);
	t_ds_check_one(&l.s, "fp32.a", "fp32", "a", 6);
	t_ds_unload(&l);
}

static void universal_faults_are_reported(void **state)
{
	struct t_ds_loaded l;

	(void)state;
	t_case("a damaged file breaks one key");
	make(&l, true);
	t_dir_text(&l.tree, "zero/a/fp32.pt", "PK\3\4");
	load(&l, NULL);
	assert_int_equal(l.rc, 0);
	assert_non_null(strstr(t_sink_tensor(&l.s, "fp32.a")->error, "zero/a/fp32.pt: "));
	assert_null(t_sink_tensor(&l.s, "exp_avg.a")->error);
	t_ds_unload(&l);

	t_case("all are damaged");
	t_ds_make(&l, NULL);
	t_dir_text(&l.tree, "zero/a/fp32.pt", "PK\3\4");
	t_dir_text(&l.tree, "zero/optimizer_state.pt", "");
	load(&l, NULL);
	assert_int_equal(l.rc, -EBADMSG);
	t_assert_says(&l.err, "zero/a/fp32.pt: ");
	t_ds_unload(&l);

	t_case("a directory that leads outside");
	make(&l, true);
	assert_int_equal(symlinkat("/etc", l.tree.fd, "zero/out"), 0);
	load(&l, NULL);
	assert_int_equal(l.rc, 0);
	assert_null(t_sink_tensor(&l.s, "fp32.out"));
	t_ds_unload(&l);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(universal_golden_files_are_read),
		cmocka_unit_test(handmade_universal_files_are_read),
		cmocka_unit_test(universal_faults_are_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
