/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of memory can be had, by what the kernel says and by limits of cgroups.
 */
#include "tools/load/memory/memory.h"

#include "core/base/base.h"
#include "tests/unit/t.h"
#include "tests/unit/t/parse/dir.h"

#define INFO "MemTotal:  99 kB\nMemAvailable:    40 kB\nSwapFree: 2 kB\n"

static void the_least_limit_counts(void **state)
{
	static const struct {
		const char *what, *info, *groups, *max, *now, *stat, *above;
		uint64_t room;
	} rows[] = {
		{ "nothing is known", NULL, NULL, NULL, NULL, NULL, NULL, UINT64_MAX },
		{ "what the kernel says", INFO, NULL, NULL, NULL, NULL, NULL, 42 * 1024 },
		{ "no limit", INFO, "0::/a/b\n", "max\n", "7\n", NULL, NULL, 42 * 1024 },
		{ "a limit", INFO, "0::/a/b\n", "1000\n", "300\n", NULL, NULL, 700 },
		{ "pages of files", INFO, "0::/a/b\n", "1000\n", "300\n",
		  "anon 1\ninactive_file 100\n", NULL, 800 },
		{ "more is used than the limit", INFO, "0::/a/b\n", "1000\n", "3000\n", NULL,
		  NULL, 0 },
		{ "a limit above", INFO, "0::/a/b\n", "max\n", "7\n", NULL, "500\n", 493 },
		{ "a larger one", INFO, "0::/a/b\n", "99999999\n", "7\n", NULL, NULL,
		  42 * 1024 },
		{ "no number", INFO, "0::/a/b\n", "x\n", "7\n", NULL, NULL, 42 * 1024 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct t_dir d;
		char what[64];

		t_case(rows[i].what);
		t_dir_make(&d, "test_room");
		if (rows[i].info)
			t_dir_text(&d, "proc/meminfo", rows[i].info);
		if (rows[i].groups)
			t_dir_text(&d, "proc/self/cgroup", rows[i].groups);
		if (rows[i].max)
			t_dir_text(&d, "sys/fs/cgroup/a/b/memory.max", rows[i].max);
		if (rows[i].now) {
			t_dir_text(&d, "sys/fs/cgroup/a/b/memory.current", rows[i].now);
			t_dir_text(&d, "sys/fs/cgroup/a/memory.current", rows[i].now);
		}
		if (rows[i].stat)
			t_dir_text(&d, "sys/fs/cgroup/a/b/memory.stat", rows[i].stat);
		if (rows[i].above)
			t_dir_text(&d, "sys/fs/cgroup/a/memory.max", rows[i].above);
		assert_true(load_room_of(d.root, what, sizeof(what)) == rows[i].room);
		t_dir_remove(&d);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_least_limit_counts) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
