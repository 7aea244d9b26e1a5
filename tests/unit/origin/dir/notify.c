/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of the kernel: of what is watched, and of nothing else. */
#include "tests/unit/t.h"

#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"

/* Watch the directory @path alone, and take what is pending. */
static void watch(struct dcp_notify *n, const char *path, enum dcp_notify_of what, bool new)
{
	dcp_notify_begin(n);
	assert_int_equal(dcp_notify_add(n, path, what), 0);
	assert_int_equal(n->added, new);
	assert_int_equal(dcp_notify_end(n), 1);
	dcp_notify_take(n);
}

static void changes_are_reported_once(void **state)
{
	struct dcp_notify n;
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "notify");
	t_dir_text(&d, "a/b", "x");
	dcp_notify_open(&n);
	assert_true(n.fd >= 0);
	watch(&n, t_dir_path(&d, "a"), DCP_NOTIFY_ALL, true);
	assert_false(dcp_notify_take(&n));
	t_dir_text(&d, "a/c", "x");
	assert_true(dcp_notify_take(&n));
	assert_false(dcp_notify_take(&n));
	t_case("named again, the watch stays");
	watch(&n, t_dir_path(&d, "a"), DCP_NOTIFY_ALL, false);
	t_dir_delete(&d, "a/c");
	assert_true(dcp_notify_take(&n));
	t_case("not named again, it goes, and its end is no change");
	watch(&n, d.root, DCP_NOTIFY_NAME, true);
	t_dir_text(&d, "a/c", "x");
	assert_false(dcp_notify_take(&n));
	t_case("the name of a directory is watched, not its entries");
	t_dir_text(&d, "e", "x");
	assert_false(dcp_notify_take(&n));
	t_case("both");
	watch(&n, d.root, DCP_NOTIFY_ALL, false);
	t_dir_text(&d, "f", "x");
	assert_true(dcp_notify_take(&n));
	dcp_notify_finish(&n);
	t_dir_remove(&d);
}

static void blind_where_changes_are_not_reported(void **state)
{
	struct dcp_notify n, none = { .fd = -1 };
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "notify");
	dcp_notify_open(&n);
	dcp_notify_begin(&n);
	assert_int_equal(dcp_notify_add(&n, t_dir_path(&d, "none"), DCP_NOTIFY_ALL), -ENOENT);
	assert_false(n.blind);
	assert_true(dcp_notify_need(&n, d.root, 5));
	assert_true(dcp_notify_need(&n, "/proc/self", 5)); /* known by its device */
	assert_false(n.blind);
	assert_false(dcp_notify_need(&n, "/proc/self", 0));
	assert_true(n.blind);
	assert_true(dcp_notify_need(&n, d.root, 0));
	assert_int_equal(dcp_notify_end(&n), 0);
	t_case("a new beginning");
	dcp_notify_begin(&n);
	assert_false(n.blind);
	assert_false(dcp_notify_need(&n, t_dir_path(&d, "none"), 0));
	assert_true(n.blind);
	t_case("no inotify");
	dcp_notify_begin(&none);
	assert_true(none.blind);
	assert_false(dcp_notify_take(&none));
	dcp_notify_finish(&none);
	dcp_notify_finish(&n);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changes_are_reported_once),
		cmocka_unit_test(blind_where_changes_are_not_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
