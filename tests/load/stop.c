/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library to be preloaded: the process stops itself, as by SIGSTOP, at the first of what
 * DCPFS_TEST_STOP names:
 *	open        a read of a file
 *	plan        memory for destinations is allocated
 *	read        a read of a file after that
 *	exchange    a chunk was given to other ranks, or taken from one
 * The test waits until it is stopped, and does with it what it likes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int planned;

static void stop_at(const char *point)
{
	const char *stop = getenv("DCPFS_TEST_STOP");

	if (stop && strcmp(stop, point) == 0)
		kill(getpid(), SIGSTOP);
}

PUBLIC ssize_t pread64(int fd, void *to, size_t n, off64_t off);
PUBLIC ssize_t pread64(int fd, void *to, size_t n, off64_t off)
{
	stop_at(__atomic_load_n(&planned, __ATOMIC_ACQUIRE) ? "read" : "open");
	return REAL(pread64)(fd, to, n, off);
}

PUBLIC int madvise(void *p, size_t n, int advice)
{
	if (advice == MADV_HUGEPAGE) {
		stop_at("plan");
		__atomic_store_n(&planned, 1, __ATOMIC_RELEASE);
	}
	return REAL(madvise)(p, n, advice);
}

PUBLIC long syscall(long number, ...)
{
	long v[6];
	va_list ap;

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		v[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_futex && v[1] == FUTEX_WAKE)
		stop_at("exchange");
	return REAL(syscall)(number, v[0], v[1], v[2], v[3], v[4], v[5]);
}

/* So that all reads come by here. */
PUBLIC int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
PUBLIC int io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
	(void)entries;
	(void)ring;
	(void)flags;
	return -ENOSYS;
}
