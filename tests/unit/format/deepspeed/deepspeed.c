/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO checkpoints of every stage and shape, put together from the slices of their ranks.
 * covers: load, layout, model_file, module, module_joined, optim_file
 * covers: load, optim_file, model_file, slice, state
 */
#include "tests/unit/t.h"

#include "core/format/deepspeed/deepspeed_int.h"
#include "tests/unit/t/format/ds.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/random.h"

static const struct t_ds_param few[] = {
	{ "a", { 3, 5 }, 2, 0, false, NULL },
	{ "b", { 7 }, 1, 0, false, "b_again" },
	{ "c", { 2, 1, 2 }, 3, 0, false, NULL },
};

static const struct t_ds_param groups[] = {
	{ "emb", { 11, 6 }, 2, 0, false, "head" },
	{ "w", { 7, 6, 3 }, 3, 0, false, NULL },
	{ "scale", { 1 }, 1, 1, false, NULL },
	{ "bias", { 7 }, 1, 1, false, NULL },
	{ "frozen", { 5, 3 }, 2, 0, true, NULL },
	{ "cube", { 2, 1, 3, 2 }, 4, 2, false, NULL },
	{ "icebias", { 2 }, 1, 0, true, "icetied" },
};

/* clang-format off */
static const struct {
	const char *what;
	struct t_ds c;
} layouts[] = {
	{ "padding cut off", { .stage = 1, .param = few, .nparams = 3, .ngroups = 1, .lean = true } },
	{ "padding kept", { .stage = 1, .param = few, .nparams = 3, .ngroups = 1 } },
	{ "BF16_Optimizer", { .stage = 1, .param = few, .nparams = 3, .ngroups = 1, .no_stage = true, .prefix = "bf16_" } },
	{ "padded to the ranks", { .stage = 2, .param = few, .nparams = 3, .ngroups = 1, .lean = true, .odd_unit = true } },
	{ "the same, padding kept", { .stage = 2, .param = few, .nparams = 3, .ngroups = 1, .odd_unit = true, .old_name = true } },
	{ "several groups", { .stage = 2, .param = groups, .nparams = 7, .ngroups = 3, .lean = true, .prefix = "fp16_" } },
	{ "one list for all groups", { .stage = 2, .param = groups, .nparams = 7, .ngroups = 3, .lean = true, .one_list = true } },
	{ "elastic", { .stage = 1, .param = groups, .nparams = 7, .ngroups = 3, .elastic = true } },
	{ "aligned", { .stage = 2, .param = groups, .nparams = 7, .ngroups = 3, .lean = true, .align = 8 } },
	{ "ties by storage", { .stage = 1, .param = groups, .nparams = 7, .ngroups = 3, .no_ties = true } },
	{ "stage 1 before 0.5.9", { .stage = 1, .param = groups, .nparams = 7, .ngroups = 3, .waves = 3 } },
	{ "the same, one wave, elastic", { .stage = 1, .param = groups, .nparams = 7, .ngroups = 3, .waves = 1, .elastic = true } },
	{ "the same, parameters by address", { .stage = 1, .param = groups, .nparams = 7, .ngroups = 3, .waves = 4, .addresses = true } },
	{ "the same, elastic", { .stage = 1, .param = few, .nparams = 3, .ngroups = 1, .waves = 5, .elastic = true, .one_list = true } },
	{ "parameters by address", { .stage = 2, .param = groups, .nparams = 7, .ngroups = 3, .addresses = true } },
	{ "a number of steps", { .stage = 1, .param = few, .nparams = 3, .ngroups = 1, .int_step = true } },
	{ "cut by itself", { .stage = 3, .param = few, .nparams = 3, .ngroups = 1 } },
	{ "sub-groups", { .stage = 3, .param = groups, .nparams = 7, .ngroups = 3, .prefix = "bf16_" } },
	{ "sub-groups in one list", { .stage = 3, .param = groups, .nparams = 7, .ngroups = 3, .one_list = true } },
	{ "sub-groups, ties by storage", { .stage = 3, .param = groups, .nparams = 7, .ngroups = 3, .no_ties = true } },
};
/* clang-format on */

static void load(struct t_ds_loaded *l, const char *path)
{
	t_ds_load(l, path, false);
	if (l->rc < 0)
		fail_msg("%s", l->err.msg);
}

static void check(const struct t_ds *c)
{
	struct t_ds_loaded l;

	t_ds_make(&l, c);
	load(&l, NULL);
	assert_true(t_ds_check(c, &l.s) >= c->nparams);
	t_ds_no_errors(&l.s);
	t_ds_unload(&l);
}

static void every_layout_is_joined(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(layouts); i++)
		for (unsigned world = 1; world <= 5; world++) {
			struct t_ds c = layouts[i].c;

			if (world == 1)
				t_case(layouts[i].what);
			c.world = world;
			check(&c);
		}
}

static uint32_t next(uint64_t *seed)
{
	return (uint32_t)t_random64(seed) >> 8;
}

