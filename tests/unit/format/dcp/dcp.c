/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories of torch.distributed.checkpoint, with one metadata file and with one for each
 * rank: real ones against their manifests, hostile ones, and some made here.
 * covers: object
 */
#include "tests/unit/t.h"

#include <jansson.h>
#include <unistd.h>

#include "core/format/dcp/dcp_int.h"
#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/dcp.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sha256.h"
#include "tests/unit/t/sink.h"

/* ---- real checkpoints ---- */

static unsigned tensors;

static void open_dir(struct dcp_dir *dir, const char *folder, const char *name)
{
	struct dcp_err err = { 0 };
	char path[512];

	snprintf(path, sizeof(path), "tests/golden/%s/%s", folder, name);
	if (dcp_dir_open(path, dir, &err) < 0)
		fail_msg("%s: %s", path, err.msg);
}

static void check_version(const char *folder, const char *name, int complete)
{
	char ckpt[256], why[256] = "";
	const struct dcp_format *format;
	struct dcp_err err = { 0 };
	enum dcp_match match;
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };

	print_message("           %s/%s\n", folder, name);
	snprintf(ckpt, sizeof(ckpt), "%s/ckpt", folder);
	open_dir(&dir, ckpt, name);
	format = dcp_format_probe(&dir, &match, why, sizeof(why));
	assert_non_null(format);
	assert_int_equal(match, complete ? DCP_MATCH_YES : DCP_MATCH_INCOMPLETE);
	if (complete) {
		t_sink_init(&s, &dir);
		if (format->load(&in, &err) < 0)
			fail_msg("%s", err.msg);
		assert_string_equal(t_sink_fact(&s, "framework"), "torch");
		tensors += t_manifest_check(&s, folder, name, "");
		t_sink_finish(&s);
	} else {
		assert_non_null(strstr(why, ".metadata is missing"));
	}
	dcp_dir_close(&dir);
}

static void dcp_golden_files_are_read(void **state)
{
	static const char *const folders[] = {
		"dcp-async-dedup", "dcp-fsdp2",          "dcp-old-1.13.1",
		"dcp-old-2.1.2",   "dcp-old-2.4.1",      "dcp-plain",
		"dcp-rank-local",  "dcp-sharded-tensor", "dcp-tp-fsdp",
	};

	(void)state;
	tensors = 0;
	for (size_t i = 0; i < DCP_LEN(folders); i++)
		t_manifest_each(folders[i], check_version);
	assert_int_equal(tensors, 591);
}

static void dcp_facts_are_emitted(void **state)
{
	static const struct {
		const char *folder, *version, *name, *value;
	} cases[] = {
		{ "dcp-fsdp2/ckpt", "step-10", "world_files", "4" },
		{ "dcp-fsdp2/ckpt", "step-10", "ranks", "4" },
		{ "dcp-fsdp2/ckpt", "step-10", "metadata_version", "1.0.0" },
		{ "dcp-async-dedup/ckpt", "6-zstd", "save_id",
		  "008e0722-937a-46f8-a630-e21cee846e3e" },
		{ "dcp-old-1.13.1/ckpt", "step_100", "save_id", NULL },
		{ "dcp-rank-local/ckpt", "step-5", "rank_files", "ranks 0-2" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const struct dcp_format *format;
		enum dcp_match match;
		struct dcp_dir dir;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };
		const char *value;

		t_case(cases[i].name);
		open_dir(&dir, cases[i].folder, cases[i].version);
		t_sink_init(&s, &dir);
		format = dcp_format_probe(&dir, &match, NULL, 0);
		assert_int_equal(format->load(&in, NULL), 0);
		value = t_sink_fact(&s, cases[i].name);
		if (cases[i].value)
			assert_string_equal(value, cases[i].value);
		else
			assert_null(value);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
	}
}

