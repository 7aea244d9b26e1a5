/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which version and which key a word means, and what is said when there is none.
 * covers: checkpoint/checkpoint
 */
#include "tests/unit/t.h"

#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/checkpoint/checkpoint.h"
#include "core/store/layouts/layouts.h"
#include "tests/unit/t/load.h"

struct fixture {
	struct t_dir d;
	struct dcp_arena arena;
	struct dcp_checkpoint ck;
	struct dcp_err err;
};

static int setup(void **state)
{
	static struct fixture f;

	f = (struct fixture){ .arena = DCP_ARENA_INIT(1 << 20) };
	f.ck.arena = &f.arena;
	t_dir_make(&f.d, "checkpoint");
	t_load_put(&f.d, "step-1/model.safetensors", T_LOAD_HEADER, 1);
	t_load_put(&f.d, "step-2/model.safetensors", T_LOAD_HEADER, 2);
	assert_int_equal(dcp_checkpoint_find(&f.ck, f.d.root, &f.err), 0);
	assert_string_equal(f.ck.source, f.d.root);
	assert_null(f.ck.mount);
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	dcp_checkpoint_close(&f->ck);
	dcp_arena_finish(&f->arena);
	t_dir_remove(&f->d);
	return 0;
}

/* Opens @name of what is there now. */
static int open_version(struct fixture *f, const char *name)
{
	dcp_checkpoint_close(&f->ck);
	f->err = (struct dcp_err){ 0 };
	assert_int_equal(dcp_checkpoint_scan(&f->ck, &f->err), 0);
	return dcp_checkpoint_open(&f->ck, name, &f->err);
}

static void newest_that_opens_is_latest(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(open_version(f, NULL), 0);
	assert_string_equal(f->ck.name, "step-2");
	assert_null(f->ck.passed);
	t_case("an incomplete one is older than none");
	t_dir_text(&f->d, "step-4/__0_0.distcp", "x");
	assert_int_equal(open_version(f, "latest"), 0);
	assert_string_equal(f->ck.name, "step-2");
	assert_null(f->ck.passed);
	t_case("a damaged one is passed over, and that is said");
	t_dir_text(&f->d, "step-3/model.safetensors", "none");
	assert_int_equal(open_version(f, "latest"), 0);
	assert_string_equal(f->ck.name, "step-2");
	assert_ptr_equal(strstr(f->ck.passed, "step-3"), f->ck.passed);
	t_case("unless it was asked for");
	assert_int_equal(open_version(f, "3"), -EBADMSG);
	assert_non_null(f->ck.found);
	assert_null(f->ck.v);
	t_case("when none opens the newest is heard");
	t_dir_text(&f->d, "step-2/model.safetensors", "none");
	t_dir_text(&f->d, "step-1/model.safetensors", "none");
	assert_int_equal(open_version(f, NULL), -EBADMSG);
	t_assert_says(&f->err, "step-3");
	t_case("none is complete");
	for (int i = 1; i <= 3; i++) {
		char name[40];

		snprintf(name, sizeof(name), "step-%d/model.safetensors", i);
		t_dir_delete(&f->d, name);
	}
	assert_int_equal(open_version(f, NULL), -EINVAL);
	t_assert_says(&f->err, "no complete version; step-4 is incomplete: ");
	assert_null(f->ck.found);
}

static void words_name_versions(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(open_version(f, "1"), 0);
	assert_string_equal(f->ck.name, "step-1");
	t_case("what the path names");
	f->ck.wanted = "step-1";
	assert_int_equal(open_version(f, NULL), 0);
	assert_string_equal(f->ck.name, "step-1");
	f->ck.wanted = NULL;
	assert_int_equal(open_version(f, "stp-1"), -ENOENT);
	t_assert_says(&f->err, "Nearest: \"step-1\". 2 versions: dcpfs ls --versions ");
	assert_null(f->ck.found);
	t_dir_text(&f->d, "step-4/__0_0.distcp", "x");
	assert_int_equal(open_version(f, "4"), -EINVAL);
	t_assert_says(&f->err, "step-4 is incomplete: ");
	t_load_put(&f->d, "epoch-2/model.safetensors", T_LOAD_HEADER, 2);
	assert_int_equal(open_version(f, "2"), -ENOTUNIQ);
	t_assert_says(&f->err, "have the number 2; give a whole name");
}

