/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config.json with another dtype.
 *
 * covers: config
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/rules/rules.h"

/* clang-format off */
/* A config.json, and with bfloat16; NULL: it stays as it is. */
static const struct {
	const char *what, *text, *want;
} cases[] = {
	{ "the rest as it is",
	  "{\n \"torch_dtype\" :\"float32\" , \"x\": [1.0, 1e-05], \"y\":\"\\u00e9\"\n}\n\n",
	  "{\n \"torch_dtype\" :\"bfloat16\" , \"x\": [1.0, 1e-05], \"y\":\"\\u00e9\"\n}\n\n" },
	{ "by both names", "{\"dtype\":\"float16\",\"torch_dtype\":\"float64\"}", "{\"dtype\":\"bfloat16\",\"torch_dtype\":\"bfloat16\"}" },
	{ "as torch writes it", "{\"dtype\": \"torch.float32\"}", "{\"dtype\": \"torch.bfloat16\"}" },
	{ "the same", "{\"dtype\": \"bfloat16\"}", "{\"dtype\": \"bfloat16\"}" },
	{ "of its parts", "{\"dtype\": \"float32\", \"text_config\": {\"a\": {\"dtype\": \"float16\"}, \"dtype\": null}}",
	  "{\"dtype\": \"bfloat16\", \"text_config\": {\"a\": {\"dtype\": \"bfloat16\"}, \"dtype\": null}}" },
	{ "of a part alone", "{\"model_type\": \"x\", \"vision_config\": {\"dtype\": \"float32\"}}",
	  "{\"model_type\": \"x\", \"vision_config\": {\"dtype\": \"bfloat16\"}}" },
	{ "no numbers that are cast", "{\"dtype\": \"int8\", \"x_dtype\": \"float32\", \"y\": {\"dtype\": \"auto\"}, \"z\": \"dtype\"}", NULL },
	{ "other values", "{\"dtype\": 3, \"torch_dtype\": [\"float32\"], \"x\": [{\"dtype\": \"float32\"}]}", NULL },
	{ "a model that names none", "{\n  \"model_type\": \"llama\",\n  \"x\": 1\n}\n", "{\n  \"torch_dtype\": \"bfloat16\",\n  \"model_type\": \"llama\",\n  \"x\": 1\n}\n" },
	{ "on one line", " {\"architectures\": []}", " {\"torch_dtype\": \"bfloat16\", \"architectures\": []}" },
	{ "of something else", "{\"_class_name\": \"FluxTransformer2DModel\"}", NULL },
	{ "empty", "{}", NULL },
	{ "an array", "[\"dtype\", \"float32\"]", NULL },
	{ "damaged", "{\"dtype\": \"float32\"", NULL },
	{ "nothing", "", NULL },
};
/* clang-format on */

static void config_is_retyped(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		size_t n = strlen(cases[i].text);
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		char *exact = malloc(n + !n);

		t_case(cases[i].what);
		assert_non_null(exact);
		memcpy(exact, cases[i].text, n);
		assert_int_equal(dcp_rules_config_retype(exact, n, DCP_DTYPE_BF16, &out),
				 cases[i].want != NULL);
		if (cases[i].want)
			assert_string_equal(out.p, cases[i].want);
		else
			assert_int_equal(out.n, 0);
		free(exact);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(config_is_retyped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
