/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the frameworks themselves wrote, opened as a program would: scan, index, read the rows.
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "tests/unit/t/parse/dir.h"

/* clang-format off */
static const struct {
	const char *dir;
	const char *versions; /* in order; incomplete ones in brackets */
	const char *format;
	uint64_t tensors, objects; /* of the last complete version */
} goldens[] = {
	{ "dcp-async-dedup", "1-default 2-lowest-rank 3-threads 4-file-per-item 5-async 6-zstd "
	  "7-overwritten", "torch-dcp", 17, 5 },
	{ "dcp-experimental", "step-9", "torch-ranks", 6, 4 },
	{ "dcp-fsdp2", "step-10 step-20 [step-30]", "torch-dcp", 77, 70 },
	{ "dcp-hf", "1-sharded 2-sharded-indexed 3-consolidated 4-full 5-one-file", "safetensors", 6,
	  0 },
	{ "dcp-old-1.13.1", "step_100 step_200", "torch-dcp", 14, 3 },
	{ "dcp-old-2.1.2", "step_100 step_200 step_300", "torch-dcp", 14, 14 },
	{ "dcp-old-2.4.1", "step_100 step_200 step_300", "torch-dcp", 14, 16 },
	{ "dcp-plain", "all flat", "torch-dcp", 43, 1 },
	{ "dcp-rank-local", "step-5", "torch-dcp-local", 17, 5 },
	{ "dcp-sharded-tensor", "epoch_1 epoch_2", "torch-dcp", 1, 1 },
	{ "dcp-tp-fsdp", "hsdp tp", "torch-dcp", 24, 11 },
	{ "deepspeed-moe", "global_step3", "deepspeed", 100, 35 },
	{ "deepspeed-pipe", "global_step3", "deepspeed", 35, 36 },
	{ "deepspeed-tp", "global_step1", "deepspeed", 44, 32 },
	{ "deepspeed-universal", "z1-global_step20 z3-global_step20", "deepspeed-universal", 56, 29 },
	{ "deepspeed-z0", "global_step10", "deepspeed", 41, 55 },
	{ "deepspeed-z1", "global_step10 global_step20", "deepspeed", 58, 32 },
	{ "deepspeed-z1-elastic", "global_step4", "deepspeed", 58, 31 },
	{ "deepspeed-z1-fp32acc", "global_step5", "deepspeed", 64, 27 },
	{ "deepspeed-z2", "global_step10 global_step20", "deepspeed", 60, 32 },
	{ "deepspeed-z2-align", "global_step4", "deepspeed", 60, 32 },
	{ "deepspeed-z2-rr", "global_step4", "deepspeed", 60, 32 },
	{ "deepspeed-muon", "global_step3", "deepspeed", 21, 31 },
	{ "deepspeed-muon-z2", "global_step3", "deepspeed", 29, 28 },
	{ "deepspeed-muon-z3", "global_step3", "deepspeed", 22, 24 },
	{ "deepspeed-z3", "global_step10 global_step20", "deepspeed", 50, 29 },
	{ "fairseq2", "step_10 step_20 step_30", "fairseq2", 12, 0 },
	{ "hf-bin", "sharded gpt2-tied", "hf-bin", 65, 11 },
	{ "hf-llama", "dtypes llama gpt2-tied t5-tied", "safetensors", 34, 0 },
	{ "hf-moe", "mixtral qwen2-moe", "safetensors", 43, 0 },
	{ "hf-mlx-jax", "1-mlx 2-flax 3-flax-dots", "safetensors", 4, 0 },
	{ "megatron-dist", "iter_0000100 iter_0000200", "megatron", 33, 10 },
	{ "megatron-dist-012", "iter_0000050", "megatron", 31, 8 },
	{ "megatron-legacy", "iter_0000100", "megatron-legacy", 36, 4 },
	{ "numpy", "1-npy 2-savez@step_100.npz 3-compressed 4-mlx", "numpy", 14, 0 },
	{ "parts", "1-hf-trainer 2-accelerate 3-lightning.ckpt 4-verl checkpoint-5 step_6", "parts", 8, 4 },
	{ "torchao-composer", "ep1-ba2-rank0.pt", "composer", 27, 14 },
	{ "torch-checkpointing", "0-release-0.1.0 1-fsdp 2-no-metadata 3-fsdp2-tp 4-stages 5-layouts "
	  "6-async 7-own-boxes 8-version-1.0 [tmp_9-killed] 10-one-rank", "torch-checkpointing", 3, 2 },
	{ "paddle-dist", "0 1 2", "paddle-dist", 5, 0 },
	{ "paddle-dist-26", "0 1", "paddle-dist", 4, 0 },
	{ "paddle-dist-30", "0 1", "paddle-dist", 12, 0 },
	{ "paddle-dist-32", "0 7", "paddle-dist", 12, 0 },
	{ "paddle-dist-32st", "0", "paddle-dist", 11, 0 },
	{ "paddle-dist-flat", "0 1", "paddle-dist", 12, 0 },
	{ "paddle-dist-st", "4", "paddle-dist", 13, 0 },
	{ "paddle-dist-stale", "same-cut", "paddle-dist", 2, 0 },
	{ "paddle-hf", "merged", "safetensors", 12, 0 },
};
/* clang-format on */

