/* SPDX-License-Identifier: Apache-2.0 */
/* What every row answers, asked of the file system. */
#include "tests/unit/t.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"

static void files_are_read_and_compared(void **state)
{
	struct dcp_blob blob;
	struct dcp_file_id id = { 0 }, now = { 0 };
	struct dcp_err err = { 0 };
	struct t_dir d;
	char got[4] = "";

	(void)state;
	t_dir_make(&d, "origin");
	t_dir_text(&d, "a/b", "0123456789");
	assert_int_equal(dcp_site_open(&d.at, "a/b", &blob, &id, &err), 0);
	assert_int_equal(blob.size, 10);
	assert_int_equal(dcp_blob_read(&blob, 4, got, 3), 0);
	assert_string_equal(got, "456");
	assert_int_equal(dcp_blob_read(&blob, 8, got, 3), -EIO);
	assert_int_equal(dcp_site_id(&d.at, "a/b", &now), 0);
	assert_true(dcp_file_id_same(&id, &now));
	assert_int_equal(dcp_blob_check(&blob, &id, true), 0);
	t_case("removed: the content is still there");
	t_dir_delete(&d, "a/b");
	assert_int_equal(dcp_blob_check(&blob, &id, false), 0);
	assert_int_equal(dcp_blob_check(&blob, &id, true), -ESTALE);
	dcp_blob_close(&blob);
	assert_null(blob.ops);
	t_case("overwritten, and cut");
	t_dir_text(&d, "c", "0123456789");
	assert_int_equal(dcp_site_open(&d.at, "c", &blob, &id, &err), 0);
	t_dir_touch(&d, "c", 5);
	assert_int_equal(dcp_blob_check(&blob, &id, false), -ESTALE);
	t_dir_text(&d, "c", "01");
	assert_int_equal(dcp_blob_check(&blob, &id, false), -EIO);
	assert_int_equal(dcp_blob_size(&blob), 2);
	dcp_blob_close(&blob);
	t_dir_remove(&d);
}

static void names_do_not_lead_out(void **state)
{
	static const struct {
		const char *name;
		int code;
	} cases[] = {
		{ "", -EINVAL },     { "/etc/passwd", -EXDEV }, { "../x", -EXDEV },
		{ "none", -ENOENT }, { "a", -EISDIR },
	};
	struct dcp_site none = { 0 }, again;
	struct dcp_blob blob;
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "origin");
	t_dir_text(&d, "a/b", "x");
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		t_case(cases[i].name);
		assert_int_equal(dcp_site_open(&d.at, cases[i].name, &blob, NULL, NULL),
				 cases[i].code);
		assert_false(dcp_site_has(&d.at, cases[i].name));
	}
	assert_true(dcp_site_has(&d.at, "a/b"));
	t_case("a site that is not open");
	assert_int_equal(dcp_site_open(&none, "b", &blob, NULL, NULL), -EBADF);
	assert_int_equal(dcp_site_again(&none, &again), -EBADF);
	dcp_site_close(&none);
	t_dir_remove(&d);
}

/* Links are followed as far as they stay inside. */
static void path_is_the_real_one(void **state)
{
	struct dcp_site none = { 0 }, nested = { .row = &dcp_origin_nested };
	char path[PATH_MAX];
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "origin");
	t_dir_text(&d, "a/b", "x");
	assert_int_equal(symlink("a/b", t_dir_path(&d, "link")), 0);
	assert_int_equal(dcp_site_path(&d.at, ".", path), 0);
	assert_string_equal(path, d.root);
	assert_int_equal(dcp_site_path(&d.at, "link", path), 0);
	assert_string_equal(path, t_dir_path(&d, "a/b"));
	assert_int_equal(dcp_site_path(&d.at, "a", path), 0);
	assert_string_equal(path, t_dir_path(&d, "a"));
	assert_int_equal(dcp_site_path(&d.at, "none", path), -ENOENT);
	assert_int_equal(dcp_site_path(&d.at, "../x", path), -EXDEV);
	t_case("sources without paths");
	assert_int_equal(dcp_site_path(&nested, ".", path), -ENOTSUP);
	assert_int_equal(dcp_site_path(&none, ".", path), -ENOTSUP);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_are_read_and_compared),
		cmocka_unit_test(names_do_not_lead_out),
		cmocka_unit_test(path_is_the_real_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