/* Any number of parameters, sizes, groups and ranks. */
static void random_states_are_joined(void **state)
{
	uint64_t seed = t_random_seed(20240611);

	(void)state;
	print_message("           seed %llu\n", (unsigned long long)seed);
	for (int round = 0; round < T_ROUNDS(80); round++) {
		struct t_ds_param param[20];
		char names[20][24];
		struct t_ds c = { .stage = 1 + next(&seed) % 3,
				  .world = 1 + next(&seed) % 9,
				  .param = param,
				  .nparams = 1 + next(&seed) % 20,
				  .lean = next(&seed) % 2,
				  .elastic = next(&seed) % 4 == 0,
				  .align = next(&seed) % 3 ? 0 : 1 + next(&seed) % 16,
				  .waves = next(&seed) % 3 ? 0 : 1 + next(&seed) % 5 };

		if (c.stage > 1)
			c.waves = 0;
		if (c.stage == 3 || c.waves)
			c.align = 0;
		/* Groups are in order, and none is empty. */
		c.ngroups = 1 + next(&seed) % (unsigned)c.nparams;
		for (size_t i = 0; i < c.nparams; i++) {
			param[i] = (struct t_ds_param){ .name = names[i],
							.ndim = next(&seed) % 4 };
			snprintf(names[i], sizeof(names[i]), "p%zu", i);
			param[i].group = (unsigned)(i * c.ngroups / c.nparams);
			for (size_t d = 0; d < param[i].ndim; d++)
				param[i].shape[d] = 1 + next(&seed) % 7;
		}
		check(&c);
	}
}

/* What every rank says alike is told once; step, numbers of it, and weights. */
static void values_beside_tensors_are_emitted(void **state)
{
	struct t_ds c = { .stage = 3, .world = 3, .param = groups, .nparams = 7, .ngroups = 3 };
	const char first[] = "zero_pp_rank_0_mp_rank_00_model_states.pt.global_steps";
	const char other[] = "zero_pp_rank_1_mp_rank_00_model_states.pt.global_steps";
	struct t_ds_loaded l;
	float step;
	char *bytes;
	size_t n;

	(void)state;
	t_ds_make(&l, &c);
	t_dir_text(&l.tree, "zero_to_fp32.py", "print()");
	load(&l, NULL);
	assert_string_equal(t_sink_object(&l.s, first)->json, "12");
	assert_string_equal(t_sink_object(&l.s, first)->path[0], "global_steps");
	assert_int_equal(t_sink_object(&l.s, first)->npath, 1);
	assert_null(t_sink_object(&l.s, other));
	for (int r = 0; r < 3; r++) {
		char key[80], text[8];

		snprintf(key, sizeof(key), "zero_pp_rank_%d_mp_rank_00_model_states.pt.%s", r,
			 "rank_note");
		snprintf(text, sizeof(text), "%d", r);
		assert_string_equal(t_sink_object(&l.s, key)->json, text);
	}
	bytes = t_sink_read(&l.s, t_sink_tensor(&l.s, "step.bias"), &n, &l.err);
	assert_non_null(bytes);
	assert_int_equal(n, sizeof(step));
	memcpy(&step, bytes, sizeof(step));
	assert_true(step == 12);
	free(bytes);
	assert_int_equal(t_sink_tensor(&l.s, "step.bias")->ndim, 0);
	assert_non_null(t_sink_tensor(&l.s, "step.head")->alias_of);
	/* Placeholders are no weights; what was frozen is put together. */
	assert_null(t_sink_tensor(&l.s, "module.emb"));
	t_ds_check_one(&l.s, "module.frozen", "module", "frozen", 15);
	t_ds_check_one(&l.s, "module.icetied", "module", "icebias", 2);
	t_ds_unload(&l);
}

static void steps_may_be_numbers(void **state)
{
	struct t_ds c = { .stage = 1,
			  .world = 2,
			  .param = few,
			  .nparams = 3,
			  .ngroups = 1,
			  .int_step = true };
	struct t_ds_loaded l;

	(void)state;
	t_ds_make(&l, &c);
	load(&l, NULL);
	assert_string_equal(t_sink_object(&l.s, "step.b_again")->json, "12");
	assert_string_equal(t_sink_object(&l.s, "step.b_again")->path[1], "b_again");
	t_ds_unload(&l);
}

/* clang-format off */
static const struct {
	const char *folder, *version;
	unsigned tensors;
} goldens[] = {
	{ "deepspeed-z0", "global_step10", 41 },
	{ "deepspeed-z1", "global_step10", 46 },
	{ "deepspeed-z1", "global_step20", 46 },
	{ "deepspeed-z1-elastic", "global_step4", 46 },
	{ "deepspeed-z1-fp32acc", "global_step5", 47 },
	{ "deepspeed-z2", "global_step10", 48 },
	{ "deepspeed-z2", "global_step20", 48 },
	{ "deepspeed-z2-align", "global_step4", 48 },
	{ "deepspeed-z2-rr", "global_step4", 48 },
	{ "deepspeed-muon", "global_step3", 21 },
	{ "deepspeed-muon-z2", "global_step3", 25 },
	{ "deepspeed-muon-z3", "global_step3", 18 },
	{ "deepspeed-z3", "global_step10", 38 },
	{ "deepspeed-z3", "global_step20", 38 },
	{ "deepspeed-pipe", "global_step3", 21 },
	{ "deepspeed-moe", "global_step3", 80 },
	{ "deepspeed-tp", "global_step1", 43 },
	{ "deepspeed-moe-tp", "global_step2", 80 },
	{ "deepspeed-autoep", "global_step2", 60 },
	{ "deepspeed-autoep-z3", "global_step2", 45 },
	{ "deepspeed-autoep-tp", "global_step2", 60 },
	{ "deepspeed-3d", "global_step2", 76 },
};
/* clang-format on */