static void words_name_keys(void **state)
{
	struct fixture *f = *state;
	enum dcp_row_kind kind;
	struct dcp_row row;

	assert_int_equal(open_version(f, "2"), 0);
	for (size_t i = 0; i < 3; i++) {
		static const char *const words[] = { "model.f", "model.f.npy", "model.f.json" };

		t_case(words[i]);
		assert_int_equal(dcp_checkpoint_key(&f->ck, DCP_ANY_KEY, words[i], &f->arena,
						    &kind, &row, &f->err),
				 0);
		assert_int_equal(kind, DCP_ROW_TENSOR);
		assert_string_equal(row.key, "model.f");
	}
	t_case("a file's name is not a key");
	assert_int_equal(dcp_checkpoint_key(&f->ck, DCP_TENSOR_KEY, "model.f.npy", &f->arena,
					    &kind, &row, &f->err),
			 -ENOENT);
	t_assert_says(&f->err, "no tensor \"model.f.npy\" in step-2. Nearest: \"model.f\". 2 "
			       "tensors: dcpfs ls ");
	assert_int_equal(dcp_checkpoint_key(&f->ck, DCP_OBJECT_KEY, "model.f", &f->arena, &kind,
					    &row, &f->err),
			 -ENOENT);
	t_assert_says(&f->err, "no object \"model.f\" in step-2. 0 objects: ");
	t_case("nearest");
	assert_int_equal(dcp_checkpoint_no_key(&f->ck, DCP_ANY_KEY, "model", &f->err), -ENOENT);
	t_assert_says(&f->err, "Nearest: \"model.f\". \"model.*\" matches 2. 2 keys: ");
	assert_int_equal(dcp_checkpoint_no_key(&f->ck, DCP_ANY_KEY, "f", &f->err), -ENOENT);
	t_assert_says(&f->err, "Nearest: \"model.f\". 2 keys: ");
	assert_int_equal(dcp_checkpoint_no_key(&f->ck, DCP_ANY_KEY, "l.f", &f->err), -ENOENT);
	assert_null(strstr(f->err.msg, "Nearest: "));
	assert_int_equal(dcp_checkpoint_no_key(&f->ck, DCP_ANY_KEY, "step-1", &f->err),
			 -ENOENT);
	t_assert_says(&f->err, "it names a version (--version step-1): which KEY of it?");
}

static void a_file_of_the_user_is_a_layout(void **state)
{
	struct fixture *f = *state;
	const struct dcp_named_layout *l;
	struct dcp_layouts *layouts;

	t_dir_text(&f->d, "given/own.txt", "mesh dp=3\n* shard(0, optional)\n");
	assert_int_equal(open_version(f, NULL), 0);
	for (int given = 0; given < 2; given++) {
		assert_int_equal(dcp_checkpoint_layouts(
					 &f->ck,
					 given ? t_dir_path(&f->d, "given/own.txt") : NULL,
					 NULL, NULL, &layouts, &f->err),
				 0);
		assert_int_equal(dcp_layouts_find(layouts, "own", &l, &f->err),
				 given ? 0 : -ENOENT);
		dcp_layouts_destroy(layouts);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(newest_that_opens_is_latest, setup, teardown),
		cmocka_unit_test_setup_teardown(words_name_versions, setup, teardown),
		cmocka_unit_test_setup_teardown(words_name_keys, setup, teardown),
		cmocka_unit_test_setup_teardown(a_file_of_the_user_is_a_layout, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
