/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mp_rank directories: tensor, pipeline and expert parallel ranks put together.
 *
 * covers: grid, keys, join
 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/megatron.h"
#include "tests/unit/t/manifest.h"

static void legacy_golden_files_are_read(void **state)
{
	struct t_megatron m;

	(void)state;
	if (t_megatron_load(&m, "tests/golden/megatron-legacy/ckpt/iter_0000100",
			    "megatron-legacy") < 0)
		fail_msg("%s", m.err.msg);
	assert_int_equal(t_manifest_check(&m.s, "megatron-legacy", "iter_0000100", ""), 31);
	assert_non_null(strstr(t_sink_fact(&m.s, "inferred"), "inferred from their names"));
	assert_string_equal(t_sink_fact(&m.s, "parallel"), "tp=2 pp=2 ep=1");
	assert_null(t_sink_fact(&m.s, "query_key_value"));
	/* the same on all ranks: told once; different: below the rank's name */
	assert_string_equal(t_sink_object(&m.s, "iteration")->json, "100");
	assert_null(t_sink_object(&m.s, "mp_rank_01_001.iteration"));
	for (size_t i = 0; i < m.s.ntensors; i++)
		assert_null(m.s.tensor[i].error);
	t_megatron_close(&m);
}

static int load(const struct t_dir *tree, struct t_megatron *m)
{
	return t_megatron_load(m, tree->root, "megatron-legacy");
}

