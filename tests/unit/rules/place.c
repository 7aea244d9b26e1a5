/* SPDX-License-Identifier: Apache-2.0 */
/* Below which prefix are the tensors of the model of config.json, whatever a trainer called it? */
#include <stdio.h>

#include "core/rules/rules.h"
#include "tests/unit/t.h"

#define LLAMA(p)                                                                               \
	p "model.embed_tokens.weight\n" p "model.layers.0.self_attn.q_proj.weight\n" p         \
	  "model.layers.0.self_attn.k_proj.weight\n" p                                         \
	  "model.layers.0.self_attn.v_proj.weight\n" p                                         \
	  "model.layers.0.self_attn.o_proj.weight\n" p                                         \
	  "model.layers.0.mlp.gate_proj.weight\n" p "model.layers.0.mlp.up_proj.weight\n" p    \
	  "model.layers.0.mlp.down_proj.weight\n" p                                            \
	  "model.layers.0.input_layernorm.weight\n" p                                          \
	  "model.layers.0.post_attention_layernorm.weight\n" p "model.norm.weight\n"
#define HEAD(p) p "lm_head.weight\n"
#define BACKBONE(p)                                                                            \
	p "embed_tokens.weight\n" p "layers.0.self_attn.q_proj.weight\n" p                     \
	  "layers.0.self_attn.k_proj.weight\n" p "layers.0.mlp.gate_proj.weight\n" p           \
	  "norm.weight\n"

static const char llama[] =
	"{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], "
	"\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 4, "
	"\"vocab_size\": 8, "
	"\"intermediate_size\": 6, \"tie_word_embeddings\": false}";
static const char unet[] = "{\"_class_name\": \"UNet2DConditionModel\"}";
static const char other[] = "{\"_class_name\": \"SomeModelOfTomorrow\"}";

/* clang-format off */
static const struct {
	const char *what, *config, *keys;
	const char *prefix; /* NULL: it is not known */
	const char *others;
} cases[] = {
	{ "as it is", llama, LLAMA("") HEAD(""), "", "" },
	{ "one name", llama, LLAMA("state_dict.") HEAD("state_dict."), "state_dict.", "" },
	{ "any name", llama, LLAMA("b-c.x_y.") HEAD("b-c.x_y."), "b-c.x_y.", "" },
	{ "its own name again", llama, LLAMA("model.") HEAD("model."), "model.", "" },
	{ "a slash", llama, LLAMA("state/model/") HEAD("state/model/"), "state/model/", "" },
	{ "wrappers below it", llama, LLAMA("net.module._orig_mod.") HEAD("net.module._orig_mod."), "net.module.", "" },
	{ "without its head", llama, LLAMA("policy."), "policy.", "" },
	{ "a model that a classifier holds", llama, BACKBONE("backbone.") "head.weight\n", "backbone.", "" },
	{ "an average beside it", llama, LLAMA("ema.") HEAD("ema.") LLAMA("model.") HEAD("model."), "model.", "ema." },
	{ "an average that has more", llama, LLAMA("ema_model.") HEAD("ema_model.") LLAMA("net."), "net.", "ema_model." },
	{ "a reference", llama, LLAMA("ref_policy.") LLAMA("policy."), "policy.", "ref_policy." },
	{ "a critic without a head", llama, LLAMA("a.") LLAMA("b.") HEAD("b."), "b.", "a." },
	{ "two that say nothing", llama, LLAMA("b.") LLAMA("a."), "b.", "a." },
	{ "one of them is a model by its name", llama, LLAMA("a.") LLAMA("net."), "net.", "a." },
	{ "moments are none", llama, LLAMA("exp_avg.") LLAMA("optim.state.") LLAMA("w.") LLAMA("mu."), "w.", "" },
	{ "moments alone", llama, LLAMA("exp_avg."), NULL, NULL },
	{ "master weights", llama, LLAMA("fp32.") LLAMA("module."), "module.", "fp32." },
	{ "master weights alone", llama, LLAMA("fp32.") "module.x\n", "fp32.", "" },
	{ "one tensor that is called so", llama, "x.model.norm.weight\n" LLAMA("y."), "y.", "" },
	{ "another model", llama, "layers.0.attention.wq.weight\ntok_embeddings.weight\n", NULL, NULL },
	{ "no model that is known", "{\"model_type\": \"tomorrow\"}", LLAMA("x."), NULL, NULL },
	{ "no config.json", NULL, LLAMA("x."), NULL, NULL },
	{ "of diffusers", unet, "unet.conv_in.weight\nunet.conv_out.weight\nunet.time_embedding.linear_1.weight\nvae.decoder.conv_out.weight\n", "unet.", "" },
	{ "of diffusers, another", "{\"_class_name\": \"QwenImageTransformer2DModel\"}",
	  "transformer.img_in.weight\ntransformer.txt_in.weight\ntransformer.proj_out.weight\nvae.proj_out.weight\n", "transformer.", "" },
	{ "of diffusers, a class that is not known", other, "model.a.weight\nmodel.b.c.weight\noptimizer.state.a.weight.exp_avg\n", "model.", "" },
	{ "of diffusers, without a name of its own", other, "a.weight\nab.c.weight\n", "", "" },
};
/* clang-format on */

static int list_keys(void *ctx, int (*fn)(void *, uint64_t, const char *), void *fn_ctx,
		     struct dcp_err *err)
{
	int rc = 0;

	(void)err;
	for (const char *s = ctx; rc == 0 && *s; s = strchr(s, '\n') + 1) {
		char key[200];

		snprintf(key, sizeof(key), "%.*s", (int)strcspn(s, "\n"), s);
		rc = fn(fn_ctx, 0, key);
	}
	return rc;
}

static void wrapped_models_are_found(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_rules_config config;
		struct dcp_rules_place place = { 0 };
		const struct dcp_rules_source from = {
			.list = list_keys,
			.ctx = (void *)(uintptr_t)cases[i].keys,
			.config = cases[i].config ? &config : NULL,
		};

		t_case(cases[i].what);
		if (cases[i].config)
			assert_int_equal(dcp_rules_config_parse(cases[i].config,
								strlen(cases[i].config),
								&config, NULL),
					 0);
		assert_int_equal(dcp_rules_find_place(&from, &place, NULL),
				 cases[i].prefix != NULL);
		if (cases[i].prefix) {
			assert_string_equal(place.prefix.p, cases[i].prefix);
			assert_string_equal(place.others.n ? place.others.p : "",
					    cases[i].others);
		}
		dcp_rules_place_finish(&place);
	}
}

static void only_keys_of_the_model_are_placed(void **state)
{
	static const char keys[] = LLAMA("") LLAMA("ema.") "opt.x\n";
	struct dcp_rules_config config;
	struct dcp_rules_place place = { 0 };
	const struct dcp_rules_source from = { .list = list_keys,
					       .ctx = (void *)(uintptr_t)keys,
					       .config = &config };

	(void)state;
	assert_int_equal(dcp_rules_config_parse(llama, strlen(llama), &config, NULL), 0);
	assert_int_equal(dcp_rules_find_place(&from, &place, NULL), 1);
	assert_true(dcp_rules_is_placed(&place, "model.norm.weight"));
	assert_true(dcp_rules_is_placed(&place, "value_head.weight"));
	assert_false(dcp_rules_is_placed(&place, "ema.model.norm.weight"));
	assert_false(dcp_rules_is_placed(&place, "opt.x"));
	dcp_rules_place_finish(&place);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(wrapped_models_are_found),
					    cmocka_unit_test(
						    only_keys_of_the_model_are_placed) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
