/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/origin/origin.h"

static const char TEXT[] = "0123456789";

/* clang-format off */
static const struct {
	const char *what;
	uint64_t off;
	size_t n;
	int want;
	const char *bytes;
} reads[] = {
	{ "all of it",                    0,              10, 0,        "0123456789" },
	{ "the last byte",                9,              1,  0,        "9" },
	{ "nothing at the end",           10,             0,  0,        "" },
	{ "one past the end",             10,             1,  -EBADMSG, NULL },
	{ "starts inside, ends outside",  5,              6,  -EBADMSG, NULL },
	{ "far outside",                  1000,           1,  -EBADMSG, NULL },
	{ "offset plus length wraps",     UINT64_MAX,     2,  -EBADMSG, NULL },
	{ "nothing, far outside",         UINT64_MAX,     0,  -EBADMSG, NULL },
};
/* clang-format on */

static void check_reads(const struct dcp_source *src)
{
	for (size_t i = 0; i < DCP_LEN(reads); i++) {
		char got[16] = { 0 };

		t_case(reads[i].what);
		assert_int_equal(dcp_source_read(src, reads[i].off, got, reads[i].n),
				 reads[i].want);
		if (reads[i].bytes)
			assert_string_equal(got, reads[i].bytes);
	}
}

static int text_file(void)
{
	int fd = memfd_create("source", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, TEXT, 10), 10);
	return fd;
}

static void memory_and_file_read_alike(void **state)
{
	struct dcp_source mem = dcp_source_mem(TEXT, 10), file;
	dcp_auto_fd int fd = text_file();

	(void)state;
	check_reads(&mem);
	assert_int_equal(dcp_source_fd(fd, &file), 0);
	assert_int_equal(file.size, 10);
	check_reads(&file);
	assert_int_equal(dcp_source_fd(-1, &file), -EBADF);
}

static void windows_stay_inside_their_parent(void **state)
{
	static const char wide[] = "ab0123456789cd";
	struct dcp_source mem = dcp_source_mem(wide, 14), inner, outer;

	(void)state;
	inner = dcp_source_window(&mem, 2, 10);
	check_reads(&inner);

	t_case("a window of a window");
	outer = dcp_source_window(&mem, 1, 12);
	inner = dcp_source_window(&outer, 1, 10);
	check_reads(&inner);

	t_case("longer than the parent: clamped");
	inner = dcp_source_window(&mem, 12, UINT64_MAX);
	assert_int_equal(inner.size, 2);
	t_case("past the parent: empty");
	inner = dcp_source_window(&mem, 15, 1);
	assert_int_equal(inner.size, 0);
	assert_int_equal(dcp_source_read(&inner, 0, (char[1]){ 0 }, 1), -EBADMSG);
}

static void shrunk_file_is_an_io_error(void **state)
{
	dcp_auto_fd int fd = text_file();
	struct dcp_source file;
	char got[10];

	(void)state;
	assert_int_equal(dcp_source_fd(fd, &file), 0);
	assert_int_equal(ftruncate(fd, 4), 0);
	assert_int_equal(dcp_source_read(&file, 0, got, 4), 0);
	assert_int_equal(dcp_source_read(&file, 0, got, 10), -EIO);
	assert_int_equal(dcp_source_read(&file, 6, got, 1), -EIO);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_and_file_read_alike),
		cmocka_unit_test(windows_stay_inside_their_parent),
		cmocka_unit_test(shrunk_file_is_an_io_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
