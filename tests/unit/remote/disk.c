/* SPDX-License-Identifier: Apache-2.0 */
#include "core/remote/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tests/unit/t.h"
#include "tests/unit/t/parse/dir.h"

enum { BLOCK = DCP_DISK_BLOCK, SIZE = 3 * BLOCK + 100 };

static const uint64_t id[2] = { 0x1234, 0x5678 };
static struct t_dir dir;

static char byte_at(uint64_t off)
{
	return (char)(off * 31 + off / 251);
}

/* As if the bytes @lo to @hi had come from the server. */
static void write_bytes(struct dcp_disk *d, uint64_t lo, uint64_t hi)
{
	char block[BLOCK];

	while (lo < hi) {
		uint64_t number = lo / BLOCK, end = DCP_MIN(hi, (number + 1) * BLOCK);

		for (uint64_t at = lo; at < end; at++)
			block[at % BLOCK] = byte_at(at);
		dcp_disk_write(d, number, (uint32_t)(lo % BLOCK),
			       (uint32_t)(end - number * BLOCK), block);
		lo = end;
	}
}

/* How many bytes from @off on are kept; those are right. */
static uint64_t count_kept(struct dcp_disk *d, uint64_t off)
{
	uint64_t at = off;
	char block[BLOCK];
	const char *p;
	size_t n;

	while (at < d->size && (n = dcp_disk_read(d, at, d->size - at, block, &p)) > 0)
		for (size_t i = 0; i < n; i++, at++)
			assert_int_equal(p[i], byte_at(at));
	return at - off;
}

static uint64_t count_again(uint64_t off)
{
	struct dcp_disk d;
	uint64_t n;

	assert_true(dcp_disk_open(&d, id, SIZE));
	n = count_kept(&d, off);
	dcp_disk_close(&d);
	return n;
}

static int begin(void **state)
{
	t_dir_make(&dir, "disk");
	dcp_disk_use(t_dir_path(&dir, "cache"), 0);
	return 0;
}

static int end(void **state)
{
	dcp_disk_use(NULL, 0);
	t_dir_remove(&dir);
	return 0;
}

static const char *file_of(const uint64_t of[2])
{
	char name[64];

	snprintf(name, sizeof(name), "cache/remote/%016llx%016llx.blocks",
		 (unsigned long long)of[0], (unsigned long long)of[1]);
	return t_dir_path(&dir, name);
}

