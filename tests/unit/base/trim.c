/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/trim.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"

static void old_and_surplus_files_go(void **state)
{
	static const int64_t day = 86400ll * 1000000000;
	char keep[512];
	int lock;
	struct t_dir dir;
	struct dcp_trim how = {
		.ext = ".bin", .keep = keep, .most = UINT64_MAX, .days = DCP_CACHE_DAYS
	};
	struct dcp_trimmed out;
	struct stat st;
	struct dcp_file_id id = { 0 };

	(void)state;
	t_dir_make(&dir, "trim");
	snprintf(keep, sizeof(keep), "%s", t_dir_path(&dir, "c/e.bin"));
	for (char c = 'a'; c <= 'e'; c++) {
		char name[16];

		snprintf(name, sizeof(name), "c/%c.bin", c);
		t_dir_put(&dir, name, NULL, 1000);
	}
	t_dir_put(&dir, "c/x.bin.tmp-abcdef", NULL, 1000);
	t_dir_put(&dir, "c/y.bin.tmp-abcdef", NULL, 1000);
	t_dir_put(&dir, "c/x.bin.lock", "", 0);
	t_dir_put(&dir, "c/else", NULL, 5000);
	assert_int_equal(stat(keep, &st), 0);
	dcp_file_id_from_stat(&st, &id);
	t_dir_touch(&dir, "c/a.bin", id.mtime_ns - 40 * day);
	t_dir_touch(&dir, "c/b.bin", id.mtime_ns - 3 * day);
	t_dir_touch(&dir, "c/c.bin", id.mtime_ns - 2 * day);
	t_dir_touch(&dir, "c/d.bin", id.mtime_ns - 1 * day);
	t_dir_touch(&dir, "c/x.bin.tmp-abcdef", id.mtime_ns - 2 * day);
	t_dir_touch(&dir, "c/x.bin.lock", id.mtime_ns - 2 * day);
	t_dir_touch(&dir, "c/else", id.mtime_ns - 400 * day);

	t_case("the old one, and what dead writers left");
	assert_int_equal(dcp_cache_trim(t_dir_path(&dir, "c"), &how, &out), 0);
	assert_int_equal(t_dir_count(&dir, "c"), 6);
	assert_int_equal(out.files, 4);
	assert_int_equal(out.bytes, 4000);
	assert_int_equal(out.removed, 3);
	assert_int_equal(out.freed, 2000);
	assert_int_equal(access(t_dir_path(&dir, "c/a.bin"), F_OK), -1);
	t_case("the least recently used, until there is room");
	how.most = 2500;
	assert_int_equal(dcp_cache_trim(t_dir_path(&dir, "c"), &how, &out), 0);
	assert_int_equal(access(t_dir_path(&dir, "c/b.bin"), F_OK), -1);
	assert_int_equal(access(t_dir_path(&dir, "c/c.bin"), F_OK), -1);
	assert_int_equal(access(t_dir_path(&dir, "c/d.bin"), F_OK), 0);
	t_case("but never the new one");
	how.most = 0;
	assert_int_equal(dcp_cache_trim(t_dir_path(&dir, "c"), &how, &out), 0);
	assert_int_equal(access(keep, F_OK), 0);
	assert_int_equal(t_dir_count(&dir, "c"), 3);
	t_case("all, but what a writer has locked");
	t_dir_put(&dir, "c/z.bin.lock", "", 0);
	t_dir_put(&dir, "c/z.bin.tmp-abcdef", NULL, 1000);
	lock = open(t_dir_path(&dir, "c/z.bin.lock"), O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(lock, LOCK_EX), 0);
	how = (struct dcp_trim){ .ext = ".bin", .all = true, .counts = true };
	assert_int_equal(dcp_cache_trim(t_dir_path(&dir, "c"), &how, &out), 0);
	assert_int_equal(out.files, 1);
	assert_int_equal(out.removed, 0);
	how.counts = false;
	assert_int_equal(dcp_cache_trim(t_dir_path(&dir, "c"), &how, &out), 0);
	assert_int_equal(access(keep, F_OK), -1);
	assert_int_equal(t_dir_count(&dir, "c"), 3); /* else, and the two of z */
	close(lock);
	assert_int_equal(dcp_cache_trim(t_dir_path(&dir, "c"), &how, &out), 0);
	assert_int_equal(t_dir_count(&dir, "c"), 1);
	assert_int_equal(dcp_cache_trim(t_dir_path(&dir, "none"), &how, &out), -ENOENT);
	t_dir_remove(&dir);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(old_and_surplus_files_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