/* Tensors inside byte items are told too, with places of their own, and tied ones as such. */
static void tensors_inside_items_are_emitted(void **state)
{
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };
	enum dcp_match match;
	unsigned inside = 0;

	(void)state;
	open_dir(&dir, "dcp-plain/ckpt", "all");
	t_sink_init(&s, &dir);
	assert_int_equal(dcp_format_probe(&dir, &match, NULL, 0)->load(&in, NULL), 0);
	for (size_t i = 0; i < s.ntensors; i++) {
		const struct dcp_tensor *t = &s.tensor[i];
		struct dcp_err err = { 0 };
		char *bytes;
		size_t n;

		if (strncmp(t->key, "obj.tuple_with_tensor.", 22) != 0)
			continue;
		inside++;
		assert_int_equal(t->pieces[0].enc, DCP_ENC_PLAIN);
		bytes = t_sink_read(&s, t, &n, &err);
		if (!bytes)
			fail_msg("%s: %s", t->key, err.msg);
		free(bytes);
	}
	assert_true(inside > 0);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

/* ---- hostile checkpoints ---- */

static void check_bad(const struct t_sink *s, const json_t *one)
{
	const json_t *key;
	size_t i;

	json_array_foreach(json_object_get(one, "bad"), i, key)
	{
		const struct dcp_tensor *t = t_sink_tensor(s, json_string_value(key));
		struct dcp_err err = { 0 };
		size_t n;

		assert_non_null(t);
		assert_null(t_sink_read(s, t, &n, &err));
		assert_true(err.msg[0] != '\0');
		print_message("             %s: %s\n", t->key, err.msg);
	}
}

static void check_good(const struct t_sink *s, const json_t *one)
{
	json_t *digest;
	const char *key;

	json_object_foreach((json_t *)(uintptr_t)json_object_get(one, "good"), key, digest)
	{
		const struct dcp_tensor *t = t_sink_tensor(s, key);
		struct dcp_err err = { 0 };
		char hex[65], *bytes;
		size_t n;

		assert_non_null(t);
		bytes = t_sink_read(s, t, &n, &err);
		if (!bytes)
			fail_msg("%s: %s", key, err.msg);
		t_sha256(bytes, n, hex);
		assert_string_equal(hex, json_string_value(digest));
		free(bytes);
	}
}

static void hostile_case(const json_t *one)
{
	const char *expect = json_string_value(json_object_get(one, "expect"));
	const struct dcp_format *format;
	struct dcp_err err = { 0 };
	enum dcp_match match;
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };
	int rc;

	t_case(json_string_value(json_object_get(one, "why")));
	open_dir(&dir, "hostile", json_string_value(json_object_get(one, "path")));
	t_sink_init(&s, &dir);
	format = dcp_format_probe(&dir, &match, NULL, 0);
	assert_non_null(format);
	rc = format->load(&in, &err);
	if (rc < 0)
		print_message("             %s\n", err.msg);
	if (strcmp(expect, "refuse") == 0)
		assert_true(rc < 0 && err.msg[0]);
	else if (strcmp(expect, "either") != 0)
		assert_int_equal(rc, 0);
	if (rc == 0) {
		check_bad(&s, one);
		check_good(&s, one);
	}
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

static void hostile_metadata_is_refused(void **state)
{
	json_t *root = json_load_file("tests/golden/hostile/manifest.json", 0, NULL);
	const json_t *one;
	size_t i;

	(void)state;
	assert_non_null(root);
	json_array_foreach(json_object_get(root, "cases"), i, one) hostile_case(one);
	assert_int_equal(access("PWNED", F_OK), -1);
	json_decref(root);
}

/* ---- directories made here ---- */

/* torch.save of one int or, with @text, of a str. */
static void save_value(struct dcp_buf *out, int64_t v, const char *text)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };

	t_pk_start(&b);
	if (text)
		t_pk_str(&b, text);
	else
		t_pk_int(&b, v);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/version", "3\n", 2);
	t_zip_end(&z);
	dcp_buf_add(out, z.b.p, z.b.n);
	t_zip_free(&z);
}

