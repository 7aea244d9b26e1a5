/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose linear weights are these? By shapes, whoever wrote them; by the writer where no shape says.
 */
#include <stdio.h>

#include "core/rules/rules.h"
#include "tests/unit/t.h"

#define EMBED "model.embed_tokens.weight 20 4\n"
#define NORM "model.layers.0.input_layernorm.weight 4\n"
#define SQUARE "model.layers.0.self_attn.o_proj.weight 4 4\n"
#define DOWN(a) "model.layers.0.mlp.down_proj.weight " a "\n"

/* clang-format off */
static const struct {
	const char *what, *keys, *by, *want;
} cases[] = {
	{ "to the width of the norm", EMBED SQUARE NORM DOWN("4 6"), NULL, "hf" },
	{ "from it", EMBED SQUARE NORM DOWN("6 4"), NULL, "paddle" },
	{ "into the layer", SQUARE NORM "model.layers.0.mlp.up_proj.weight 6 4\n", NULL, "hf" },
	{ "into the layer, Paddle's", SQUARE NORM "model.layers.0.mlp.up_proj.weight 4 6\n", NULL, "paddle" },
	{ "the shape, not the writer: PaddleFormers exports as torch has it", SQUARE NORM DOWN("4 6"), "paddle", "hf" },
	{ "the shape, not the writer", SQUARE NORM DOWN("6 4"), "safetensors", "paddle" },
	{ "a bias has as many as there are outputs", "fc.weight 6 4\nfc.bias 6\n", NULL, "hf" },
	{ "and those of Paddle", "fc.weight 4 6\nfc.bias 6\n", NULL, "paddle-unknown" },
	{ "a bias rather than the name", "b.0.norm.weight 4\nb.0.linear2.weight 4 6\nb.0.linear2.bias 6\n", NULL, "paddle-unknown" },
	{ "another bias is none of it", "fc.weight 4 6\nfd.bias 6\n", NULL, "unknown" },
	{ "a norm of a part of the layer is another one", SQUARE DOWN("4 6") "model.layers.0.self_attn.q_norm.weight 6\n", NULL, "unknown" },
	{ "one of another layer, too", SQUARE DOWN("4 6") "other.layers.0.norm.weight 6\n", NULL, "unknown" },
	{ "pictures, as wide inside as the text", "vision.layers.0.layer_norm1.weight 3\nvision.layers.0.mlp.fc1.weight 4 3\n"
	  SQUARE NORM DOWN("4 6"), NULL, "hf" },
	{ "most of them", "d.0.norm.weight 4\nd.0.k_proj.weight 4 6\nd.0.fc1.weight 8 4\nd.0.fc2.weight 4 8\n", NULL, "hf" },
	{ "most of Paddle's", "d.0.norm.weight 4\nd.0.k_proj.weight 6 4\nd.0.fc1.weight 4 8\nd.0.fc2.weight 8 4\n", NULL, "paddle-unknown" },
	{ "no names", "..weight 4 6\n.weight 4 6\n", NULL, "unknown" },
	{ "later layers alone: the first of them", "b.10.fc.weight 6 4\nb.10.fc.bias 6\nb.10.fd.weight 6 4\nb.10.fd.bias 6\nb.2.fc.weight 4 6\nb.2.fc.bias 6\n", NULL, "paddle-unknown" },
	{ "in the other order", "b.2.fc.weight 4 6\nb.2.fc.bias 6\nb.10.fc.weight 6 4\nb.10.fc.bias 6\nb.10.fd.weight 6 4\nb.10.fd.bias 6\n", NULL, "paddle-unknown" },
	{ "what has no number stays", "fc.weight 4 6\nfc.bias 6\nb.3.norm.weight 4\nb.2.norm.weight 4\n", NULL, "paddle-unknown" },
	{ "the first expert of a later layer", "b.2.e.1.fc.weight 6 4\nb.2.e.1.fc.bias 6\nb.2.e.0.fc.weight 4 6\nb.2.e.0.fc.bias 6\n", NULL, "paddle-unknown" },
	{ "a key of another layer that is left out makes no layer the first", "b.1.e.1.norm.weight 9\nb.2.fc.weight 4 6\nb.2.fc.bias 6\n", NULL, "paddle-unknown" },
	{ "no number", "b.18446744073709551616.fc.weight 6 4\nb.18446744073709551616.fc.bias 6\n" SQUARE, NULL, "unknown" },
	{ "a weight that is lost", "model.layers.0.mlp.down_proj.weight l\n" NORM, NULL, "unknown" },
	{ "that torch has so, too", "h.0.fc.weight 4 6\nh.0.fc.bias 6\n", "torch", "hf" },
	{ "or DeepSpeed", "h.0.fc.weight 4 6\nh.0.fc.bias 6\n", "deepspeed 0.18", "hf" },
	{ "a square alone", SQUARE NORM EMBED, NULL, "unknown" },
	{ "a square, said to be of torch", SQUARE NORM EMBED, "safetensors", "hf" },
	{ "a square of Paddle", SQUARE NORM EMBED, "paddle", "paddle" },
	{ "no linear weight", EMBED NORM "lm_head.weight 20 4\nconv.weight 4 3 3 3\nconv.bias 4\n", NULL, "hf" },
	{ "Conv1D of GPT-2", "h.0.ln_1.weight 4\nh.0.attn.c_attn.weight 4 12\nh.0.attn.c_attn.bias 12\nwte.weight 20 4\n", NULL, "hf" },
	{ "packed integers", "model.layers.0.mlp.down_proj.weight u 6 4\n" NORM, NULL, "hf" },
};
/* clang-format on */