/* clang-format off */
static const struct t_megatron_job jobs[] = {
	{ "one rank", 1, 1, 1, NULL, {
		{ "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", { 6, 4 }, 2, -1, 1, -1, -1 },
		{ "some.unknown.key", "some.unknown.key", { 5 }, 1, -1, 1, -1, -1 } } },
	{ "three tensor-parallel ranks", 3, 1, 1, NULL, {
		{ "embedding.word_embeddings.weight", "embedding.word_embeddings.weight", { 9, 2 }, 2, 0, 1, -1, -1 },
		{ "decoder.layers.0.self_attention.linear_proj.weight", "decoder.layers.0.self_attention.linear_proj.weight", { 2, 6 }, 2, 1, 1, -1, -1 },
		{ "decoder.layers.0.self_attention.linear_proj.bias", "decoder.layers.0.self_attention.linear_proj.bias", { 2 }, 1, -1, 1, -1, -1 },
		{ "decoder.layers.0.self_attention.linear_qkv.bias", "decoder.layers.0.self_attention.linear_qkv.bias", { 12 }, 1, 0, 1, -1, -1 },
		{ "decoder.final_layernorm.weight", "decoder.final_layernorm.weight", { 2 }, 1, -1, 1, -1, -1 } }, .vocab = 9 },
	{ "SwiGLU: halves are cut apart", 2, 1, 1, NULL, {
		{ "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", { 12, 3 }, 2, 0, 2, -1, -1 },
		{ "decoder.layers.0.mlp.linear_fc1.bias", "decoder.layers.0.mlp.linear_fc1.bias", { 12 }, 1, 0, 2, -1, -1 },
		{ "decoder.layers.0.mlp.linear_fc2.weight", "decoder.layers.0.mlp.linear_fc2.weight", { 3, 6 }, 2, 1, 1, -1, -1 } } },
	{ "without gate", 2, 1, 1, NULL, {
		{ "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", { 12, 3 }, 2, 0, 1, -1, -1 },
		{ "decoder.layers.0.mlp.linear_fc2.weight", "decoder.layers.0.mlp.linear_fc2.weight", { 3, 12 }, 2, 1, 1, -1, -1 } } },
	{ "stages of unequal length", 2, 3, 1, NULL, {
		{ "embedding.word_embeddings.weight", "embedding.word_embeddings.weight", { 4, 2 }, 2, 0, 1, 0, -1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.0.input_layernorm.weight", { 3 }, 1, -1, 1, 0, -1 },
		{ "decoder.layers.1.input_layernorm.weight", "decoder.layers.1.input_layernorm.weight", { 4 }, 1, -1, 1, 0, -1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.2.input_layernorm.weight", { 5 }, 1, -1, 1, 1, -1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.3.input_layernorm.weight", { 6 }, 1, -1, 1, 2, -1 },
		{ "decoder.layers.1.input_layernorm.weight", "decoder.layers.4.input_layernorm.weight", { 7 }, 1, -1, 1, 2, -1 },
		{ "mtp.layers.0.enorm.weight", "mtp.layers.0.enorm.weight", { 7 }, 1, -1, 1, 2, -1 },
		{ "output_layer.weight", "output_layer.weight", { 4, 2 }, 2, 0, 1, 2, -1 } } },
	{ "experts", 1, 1, 2, NULL, {
		{ "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", { 2, 2 }, 2, -1, 1, -1, 0 },
		{ "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", { 2, 3 }, 2, -1, 1, -1, 0 },
		{ "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.2.linear_fc1.weight", { 2, 4 }, 2, -1, 1, -1, 1 },
		{ "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", { 2, 5 }, 2, -1, 1, -1, 1 },
		{ "decoder.layers.0.mlp.router.weight", "decoder.layers.0.mlp.router.weight", { 4, 2 }, 2, -1, 1, -1, -1 } } },
	{ "tensor, pipeline and expert parallel, grouped experts", 2, 2, 2, NULL, {
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.0.mlp.experts.linear_fc2.weight0", { 2, 6 }, 2, 1, 1, 0, 0 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.0.mlp.experts.linear_fc2.weight1", { 2, 6 }, 2, 1, 1, 0, 1 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.1.mlp.experts.linear_fc2.weight0", { 2, 6 }, 2, 1, 1, 1, 0 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.1.mlp.experts.linear_fc2.weight1", { 2, 6 }, 2, 1, 1, 1, 1 } } },
	{ "an interleaved pipeline", 1, 2, 1, NULL, {
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.0.input_layernorm.weight", { 3 }, 1, -1, 1, 0, -1, 0 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.1.input_layernorm.weight", { 4 }, 1, -1, 1, 1, -1, 0 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.2.input_layernorm.weight", { 5 }, 1, -1, 1, 0, -1, 1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.3.input_layernorm.weight", { 6 }, 1, -1, 1, 1, -1, 1 } }, .chunks = 2 },
	{ "encoder and decoder, each with stages of its own", 1, 3, 1, NULL, {
		{ "encoder.layers.0.input_norm.weight", "encoder.layers.0.input_norm.weight", { 3 }, 1, -1, 1, 0, -1 },
		{ "encoder.layers.0.input_norm.weight", "encoder.layers.1.input_norm.weight", { 4 }, 1, -1, 1, 1, -1 },
		{ "decoder.layers.0.input_norm.weight", "decoder.layers.0.input_norm.weight", { 5 }, 1, -1, 1, 2, -1 } } },
	{ "a language model inside another model", 1, 2, 1, NULL, {
		{ "vision_model.decoder.layers.0.norm.weight", "vision_model.decoder.layers.0.norm.weight", { 3 }, 1, -1, 1, 0, -1 },
		{ "language_model.decoder.layers.0.norm.weight", "language_model.decoder.layers.0.norm.weight", { 4 }, 1, -1, 1, 0, -1 },
		{ "language_model.decoder.layers.0.norm.weight", "language_model.decoder.layers.1.norm.weight", { 5 }, 1, -1, 1, 1, -1 } } },
	{ "biases of grouped experts", 2, 1, 2, NULL, {
		{ "decoder.layers.0.mlp.experts.linear_fc1.bias0", "decoder.layers.0.mlp.experts.linear_fc1.bias0", { 8 }, 1, 0, 2, -1, 0 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.0.mlp.experts.linear_fc2.weight0", { 2, 4 }, 2, 1, 1, -1, 0 },
		{ "decoder.layers.0.mlp.experts.linear_fc1.bias0", "decoder.layers.0.mlp.experts.linear_fc1.bias1", { 4 }, 1, 0, 1, -1, 1 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.0.mlp.experts.linear_fc2.weight1", { 2, 4 }, 2, 1, 1, -1, 1 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.bias0", "decoder.layers.0.mlp.experts.linear_fc2.bias1", { 2 }, 1, -1, 1, -1, 1 } } },
	{ "scales of experts, which have no numbers", 2, 1, 2, NULL, {
		{ "decoder.layers.0.mlp.experts.linear_fc1._extra_state", "decoder.layers.0.mlp.experts.linear_fc1._extra_state", { 3 }, 1, -1, 1, -1, 0 },
		{ "decoder.layers.0.mlp.experts.linear_fc1._extra_state", "mp_rank_00_001.decoder.layers.0.mlp.experts.linear_fc1._extra_state", { 4 }, 1, -1, 1, -1, 1 },
		{ "decoder.layers.0.mlp.linear_fc1._extra_state", "decoder.layers.0.mlp.linear_fc1._extra_state", { 5 }, 1, -1, 1, -1, -1 } } },
	{ "Mamba's parameters, those that are cut at once", 2, 1, 1, NULL, {
		{ "decoder.layers.0.mixer.norm.weight", "decoder.layers.0.mixer.norm.weight", { 8 }, 1, 0, 1, -1, -1 },
		{ "decoder.layers.0.mixer.A_log", "decoder.layers.0.mixer.A_log", { 2 }, 1, 0, 1, -1, -1 },
		{ "decoder.layers.0.mixer.out_proj.weight", "decoder.layers.0.mixer.out_proj.weight", { 3, 8 }, 2, 1, 1, -1, -1 },
		{ "decoder.layers.0.norm.weight", "decoder.layers.0.norm.weight", { 8 }, 1, -1, 1, -1, -1 } } },
	{ "rules of one's own", 2, 1, 1, NULL, {
		{ "decoder.layers.0.mixer.in_proj.weight", "decoder.layers.0.mixer.in_proj.weight", { 8, 3 }, 2, 0, 2, -1, -1 },
		{ "decoder.layers.0.mixer.odd", "decoder.layers.0.mixer.odd", { 5 }, 1, -1, 1, -1, -1 } },
		.rules = "*.in_proj.weight shard(0, groups=2)\n*.odd replicate\n" },
};
/* clang-format on */

