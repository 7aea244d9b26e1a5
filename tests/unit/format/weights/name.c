/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of files in Hugging Face directories; which directories they make is in format/format.c.
 */
#include "tests/unit/t.h"

#include "core/format/weights/name.h"

enum {
	ST = DCP_WEIGHTS_SAFETENSORS,
	IX = DCP_WEIGHTS_SAFETENSORS_INDEX,
	BIN = DCP_WEIGHTS_TORCH,
	BIX = DCP_WEIGHTS_TORCH_INDEX,
	NO = DCP_WEIGHTS_OTHER
};

/* clang-format off */
static const struct {
	const char *file;
	int kind;
	const char *set;
	uint32_t part, nparts;
} names[] = {
	{ "model.safetensors", ST, "model", 0, 0 },
	{ "model-00001-of-00003.safetensors", ST, "model", 1, 3 },
	{ "model-00163-of-000163.safetensors", ST, "model", 163, 163 },
	{ "model-00002.safetensors", ST, "model", 0, 0 },
	{ "pytorch_model-00001.bin", BIN, "pytorch_model", 0, 0 },
	{ "model-2.safetensors", ST, "model-2", 0, 0 },
	{ "model.safetensors.index.json", IX, "model", 0, 0 },
	{ "model.fp16.safetensors", ST, "model.fp16", 0, 0 },
	{ "model.fp16-00002-of-00002.safetensors", ST, "model.fp16", 2, 2 },
	{ "model-00002-of-00002.fp16.safetensors", ST, "model.fp16", 2, 2 },
	{ "model.safetensors.index.fp16.json", IX, "model.fp16", 0, 0 },
	{ "shard-00012-model-00001-of-00002.safetensors", ST, "model", 1, 2 },
	{ "shard-model.safetensors", ST, "shard-model", 0, 0 },
	{ "pytorch_model_00001-of-00002.bin", BIN, "pytorch_model", 1, 2 },
	{ "pytorch_model.bin.index.json", BIX, "pytorch_model", 0, 0 },
	{ "a-of-b-1-of-2.safetensors", ST, "a-of-b", 1, 2 },
	{ "model-00000-of-00002.safetensors", ST, "model-00000-of-00002", 0, 0 },
	{ "model-00003-of-00002.safetensors", ST, "model-00003-of-00002", 0, 0 },
	{ "model-1-of-99999999.safetensors", ST, "model-1-of-99999999", 0, 0 },
	{ "model-1-of-2-more.safetensors", ST, "model-1-of-2-more", 0, 0 },
	{ "-1-of-2.safetensors", ST, "-1-of-2", 0, 0 },
	{ "1-of-2.safetensors", ST, "1-of-2", 0, 0 },
	{ ".safetensors", NO, NULL, 0, 0 },
	{ ".hidden.safetensors", NO, NULL, 0, 0 },
	{ "model.safetensors.tmp", NO, NULL, 0, 0 },
	{ "model.safetensors.indexes.json", NO, NULL, 0, 0 },
	{ "config.json", NO, NULL, 0, 0 },
	{ "bin", NO, NULL, 0, 0 },
};

static const struct {
	const char *set;
	unsigned rank;
	bool weights;
} ranks[] = {
	{ "model", 0, true },
	{ "diffusion_pytorch_model", 0, true },
	{ "model_1", 1, true },
	{ "unet", 1, false },
	{ "models", 1, false },
	{ "adapter_model", 2, true },
	{ "model.fp16", 3, true },
	{ "adapter_model.fp16", 4, true },
	{ "unet.fp16", 5, false },
	{ "consolidated", DCP_WEIGHTS_RANK_TWIN, true },
	{ "consolidated.00", DCP_WEIGHTS_RANK_TWIN, true },
	{ "model-rank-0-part-12", DCP_WEIGHTS_RANK_TWIN, true },
	{ "model-rank-0", 1, false },
	{ "model-rank-0-part-1.fp16", 5, false },
};
/* clang-format on */

static void names_tell_set_and_part(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		struct dcp_weights_name n;

		t_case(names[i].file);
		assert_int_equal(dcp_weights_name(names[i].file, &n), names[i].kind);
		assert_int_equal(n.kind, names[i].kind);
		if (!names[i].set)
			continue;
		assert_string_equal(n.set, names[i].set);
		assert_int_equal(n.part, names[i].part);
		assert_int_equal(n.nparts, names[i].nparts);
	}
}

static void longer_names_are_of_no_set(void **state)
{
	struct dcp_weights_name n;
	char file[DCP_GROUP_MAX + 20];

	(void)state;
	memset(file, 'a', sizeof(file));
	memcpy(file + DCP_GROUP_MAX - 13, ".safetensors", 13);
	assert_int_equal(dcp_weights_name(file, &n), DCP_WEIGHTS_SAFETENSORS);
	assert_int_equal(strlen(n.set), DCP_GROUP_MAX - 13);
	memcpy(file + DCP_GROUP_MAX - 13, "aa.safetensors", 15);
	assert_int_equal(dcp_weights_name(file, &n), DCP_WEIGHTS_OTHER);
}

static void names_tell_the_rank(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(ranks); i++) {
		t_case(ranks[i].set);
		assert_int_equal(dcp_weights_rank(ranks[i].set), ranks[i].rank);
		assert_int_equal(dcp_weights_is_named(ranks[i].set), ranks[i].weights);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_tell_set_and_part),
		cmocka_unit_test(longer_names_are_of_no_set),
		cmocka_unit_test(names_tell_the_rank),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
