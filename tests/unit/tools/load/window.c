/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that lies about its window, in a process of its own: what it names is not opened for
 * writing.
 */
#include "tools/load/load.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/base.h"
#include "tests/unit/t.h"

enum { SLOTS = 2, SLOT = 64 << 10 };

/* What a window's first member sends. */
struct notice {
	int64_t pid, fd;
	uint64_t dev, ino;
};

struct pair {
	int fd;
	uint32_t rank;
	const struct notice *lie; /* sent in place of the notice; pid 0: only @lie->fd */
	pid_t self;
};

/* Two ranks, at the ends of a socket. */
static int gather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct pair *p = ctx;
	char *to = all;
	struct notice notice;

	(void)timeout_ms;
	memcpy(to + p->rank * n, mine, n);
	if (p->lie && n == sizeof(notice)) {
		memcpy(&notice, mine, n);
		if (notice.pid == p->self)
			memcpy(to + p->rank * n, p->lie, n);
	}
	if (send(p->fd, to + p->rank * n, n, MSG_NOSIGNAL) != (ssize_t)n ||
	    (n && recv(p->fd, to + !p->rank * n, n, MSG_WAITALL) != (ssize_t)n))
		return -ECONNRESET;
	return 0;
}

/* What a rank of two gets of load_window_create(). */
static int make(int fd, uint32_t rank, const struct notice *lie, struct dcpload_error *err)
{
	struct pair p = { fd, rank, lie, getpid() };
	const struct dcpload_comm comm = { .size = sizeof(comm),
					   .rank = rank,
					   .ranks = 2,
					   .name = "pair",
					   .ctx = &p,
					   .allgather = gather };
	uint32_t local[2] = { 0, 1 };
	struct dcpload ck = { .comm = &comm,
			      .local = local,
			      .nlocal = 2,
			      .self = rank,
			      .config.timeout_ms = 60000 };
	struct load_window *w = NULL;
	int rc = load_window_create(&ck, SLOTS, SLOT, false, &w, err);

	if (rc == 0)
		memset(load_window_slot(w, rank), 'x', SLOT);
	load_window_free(w, false);
	return rc;
}

static struct notice notice_of(pid_t pid, int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (struct notice){ pid, fd, st.st_dev, st.st_ino };
}

/* Rank 0 sends @lie (NULL: the truth), and rank 1, this process, gets the code that is returned. */
static int meet(const struct notice *lie, struct dcpload_error *err)
{
	int ends[2], status, rc;
	pid_t child;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	child = fork();
	if (child == 0) {
		struct notice mine = lie ? *lie : (struct notice){ 0 };

		close(ends[1]);
		if (lie && lie->pid == 0)
			mine.pid = getpid();
		rc = make(ends[0], 0, lie ? &mine : NULL, err);
		_exit(rc < 0);
	}
	close(ends[0]);
	rc = make(ends[1], 1, NULL, err);
	close(ends[1]);
	waitpid(child, &status, 0);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == (rc < 0));
	return rc;
}

/* As large as the window, with whatever is needed to be taken for it. */
static int memory(const char *name, unsigned seals)
{
	int fd = memfd_create(name, MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, SLOTS * SLOT + sysconf(_SC_PAGESIZE)), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void windows_of_other_files_are_refused(void **state)
{
	enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
	char shard[] = "/dev/shm/window-XXXXXX", room[SLOTS * SLOT], was[sizeof(room)];
	int fd = mkostemp(shard, 0), ours = -1;
	struct dcpload_error err;

	(void)state;
	if (fd < 0) {
		strcpy(shard, "/tmp/window-XXXXXX");
		fd = mkostemp(shard, 0);
	}
	assert_true(fd >= 0);
	memset(was, 's', sizeof(was));
	assert_int_equal(write(fd, was, sizeof(was)), sizeof(was));
	assert_int_equal(ftruncate(fd, SLOTS * SLOT + sysconf(_SC_PAGESIZE)), 0);
	close(fd);
	fd = open(shard, O_RDONLY);

	const struct {
		const char *what;
		struct notice lie;
	} rows[] = {
		{ "a shard that the victim has open", notice_of(getpid(), fd) },
		{ "a shard that another process has open", notice_of(0, fd) },
		{ "a memory file of the victim's own",
		  notice_of(getpid(), ours = memory("dcpload-window", SEALS)) },
		{ "one that can be made shorter", notice_of(0, memory("dcpload-window", 0)) },
		{ "one that has another name", notice_of(0, memory("window", SEALS)) },
		{ "one that nobody may write to",
		  notice_of(0, memory("dcpload-window", SEALS | F_SEAL_WRITE)) },
		{ "no descriptor", { 0, 1000, 0, 0 } },
		{ "no process", { -1, 0, 0, 0 } },
	};

	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		int rc;

		t_case(rows[i].what);
		rc = meet(&rows[i].lie, &err);
		assert_true(rc == -EPERM || rc == -ENOENT);
		assert_non_null(strstr(err.text, "window of rank 0"));
		assert_int_equal(pread(fd, room, sizeof(room), 0), sizeof(room));
		assert_memory_equal(room, was, sizeof(room));
	}
	assert_int_equal(pread(ours, room, 1, 0), 1);
	assert_int_equal(room[0], 0);
	unlink(shard);
	t_case("another process's, which is its window");
	assert_int_equal(meet(NULL, &err), 0);
	{
		struct notice lie = notice_of(0, memory("dcpload-window", SEALS));

		t_case("or a memory file that could be");
		assert_int_equal(meet(&lie, &err), 0);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(
		windows_of_other_files_are_refused) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
