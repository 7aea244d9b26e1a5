/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes and their scales are told from numbers, however the program that made them calls them.
 */
#include "tests/unit/t.h"

#include "core/hf/hf.h"
#include "core/store/index/index.h"
#include "core/store/version/version_int.h"
#include "tests/unit/t/index.h"

static const struct {
	const char *what;
	struct {
		const char *key;
		enum dcp_dtype dtype;
		const char *by; /* NULL: a number */
	} row[5];
} cases[] = {
	/* clang-format off */
	{ "fp8 in blocks", { { "m.w.weight", DCP_DTYPE_F8_E4M3, "m.w.weight_scale_inv" }, { "m.w.weight_scale_inv", DCP_DTYPE_F32, "m.w.weight_scale_inv" }, { "m.w.bias", DCP_DTYPE_BF16, NULL }, { "m.norm.weight", DCP_DTYPE_BF16, NULL } } },
	{ "fp8 as DeepSeek calls it", { { "wq.weight", DCP_DTYPE_F8_E4M3, "wq.scale" }, { "wq.scale", DCP_DTYPE_F32, "wq.scale" }, { "norm.scale", DCP_DTYPE_F32, NULL } } },
	{ "fp8 of experts in one", { { "m.experts.gate_up_proj", DCP_DTYPE_F8_E4M3, "m.experts.gate_up_proj_scale_inv" }, { "m.experts.gate_up_proj_scale_inv", DCP_DTYPE_BF16, "m.experts.gate_up_proj_scale_inv" } } },
	{ "fp8 as ComfyUI calls it", { { "w.scale_weight", DCP_DTYPE_F32, "w.scale_weight" }, { "w.weight", DCP_DTYPE_F8_E5M2, "w.scale_weight" } } },
	{ "gptq", { { "w.qweight", DCP_DTYPE_I32, "w.qweight" }, { "w.scales", DCP_DTYPE_F16, "w.qweight" }, { "w.g_idx", DCP_DTYPE_I32, "w.qweight" } } },
	{ "nvfp4", { { "w.weight", DCP_DTYPE_U8, "w.weight_scale" }, { "w.weight_scale", DCP_DTYPE_F8_E4M3, "w.weight_scale" }, { "w.weight_scale_2", DCP_DTYPE_F32, "w.weight_scale" }, { "w.input_scale", DCP_DTYPE_F32, "w.weight_scale" } } },
	{ "mxfp4", { { "e.gate_up_proj_blocks", DCP_DTYPE_U8, "e.gate_up_proj_scales" }, { "e.gate_up_proj_scales", DCP_DTYPE_U8, "e.gate_up_proj_scales" }, { "e.gate_up_proj_bias", DCP_DTYPE_BF16, NULL } } },
	{ "compressed-tensors", { { "w.weight_packed", DCP_DTYPE_I32, "w.weight_packed" }, { "w.weight_scale", DCP_DTYPE_BF16, "w.weight_packed" }, { "w.weight_shape", DCP_DTYPE_I64, NULL } } },
	{ "bitsandbytes, four bits", { { "w.weight", DCP_DTYPE_U8, "w.weight.absmax" }, { "w.weight.absmax", DCP_DTYPE_F32, "w.weight.absmax" }, { "w.weight.quant_map", DCP_DTYPE_F32, "w.weight.absmax" } } },
	{ "bitsandbytes, eight bits", { { "w.weight", DCP_DTYPE_I8, "w.SCB" }, { "w.SCB", DCP_DTYPE_F32, "w.SCB" } } },
	{ "torchao", { { "w._weight_qdata", DCP_DTYPE_F8_E4M3, "w._weight_scale" }, { "w._weight_scale", DCP_DTYPE_F32, "w._weight_scale" } } },
	{ "quanto", { { "w.weight._data", DCP_DTYPE_I8, "w.weight._scale" }, { "w.weight._scale", DCP_DTYPE_BF16, "w.weight._scale" } } },
	{ "mlx", { { "w.weight", DCP_DTYPE_U32, "w.scales" }, { "w.scales", DCP_DTYPE_F16, "w.scales" }, { "w.biases", DCP_DTYPE_F16, NULL } } },
	{ "an optimizer of eight bits", { { "s.w.exp_avg.codes", DCP_DTYPE_U8, "s.w.exp_avg.scale" }, { "s.w.exp_avg.scale", DCP_DTYPE_F32, "s.w.exp_avg.scale" }, { "s.w.step", DCP_DTYPE_F32, NULL } } },
	{ "plain fp8", { { "w.weight", DCP_DTYPE_F8_E4M3, NULL }, { "logit_scale", DCP_DTYPE_F32, NULL } } },
	{ "numbers that are called scales", { { "block.scale", DCP_DTYPE_BF16, NULL }, { "block.scale_shift_table", DCP_DTYPE_F32, NULL }, { "block.weight", DCP_DTYPE_BF16, NULL }, { "rng", DCP_DTYPE_U8, NULL } } },
	{ "counters and ids", { { "bn.num_batches_tracked", DCP_DTYPE_I64, NULL }, { "bn.scale", DCP_DTYPE_F32, NULL }, { "scaler.growth_tracker", DCP_DTYPE_I32, NULL }, { "scaler.gradscaler", DCP_DTYPE_F32, NULL } } },
	/* clang-format on */
};

