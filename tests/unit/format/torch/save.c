/* SPDX-License-Identifier: Apache-2.0 */
/* Loose torch.save files: which names, which versions, and the fixture's keys. */
#include "tests/unit/t.h"

#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

static void a_file_is_a_version(void **state)
{
	const struct dcp_format *f = &dcp_format_torch_save;
	char version[DCP_GROUP_MAX], longest[DCP_GROUP_MAX + 8];

	(void)state;
	assert_true(f->group("model.pt", version));
	assert_string_equal(version, "model.pt");
	assert_true(f->group("epoch=3.ckpt", version));
	assert_false(f->group("model.txt", version));
	assert_true(f->group("checkpoint.pth.tar", version));
	assert_false(f->group("model.tar", version));
	assert_false(f->group(".pt", version));
	assert_false(f->group(".hidden.pt", version));
	memset(longest, 'a', sizeof(longest));
	strcpy(longest + DCP_GROUP_MAX, ".pt");
	assert_false(f->group(longest, version));
}

static void check_version(const char *folder, const char *name, int complete)
{
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_sink sink;
	char path[256];
	int rc;

	print_message("           %s\n", name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	assert_int_equal(dcp_dir_open(path, &dir, NULL), 0);
	t_sink_init(&sink, &dir);
	rc = dcp_format_torch_save.load(&(struct dcp_load){ .dir = &dir, .sink = &sink.sink },
					&err);
	if (strcmp(name, "script.pt") == 0) {
		assert_int_equal(rc, -ENOTSUP);
		t_assert_says(&err, "TorchScript archive");
		t_assert_says(&err, "torch.jit.load");
	} else {
		if (rc < 0)
			fail_msg("%s", err.msg);
		t_manifest_check(&sink, folder, name, "");
	}
	t_sink_finish(&sink);
	dcp_dir_close(&dir);
}

static void torch_save_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("torch-save", check_version);
}

/* A file that is named and no family knows by its name is what it begins with. */
static void contents_decide_for_unknown_names(void **state)
{
	static const struct {
		const char *bytes;
		size_t n;
		const struct dcp_format *want;
	} rows[] = {
		{ "PK\3\4..", 6, &dcp_format_torch_save },
		{ "\x80\2\x8a\nl\xfc", 6, &dcp_format_torch_save },
		{ "\x80\2}.", 4, &dcp_format_pickle },
		{ "\x80\6}.", 4, NULL },
		{ "\2\0\0\0\0\0\0\0{}", 10, &dcp_format_torch_hf },
		{ "\x80", 1, NULL },
		{ "", 0, NULL },
		{ "x", 1, NULL },
	};
	enum dcp_match match;
	struct dcp_dir dir;
	struct t_dir tree;

	(void)state;
	t_dir_make(&tree, "torch_save");
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].bytes);
		t_dir_put(&tree, "model.weights", rows[i].bytes, rows[i].n);
		assert_int_equal(dcp_dir_open(t_dir_path(&tree, "model.weights"), &dir, NULL),
				 0);
		assert_null(dcp_format_probe(&dir, &match, NULL, 0));
		assert_true(dcp_format_by_content(dcp_formats, &dir) == rows[i].want);
		dcp_dir_close(&dir);
	}
	assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
	assert_null(dcp_format_probe(&dir, &match, NULL, 0));
	assert_null(dcp_format_by_content(dcp_formats, &dir));
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

static void other_files_are_named_as_such(void **state)
{
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_sink sink;
	struct t_dir tree;

	(void)state;
	t_dir_make(&tree, "torch_save");
	t_dir_put(&tree, "x.pt", "not a stream", 12);
	assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
	t_sink_init(&sink, &dir);
	assert_true(dcp_format_torch_save.load(
			    &(struct dcp_load){ .dir = &dir, .sink = &sink.sink }, &err) < 0);
	t_assert_says(&err, "x.pt");
	t_sink_finish(&sink);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/*
 * By itself a plain pickle is not of torch.save; as a part of a version it is what its trainer
 * dumped.
 */
static void plain_pickles_are_parts(void **state)
{
	static const struct {
		const char *bytes;
		size_t n;
		unsigned depth;
		int want;
	} rows[] = {
		{ "\x80\2K\5.", 5, 0, -EBADMSG },
		{ "\x80\2K\5.", 5, 1, 0 },
		{ "PK\3\4\n.", 6, 1, -EBADMSG }, /* a cut archive that is a pickle, too */
		{ "text", 4, 1, -ENOTSUP },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_sink sink;
		struct t_dir tree;
		int rc;

		t_case(rows[i].bytes);
		t_dir_make(&tree, "save");
		t_dir_put(&tree, "rng_state_2.pth", rows[i].bytes, rows[i].n);
		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&sink, &dir);
		rc = dcp_format_torch_save.load(&(struct dcp_load){ .dir = &dir,
								    .sink = &sink.sink,
								    .depth = rows[i].depth },
						&err);
		assert_int_equal(rc, rows[i].want);
		if (rc == 0)
			assert_string_equal(t_sink_object(&sink, "rng_state_2")->json, "5");
		else
			t_assert_says(&err, "rng_state_2.pth: ");
		t_sink_finish(&sink);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_is_a_version),
		cmocka_unit_test(torch_save_golden_files_are_read),
		cmocka_unit_test(plain_pickles_are_parts),
		cmocka_unit_test(contents_decide_for_unknown_names),
		cmocka_unit_test(other_files_are_named_as_such),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
