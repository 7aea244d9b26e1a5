/* SPDX-License-Identifier: Apache-2.0 */
/* megatron_rules: how a parameter is cut, by its name or by a file of rules. */
#include "tests/unit/t.h"

#include "core/format/megatron/megatron_int.h"

static void built_in_rules_know_their_keys(void **state)
{
	/* clang-format off */
	static const struct {
		const char *key;
		int dim; /* -1: replicated; -2: not known */
		bool gated;
	} rows[] = {
		{ "embedding.word_embeddings.weight", 0, false },
		{ "embedding.position_embeddings.weight", -1, false },
		{ "output_layer.weight", 0, false },
		{ "decoder.layers.3.self_attention.linear_qkv.weight", 0, false },
		{ "decoder.layers.3.self_attention.linear_qkv.bias", 0, false },
		{ "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight", -1, false },
		{ "decoder.layers.3.self_attention.linear_proj.weight", 1, false },
		{ "decoder.layers.3.self_attention.linear_proj.bias", -1, false },
		{ "decoder.layers.3.self_attention.q_layernorm.weight", -1, false },
		{ "decoder.layers.3.self_attention.linear_kv_down_proj.weight", -1, false },
		{ "decoder.layers.3.self_attention.linear_kv_up_proj.weight", 0, false },
		{ "decoder.layers.3.mlp.linear_fc1.weight", 0, true },
		{ "decoder.layers.3.mlp.linear_fc1.layer_norm_weight", -1, false },
		{ "decoder.layers.3.mlp.linear_fc2.weight", 1, false },
		{ "decoder.layers.3.mlp.router.weight", -1, false },
		{ "decoder.layers.3.mlp.experts.local_experts.5.linear_fc1.weight", 0, true },
		{ "decoder.layers.3.mlp.experts.linear_fc2.weight7", 1, false },
		{ "encoder.layers.0.self_attention.query_key_value.bias", 0, false },
		{ "encoder.layers.0.self_attention.dense.weight", 1, false },
		{ "encoder.layers.0.mlp.dense_4h_to_h.weight", 1, false },
		{ "encoder.layers.0.mlp.dense_h_to_4h.bias", 0, true },
		{ "encoder.final_norm.weight", -1, false },
		{ "word_embeddings_for_head.weight", 0, false },
		{ "decoder.layers.3.mixer.in_proj.weight", -2, false },
		{ "decoder.layers.3.mixer.norm.weight", 0, false },
		{ "decoder.layers.3.mlp.experts.weight1", 2, true },
		{ "decoder.layers.3.mlp.experts.weight2", 1, false },
		{ "decoder.layers.3.mlp.experts.weight3", -2, false },
	};
	/* clang-format on */
	static const struct dcp_megatron_rules none;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_megatron_rule r;
		bool known = dcp_megatron_rules_find(&none, rows[i].key, &r);

		t_case(rows[i].key);
		assert_int_equal(known, rows[i].dim > -2);
		if (!known)
			continue;
		assert_int_equal(r.replicate, rows[i].dim == -1);
		assert_int_equal(r.gated, rows[i].gated);
		if (!r.replicate)
			assert_int_equal(r.dim, rows[i].dim);
		assert_int_equal(r.line, 0);
	}
}

static void own_rules_are_used(void **state)
{
	static const char text[] = "# ours\n"
				   "\n"
				   "  *.in_proj.weight \tshard(0, groups=5)  # comment\r\n"
				   "*.linear_fc1.*  replicate\n"
				   "a*  shard( 1 )\n"
				   "m   shard(0, parts = 4:4:1 : 2)\n"
				   "*   shard(0)";
	struct dcp_megatron_rules rules = { 0 };
	struct dcp_err err = { 0 };
	struct dcp_megatron_rule r;

	(void)state;
	assert_int_equal(dcp_megatron_rules_parse(&rules, text, sizeof(text) - 1, &err), 0);
	assert_true(dcp_megatron_rules_find(&rules, "x.in_proj.weight", &r));
	assert_int_equal(r.groups, 5);
	assert_int_equal(r.line, 3);
	assert_true(dcp_megatron_rules_find(&rules, "l.linear_fc1.weight", &r));
	assert_true(r.replicate && !r.gated);
	assert_true(dcp_megatron_rules_find(&rules, "abc", &r));
	assert_int_equal(r.dim, 1);
	assert_true(dcp_megatron_rules_find(&rules, "m", &r));
	assert_int_equal(r.nsizes, 4);
	assert_int_equal(r.size[0] + 10 * r.size[2] + 100 * r.size[3], 214);
	assert_true(dcp_megatron_rules_find(&rules, "zzz", &r));
	assert_int_equal(r.nsizes, 0);
	assert_int_equal(r.line, 7);
	dcp_megatron_rules_finish(&rules);
}

static void bad_rules_are_refused(void **state)
{
	static const struct {
		const char *text, *says;
	} rows[] = {
		{ "*.weight\n", "dcpfs.rules:1: \"*.weight\" does not say how it is cut" },
		{ "\n* shard()\n", "dcpfs.rules:2: " },
		{ "* shard(0) x\n", "dcpfs.rules:1: " },
		{ "* shard(0, groups=0)\n", "dcpfs.rules:1: " },
		{ "* shard(123456)\n", "dcpfs.rules:1: " },
		{ "* shard(0, groups=2) x\n", "dcpfs.rules:1: " },
		{ "* shard(0, parts=)\n", "dcpfs.rules:1: " },
		{ "* shard(0, parts=1:0)\n", "dcpfs.rules:1: " },
		{ "* shard(0, parts=1:2\n", "dcpfs.rules:1: " },
		{ "* shard(0, parts=1:2) x\n", "dcpfs.rules:1: " },
		{ "* shard(0, parts=1:1:1:1:1:1:1:1:1)\n", "dcpfs.rules:1: " },
		{ "* cut(0)\n", "expected replicate, shard(D), shard(D, groups=N) or "
				"shard(D, parts=N:N...)" },
		{ "*a*a*a*a*a*a*a*a* replicate\n", "more than 8 stars" },
	};
	struct dcp_err err = { 0 };
	struct dcp_megatron_rules rules = { 0 };
	char longest[2000];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].text);
		assert_int_equal(dcp_megatron_rules_parse(&rules, rows[i].text,
							  strlen(rows[i].text), &err),
				 -EBADMSG);
		t_assert_says(&err, rows[i].says);
	}
	memset(longest, 'x', sizeof(longest));
	assert_int_equal(dcp_megatron_rules_parse(&rules, longest, sizeof(longest), &err),
			 -EBADMSG);
	assert_int_equal(dcp_megatron_rules_parse(&rules, "* \0", 3, &err), -EBADMSG);
	dcp_megatron_rules_finish(&rules);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(built_in_rules_know_their_keys),
		cmocka_unit_test(own_rules_are_used),
		cmocka_unit_test(bad_rules_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
