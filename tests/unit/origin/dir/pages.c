/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel keeps of a file, and copies between two. */
#include "tests/unit/t.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"

enum { BYTES = 3 << 20 };

static int open_of(const struct t_dir *d, const char *name, int flags)
{
	int fd = open(t_dir_path(d, name), flags | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static void written_pages_are_cached(void **state)
{
	static char bytes[BYTES];
	struct t_dir d;
	const uint8_t *map;
	int fd;

	(void)state;
	t_dir_make(&d, "pages");
	t_dir_put(&d, "a", bytes, BYTES);
	fd = open_of(&d, "a", O_RDONLY);
	map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	dcp_stop_ahead(fd);
	dcp_bring_near(fd, 0, BYTES);
	for (uint64_t at = 0; at < BYTES; at += BYTES / 3 - 1) {
		assert_true(dcp_is_cached(fd, at));
		assert_true(dcp_is_resident(map + at));
	}
	assert_false(dcp_is_cached(fd, 2 * BYTES));
	/* pages that were dropped are not there, on file systems that drop them (tmpfs does not) */
	dcp_forget_pages(fd, map, BYTES);
	if (!dcp_is_cached(fd, 0))
		assert_false(dcp_is_resident(map));
	munmap((void *)(uintptr_t)map, BYTES);
	close(fd);
	t_dir_remove(&d);
}

/* In the middle of one file, to the middle of another; behind the end there is nothing. */
static void ranges_are_copied(void **state)
{
	static char bytes[BYTES];
	char got[3];
	struct t_dir d;
	int from, to;

	(void)state;
	memset(bytes, 'x', BYTES);
	memcpy(bytes + 4097, "abc", 3);
	t_dir_make(&d, "pages");
	t_dir_put(&d, "a", bytes, BYTES);
	from = open_of(&d, "a", O_RDONLY);
	to = open_of(&d, "b", O_RDWR | O_CREAT);
	assert_int_equal(dcp_copy_range(from, 4097, to, 10, BYTES - 4097), 1);
	assert_int_equal(pread(to, got, 3, 10), 3);
	assert_memory_equal(got, "abc", 3);
	assert_int_equal(lseek(to, 0, SEEK_END), BYTES - 4097 + 10);
	assert_int_equal(dcp_copy_range(from, BYTES - 1, to, 0, 2), 0);
	assert_int_equal(dcp_copy_range(-1, 0, to, 0, 1), 0);
	assert_int_equal(dcp_copy_range(from, 0, to, 0, 0), 1);
	close(from);
	close(to);
	t_dir_remove(&d);
}

/* Where O_DIRECT is refused, that is said. */
static void direct_descriptor_is_of_the_same_file(void **state)
{
	static char bytes[BYTES];
	struct stat a, b;
	struct t_dir d;
	int fd, direct;

	(void)state;
	t_dir_make(&d, "pages");
	t_dir_put(&d, "a", bytes, BYTES);
	fd = open_of(&d, "a", O_RDONLY);
	direct = dcp_open_direct(fd);
	if (direct >= 0) {
		assert_true(fcntl(direct, F_GETFL) & O_DIRECT);
		assert_true(fstat(fd, &a) == 0 && fstat(direct, &b) == 0);
		assert_true(a.st_ino == b.st_ino && a.st_dev == b.st_dev);
		close(direct);
	}
	close(fd);
	assert_true(dcp_open_direct(fd) < 0);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(written_pages_are_cached),
		cmocka_unit_test(ranges_are_copied),
		cmocka_unit_test(direct_descriptor_is_of_the_same_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
