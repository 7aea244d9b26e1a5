/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache that is forbidden, full, or being written by others.
 */
#include "tests/unit/t.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/store/cache/cache.h"
#include "core/store/version/version.h"
#include "tests/unit/t/version.h"

static void opens_in_memory(struct t_version *p, const char *says)
{
	struct dcp_version *v = t_version_open(p);

	t_version_check(v);
	assert_null(dcp_version_index_path(v));
	assert_true(dcp_version_was_built(v));
	dcp_version_close(v);
	assert_int_equal(p->warnings, 1);
	if (!strstr(p->said, says))
		fail_msg("said \"%s\", not \"%s\"", p->said, says);
}

static void a_cache_below_a_file_is_survived(void **state)
{
	struct t_version *p = *state;

	t_dir_text(&p->dir, "cache", "a file");
	opens_in_memory(p, "index kept in memory");
}

static void a_read_only_cache_is_survived(void **state)
{
	struct t_version *p = *state;

	if (geteuid() == 0) {
		print_message("           skipped: root may write everywhere\n");
		return;
	}
	t_dir_sub(&p->dir, "cache/dcpfs");
	assert_int_equal(chmod(p->cache, 0500), 0);
	opens_in_memory(p, "Permission denied");
	assert_int_equal(chmod(p->cache, 0700), 0);
}

/* An index counts that the user, root, or the owner of its directory has written. */
static void an_index_of_another_user_is_not_trusted(void **state)
{
	static const struct {
		uid_t file, dir;
		bool trusts;
	} rows[] = { { 65534, 0, true },
		     { 0, 65534, true },
		     { 65533, 0, false },
		     { 65533, 65534, false },
		     { 65533, 65533, true } };
	struct t_version *p = *state;
	dcp_auto_fd int fd = -1;
	const char *path;

	if (geteuid() != 0) {
		print_message("           skipped: files of others need root\n");
		return;
	}
	assert_int_equal(chmod(p->dir.root, 0755), 0);
	t_dir_text(&p->dir, "cache/index", "text");
	path = t_dir_path(&p->dir, "cache/index");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		assert_int_equal(chown(path, rows[i].file, 0), 0);
		assert_int_equal(chown(t_dir_path(&p->dir, "cache"), rows[i].dir, 0), 0);
		assert_int_equal(seteuid(65534), 0);
		assert_int_equal(dcp_cache_trusts(path, fd), rows[i].trusts);
		assert_int_equal(seteuid(0), 0);
	}
}

static void directories_instead_of_indexes_are_survived(void **state)
{
	struct t_version *p = *state;

	p->opts.index_file = t_dir_path(&p->dir, "sidecar");
	t_dir_sub(&p->dir, "sidecar");
	opens_in_memory(p, "not a file");
}

/* A limit on the size of files is the nearest thing to a full disk that needs no mount. */
static void a_full_cache_is_survived(void **state)
{
	struct t_version *p = *state;
	struct rlimit was, small = { 20000, RLIM_INFINITY };
	void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	small.rlim_max = was.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	opens_in_memory(p, "index kept in memory");
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	signal(SIGXFSZ, handler);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 0); /* nothing is left behind */
	assert_int_equal(t_fake.loads, 2);
	p->warnings = 0;
	assert_true(t_version_opens_built(p)); /* and next time there is room */
	assert_int_equal(p->warnings, 0);
}

static void slow_builders_are_not_waited_for(void **state)
{
	struct t_version *p = *state;
	char lock[600];
	dcp_auto_fd int fd = -1;

	snprintf(lock, sizeof(lock), "%s.lock", t_version_index_path(p));
	assert_int_equal(unlink(t_version_index_path(p)), 0);
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	p->opts.lock_wait_ms = 50;
	opens_in_memory(p, "another process is still building it");
}

/* Say that the index is being built, and go on when another process waits for it. */
static void build_slowly(void *x)
{
	const int *pipes = x;
	char c;

	assert_int_equal(write(pipes[1], ".", 1), 1);
	assert_int_equal(read(pipes[2], &c, 1), 1);
}

/* Where in this process a flock() that finds another has the lock says so; 0: nowhere. */
static int refused;

static void the_index_of_another_builder_is_taken(void **state)
{
	struct t_version *p = *state;
	int pipes[4], status; /* begun, waited for */
	char c;
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(pipe(pipes + 2), 0);
	pid = fork();
	if (pid == 0) {
		close(pipes[3]); /* whose end the parent's would be */
		t_fake.during = build_slowly;
		t_fake.x = pipes;
		_exit(t_version_opens_built(p) ? 0 : 2);
	}
	assert_int_equal(read(pipes[0], &c, 1), 1);
	refused = pipes[3];
	assert_false(t_version_opens_built(p)); /* waited, and took what the other made */
	assert_int_equal(t_fake.loads, 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(refused, 0);
	for (size_t i = 0; i < DCP_LEN(pipes); i++)
		close(pipes[i]);
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1);
}