/* Objects of ranks with metadata of their own: equal ones once, others each under its rank. */
static void equal_objects_of_ranks_are_merged(void **state)
{
	static const char *const states[] = { "zero", "one", "zero" };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "torch_dcp");
	for (int r = 0; r < 3; r++) {
		dcp_auto_buf struct dcp_buf meta = DCP_BUF_INIT, data = DCP_BUF_INIT;
		const char *const path[] = { "a", "rng", NULL };
		char name[32];
		int64_t first, all;

		save_value(&data, 17, NULL);
		first = (int64_t)data.n;
		save_value(&data, 0, states[r]);
		all = (int64_t)data.n;
		snprintf(name, sizeof(name), "__%d_0.distcp", r);
		t_dir_put(&tree, name, data.p, data.n);
		t_dcp_begin(&meta);
		t_dcp_section(&meta, "state_dict_metadata");
		t_dcp_bytes(&meta, "step");
		t_dcp_bytes(&meta, "a.rng");
		t_dcp_end_section(&meta);
		t_dcp_section(&meta, "planner_data");
		t_dcp_path(&meta, "a.rng", path);
		t_dcp_end_section(&meta);
		t_dcp_section(&meta, "storage_data");
		t_dcp_stored(&meta, "step", 0, NULL, name, 0, first);
		t_dcp_stored(&meta, "a.rng", 0, NULL, name, first, all - first);
		t_dcp_end_section(&meta);
		t_dcp_end(&meta);
		snprintf(name, sizeof(name), "__%d.metadata", r);
		t_dir_put(&tree, name, meta.p, meta.n);
	}
	t_sink_load(&tree, &dir, &s);
	assert_int_equal(s.nobjects, 3);
	assert_string_equal(t_sink_object(&s, "step")->json, "17");
	assert_string_equal(t_sink_object(&s, "a.rng")->json, "\"zero\"");
	assert_string_equal(t_sink_object(&s, "a.rng.@rank1")->json, "\"one\"");
	assert_int_equal(t_sink_object(&s, "a.rng.@rank1")->npath, 3);
	assert_string_equal(t_sink_object(&s, "a.rng.@rank1")->path[2], "@rank1");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* Items that are not what they should be break their own key only. */
static void bad_items_break_their_keys_only(void **state)
{
	static const struct {
		const char *key, *file;
		int64_t off, nbytes;
		bool bytes;
		const char *says;
	} cases[] = {
		{ "fine", "data", 40, 0, true, NULL },
		{ "huge", "data", 0, 1LL << 32, true, "an object of 4294967296 bytes" },
		{ "beyond", "data", 39, 1 << 20, true, "ends past the end of the file" },
		{ "nowhere", "gone", 0, 4, true, "gone" },
		{ "no stream", "data", 0, 40, true, "data, item at byte 0: " },
		{ "blob", "data", 0, 32, false, "SerializationFormat.SAFETENSORS" },
		{ "not a blob", "data", 1, 32, false, NULL },
	};
	/* what the plain writer leaves in safetensors form: a header, then elements */
	static const char head[] = "\x20\0\0\0\0\0\0\0{\"w\":1}                         ";
	static const int64_t shape[] = { 8 }, chunk[] = { 0, 8 };
	const struct dcp_stretch *stored;
	dcp_auto_buf struct dcp_buf meta = DCP_BUF_INIT, data = DCP_BUF_INIT;
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	dcp_buf_add(&data, head, 40);
	save_value(&data, 17, NULL);
	t_dir_make(&tree, "torch_dcp");
	t_dir_put(&tree, "data", data.p, data.n);
	t_dcp_begin(&meta);
	t_dcp_section(&meta, "state_dict_metadata");
	for (size_t i = 0; i < DCP_LEN(cases); i++)
		if (cases[i].bytes)
			t_dcp_bytes(&meta, cases[i].key);
		else
			t_dcp_tensor(&meta, cases[i].key, "float32", 1, shape, 1, chunk);
	t_dcp_end_section(&meta);
	t_dcp_section(&meta, "storage_data");
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		int64_t n = cases[i].nbytes ? cases[i].nbytes : (int64_t)data.n - 40;

		t_dcp_stored(&meta, cases[i].key, 1, cases[i].bytes ? NULL : chunk,
			     cases[i].file, cases[i].off, n);
	}
	t_dcp_end_section(&meta);
	t_dcp_end(&meta);
	t_dir_put(&tree, ".metadata", meta.p, meta.n);
	t_sink_load(&tree, &dir, &s);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const char *error = cases[i].bytes ? t_sink_object(&s, cases[i].key)->error
						   : t_sink_tensor(&s, cases[i].key)->error;

		t_case(cases[i].key);
		if (!cases[i].says)
			assert_null(error);
		else if (!error || !strstr(error, cases[i].says))
			fail_msg("\"%s\" does not say \"%s\"", error ? error : "nothing",
				 cases[i].says);
	}
	assert_string_equal(t_sink_object(&s, "fine")->json, "17");
	stored = t_sink_object(&s, "fine")->stored;
	assert_non_null(stored);
	assert_string_equal(s.file[stored->file], "data");
	assert_int_equal(stored->off, 40);
	assert_int_equal(stored->nbytes, data.n - 40);
	assert_int_equal(stored->n, data.n - 40);
	/* Its bytes are there, whatever they are. */
	assert_int_equal(t_sink_object(&s, "no stream")->stored->n, 40);
	assert_null(t_sink_object(&s, "huge")->stored);
	assert_null(t_sink_object(&s, "beyond")->stored);
	assert_null(t_sink_object(&s, "nowhere")->stored);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