static void ranks_make_whole_models(void **state)
{
	float iota[T_MEGATRON_ELEMS];

	(void)state;
	for (int i = 0; i < T_MEGATRON_ELEMS; i++)
		iota[i] = (float)i;
	for (size_t i = 0; i < DCP_LEN(jobs); i++) {
		const struct t_megatron_param *p = jobs[i].param;
		struct t_dir tree;
		struct t_megatron m;
		size_t n = 0;

		t_case(jobs[i].what);
		t_dir_make(&tree, "megatron");
		t_megatron_job(&tree, &jobs[i]);
		if (load(&tree, &m) < 0)
			fail_msg("%s", m.err.msg);
		for (; n < DCP_LEN(jobs[i].param) && p[n].key; n++)
			t_megatron_check(&m, p[n].whole, iota, p[n].shape, p[n].ndim);
		assert_int_equal(m.s.ntensors, n);
		assert_string_equal(t_sink_object(&m.s, "seed")->json, "0");
		if (jobs[i].tp > 1)
			assert_int_equal(
				!t_sink_object(&m.s, "mp_rank_01.seed") +
					!t_sink_object(&m.s, "mp_rank_01_000.seed") +
					!t_sink_object(&m.s, "mp_rank_01_000_000.seed"),
				2);
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/* clang-format off */
static const struct {
	struct t_megatron_job j;
	const char *key, *says; /* the broken key; its error */
	const char *good;       /* one that can be read all the same */
} faults[] = {
	{ { "a key that no rule knows", 2, 1, 1, NULL, { { "mixer.in_proj.weight", "", { 8, 3 }, 2, 0, 1, -1, -1 }, { "output_layer.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 } } },
	  "mixer.in_proj.weight", "put a line \"mixer.in_proj.weight shard(0)\" (or replicate) into dcpfs.rules", "output_layer.weight" },
	{ { "a rank that is not there", 2, 1, 1, NULL, { { "output_layer.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 }, { "final_layernorm.weight", "", { 4 }, 1, -1, 1, -1, -1 } }, .skip = "mp_rank_01" },
	  "output_layer.weight", "mp_rank_01/model_optim_rng.pt is missing", "final_layernorm.weight" },
	{ { "a stage that is not there", 1, 2, 1, NULL, { { "output_layer.weight", "", { 4, 2 }, 2, -1, 1, -1, -1 }, { "final_layernorm.weight", "", { 4 }, 1, -1, 1, -1, -1 } }, .skip = "mp_rank_00_001" },
	  "mp_rank_00_001", "mp_rank_00_001/model_optim_rng.pt is missing", "final_layernorm.weight" },
	{ { "another vocabulary than the arguments say", 2, 1, 1, NULL, { { "output_layer.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 } }, .vocab = 5 },
	  "output_layer.weight", "make 4 along dimension 0, the arguments of the run say 5", NULL },
	{ { "a gate that cannot be seen", 2, 1, 1, NULL, { { "mlp.linear_fc1.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 } } },
	  "mlp.linear_fc1.weight", "whether it is two halves (SwiGLU) cannot be seen", NULL },
	{ { "a gate of no size", 2, 1, 1, NULL, { { "mlp.linear_fc1.weight", "", { 8, 2 }, 2, 0, 1, -1, -1 }, { "mlp.linear_fc2.weight", "", { 2, 6 }, 2, 1, 1, -1, -1 } } },
	  "mlp.linear_fc1.weight", "4 of its rows, and its second layer has 3 inputs", "mlp.linear_fc2.weight" },
	{ { "a rule along a dimension that is not there", 2, 1, 1, NULL, { { "x", "", { 8 }, 1, 0, 1, -1, -1 } }, .rules = "x shard(1)" },
	  "x", "1 dimension and should be cut along dimension 1", NULL },
	{ { "one matrix of experts, of which a rank is not there", 1, 1, 2, NULL, { { "mlp.experts.weight2", "", { 4, 2 }, 2, -1, 1, -1, -1 }, { "final_layernorm.weight", "", { 4 }, 1, -1, 1, -1, -1 } }, .skip = "mp_rank_00_001", .experts = 4 },
	  "mlp.experts.weight2", "mp_rank_00_001/model_optim_rng.pt is missing, which holds one of its 2 parts", "final_layernorm.weight" },
	{ { "one matrix of an unknown number of experts", 1, 1, 2, NULL, { { "mlp.experts.weight2", "", { 4, 2 }, 2, -1, 1, -1, -1 } } },
	  "mlp.experts.weight2", "expected num_experts in the arguments of the run (found 0) to divide by 2", NULL },
	{ { "one matrix of experts that are not of one size", 1, 1, 2, NULL, { { "mlp.experts.weight2", "", { 4, 2 }, 2, -1, 1, -1, 0 }, { "mlp.experts.weight2", "", { 8, 2 }, 2, -1, 1, -1, 1 } }, .experts = 4 },
	  "mlp.experts.weight2", "do not fit together along dimension 1", NULL },
	{ { "experts without numbers", 1, 1, 2, NULL, { { "mlp.experts.odd", "", { 4, 2 }, 2, -1, 1, -1, -1 } } },
	  "mlp.experts.odd", "each of 2 expert-parallel ranks has its own under this name", NULL },
	{ { "experts that more ranks cut than anything else", 2, 1, 2, NULL, { { "mlp.experts.linear_fc2.weight0", "", { 4, 4 }, 2, 1, 1, -1, 0 }, { "final_layernorm.weight", "", { 4 }, 1, -1, 1, -1, -1 } }, .etp = 4, .experts = 2 },
	  "mlp.experts.linear_fc2.weight0", "experts are cut by 4 tensor-parallel ranks and everything else by 2", "final_layernorm.weight" },
	{ { "a part of experts that fewer ranks cut", 2, 1, 2, NULL, { { "mlp.experts.linear_fc2.weight0", "", { 4, 4 }, 2, -1, 1, -1, 0 }, { "output_layer.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 } }, .skip = "mp_rank_01_001", .etp = 1, .experts = 2 },
	  "mp_rank_01_001", "mp_rank_01_001/model_optim_rng.pt is missing", "output_layer.weight" },
	{ { "a rule that does not divide", 2, 1, 1, NULL, { { "x", "", { 6 }, 1, 0, 1, -1, -1 } }, .rules = "x shard(0, groups=2)" },
	  "x", "do not fit together along dimension 0", NULL },
};
/* clang-format on */

static void faulty_keys_are_broken(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(faults); i++) {
		struct t_dir tree;
		struct t_megatron m;
		const char *says;

		t_case(faults[i].j.what);
		t_dir_make(&tree, "megatron");
		t_megatron_job(&tree, &faults[i].j);
		if (load(&tree, &m) < 0)
			fail_msg("%s", m.err.msg);
		says = t_megatron_error(&m, faults[i].key);
		assert_non_null(says);
		if (!strstr(says, faults[i].says))
			fail_msg("%s", says);
		if (faults[i].good)
			assert_null(t_megatron_error(&m, faults[i].good));
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/* Rank 0 holds a part of one dimension and rank 1 of two, and the other way round. */
static void parts_of_unequal_dimensions_are_refused(void **state)
{
	struct t_megatron_job j = {
		.tp = 2, .pp = 1, .ep = 1, .param[0] = { "x", "", { 8, 3 }, 1, 0, 1, -1, -1, 0 }
	};

	(void)state;
	for (size_t first = 1; first <= 2; first++) {
		struct t_dir tree;
		struct t_megatron m;

		t_dir_make(&tree, "megatron");
		j.param[0].ndim = first;
		t_megatron_rank(&tree, &j, 0, 0, 0, "mp_rank_00");
		j.param[0].ndim = 3 - first;
		t_megatron_rank(&tree, &j, 1, 0, 0, "mp_rank_01");
		t_dir_text(&tree, "dcpfs.rules", "x shard(0)\n");
		if (load(&tree, &m) < 0)
			fail_msg("%s", m.err.msg);
		assert_non_null(t_megatron_error(&m, "x"));
		assert_non_null(strstr(t_megatron_error(&m, "x"),
				       "do not fit together along dimension 0"));
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/* How query, key and value lie is told where they lie as they once did. */
static void order_of_attention_rows_is_reported(void **state)
{
	static const struct {
		double version; /* negative: not said */
		const char *says;
	} rows[] = {
		{ -1, "parts_first" }, { 0, "parts_first" }, { 0.5, "unknown" },
		{ 1, "parts_last" },   { 2, NULL },          { 3, NULL },
	};
	static const float v[] = { 0, 1, 2 };
	static const int64_t shape[] = { 3 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct t_megatron_file f;
		struct t_dir tree;
		struct t_megatron m;

		t_dir_make(&tree, "megatron");
		t_megatron_begin(&f, NULL, rows[i].version);
		t_megatron_model(&f, "model");
		t_megatron_param(&f, "encoder.layers.0.attention.query_key_value.bias", v,
				 shape, 1);
		t_megatron_end(&f, &tree, "mp_rank_00/model_optim_rng.pt");
		assert_int_equal(load(&tree, &m), 0);
		if (rows[i].says)
			assert_string_equal(t_sink_fact(&m.s, "query_key_value"), rows[i].says);
		else
			assert_null(t_sink_fact(&m.s, "query_key_value"));
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/*
 * The first projections of latent attention: Transformer Engine's are whole on each rank,
 * Megatron's own are cut, and the arguments say how many rows there are in all.
 */
static void latent_attention_is_joined(void **state)
{
	static const struct t_megatron_arg args[] = {
		{ "tensor_model_parallel_size", 2 },
		{ "multi_latent_attention", 1 },
		{ "q_lora_rank", 4 },
		{ "kv_lora_rank", 2 },
		{ "qk_pos_emb_head_dim", 1 },
		{ NULL, 0 },
	};
	static const char q[] = "decoder.layers.0.self_attention.linear_q_down_proj.weight",
			  kv[] = "decoder.layers.0.self_attention.linear_kv_down_proj.weight";
	static const float v[8] = { 0 };

	(void)state;
	for (int64_t rows = 1; rows <= 4; rows++) { /* of q on a rank; kv is whole */
		const int64_t shape[] = { rows, 2 }, whole[] = { 3, 2 };
		struct t_megatron_file f;
		struct t_dir tree;
		struct t_megatron m;

		t_dir_make(&tree, "megatron");
		for (int rank = 0; rank < 2; rank++) {
			t_megatron_begin(&f, args, 3);
			t_megatron_model(&f, "model");
			t_megatron_param(&f, q, v, shape, 2);
			t_megatron_param(&f, kv, v, whole, 2);
			t_megatron_end(&f, &tree,
				       rank ? "mp_rank_01/model_optim_rng.pt"
					    : "mp_rank_00/model_optim_rng.pt");
		}
		assert_int_equal(load(&tree, &m), 0);
		assert_int_equal(t_sink_tensor(&m.s, kv)->shape[0], 3);
		if (rows == 2 || rows == 4)
			assert_int_equal(t_sink_tensor(&m.s, q)->shape[0], 4);
		else
			assert_non_null(strstr(t_megatron_error(&m, q),
					       "the arguments of the run say 4"));
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/* Arguments that claim a million ranks cost nothing. */
static void huge_claims_cost_nothing(void **state)
{
	struct t_megatron_job j = {
		"",
		1,
		1,
		1,
		NULL,
		{ { "x", "x", { 4 }, 1, -1, 1, -1, -1 },
		  { "mlp.experts.weight1", "", { 2, 2 }, 2, -1, 1, -1, -1 } }
	};
	struct t_dir tree;
	struct t_megatron m;

	(void)state;
	t_dir_make(&tree, "megatron");
	t_megatron_job(&tree, &j);
	j.tp = j.pp = j.ep = 4096;
	t_megatron_rank(&tree, &j, 0, 0, 0, "mp_rank_00");
	assert_int_equal(load(&tree, &m), 0);
	assert_true(m.s.nobjects < 300);
	assert_non_null(strstr(t_megatron_error(&m, "mlp.experts.weight1"),
			       "4096 expert and 4096 tensor parallel ranks"));
	t_megatron_close(&m);
	j.etp = 1;
	t_megatron_rank(&tree, &j, 0, 0, 0, "mp_rank_00");
	assert_int_equal(load(&tree, &m), 0);
	t_megatron_close(&m);
	j.pp = 1 << 30;
	t_megatron_rank(&tree, &j, 0, 0, 0, "mp_rank_00");
	assert_int_equal(load(&tree, &m), -E2BIG);
	t_megatron_close(&m);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(legacy_golden_files_are_read),
		cmocka_unit_test(ranks_make_whole_models),
		cmocka_unit_test(faulty_keys_are_broken),
		cmocka_unit_test(parts_of_unequal_dimensions_are_refused),
		cmocka_unit_test(order_of_attention_rows_is_reported),
		cmocka_unit_test(latent_attention_is_joined),
		cmocka_unit_test(huge_claims_cost_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