/* In place of libc's: with a path, the file there is removed first, as another process that
 * is done building does between our open() and flock(). */
static char *done_before_flock;

int flock(int fd, int operation)
{
	int rc;

	if (done_before_flock) {
		assert_int_equal(unlink(done_before_flock), 0);
		done_before_flock = NULL;
	}
	rc = (int)syscall(SYS_flock, fd, operation);
	if (rc < 0 && errno == EWOULDBLOCK && refused) {
		assert_int_equal(write(refused, ".", 1), 1);
		refused = 0;
		errno = EWOULDBLOCK;
	}
	return rc;
}

/* A lock on a file that has no name any more keeps no process out. */
static void removed_locks_are_made_again(void **state)
{
	struct t_version *p = *state;
	struct stat ours, named;
	char path[160], lock[170];
	bool waited;
	int fd;

	snprintf(path, sizeof(path), "%s/one", p->dir.root);
	snprintf(lock, sizeof(lock), "%s.lock", path);
	done_before_flock = lock;
	fd = dcp_cache_lock(&p->opts, path, &waited);
	assert_true(fd >= 0);
	assert_null(done_before_flock);
	assert_true(waited);
	assert_int_equal(fstat(fd, &ours), 0);
	assert_int_equal(stat(lock, &named), 0);
	assert_int_equal(ours.st_ino, named.st_ino);
	dcp_cache_unlock(path, fd);
	assert_int_not_equal(access(lock, F_OK), 0);
}

static void racing_builders_leave_one_index(void **state)
{
	struct t_version *p = *state;
	pid_t pids[6];
	int status;

	for (size_t i = 0; i < DCP_LEN(pids); i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			t_version_opens_built(
				p); /* a failed assertion ends the child with a signal or 1 */
			_exit(p->warnings ? 2 : 0);
		}
	}
	for (size_t i = 0; i < DCP_LEN(pids); i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 1);
	t_version_let_time_pass(p);
	assert_false(t_version_opens_built(p));
}

/* A build that was killed: the next one clears up behind it, and nothing else. */
static void leftovers_of_killed_builders_go(void **state)
{
	struct t_version *p = *state;
	const char *path = t_version_index_path(p);
	const char *base = strrchr(path, '/') + 1;
	char name[400];

	snprintf(name, sizeof(name), "cache/dcpfs/%s.tmp-AbCdEf", base);
	t_dir_text(&p->dir, name, "half of it");
	t_dir_text(&p->dir, "cache/dcpfs/other.dcpx.tmp-AbCdEf", "another user's");
	p->opts.rebuild = true;
	assert_true(t_version_opens_built(p));
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 2);
	assert_int_not_equal(faccessat(p->dir.fd, name, F_OK, 0), 0);
}

static int64_t mtime_ns(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec;
}

/* An index that is not used for 30 days goes when another is built; one that is used stays. */
static void indexes_go_when_they_are_not_used(void **state)
{
	static const int64_t days = 40 * 86400ll * 1000000000;
	struct t_version *p = *state;
	int64_t now;

	assert_true(t_version_opens_built(p));
	now = mtime_ns(t_version_index_path(p));
	t_version_let_time_pass(p);
	assert_int_equal(utimensat(AT_FDCWD, t_version_index_path(p),
				   (struct timespec[2]){ { .tv_sec = 1 }, { .tv_sec = 1 } }, 0),
			 0);
	assert_false(t_version_opens_built(p));
	assert_true(mtime_ns(t_version_index_path(p)) >= now);
	t_dir_text(&p->dir, "cache/dcpfs/gone-0123456789abcdef.dcpx", "an index");
	t_dir_text(&p->dir, "cache/dcpfs/else", "not ours");
	t_dir_touch(&p->dir, "cache/dcpfs/gone-0123456789abcdef.dcpx", now - days);
	t_dir_touch(&p->dir, "cache/dcpfs/else", now - days);
	p->opts.rebuild = true;
	assert_true(t_version_opens_built(p));
	assert_int_equal(t_dir_count(&p->dir, "cache/dcpfs"), 2);
}

T_TESTS()
{
#define AT_PLACE(f) cmocka_unit_test_setup_teardown(f, t_version_setup, t_version_teardown)
	const struct CMUnitTest tests[] = {
		AT_PLACE(a_cache_below_a_file_is_survived),
		AT_PLACE(a_read_only_cache_is_survived),
		AT_PLACE(an_index_of_another_user_is_not_trusted),
		AT_PLACE(directories_instead_of_indexes_are_survived),
		AT_PLACE(a_full_cache_is_survived),
		AT_PLACE(slow_builders_are_not_waited_for),
		AT_PLACE(the_index_of_another_builder_is_taken),
		AT_PLACE(removed_locks_are_made_again),
		AT_PLACE(racing_builders_leave_one_index),
		AT_PLACE(leftovers_of_killed_builders_go),
		AT_PLACE(indexes_go_when_they_are_not_used),
	};
	return cmocka_run_group_tests_name("version_cache", tests, NULL, NULL);
}
