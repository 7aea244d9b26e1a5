/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories of safetensors: DCP's own against their manifest, and what can be wrong.
 * covers: safetensors
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

static int load(const char *path, struct dcp_dir *dir, struct t_sink *s, struct dcp_err *err)
{
	const struct dcp_format *format = NULL;
	int rc = t_sink_open(s, path, dir, &format, err);

	assert_string_equal(format->name, "safetensors");
	return rc;
}

/* ---- real ones ---- */

static void check_version(const char *folder, const char *name, int complete)
{
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_sink s;
	char path[256];

	print_message("           %s\n", name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	if (load(path, &dir, &s, &err) < 0)
		fail_msg("%s", err.msg);
	assert_true(t_manifest_check(&s, folder, name, "") >= 4);
	if (strcmp(name, "3-consolidated") == 0 || strcmp(name, "2-flax") == 0)
		assert_null(t_sink_fact(&s, "framework")); /* no __metadata__ */
	else
		assert_string_equal(t_sink_fact(&s, "framework"),
				    strcmp(folder, "dcp-hf") == 0 ? "torch" : "safetensors");
	t_sink_close(&s, &dir);
}

static void safetensors_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("dcp-hf", check_version);
	t_manifest_each("hf-llama", check_version);
	t_manifest_each("hf-moe", check_version);
	t_manifest_each("hf-mlx-jax", check_version);
}

/* ---- made here ---- */

#define INFO(lo)                                                                               \
	"\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"w\\\":{\\\"saved_offsets\\\":[" lo     \
	"]}}\"},"
/* Two files of one model. */
#define A "shard-00001-m-00001-of-00001.safetensors"
#define B "shard-00002-m-00001-of-00001.safetensors"
#define W(shape, end)                                                                          \
	"\"w\":{\"dtype\":\"U8\",\"shape\":[" shape "],\"data_offsets\":[0," end "]}"

static const char bytes[16] = "abcdefghijklmnop";

enum { MAX_FILES = 4 };