static void failures_of_the_sink_are_returned(void **state)
{
	static const char *const versions[][2] = { { "dcp-fsdp2/ckpt", "step-10" },
						   { "dcp-rank-local/ckpt", "step-5" } };

	(void)state;
	for (size_t v = 0; v < DCP_LEN(versions); v++) {
		struct dcp_dir dir;
		int rc = -1;

		open_dir(&dir, versions[v][0], versions[v][1]);
		for (size_t at = 1; rc != 0; at += at < 40 ? 1 : 13) {
			enum dcp_match match;
			struct t_sink s;
			struct dcp_load in = { .dir = &dir, .sink = &s.sink };

			t_sink_init(&s, &dir);
			s.fail_at = at;
			rc = dcp_format_probe(&dir, &match, NULL, 0)->load(&in, NULL);
			assert_true(rc == (s.calls < at ? 0 : -ENOSPC));
			t_sink_finish(&s);
		}
		dcp_dir_close(&dir);
	}
}

/* ---- names ---- */

static void dcp_file_names_are_known(void **state)
{
	static const struct {
		const char *name;
		bool data;
		uint64_t rank;
	} cases[] = {
		{ "__0_0.distcp", true, 0 },
		{ "__12_345.distcp", true, 12 },
		{ "optim__3_1.distcp", true, 3 },
		{ "a__b__3_1.distcp", true, 3 },
		{ "0_0.distcp", false, 0 }, /* Paddle's */
		{ "__0.distcp", false, 0 },
		{ "__0_.distcp", false, 0 },
		{ "__0_0.distcp.tmp", false, 0 },
		{ "__a_0.distcp", false, 0 },
		{ "__1234567890_0.distcp", false, 0 },
	};
	uint64_t rank;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		t_case(cases[i].name);
		assert_int_equal(dcp_dcp_is_data_name(cases[i].name, &rank), cases[i].data);
		if (cases[i].data)
			assert_int_equal(rank, cases[i].rank);
	}
	assert_true(dcp_dcp_is_rank_name("__7.metadata", ".metadata", &rank) && rank == 7);
	assert_false(dcp_dcp_is_rank_name("__7.metadata.tmp", ".metadata", &rank));
	assert_false(dcp_dcp_is_rank_name("7.metadata", ".metadata", &rank));
	assert_false(dcp_dcp_is_rank_name(".metadata", ".metadata", &rank));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dcp_golden_files_are_read),
		cmocka_unit_test(dcp_facts_are_emitted),
		cmocka_unit_test(tensors_inside_items_are_emitted),
		cmocka_unit_test(hostile_metadata_is_refused),
		cmocka_unit_test(equal_objects_of_ranks_are_merged),
		cmocka_unit_test(bad_items_break_their_keys_only),
		cmocka_unit_test(failures_of_the_sink_are_returned),
		cmocka_unit_test(dcp_file_names_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