static void meeting_parts_become_one(void **state)
{
	struct dcp_disk d;
	struct stat st;

	assert_true(dcp_disk_open(&d, id, SIZE));
	assert_int_equal(count_kept(&d, 0), 0);
	write_bytes(&d, 1000, 2 * BLOCK + 5);
	assert_int_equal(count_kept(&d, 0), 0);
	assert_int_equal(count_kept(&d, 1000), 2 * BLOCK + 5 - 1000);
	t_case("before, after, and far from what is there");
	write_bytes(&d, 0, 1000);
	write_bytes(&d, 2 * BLOCK + 3, 2 * BLOCK + 100);
	write_bytes(&d, 2 * BLOCK + 500, 2 * BLOCK + 501);
	dcp_disk_close(&d);
	assert_int_equal(count_again(2 * BLOCK), 100);
	assert_int_equal(count_again(2 * BLOCK + 500), 1);
	assert_int_equal(count_again(0), 2 * BLOCK + 100);
	assert_true(dcp_disk_open(&d, id, SIZE));
	write_bytes(&d, 2 * BLOCK, SIZE);
	dcp_disk_close(&d);
	assert_int_equal(count_again(0), SIZE);
	t_case("private");
	assert_int_equal(stat(file_of(id), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(stat(t_dir_path(&dir, "cache/remote"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
}

/* As requests that are under way together leave them, in any order. */
static void parts_apart_are_kept(void **state)
{
	struct dcp_disk d;

	assert_true(dcp_disk_open(&d, id, SIZE));
	for (uint64_t i = 4; i-- > 0;)
		write_bytes(&d, i * 1000, i * 1000 + 100 + i);
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(count_kept(&d, i * 1000), 100 + i);
	t_case("of five the shortest is given up");
	write_bytes(&d, 4000, 4200);
	assert_int_equal(count_kept(&d, 0), 0);
	for (uint64_t i = 1; i < 4; i++)
		assert_int_equal(count_kept(&d, i * 1000), 100 + i);
	assert_int_equal(count_kept(&d, 4000), 200);
	t_case("all that meet are one, in whatever order they come");
	write_bytes(&d, 1050, 4100);
	assert_int_equal(count_kept(&d, 1000), 3200);
	write_bytes(&d, BLOCK - 100, BLOCK);
	write_bytes(&d, 0, 10);
	write_bytes(&d, 4200, BLOCK - 100);
	write_bytes(&d, 10, 1000);
	dcp_disk_close(&d);
	assert_int_equal(count_again(0), BLOCK);
}

static void change_byte(uint64_t off)
{
	int fd = open(file_of(id), O_RDWR | O_CLOEXEC);
	char c;

	assert_int_equal(pread(fd, &c, 1, (off_t)off), 1);
	c ^= 1;
	assert_int_equal(pwrite(fd, &c, 1, (off_t)off), 1);
	close(fd);
}

static void damage_is_not_read(void **state)
{
	uint64_t map = (SIZE + 4095) / 4096 * 4096 + 64;
	struct dcp_disk d;

	assert_true(dcp_disk_open(&d, id, SIZE));
	write_bytes(&d, 0, SIZE);
	dcp_disk_close(&d);
	change_byte(BLOCK + 77);
	assert_int_equal(count_again(0), BLOCK);
	assert_int_equal(count_again(2 * BLOCK), SIZE - 2 * BLOCK);
	t_case("it is written again");
	assert_true(dcp_disk_open(&d, id, SIZE));
	write_bytes(&d, BLOCK, 2 * BLOCK);
	dcp_disk_close(&d);
	assert_int_equal(count_again(0), SIZE);
	t_case("the map");
	for (int i = 0; i < 16; i++) {
		change_byte(map + 64 + (uint64_t)i);
		assert_int_equal(count_again(BLOCK), 0);
		change_byte(map + 64 + (uint64_t)i);
	}
	assert_int_equal(count_again(0), SIZE);
	t_case("the head: another file is made");
	change_byte(map - 64 + 16);
	for (int i = 0; i < 2; i++) {
		assert_true(dcp_disk_open(&d, id, SIZE));
		assert_int_equal(count_kept(&d, 0), 0);
		write_bytes(&d, 0, SIZE);
		dcp_disk_close(&d);
	}
	assert_int_equal(count_again(0), SIZE);
	t_case("shorter");
	assert_int_equal(truncate(file_of(id), BLOCK), 0);
	assert_int_equal(count_again(0), 0);
	t_case("a link to elsewhere");
	unlink(file_of(id));
	t_dir_put(&dir, "other", "text", 4);
	assert_int_equal(symlink(t_dir_path(&dir, "other"), file_of(id)), 0);
	assert_int_equal(count_again(0), 0);
}

static void contents_are_kept_apart(void **state)
{
	static const uint64_t other[2] = { 0x1234, 0x5679 };
	struct dcp_disk d;

	assert_true(dcp_disk_open(&d, id, SIZE));
	write_bytes(&d, 0, SIZE);
	dcp_disk_close(&d);
	assert_true(dcp_disk_open(&d, other, SIZE));
	assert_int_equal(count_kept(&d, 0), 0);
	dcp_disk_close(&d);
	t_case("by their size, too");
	assert_true(dcp_disk_open(&d, id, SIZE - 1));
	assert_int_equal(count_kept(&d, 0), 0);
	dcp_disk_close(&d);
	t_case("not even with the other's file");
	assert_int_equal(link(file_of(id), file_of(other)), 0);
	assert_true(dcp_disk_open(&d, other, SIZE));
	assert_int_equal(count_kept(&d, 0), 0);
	dcp_disk_close(&d);
}

static size_t count_files(void)
{
	DIR *at = opendir(t_dir_path(&dir, "cache/remote"));
	size_t n = 0;

	for (struct dirent *e; at && (e = readdir(at));)
		n += e->d_name[0] != '.';
	if (at)
		closedir(at);
	return n;
}

static void least_recently_used_go(void **state)
{
	struct dcp_disk d, first = { .fd = -1 };
	uint64_t of[2] = { 1, 0 };

	dcp_disk_use(t_dir_path(&dir, "cache"), 4 * (uint64_t)SIZE);
	for (of[1] = 0; of[1] < 8; of[1]++) {
		assert_true(dcp_disk_open(of[1] ? &d : &first, of, SIZE));
		write_bytes(of[1] ? &d : &first, 0, SIZE);
		if (of[1])
			dcp_disk_close(&d); /* the first stays open, and so stays */
		usleep(10000);
	}
	assert_in_range(count_files(), 3, 4);
	assert_int_equal(count_kept(&first, 0), SIZE);
	dcp_disk_close(&first);
	of[1] = 7;
	assert_true(dcp_disk_open(&d, of, SIZE));
	assert_int_equal(count_kept(&d, 0), SIZE);
	dcp_disk_close(&d);
	t_case("what does not fit is not kept");
	dcp_disk_use(t_dir_path(&dir, "cache"), 2 * BLOCK);
	of[1] = 9;
	assert_true(dcp_disk_open(&d, of, SIZE));
	write_bytes(&d, 0, SIZE);
	assert_in_range(count_kept(&d, 0), 0, 2 * BLOCK);
	dcp_disk_close(&d);
}

/* Each writes its own half of every block, and so the parts meet. */
static void processes_write_side_by_side(void **state)
{
	pid_t child[4];
	int status;

	for (uint64_t c = 0; c < 4; c++) {
		child[c] = fork();
		if (child[c])
			continue;
		for (uint64_t k = 0; k < 4; k++) {
			uint64_t lo = k * BLOCK + (c & 1 ? BLOCK / 2 : 0);
			struct dcp_disk d;

			if (!dcp_disk_open(&d, id, SIZE))
				_exit(1);
			write_bytes(&d, DCP_MIN(lo, (uint64_t)SIZE),
				    DCP_MIN(lo + BLOCK / 2, (uint64_t)SIZE));
			dcp_disk_close(&d);
		}
		_exit(0);
	}
	for (int c = 0; c < 4; c++) {
		assert_int_equal(waitpid(child[c], &status, 0), child[c]);
		assert_int_equal(status, 0);
	}
	assert_int_equal(count_files(), 1);
	assert_int_equal(count_again(0), SIZE);
}

static void nothing_is_kept_unless_asked(void **state)
{
	struct dcp_disk d;

	dcp_disk_use(NULL, 0);
	assert_false(dcp_disk_open(&d, id, SIZE));
	assert_int_equal(count_files(), 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(meeting_parts_become_one, begin, end),
		cmocka_unit_test_setup_teardown(parts_apart_are_kept, begin, end),
		cmocka_unit_test_setup_teardown(damage_is_not_read, begin, end),
		cmocka_unit_test_setup_teardown(contents_are_kept_apart, begin, end),
		cmocka_unit_test_setup_teardown(least_recently_used_go, begin, end),
		cmocka_unit_test_setup_teardown(processes_write_side_by_side, begin, end),
		cmocka_unit_test_setup_teardown(nothing_is_kept_unless_asked, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