/* clang-format off */
static const struct {
	const char *what;
	struct {
		const char *name, *header; /* NULL: the text is no safetensors file */
		size_t n;
	} files[MAX_FILES];
	const char *index;
	int rc;
	const char *says;   /* message of a refusal, or the error of w */
	const char *want;   /* bytes of w */
	size_t npieces;
} cases[] = {
	{ "two shards", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("2") W("3", "3") "}", 3 } }, NULL, 0, NULL, "ababc", 2 },
	{ "shards in reverse order of names", { { A, "{" INFO("3") W("2", "2") "}", 2 }, { B, "{" INFO("0") W("3", "3") "}", 3 } }, NULL, 0, NULL, "abcab", 2 },
	{ "an empty shard at the end", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("2") W("0", "0") "}", 0 } }, NULL, 0, NULL, "ab", 1 },
	{ "replicas are one", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("0") W("2", "2") "}", 2 } }, NULL, 0, NULL, "ab", 1 },
	{ "a shard in the middle is missing", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("4") W("2", "2") "}", 2 } }, NULL, 0, "", NULL, 0 },
	{ "shards overlap", { { A, "{" INFO("0") W("3", "3") "}", 3 }, { B, "{" INFO("2") W("2", "2") "}", 2 } }, NULL, 0, "overlap", NULL, 0 },
	{ "offsets of other length", { { A, "{" INFO("0,0") W("2", "2") "}", 2 } }, NULL, 0, "its saved_offsets and its shape differ in length", NULL, 0 },
	{ "a negative offset", { { A, "{" INFO("-1") W("2", "2") "}", 2 } }, NULL, 0, "are not numbers", NULL, 0 },
	{ "an offset at the end of the world", { { A, "{" INFO("9223372036854775807") W("2", "2") "}", 2 } }, NULL, 0, "", NULL, 0 },
	{ "shards of two types", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("2") "\"w\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2 } }, NULL, 0, "disagree about dtype", NULL, 0 },
	{ "sharding info that is no JSON", { { A, "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\"}," W("2", "2") "}", 2 } }, NULL, 0, "", NULL, 0 },
	{ "one plain file", { { A, "{" W("4", "4") "}", 4 } }, NULL, 0, NULL, "abcd", 1 },
	{ "the same key twice", { { A, "{" W("2", "2") "}", 2 }, { B, "{" W("3", "3") "}", 3 } }, NULL, 0, "both " A " and " B " hold it", NULL, 0 },
	{ "the same key twice, and an index that decides", { { A, "{" W("2", "2") "}", 2 }, { B, "{" W("3", "3") "}", 3 } }, "{\"weight_map\":{\"w\":\"" B "\"}}", 0, NULL, "abc", 1 },
	{ "a consolidated file beside its shards, which the index names", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("2") W("3", "3") "}", 3 }, { "m-00001-of-00001.safetensors", "{" W("5", "5") "}", 5 } }, "{\"weight_map\":{\"w\":\"m-00001-of-00001.safetensors\"}}", 0, NULL, "abcde", 1 },
	{ "one without an index: it may be half of one", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("2") W("3", "3") "}", 3 }, { "m-00001-of-00001.safetensors", "{" W("5", "5") "}", 5 } }, NULL, 0, NULL, "ababc", 2 },
	{ "an index that names one of the shards", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, "{" INFO("2") W("3", "3") "}", 3 } }, "{\"weight_map\":{\"w\":\"" A "\"}}", 0, NULL, "ababc", 2 },
	{ "an index that names a missing file", { { A, "{}", 0 } }, "{\"weight_map\":{\"w\":\"" B "\"}}", 0, "says it is in " B ", which is missing", NULL, 0 },
	{ "an index that names the wrong file", { { A, "{}", 0 } }, "{\"weight_map\":{\"w\":\"" A "\"}}", 0, A ", which does not hold it", NULL, 0 },
	{ "an index that names a broken file", { { A, "{}", 0 }, { B, NULL, 9 } }, "{\"weight_map\":{\"w\":\"" B "\"}}", 0, B ": ", NULL, 0 },
	{ "an index that names no file", { { A, "{}", 0 } }, "{\"weight_map\":{\"w\":7}}", 0, "names no file", NULL, 0 },
	{ "an index that is not JSON", { { A, "{" W("2", "2") "}", 2 } }, "{\"weight_map\":", -EBADMSG, "index.json: ", NULL, 0 },
	{ "an index without a map", { { A, "{" W("2", "2") "}", 2 } }, "{\"weight_map\":[]}", -EBADMSG, "no weight_map object", NULL, 0 },
	{ "a shard that cannot be read may hold the end", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, NULL, 3 } }, NULL, 0, B ": ", NULL, 0 },
	{ "not when an index says where all of it is", { { A, "{" INFO("0") W("2", "2") "}", 2 }, { B, NULL, 3 } }, "{\"weight_map\":{\"w\":\"" A "\"}}", 0, NULL, "ab", 1 },
	{ "one broken file of two", { { A, NULL, 12 }, { B, "{" W("3", "3") "}", 3 } }, NULL, 0, NULL, "abc", 1 },
	{ "the only file is broken", { { A, NULL, 12 } }, NULL, -E2BIG, A ": ", NULL, 0 },
	{ "every file is broken", { { A, NULL, 12 }, { B, NULL, 3 } }, NULL, -EBADMSG, B ": ", NULL, 0 },
	{ "an unknown type, its size given by the bytes", { { A, "{\"w\":{\"dtype\":\"Q3\",\"shape\":[2],\"data_offsets\":[0,6]}}", 6 } }, NULL, 0, NULL, "abcdef", 1 },
};
/* clang-format on */

