/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: files, base/cache
 */
#include "tests/unit/t.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/origin/dir/dir.h"
#include "core/store/io/files.h"
#include "tests/unit/t/parse/dir.h"

enum { FILES = 200, LIMIT = 64, THREADS = 8, ROUNDS = 2000 };

/* Files that hold their own number. */
struct shards {
	struct t_dir dir;
	struct dcp_file_id id[FILES];
	char name[FILES][16];
	struct dcp_files *files;
};

static size_t open_descriptors(void)
{
	return t_dir_count(&(struct t_dir){ .fd = AT_FDCWD }, "/proc/self/fd") - 1;
}

static rlim_t set_limit(int what, rlim_t soft)
{
	struct rlimit r;
	rlim_t before;

	assert_int_equal(getrlimit(what, &r), 0);
	before = r.rlim_cur;
	r.rlim_cur = soft;
	assert_int_equal(setrlimit(what, &r), 0);
	return before;
}

static void identify(struct shards *s, uint32_t i)
{
	struct stat st;

	assert_int_equal(fstatat(s->dir.fd, s->name[i], &st, 0), 0);
	dcp_file_id_from_stat(&st, &s->id[i]);
	s->id[i].name = s->name[i];
}

static void make(struct shards *s, struct dcp_handles *shared, bool map)
{
	const struct dcp_files_opts opts = { .map = map, .handles = shared };

	memset(s->id, 0, sizeof(s->id));
	t_dir_make(&s->dir, "handles");
	for (uint32_t i = 0; i < FILES; i++) {
		snprintf(s->name[i], sizeof(s->name[i]), "%u", i);
		t_dir_put(&s->dir, s->name[i], &i, sizeof(i));
		identify(s, i);
	}
	assert_int_equal(dcp_files_create(&s->dir.at, s->id, FILES, &opts, &s->files), 0);
}

static void unmake(struct shards *s)
{
	dcp_files_destroy(s->files);
	t_dir_remove(&s->dir);
}

/* 0 if the file could be held, read, and is the right one. */
static int look(const struct shards *s, uint32_t i)
{
	const struct dcp_file *file;
	uint32_t is = FILES;
	int rc = dcp_files_hold(s->files, i, true, &file, NULL);

	if (rc < 0)
		return rc;
	if (file->map)
		memcpy(&is, file->map, sizeof(is));
	else
		rc = pread(file->fd, &is, sizeof(is), 0) < 0 ? -errno : 0;
	if (rc == 0 && is != i)
		rc = -EBADMSG;
	dcp_files_release(s->files, i);
	return rc;
}

static bool is_open(const struct shards *s, uint32_t i)
{
	char link[64], to[256];
	bool found = false;
	ssize_t n;

	for (int fd = 3; fd < 4096 && !found; fd++) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, to, sizeof(to) - 1);
		to[n > 0 ? n : 0] = '\0';
		found = n > 0 && strcmp(to, t_dir_path(&s->dir, s->name[i])) == 0;
	}
	return found;
}

static void unused_files_are_closed_for_others(void **state)
{
	rlim_t before = set_limit(RLIMIT_NOFILE, LIMIT);
	struct dcp_handles *shared;
	struct shards s[2];

	(void)state;
	assert_int_equal(dcp_handles_create(&shared), 0);
	for (int i = 0; i < 2; i++)
		make(&s[i], shared, i);
	for (int round = 0; round < 2; round++)
		for (int k = 0; k < 2; k++)
			for (uint32_t i = 0; i < FILES; i++)
				assert_int_equal(look(&s[k], i), 0);
	assert_in_range(open_descriptors(), 2 * DCP_HANDLES_LEAST, LIMIT - 8);
	t_case("one that is used all the time stays");
	for (uint32_t i = 1; i < FILES; i++) {
		assert_int_equal(look(&s[0], 0), 0);
		assert_true(is_open(&s[0], 0));
		assert_int_equal(look(&s[1], i), 0);
	}
	t_case("its descriptors go with a version");
	for (int i = 0; i < 2; i++)
		unmake(&s[i]);
	dcp_handles_destroy(shared);
	assert_in_range(open_descriptors(), 3, 8);
	set_limit(RLIMIT_NOFILE, before);
}