/* What DeepSpeed wrote, as DeepSpeed reads it. */
static void deepspeed_golden_files_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(goldens); i++) {
		struct t_ds_loaded l = { 0 };
		char path[120];

		t_case(goldens[i].folder);
		snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", goldens[i].folder,
			 goldens[i].version);
		load(&l, path);
		assert_int_equal(
			t_manifest_check(&l.s, goldens[i].folder, goldens[i].version, ""),
			goldens[i].tensors);
		t_ds_no_errors(&l.s);
		t_ds_unload(&l);
	}
}

/* clang-format off */
static const struct {
	const char *name;
	int kind; /* -1: not one */
	uint32_t mp, dp, layer, expert;
	bool sharded;
} names[] = {
	{ "mp_rank_00_model_states.pt", DCP_DEEPSPEED_MODEL, 0, 0, 0, 0, false },
	{ "mp_rank_13_model_states.pt", DCP_DEEPSPEED_MODEL, 13, 0, 0, 0, false },
	{ "zero_pp_rank_7_mp_rank_02_model_states.pt", DCP_DEEPSPEED_MODEL, 2, 7, 0, 0, true },
	{ "zero_pp_rank_7_mp_rank_02_optim_states.pt", DCP_DEEPSPEED_OPTIM, 2, 7, 0, 0, true },
	{ "bf16_zero_pp_rank_127_mp_rank_00_optim_states.pt", DCP_DEEPSPEED_OPTIM, 0, 127, 0, 0, true },
	{ "fp16_zero_pp_rank_1_mp_rank_00_optim_states.pt", DCP_DEEPSPEED_OPTIM, 0, 1, 0, 0, true },
	{ "zero_pp_rank_1_mp_rank_00optim_states.pt", DCP_DEEPSPEED_OPTIM, 0, 1, 0, 0, true },
	{ "layer_03-model_01-model_states.pt", DCP_DEEPSPEED_LAYER, 1, 0, 3, 0, false },
	{ "layer_103-model_states.pt", DCP_DEEPSPEED_LAYER, 0, 0, 103, 0, false },
	{ "layer_2_expert_5_mp_rank_01_model_states.pt", DCP_DEEPSPEED_EXPERT, 1, 0, 2, 5, false },
	{ "expert_5_mp_rank_00_model_states.pt", DCP_DEEPSPEED_EXPERT, 0, 0, 0, 5, false },
	{ "expp_rank_1_mp_rank_00_optim_states.pt", DCP_DEEPSPEED_EXPERT_OPTIM, 0, 0, 0, 1, false },
	{ "bf16_zero_pp_rank_0_mp_rank_00_model_states.pt", -1, 0, 0, 0, 0, false },
	{ "zero_pp_rank_0_mp_rank_00_optim_states.pt.tmp", -1, 0, 0, 0, 0, false },
	{ "zero_pp_rank__mp_rank_00_optim_states.pt", -1, 0, 0, 0, 0, false },
	{ "zero_pp_rank_99999999999_mp_rank_00_optim_states.pt", -1, 0, 0, 0, 0, false },
	{ "mp_rank_00", -1, 0, 0, 0, 0, false },
	{ "layer_00-slice_01-model_states.pt", -1, 0, 0, 0, 0, false },
	{ "latest", -1, 0, 0, 0, 0, false },
};
/* clang-format on */

static void file_names_are_parsed(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		struct dcp_deepspeed_name n;
		char back[DCP_DEEPSPEED_NAME_MAX];

		t_case(names[i].name);
		assert_int_equal(dcp_deepspeed_name_parse(names[i].name, &n),
				 names[i].kind >= 0);
		if (names[i].kind < 0)
			continue;
		assert_int_equal(n.kind, names[i].kind);
		assert_int_equal(n.mp, names[i].mp);
		assert_int_equal(n.dp, names[i].dp);
		assert_int_equal(n.layer, names[i].layer);
		assert_int_equal(n.expert, names[i].expert);
		assert_int_equal(n.sharded, names[i].sharded);
		if (n.kind > DCP_DEEPSPEED_OPTIM)
			continue;
		dcp_deepspeed_name_of_rank(&n, n.dp, n.mp, back);
		assert_string_equal(back, names[i].name);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(deepspeed_golden_files_are_read),
		cmocka_unit_test(file_names_are_parsed),
		cmocka_unit_test(every_layout_is_joined),
		cmocka_unit_test(random_states_are_joined),
		cmocka_unit_test(values_beside_tensors_are_emitted),
		cmocka_unit_test(steps_may_be_numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