static void put_safetensors(const struct t_dir *tree, const char *name, const char *header,
			    size_t n)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint64_t len = strlen(header);

	dcp_buf_add(&b, &len, sizeof(len));
	dcp_buf_add(&b, header, len);
	dcp_buf_add(&b, bytes, n);
	t_dir_put(tree, name, b.p, b.n);
}

static void check_w(const struct t_sink *s, size_t i)
{
	const struct dcp_tensor *t = t_sink_tensor(s, "w");
	struct dcp_err err = { 0 };
	char *got;
	size_t n;

	assert_non_null(t);
	if (cases[i].says) {
		assert_non_null(t->error);
		snprintf(err.msg, sizeof(err.msg), "%s", t->error);
		t_assert_says(&err, cases[i].says);
		return;
	}
	got = t_sink_read(s, t, &n, &err);
	if (!got)
		fail_msg("%s", err.msg);
	assert_int_equal(t->npieces, cases[i].npieces);
	assert_int_equal(n, strlen(cases[i].want));
	assert_memory_equal(got, cases[i].want, n);
	free(got);
}

static void made_safetensors_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_dir tree;
		struct t_sink s;
		int rc;

		t_case(cases[i].what);
		t_dir_make(&tree, "torch_hf");
		for (size_t k = 0; k < MAX_FILES && cases[i].files[k].name; k++) {
			const char *header = cases[i].files[k].header;

			if (header)
				put_safetensors(&tree, cases[i].files[k].name, header,
						cases[i].files[k].n);
			else
				t_dir_put(&tree, cases[i].files[k].name, bytes,
					  cases[i].files[k].n);
		}
		if (cases[i].index)
			t_dir_put(&tree, "model.safetensors.index.json", cases[i].index,
				  strlen(cases[i].index));
		rc = load(tree.root, &dir, &s, &err);
		if (rc != cases[i].rc)
			fail_msg("%d: %s", rc, err.msg);
		if (rc == 0)
			check_w(&s, i);
		else
			t_assert_says(&err, cases[i].says);
		t_sink_close(&s, &dir);
		t_dir_remove(&tree);
	}
}

/* ---- sets ---- */

#define K(key, n) "\"" key "\":{\"dtype\":\"U8\",\"shape\":[" n "],\"data_offsets\":[0," n "]}"