struct text {
	const char *at[16];
	size_t n;
	uint64_t shape[4];
};

static int list_keys(void *ctx, int (*fn)(void *, uint64_t, const char *), void *fn_ctx,
		     struct dcp_err *err)
{
	const struct text *t = ctx;
	int rc = 0;

	(void)err;
	for (uint64_t i = 0; rc == 0 && i < t->n; i++) {
		char key[100];

		snprintf(key, sizeof(key), "%.*s", (int)strcspn(t->at[i], " "), t->at[i]);
		rc = fn(fn_ctx, i, key);
	}
	return rc;
}

static int one_tensor(void *ctx, uint64_t number, struct dcp_arena *arena,
		      struct dcp_tensor *out, struct dcp_err *err)
{
	struct text *t = ctx;
	const char *s = strchr(t->at[number], ' ');
	bool packed = s[1] == 'u', lost = s[1] == 'l';
	char *end;

	(void)arena, (void)err;
	*out = (struct dcp_tensor){ .dtype = packed ? DCP_DTYPE_U8 : DCP_DTYPE_BF16,
				    .shape = t->shape,
				    .error = lost ? "its file is missing" : NULL };
	for (s += packed || lost ? 2 : 0; *s == ' '; s = end)
		t->shape[out->ndim++] = strtoull(s, &end, 10);
	return 0;
}

static int no_tensor(void *ctx, uint64_t number, struct dcp_arena *arena,
		     struct dcp_tensor *out, struct dcp_err *err)
{
	(void)ctx, (void)number, (void)arena, (void)out;
	return dcp_fail(err, -EIO, "gone");
}

static void writers_of_linears_are_recognised(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct text t = { .n = 0 };
		struct dcp_rules_source from = { .list = list_keys,
						 .tensor = one_tensor,
						 .ctx = &t,
						 .framework = cases[i].by };
		struct dcp_rules_preset p;
		struct dcp_err err = { 0 };

		t_case(cases[i].what);
		for (const char *s = cases[i].keys; *s; s = strchr(s, '\n') + 1)
			t.at[t.n++] = s;
		assert_int_equal(dcp_rules_detect(&from, &p, &err), 0);
		assert_string_equal(p.name, cases[i].want);
	}
}

/* Where a layer has no norm of its own, config.json says how wide it is. */
static void config_tells_the_width(void **state)
{
	static const char key[] = "layers.0.mlp.down_proj.weight 6 4";
	struct text t = { .at = { key }, .n = 1 };
	struct dcp_rules_config c = { .hidden = 4 };
	struct dcp_rules_source from = {
		.list = list_keys, .tensor = one_tensor, .ctx = &t, .config = &c
	};
	struct dcp_rules_preset p;
	struct dcp_err err = { 0 };

	(void)state;
	assert_int_equal(dcp_rules_detect(&from, &p, NULL), 0);
	assert_string_equal(p.name, "paddle-unknown");
	c.hidden = 6;
	assert_int_equal(dcp_rules_detect(&from, &p, NULL), 0);
	assert_string_equal(p.name, "hf");
	from.tensor = no_tensor;
	assert_int_equal(dcp_rules_detect(&from, &p, &err), -EIO);
	assert_string_equal(err.msg, "gone");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(writers_of_linears_are_recognised),
					    cmocka_unit_test(config_tells_the_width) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
