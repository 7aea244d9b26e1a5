/* SPDX-License-Identifier: Apache-2.0 */
/* What was found in a version is kept for as long as its files do not change. */
#include "tests/unit/t.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/buf.h"
#include "core/store/cache/cache.h"
#include "tests/unit/t/version.h"

static int read_back(struct dcp_version *v, const char *name, const char *want)
{
	dcp_auto_buf struct dcp_buf got = DCP_BUF_INIT;
	int rc = dcp_kept_read(v, name, &got);

	if (rc == 0) {
		assert_int_equal(got.n, strlen(want));
		assert_memory_equal(got.p, want, got.n);
	}
	return rc;
}

static void records_are_read_back(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);

	assert_int_equal(read_back(v, "stats", "found"), -ENOENT);
	dcp_kept_write(v, "stats", "found", 5);
	assert_int_equal(read_back(v, "stats", "found"), 0);
	assert_int_equal(read_back(v, "other", "found"), -ENOENT);
	dcp_kept_write(v, "stats", "more is found", 13);
	assert_int_equal(read_back(v, "stats", "more is found"), 0);
	dcp_version_close(v);
}

static void damaged_records_are_not_found(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	char path[600];
	int fd, n;

	dcp_kept_write(v, "stats", "found", 5);
	n = (int)strlen(dcp_version_index_path(v)) - 5;
	snprintf(path, sizeof(path), "%.*s-stats.kept", n, dcp_version_index_path(v));
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "x", 1, lseek(fd, 0, SEEK_END) - 1), 1);
	assert_int_equal(read_back(v, "stats", "found"), -ENOENT);
	assert_int_equal(ftruncate(fd, 10), 0);
	assert_int_equal(read_back(v, "stats", "found"), -ENOENT);
	close(fd);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("/dev/zero", path), 0);
	assert_int_equal(read_back(v, "stats", "found"), -ENOENT);
	dcp_version_close(v);
}

/* An index that the user named may lie in the checkpoint, where nothing is to be written. */
static void nothing_is_kept_beside_a_sidecar(void **state)
{
	struct t_version *p = *state;
	char path[200];
	struct dcp_version *v;
	dcp_auto_buf struct dcp_buf all = DCP_BUF_INIT;
	int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

	snprintf(path, sizeof(path), "%s/mine.dcpx", p->source);
	p->opts.index_file = path;
	v = t_version_open(p);
	dcp_kept_write(v, "stats", "found", 5);
	assert_int_equal(read_back(v, "stats", "found"), -ENOENT);
	assert_true(watch >= 0 && inotify_add_watch(watch, path, IN_CLOSE_WRITE) >= 0);
	assert_int_equal(dcp_kept_share(v, "stats", 8, &all), 0);
	assert_int_equal(read(watch, path, sizeof(path)), -1); /* nor opened for writing */
	assert_int_equal(errno, EAGAIN);
	close(watch);
	dcp_version_close(v);
}

struct record {
	struct dcp_kept_head head;
	uint64_t value;
};

/* A record is of one row and one key: another key under its id means that nothing is known. */
static void records_are_found_by_row_and_key(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	dcp_auto_buf struct dcp_buf all = DCP_BUF_INIT, back = DCP_BUF_INIT,
				    other = DCP_BUF_INIT;
	struct record r = { .value = 7 };
	const struct record *got;

	assert_int_equal(dcp_kept_put(&all, sizeof(r), 3, "a.b", &r), 0);
	dcp_kept_write(v, "stats", all.p, all.n);
	assert_int_equal(dcp_kept_records(v, "stats", sizeof(r), &back), 0);
	got = dcp_kept_at(&back, sizeof(r), 3, "a.b");
	assert_non_null(got);
	assert_int_equal(got->value, 7);
	assert_null(dcp_kept_at(&back, sizeof(r), 3, "a.c"));
	for (int64_t id = -1; id < 6; id++)
		if (id != 3)
			assert_null(dcp_kept_at(&back, sizeof(r), id, "a.b"));
	assert_int_equal(dcp_kept_records(v, "stats", sizeof(r) + 8, &other), 0);
	assert_int_equal(other.n, 0);
	dcp_version_close(v);
}

/* Each finds out about tensors of its own; none of that is lost. */
static void sharing_processes_lose_nothing(void **state)
{
	enum { PROCESSES = 4, EACH = 25 };
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	dcp_auto_buf struct dcp_buf back = DCP_BUF_INIT;

	for (int i = 0; i < PROCESSES; i++) {
		int rc = 0;

		if (fork() != 0)
			continue;
		for (int k = 0; k < EACH && rc == 0; k++) {
			dcp_auto_buf struct dcp_buf own = DCP_BUF_INIT;
			struct record r = { .value = i };

			rc = dcp_kept_put(&own, sizeof(r), k * PROCESSES + i + 1, "a", &r);
			if (rc == 0)
				rc = dcp_kept_share(v, "stats", sizeof(r), &own);
			if (rc == 0 && !dcp_kept_at(&own, sizeof(r), i + 1, "a"))
				rc = -ENOENT; /* what was kept before is known */
		}
		_exit(rc < 0);
	}
	for (int i = 0, status; i < PROCESSES; i++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	assert_int_equal(dcp_kept_records(v, "stats", sizeof(struct record), &back), 0);
	for (int64_t id = 1; id <= PROCESSES * EACH; id++) {
		const struct record *got = dcp_kept_at(&back, sizeof(*got), id, "a");

		assert_non_null(got);
		assert_int_equal(got->value, (id - 1) % PROCESSES);
	}
	dcp_version_close(v);
}

T_TESTS()
{
#define AT_PLACE(f) cmocka_unit_test_setup_teardown(f, t_version_setup, t_version_teardown)
	const struct CMUnitTest tests[] = {
		AT_PLACE(records_are_read_back),
		AT_PLACE(damaged_records_are_not_found),
		AT_PLACE(nothing_is_kept_beside_a_sidecar),
		AT_PLACE(records_are_found_by_row_and_key),
		AT_PLACE(sharing_processes_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