/* clang-format off */
static const struct {
	const char *what;
	struct {
		const char *name, *header;
		size_t n;
	} files[MAX_FILES];
	const char *keys; /* all that are told, in their order, with their first path component */
	const char *left_out;
} sets[] = {
	{ "a variant is left out", { { "model.fp16.safetensors", "{" K("w", "1") "}", 1 }, { "model.safetensors", "{" K("w", "2") "}", 2 } }, "w/w", "model.fp16.safetensors" },
	{ "by itself it is the model, too", { { "model.fp16.safetensors", "{" K("w", "1") "}", 1 } }, "w/w", NULL },
	{ "an adapter goes below its name", { { "adapter_model.safetensors", "{" K("lora.w", "1") "}", 1 }, { "model.safetensors", "{" K("w", "2") "}", 2 } }, "w/w adapter_model.lora.w/adapter_model", NULL },
	{ "two models of one name for their keys", { { "model.safetensors", "{" K("w", "1") "}", 1 }, { "model_1.safetensors", "{" K("w", "2") "}", 2 } }, "model.w/model model_1.w/model_1", NULL },
	{ "also where their keys differ", { { "model.safetensors", "{" K("v", "1") "}", 1 }, { "model_1.safetensors", "{" K("w", "2") "}", 2 } }, "model.v/model model_1.w/model_1", NULL },
	{ "two variants and no model", { { "model.bf16.safetensors", "{" K("w", "1") "}", 1 }, { "model.fp16.safetensors", "{" K("w", "2") "}", 2 } }, "w/w", "model.fp16.safetensors" },
	{ "a model in files by the names of its layers", { { "model.norm.safetensors", "{" K("w", "1") "}", 1 }, { "model.layers.0.safetensors", "{" K("v", "2") "}", 2 } }, "v/v w/w", NULL },
	{ "Mistral's copy is left out", { { "consolidated.safetensors", "{" K("layers.w", "1") "}", 1 }, { "model-00001-of-00001.safetensors", "{" K("w", "2") "}", 2 } }, "w/w", "consolidated.safetensors" },
	{ "by itself it is the model", { { "consolidated.safetensors", "{" K("layers.w", "1") "}", 1 } }, "layers.w/layers.w", NULL },
	{ "the same model by torch.save is left out", { { "model.safetensors", "{" K("w", "2") "}", 2 }, { "pytorch_model.bin", "{}", 0 } }, "w/w", "pytorch_model.bin" },
	{ "tied weights", { { "model.safetensors", "{\"__metadata__\":{\"format\":\"pt\",\"head.w\":\"w\"}," K("w", "2") "}", 2 } }, "w/w head.w/head.w=w", NULL },
	{ "the same in each part", { { "model-1-of-2.safetensors", "{\"__metadata__\":{\"h\":\"w\"}," K("w", "2") "}", 2 }, { "model-2-of-2.safetensors", "{\"__metadata__\":{\"h\":\"w\"}," K("v", "2") "}", 2 } }, "w/w v/v h/h=w", NULL },
	{ "tied with what is there is nothing", { { "model.safetensors", "{\"__metadata__\":{\"w\":\"w\",\"x\":\"y\"}," K("w", "2") "}", 2 } }, "w/w", NULL },
	{ "tied below a name", { { "model_1.safetensors", "{\"__metadata__\":{\"h\":\"w\"}," K("w", "1") "}", 1 }, { "model.safetensors", "{" K("w", "2") "}", 2 } }, "model.w/model model_1.w/model_1 model_1.h/model_1=model_1.w", NULL },
};
/* clang-format on */

static void sets_beside_each_other_are_named(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(sets); i++) {
		dcp_auto_buf struct dcp_buf told = DCP_BUF_INIT;
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_dir tree;
		struct t_sink s;

		t_case(sets[i].what);
		t_dir_make(&tree, "torch_hf");
		for (size_t k = 0; k < MAX_FILES && sets[i].files[k].name; k++)
			put_safetensors(&tree, sets[i].files[k].name, sets[i].files[k].header,
					sets[i].files[k].n);
		if (load(tree.root, &dir, &s, &err) < 0)
			fail_msg("%s", err.msg);
		for (size_t k = 0; k < s.ntensors; k++)
			dcp_buf_printf(&told, "%s%s/%s%s%s", k ? " " : "", s.tensor[k].key,
				       s.tensor[k].path[0], s.tensor[k].alias_of ? "=" : "",
				       s.tensor[k].alias_of ? s.tensor[k].alias_of : "");
		assert_string_equal(told.p, sets[i].keys);
		if (sets[i].left_out)
			assert_string_equal(t_sink_fact(&s, "left_out"), sets[i].left_out);
		else
			assert_null(t_sink_fact(&s, "left_out"));
		t_sink_close(&s, &dir);
		t_dir_remove(&tree);
	}
}

static void failures_of_the_sink_are_returned(void **state)
{
	int rc = -1;

	(void)state;
	for (size_t at = 1; rc != 0; at++) {
		struct dcp_dir dir;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };

		assert_int_equal(
			dcp_dir_open("tests/golden/dcp-hf/ckpt/3-consolidated", &dir, NULL), 0);
		t_sink_init(&s, &dir);
		s.fail_at = at;
		rc = dcp_format_torch_hf.load(&in, NULL);
		assert_true(rc == (s.calls < at ? 0 : -ENOSPC));
		t_sink_close(&s, &dir);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(safetensors_golden_files_are_read),
		cmocka_unit_test(made_safetensors_are_read),
		cmocka_unit_test(sets_beside_each_other_are_named),
		cmocka_unit_test(failures_of_the_sink_are_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