static void tell(struct t_index *p, const char *key, enum dcp_dtype dtype)
{
	static const uint64_t none = 0;
	const struct dcp_tensor t = { .key = key,
				      .dtype = dtype,
				      .dtype_name = dcp_dtype_info(dtype)->name,
				      .itemsize = dcp_dtype_info(dtype)->size,
				      .ndim = 1,
				      .shape = &none };

	assert_int_equal(dcp_emit_tensor(&p->sink, &t), 0);
}

static void codes_find_their_scales(void **state)
{
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		void *set = NULL;
		struct t_index *p;
		struct dcp_version v = { 0 };
		struct dcp_quantized *q;
		struct dcp_err err = { 0 };

		t_case(cases[i].what);
		t_index_setup(&set);
		p = set;
		for (size_t k = 0; k < DCP_LEN(cases[i].row) && cases[i].row[k].key; k++)
			tell(p, cases[i].row[k].key, cases[i].row[k].dtype);
		t_index_reopen(p);
		v.index = p->ix;
		assert_int_equal(dcp_quantized_find(&v, NULL, &q, &err), 0);
		for (size_t k = 0; k < DCP_LEN(cases[i].row) && cases[i].row[k].key; k++) {
			const char *key = cases[i].row[k].key, *by = cases[i].row[k].by;
			struct dcp_row row = t_index_row(p, DCP_ROW_TENSOR, key);
			const char *got = dcp_quantized_row(q, &row);

			if (!by != !got || (by && strcmp(by, got) != 0))
				fail_msg("%s: by %s, want %s", key, got, by);
			if (by) {
				assert_int_equal(dcp_quantized_refuse(&row, got, &err),
						 -ENOTSUP);
				assert_non_null(strstr(err.msg, key));
				assert_non_null(strstr(err.msg, got));
			}
		}
		dcp_quantized_free(q);
		t_index_teardown(&set);
	}
	(void)state;
}

static void config_files_tell_quantization(void **state)
{
	static const struct {
		const char *name, *text;
		bool says;
	} files[] = {
		{ "config.json", "{\"quantization_config\": {}}", true },
		{ "config.json", "{\"compression_config\": {}}", true },
		{ "config.json", "{\"quantization_config\": null}", false },
		{ "config.json", "{", false },
		{ "quantize_config.json", "{}", true },
		{ "hf_quant_config.json", "", true },
		{ "generation_config.json", "{\"quantization_config\": {}}", false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(files); i++) {
		void *set = NULL;
		struct t_index *p;
		struct dcp_version v = { 0 };
		struct dcp_quantized *q;
		struct dcp_row row;

		t_case(files[i].text);
		t_index_setup(&set);
		p = set;
		t_dir_text(&p->dir, files[i].name, files[i].text);
		tell(p, "w.codes", DCP_DTYPE_U8);
		tell(p, "w.numbers", DCP_DTYPE_BF16);
		assert_int_equal(dcp_emit_sidecar(&p->sink, files[i].name), 0);
		t_index_reopen(p);
		v.index = p->ix;
		v.at = p->dir.at;
		assert_int_equal(dcp_quantized_find(&v, NULL, &q, NULL), 0);
		assert_int_equal(q != NULL, files[i].says);
		row = t_index_row(p, DCP_ROW_TENSOR, "w.codes");
		if (files[i].says)
			assert_string_equal(dcp_quantized_row(q, &row), files[i].name);
		row = t_index_row(p, DCP_ROW_TENSOR, "w.numbers");
		assert_null(dcp_quantized_row(q, &row));
		dcp_quantized_free(q);
		t_index_teardown(&set);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(codes_find_their_scales),
		cmocka_unit_test(config_files_tell_quantization),
	};

	return cmocka_run_group_tests_name("quantized", tests, NULL, NULL);
}