/* Every row can be read in full, and nothing is broken. */
static void read_rows(struct dcp_version *v, enum dcp_row_kind kind)
{
	struct dcp_index *ix = dcp_version_index(v);
	struct dcp_index_scan *s;
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	struct dcp_row row;
	int rc;

	dcp_arena_init(&arena, 64u << 20);
	assert_int_equal(dcp_index_scan(ix, kind, 0, false, &s), 0);
	while ((rc = dcp_index_scan_next(s, &row)) == 1) {
		struct dcp_tensor t = { 0 };
		struct dcp_object o = { 0 };

		dcp_arena_reset(&arena);
		if (kind == DCP_ROW_TENSOR)
			rc = dcp_index_tensor(ix, row.id, &arena, &t, &err);
		else
			rc = dcp_index_object(ix, row.id, &arena, &o, &err);
		if (rc < 0)
			fail_msg("%s", err.msg);
		if (row.broken)
			fail_msg("%s: %s", row.key, t.error ? t.error : o.error);
	}
	assert_int_equal(rc, 0);
	dcp_index_scan_end(s);
	dcp_arena_finish(&arena);
}

static void open_one(const char *source, const struct dcp_found *found, size_t i, bool last,
		     const char *cache)
{
	struct dcp_store_opts opts = { .cache_dir = cache };
	struct dcp_version *v;
	struct dcp_err err = { 0 };

	if (dcp_version_open(source, found, &opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	if (strcmp(dcp_version_format(v)->name, "parts") != 0) /* an optimizer beside it */
		assert_string_equal(dcp_version_format(v)->name, goldens[i].format);
	if (last) {
		assert_int_equal(dcp_index_counts(dcp_version_index(v))->tensors,
				 goldens[i].tensors);
		assert_int_equal(dcp_index_counts(dcp_version_index(v))->objects,
				 goldens[i].objects);
	}
	read_rows(v, DCP_ROW_TENSOR);
	read_rows(v, DCP_ROW_OBJECT);
	dcp_version_close(v);
}

static void golden_checkpoints_are_stored(void **state)
{
	struct t_dir cache;

	(void)state;
	t_dir_make(&cache, "test_golden");
	for (size_t i = 0; i < DCP_LEN(goldens); i++) {
		char source[256], names[512] = "";
		struct dcp_scan scan;
		struct dcp_err err = { 0 };
		size_t last = 0;

		t_case(goldens[i].dir);
		snprintf(source, sizeof(source), "tests/golden/%s/ckpt", goldens[i].dir);
		if (dcp_scan(source, &scan, &err) < 0)
			fail_msg("%s", err.msg);
		for (size_t k = 0; k < scan.n; k++)
			last = scan.found[k].complete ? k : last;
		for (size_t k = 0; k < scan.n; k++) {
			const struct dcp_found *f = &scan.found[k];
			size_t n = strlen(names);

			snprintf(names + n, sizeof(names) - n, f->complete ? "%s%s" : "%s[%s]",
				 k ? " " : "", f->name);
			if (f->complete)
				open_one(source, f, i, k == last, cache.root);
		}
		assert_string_equal(names, goldens[i].versions);
		dcp_scan_finish(&scan);
	}
	t_dir_remove(&cache);
}

/* A folder of downloads: every file is a version, of whichever family. */
static void loose_files_are_versions(void **state)
{
	static const char st[] = "\2\0\0\0\0\0\0\0{}";
	static const struct {
		const char *files, *names;
	} cases[] = {
		{ "a.safetensors b.ckpt c.pt", "a.safetensors b.ckpt c.pt" },
		{ "m/a.safetensors m/b.ckpt n/c.safetensors", "m@a.safetensors m@b.ckpt n" },
		{ "m/a-1-of-2.safetensors m/a-2-of-2.safetensors m/b.safetensors",
		  "m@a.safetensors m@b.safetensors" },
		{ "m/model.safetensors m/b.safetensors m/x.pt", "m" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char copy[256], names[512] = "", *save = NULL;
		struct dcp_err err = { 0 };
		struct dcp_scan scan;
		struct t_dir tree;

		t_case(cases[i].files);
		t_dir_make(&tree, "test_golden");
		snprintf(copy, sizeof(copy), "%s", cases[i].files);
		for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save))
			t_dir_put(&tree, p, st, sizeof(st) - 1);
		if (dcp_scan(tree.root, &scan, &err) < 0)
			fail_msg("%s", err.msg);
		for (size_t k = 0; k < scan.n; k++)
			snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
				 k ? " " : "", scan.found[k].name);
		assert_string_equal(names, cases[i].names);
		dcp_scan_finish(&scan);
		t_dir_remove(&tree);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loose_files_are_versions),
		cmocka_unit_test(golden_checkpoints_are_stored),
	};
	return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
