/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantized tensors that ranks cut: their parts, joined.
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/format/torch/torch.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/pickle.h"
#include "tests/unit/t/sink.h"

#define RANKS "tests/golden/torchao/ckpt/2-ranks"

static const char *const files[] = { "model_world_size_2_rank_0.pt",
				     "model_world_size_2_rank_1.pt" };

/*
 * The files of both ranks; in that of rank 1 the four bytes @scale (NULL: none) become those of
 * 1.0.
 */
static void put_ranks(struct t_dir *tree, const char *scale)
{
	for (int i = 0; i < 2; i++) {
		char path[256];
		size_t n;
		char *bytes;

		snprintf(path, sizeof(path), "%s/%s", RANKS, files[i]);
		bytes = t_slurp(path, &n);
		if (i == 1 && scale)
			memcpy(memmem(bytes, n, scale, 4), "\x00\x00\x80\x3f", 4);
		t_dir_put(tree, files[i], bytes, n);
		free(bytes);
	}
}

static void golden_version(const char *folder, const char *name, int complete)
{
	struct dcp_err err = { 0 };
	enum dcp_match match;
	char path[256];
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };

	t_case(name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	assert_int_equal(dcp_dir_open(path, &dir, NULL), 0);
	t_sink_init(&s, &dir);
	if (dcp_format_probe(&dir, &match, NULL, 0)->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(match, DCP_MATCH_YES);
	t_manifest_check(&s, folder, name, "");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

static void golden_shards_are_read(void **state)
{
	(void)state;
	t_manifest_each("torchao", golden_version);
}

/* The class and the settings of the whole: not the shape of rank 0's shard. */
static void settings_of_wrappers_are_kept(void **state)
{
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "torch_parts");
	put_ranks(&tree, NULL);
	t_sink_load(&tree, &dir, &s);
	assert_non_null(strstr(t_sink_object(&s, "exp_avg.4bit")->json, "\"_shape\":[4,32]"));
	assert_non_null(strstr(t_sink_object(&s, "row")->json,
			       "\"scale\":{\"$tensor\":\"row.scale\"},\"block_size\":[1,16]"));
	assert_null(strstr(t_sink_object(&s, "tensor")->json, "block_size"));
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* One scale for all of a shard: the same on all ranks, or one for each shard. */
static void scales_of_shards_are_read(void **state)
{
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;
	const struct dcp_tensor *t;
	size_t n;
	char *scale, *bytes;

	(void)state;
	t_dir_make(&tree, "torch_parts");
	put_ranks(&tree, NULL);
	t_sink_load(&tree, &dir, &s);
	t = t_sink_tensor(&s, "tensor.scale");
	assert_int_equal(t->shape[0] * t->shape[1], 1);
	scale = t_sink_read(&s, t, &n, &err);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	put_ranks(&tree, scale);
	t_sink_load(&tree, &dir, &s);
	t = t_sink_tensor(&s, "tensor.scale");
	assert_null(t->error);
	assert_int_equal(t->shape[0], 2);
	assert_int_equal(t->shape[1], 1);
	bytes = t_sink_read(&s, t, &n, &err);
	assert_int_equal(n, 8);
	assert_memory_equal(bytes + 4, "\x00\x00\x80\x3f", 4);
	assert_memory_equal(bytes, scale, 4);
	free(scale);
	free(bytes);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_shards_are_read),
		cmocka_unit_test(settings_of_wrappers_are_kept),
		cmocka_unit_test(scales_of_shards_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