static void files_in_use_are_not_closed(void **state)
{
	rlim_t before = set_limit(RLIMIT_NOFILE, LIMIT);
	const struct dcp_file *file;
	struct dcp_err err = { 0 };
	struct shards s;
	uint32_t held = 0;
	int rc;

	(void)state;
	make(&s, NULL, false);
	while ((rc = dcp_files_hold(s.files, held, false, &file, &err)) == 0)
		held++;
	t_case("all of them in use");
	assert_int_equal(rc, -EMFILE);
	t_assert_says(&err, "open files");
	assert_in_range(held, LIMIT - 16, LIMIT);
	for (uint32_t i = 0; i < held; i++)
		assert_int_equal(dcp_files_check(s.files, i, true), 0);
	t_case("one let go");
	dcp_files_release(s.files, 3);
	assert_int_equal(dcp_files_hold(s.files, held, false, &file, NULL), 0);
	assert_false(is_open(&s, 3));
	dcp_files_release(s.files, held);
	for (uint32_t i = 0; i < held; i++)
		if (i != 3)
			dcp_files_release(s.files, i);
	assert_int_equal(look(&s, 3), 0);
	unmake(&s);
	set_limit(RLIMIT_NOFILE, before);
}

static void closed_files_are_compared_again(void **state)
{
	struct shards s;

	(void)state;
	make(&s, NULL, true);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(look(&s, i), 0);
	t_case("removed, replaced, written to while they are open");
	t_dir_delete(&s.dir, "0");
	t_dir_put(&s.dir, "new", &(uint32_t){ 1 }, 4);
	assert_int_equal(renameat(s.dir.fd, "new", s.dir.fd, "1"), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(look(&s, i), 0);
	assert_int_equal(dcp_files_check(s.files, 0, false), 0);
	assert_int_equal(dcp_files_check(s.files, 0, true), -ESTALE);
	assert_false(dcp_files_rewritten(s.files));
	t_dir_touch(&s.dir, "2", 5000000000);
	assert_int_equal(dcp_files_check(s.files, 2, false), -ESTALE);
	assert_true(dcp_files_rewritten(s.files));
	t_case("and once they were closed");
	dcp_files_drop(s.files);
	assert_int_equal(look(&s, 0), -ENOENT);
	assert_int_equal(look(&s, 1), -ESTALE);
	assert_int_equal(look(&s, 2), -ESTALE);
	assert_int_equal(look(&s, 3), 0);
	assert_true(dcp_files_rewritten(s.files));
	unmake(&s);
}

/* Another file in the place of @i, of the same size and times; the old one is called "old". */
static void replace(const struct shards *s, uint32_t i)
{
	t_dir_put(&s->dir, "new", &(uint32_t){ FILES }, 4);
	t_dir_touch(&s->dir, "new", s->id[i].mtime_ns);
	assert_int_equal(renameat(s->dir.fd, s->name[i], s->dir.fd, "old"), 0);
	assert_int_equal(renameat(s->dir.fd, "new", s->dir.fd, s->name[i]), 0);
}

static void look_alike_files_are_noticed(void **state)
{
	const struct dcp_file *file;
	uint32_t is = 0;
	struct shards s;
	int fd;

	(void)state;
	make(&s, NULL, false);
	t_case("in its place before it is opened");
	replace(&s, 0);
	assert_int_equal(look(&s, 0), -ESTALE);
	t_case("after, and before it is opened once more");
	assert_int_equal(dcp_files_hold(s.files, 1, false, &file, NULL), 0);
	replace(&s, 1);
	fd = dcp_files_exact_fd(s.files, 1);
	assert_int_equal(pread(fd, &is, sizeof(is), 0), sizeof(is));
	assert_int_equal(is, 1);
	dcp_files_release(s.files, 1);
	unmake(&s);
}

static void kept_files_outlive_their_names(void **state)
{
	rlim_t before = set_limit(RLIMIT_NOFILE, LIMIT);
	struct dcp_kept kept = { 0 }, again = { 0 };
	struct shards s;
	int there = 0;

	(void)state;
	make(&s, NULL, false);
	dcp_files_keep_all(s.files, &kept);
	dcp_files_keep(s.files, 0, &again);
	assert_in_range(kept.n, DCP_HANDLES_LEAST, LIMIT / 2);
	assert_int_equal(again.n, 1);
	t_case("the others still find room");
	for (uint32_t i = 0; i < FILES; i++)
		assert_int_equal(look(&s, i), 0);
	for (uint32_t i = 0; i < FILES; i++)
		t_dir_delete(&s.dir, s.name[i]);
	dcp_files_drop(s.files);
	for (uint32_t i = 0; i < FILES; i++)
		there += look(&s, i) == 0;
	assert_int_equal(there, kept.n);
	t_case("let go: only what is kept twice");
	dcp_files_unkeep(s.files, &kept);
	dcp_files_drop(s.files);
	assert_int_equal(look(&s, 0), 0);
	assert_int_equal(look(&s, 1), -ENOENT);
	dcp_files_unkeep(s.files, &again);
	dcp_files_drop(s.files);
	assert_int_equal(look(&s, 0), -ENOENT);
	unmake(&s);
	set_limit(RLIMIT_NOFILE, before);
}

/* A copy of a file that was compressed has two descriptors: its own, and that of the file. */
static void decoded_files_close_both_descriptors(void **state)
{
	size_t before = open_descriptors();
	struct dcp_handle h = { 0 };
	struct dcp_handles *t;

	(void)state;
	assert_int_equal(dcp_handles_create(&t), 0);
	for (int exact = 0; exact < 2; exact++) {
		struct dcp_file copy = { 0 };
		struct dcp_blob origin;

		assert_int_equal(
			dcp_blob_of_fd(open("/dev/null", O_RDONLY | O_CLOEXEC), &copy.blob), 0);
		assert_int_equal(
			dcp_blob_of_fd(open("/dev/zero", O_RDONLY | O_CLOEXEC), &origin), 0);

		assert_int_equal(dcp_handles_begin(t, &h, true), 1);
		dcp_handles_end(t, &h, &copy, &origin);
		if (exact)
			assert_true(dcp_handles_add_exact(
				t, &h, open("/dev/null", O_RDONLY | O_CLOEXEC)));
		assert_int_equal(open_descriptors(), before + 2 + (size_t)exact);
		dcp_handle_give(&h);
		assert_true(dcp_handles_close_one(t, false));
		assert_int_equal(open_descriptors(), before);
	}
	dcp_handles_destroy(t);
}

/* Sparse files of a terabyte: more than the address space that mappings may take. */
static void mappings_leave_address_space(void **state)
{
	const struct dcp_files_opts opts = { .map = true };
	const struct dcp_file *file;
	struct shards s;
	size_t mapped = 0;

	(void)state;
	if (access("/dev/shm", W_OK) == 0) /* a file system that has room for their size */
		setenv("TMPDIR", "/dev/shm", 1);
	make(&s, NULL, true);
	dcp_files_destroy(s.files);
	for (uint32_t i = 0; i < 48; i++) {
		assert_int_equal(truncate(t_dir_path(&s.dir, s.name[i]), 1ll << 40), 0);
		identify(&s, i);
	}
	assert_int_equal(dcp_files_create(&s.dir.at, s.id, 48, &opts, &s.files), 0);
	for (uint32_t i = 0; i < 48; i++) {
		assert_int_equal(look(&s, i), 0);
		assert_int_equal(dcp_files_hold(s.files, i, false, &file, NULL), 0);
		mapped += file->map != NULL;
		dcp_files_release(s.files, i);
	}
	assert_int_equal(mapped, 48);
	assert_true(is_open(&s, 47));
	assert_false(is_open(&s, 0));
	unmake(&s);
}

static void *read_some(void *arg)
{
	const struct shards *s = arg;
	unsigned seed = (unsigned)(uintptr_t)&seed;
	struct dcp_kept kept;

	for (int i = 0; i < ROUNDS; i++) {
		uint32_t number = (uint32_t)rand_r(&seed) % FILES;

		assert_int_equal(look(s, number), 0);
		if (i % 16)
			continue;
		kept = (struct dcp_kept){ 0 };
		dcp_files_keep(s->files, number, &kept);
		assert_int_equal(look(s, number), 0);
		dcp_files_exact_fd(s->files, number == 0 ? 0 : kept.n ? number : 0);
		dcp_files_unkeep(s->files, &kept);
	}
	return NULL;
}

static void many_threads_read(void **state)
{
	rlim_t before = set_limit(RLIMIT_NOFILE, LIMIT);
	const struct dcp_file *file;
	pthread_t thread[THREADS];
	struct shards s;

	(void)state;
	for (int map = 0; map < 2; map++) {
		make(&s, NULL, map);
		assert_int_equal(dcp_files_hold(s.files, 0, true, &file, NULL), 0);
		for (int i = 0; i < THREADS; i++)
			assert_int_equal(pthread_create(&thread[i], NULL, read_some, &s), 0);
		for (int i = 0; i < THREADS; i++)
			pthread_join(thread[i], NULL);
		dcp_files_release(s.files, 0);
		unmake(&s);
	}
	set_limit(RLIMIT_NOFILE, before);
}

/* What is not known to be local is not trusted. */
static void local_file_systems_are_known(void **state)
{
	int memory = memfd_create("t", MFD_CLOEXEC), proc = open("/proc", O_RDONLY | O_CLOEXEC);

	(void)state;
	assert_true(dcp_is_local(memory));
	assert_false(dcp_is_local(proc));
	assert_false(dcp_is_local(-1));
	close(memory);
	close(proc);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unused_files_are_closed_for_others),
		cmocka_unit_test(files_in_use_are_not_closed),
		cmocka_unit_test(closed_files_are_compared_again),
		cmocka_unit_test(look_alike_files_are_noticed),
		cmocka_unit_test(kept_files_outlive_their_names),
		cmocka_unit_test(decoded_files_close_both_descriptors),
		cmocka_unit_test(many_threads_read),
		cmocka_unit_test(local_file_systems_are_known),
		cmocka_unit_test(mappings_leave_address_space),
	};

	dcp_guard_enable();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
