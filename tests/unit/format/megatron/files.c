/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mp_rank directories: files that are damaged, missing, or hold something else than the model.
 *
 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/megatron.h"

/* clang-format off */
static const struct t_megatron_job three = { "", 3, 1, 1, NULL, {
	{ "embedding.word_embeddings.weight", "", { 9, 2 }, 2, 0, 1, -1, -1 },
	{ "decoder.final_layernorm.weight", "", { 2 }, 1, -1, 1, -1, -1 } } };
/* clang-format on */

static int load(const struct t_dir *tree, struct t_megatron *m)
{
	return t_megatron_load(m, tree->root, "megatron-legacy");
}

static void damaged_files_break_their_keys_only(void **state)
{
	struct t_dir tree;
	struct t_megatron m;

	(void)state;
	t_dir_make(&tree, "megatron");
	t_megatron_job(&tree, &three);

	t_case("the first rank's: the others are read");
	t_dir_text(&tree, "mp_rank_00/model_optim_rng.pt", "what is this");
	assert_int_equal(load(&tree, &m), 0);
	assert_non_null(strstr(t_megatron_error(&m, "embedding.word_embeddings.weight"),
			       "mp_rank_00/model_optim_rng.pt: "));
	assert_null(t_megatron_error(&m, "decoder.final_layernorm.weight"));
	assert_non_null(t_megatron_error(&m, "mp_rank_00"));
	assert_string_equal(t_sink_object(&m.s, "seed")->json, "1");
	t_megatron_close(&m);

	t_case("rules that are none");
	t_dir_text(&tree, "dcpfs.rules", "* maybe\n");
	assert_int_equal(load(&tree, &m), -EBADMSG);
	t_assert_says(&m.err, "dcpfs.rules:1: ");
	t_megatron_close(&m);
	t_dir_delete(&tree, "dcpfs.rules");

	t_case("all of them");
	t_dir_text(&tree, "mp_rank_01/model_optim_rng.pt", "");
	t_dir_text(&tree, "mp_rank_02/model_optim_rng.pt", "");
	assert_int_equal(load(&tree, &m), -EBADMSG);
	t_assert_says(&m.err, "mp_rank_00/model_optim_rng.pt: ");
	t_megatron_close(&m);
	t_dir_remove(&tree);
}

/* {"buckets_coalesced": 1, <model>: {"exp_avg": [4 floats]}} */
static void put_optimizer(const struct t_dir *tree, const char *name)
{
	static const float v[] = { 1, 2, 3, 4 };
	static const int64_t shape[] = { 4 };
	struct t_megatron_file f;

	t_megatron_begin(&f, NULL, -1);
	t_megatron_object(&f, "buckets_coalesced", 1);
	t_megatron_model(&f, "0");
	t_megatron_param(&f, "exp_avg", v, shape, 1);
	t_megatron_end(&f, tree, name);
}

/* What lies beside the state keeps its own names, below the directory's. */
static void files_beside_the_state_keep_names(void **state)
{
	struct t_dir tree;
	struct t_megatron m;

	(void)state;
	t_dir_make(&tree, "megatron");
	t_megatron_job(&tree, &three);
	put_optimizer(&tree, "mp_rank_01/distrib_optim.pt");
	put_optimizer(&tree, "mp_rank_01/layer_wise_optimizer_3.pt");
	t_dir_text(&tree, "mp_rank_02/distrib_optim.pt", "damaged");
	assert_int_equal(load(&tree, &m), 0);
	assert_null(t_megatron_error(&m, "mp_rank_01.distrib_optim.0.exp_avg"));
	assert_int_equal(t_sink_tensor(&m.s, "mp_rank_01.distrib_optim.0.exp_avg")->npath, 4);
	assert_null(t_megatron_error(&m, "mp_rank_01.layer_wise_optimizer_3.0.exp_avg"));
	assert_string_equal(
		t_sink_object(&m.s, "mp_rank_01.distrib_optim.buckets_coalesced")->json, "1");
	assert_null(t_megatron_error(&m, "embedding.word_embeddings.weight"));
	assert_non_null(t_megatron_error(&m, "mp_rank_02.distrib_optim"));
	t_megatron_close(&m);
	t_dir_remove(&tree);
}

/* 2022: a distributed optimizer's ranks had directories of their own, one number longer. */
static void optimizer_directories_are_read(void **state)
{
	static const struct t_megatron_arg args[] = { { "tensor_model_parallel_size", 2 },
						      { "pipeline_model_parallel_size", 1 },
						      { NULL, 0 } };
	static const float rows[2][3] = { { 0, 1, 2 }, { 3, 4, 5 } };
	static const int64_t shape[] = { 3, 1 }, whole[] = { 6, 1 };
	struct t_megatron_file f;
	struct t_dir tree;
	struct t_megatron m;
	char name[64];

	(void)state;
	t_dir_make(&tree, "megatron");
	for (int t = 0; t < 2; t++) {
		t_megatron_begin(&f, args, 3.0);
		t_megatron_model(&f, "model");
		t_megatron_param(&f, "embedding.word_embeddings.weight", rows[t], shape, 2);
		snprintf(name, sizeof(name), "mp_rank_%02d/model_rng.pt", t);
		t_megatron_end(&f, &tree, name);
		for (int d = 0; d < 2; d++) {
			snprintf(name, sizeof(name), "mp_rank_%02d_%03d/optim.pt", t, d);
			put_optimizer(&tree, name);
		}
	}
	assert_int_equal(load(&tree, &m), 0);
	assert_string_equal(t_sink_fact(&m.s, "parallel"), "tp=2 pp=1 ep=1");
	t_megatron_check(&m, "embedding.word_embeddings.weight", rows[0], whole, 2);
	assert_null(t_megatron_error(&m, "mp_rank_01_001.optim.0.exp_avg"));
	assert_int_equal(m.s.ntensors, 5);
	for (size_t i = 0; i < m.s.nobjects; i++)
		assert_null(m.s.object[i].error);
	t_megatron_close(&m);

	t_case("one of the states is not there");
	t_dir_delete(&tree, "mp_rank_01/model_rng.pt");
	assert_int_equal(load(&tree, &m), 0);
	assert_non_null(strstr(t_megatron_error(&m, "embedding.word_embeddings.weight"),
			       "mp_rank_01/model_rng.pt"));
	assert_null(t_megatron_error(&m, "mp_rank_01_001.optim.0.exp_avg"));
	t_megatron_close(&m);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(damaged_files_break_their_keys_only),
		cmocka_unit_test(files_beside_the_state_keep_names),
		cmocka_unit_test(optimizer_directories_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
