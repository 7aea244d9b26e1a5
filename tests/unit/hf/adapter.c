/* SPDX-License-Identifier: Apache-2.0 */
/* What loads an adapter is told from its keys and the files beside them. Covers rules/lora. */
#include "core/hf/hf_int.h"

#include "tests/unit/t.h"
#include "tests/unit/t/index.h"

static const struct {
	const char *what, *key[4];
	bool config, wrapped; /* adapter_config.json is there; the model's own keys are */
	const char *loader;   /* "": an adapter of a program that is not known; NULL: none */
} cases[] = {
	/* clang-format off */
	{ "a model", { "model.embed_tokens.weight", "lm_head.weight" } },
	{ "nothing", { NULL } },
	{ "PEFT", { "base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.weight" }, .loader = "PEFT" },
	{ "a prompt of PEFT", { "prompt_embeddings" }, .loader = "PEFT" },
	{ "a model that PEFT wraps", { "base_model.model.q.base_layer.weight", "state.x" }, .wrapped = true, .loader = "PEFT" },
	{ "PEFT by its file alone", { "q.lora_A.weight", "other" }, .config = true, .loader = "PEFT" },
	{ "diffusers", { "unet.q.lora_A.weight", "unet.q.lora_B.weight" }, .loader = "diffusers" },
	{ "kohya", { "lora_te1_q.lora_up.weight", "lora_te1_q.alpha" }, .loader = "diffusers" },
	{ "alpha alone", { "x.alpha" } },
	{ "among other weights", { "unet.q.lora_A.weight", "unet.q.weight" } },
	{ "MLX", { "model.layers.0.q.lora_a", "model.layers.0.q.lora_b" }, .config = true, .loader = "MLX" },
	{ "torchtune", { "layers.0.q.lora_a.weight", "layers.0.q.lora_b.weight" }, .loader = "" },
	/* clang-format on */
};

static void keys_tell_the_adapters_loader(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_asset file = { .name = "adapter_config.json" };
		struct dcp_assets assets = { .at = &file, .n = cases[i].config };
		const struct dcp_adapter *found = NULL;
		void *set = NULL;
		struct t_index *p;

		t_case(cases[i].what);
		t_index_setup(&set);
		p = set;
		for (size_t k = 0; k < DCP_LEN(cases[i].key) && cases[i].key[k]; k++)
			t_tell_vector(&p->sink, cases[i].key[k], p->file, 0, 1, NULL);
		t_index_reopen(p);
		assert_int_equal(dcp_adapter_find(p->ix, &assets, cases[i].wrapped, &found), 1);
		assert_int_equal(found != NULL, cases[i].loader != NULL);
		if (found && *cases[i].loader)
			assert_string_equal(found->loader, cases[i].loader);
		else if (found)
			assert_null(found->loader);
		t_index_teardown(&set);
	}
}

/* Of a model that PEFT wraps, few keys are looked at: the mark may be first, last or between. */
static void wrapped_model_is_told_by_a_few_keys(void **state)
{
	static const struct {
		unsigned from, to; /* the keys with the mark, of 1,000 */
		bool wrapped;
	} ranges[] = {
		{ 0, 0, false },    { 63, 64, true },    { 300, 600, true },
		{ 600, 700, true }, { 999, 1000, true },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(ranges); i++) {
		struct dcp_assets assets = { .n = 0 };
		const struct dcp_adapter *found = NULL;
		void *set = NULL;
		struct t_index *p;
		char key[64];

		t_index_setup(&set);
		p = set;
		for (unsigned k = 0; k < 1000; k++) {
			bool mark = k >= ranges[i].from && k < ranges[i].to;

			snprintf(key, sizeof(key), "%sk%u", mark ? "base_model.model." : "x.",
				 k);
			t_tell_vector(&p->sink, key, p->file, 0, 1, NULL);
		}
		t_index_reopen(p);
		assert_int_equal(dcp_adapter_find(p->ix, &assets, true, &found), 1);
		assert_int_equal(found != NULL, ranges[i].wrapped);
		t_index_teardown(&set);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_tell_the_adapters_loader),
		cmocka_unit_test(wrapped_model_is_told_by_a_few_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
