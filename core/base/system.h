/* SPDX-License-Identifier: Apache-2.0 */
/*
 * system: shared libraries, kernel calls, threads and clocks.
 *
 * Libraries are opened at their first use, so that a program starts fast and runs without them on
 * machines that lack them.
 */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/*
 * Open @library for the life of the process, and store the addresses of its functions @names in
 * @at (NULL for a missing function). -ELIBACC: the library cannot be opened; -ELIBBAD: it lacks
 * functions. @why, of @size bytes, is then the reason, and names the first missing function.
 */
int dcp_library_open(const char *library, const char *const *names, size_t n, void **at,
		     char *why, size_t size);

/* Kernel calls that older C libraries than Debian 12's lack. They return what the kernel returns,
 * and set errno. */

static inline int dcp_pidfd_open(pid_t pid)
{
	return (int)syscall(__NR_pidfd_open, pid, 0);
}

static inline ssize_t dcp_process_madvise(int pidfd, const struct iovec *iov, size_t n,
					  int advice)
{
	return syscall(__NR_process_madvise, pidfd, iov, n, advice, 0);
}

/*
 * Run @work in up to @n threads, the thread of the caller included, and wait for all of them.
 * Thread i gets the job @jobs + i * @size; with @size 0 all threads get the same job. @work must
 * take parts by a shared counter until none is left, so that all work is done even if fewer threads
 * can be started.
 */
void dcp_team_run(unsigned n, void *(*work)(void *job), void *jobs, size_t size);

#define DCP_NS_PER_MS 1000000ll
#define DCP_NS_PER_S 1000000000ll

/* Nanoseconds of @clock: CLOCK_MONOTONIC, CLOCK_REALTIME. */
static inline int64_t dcp_now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * DCP_NS_PER_S + t.tv_nsec;
}

static inline int64_t dcp_now_ms(void)
{
	return dcp_now_ns(CLOCK_MONOTONIC) / DCP_NS_PER_MS;
}

/* The time in @ms milliseconds, for conditions of dcp_cond_init(), by CLOCK_MONOTONIC, which cannot
 * be set. */
static inline struct timespec dcp_in_ms(int64_t ms)
{
	int64_t ns = dcp_now_ns(CLOCK_MONOTONIC) + ms * DCP_NS_PER_MS;

	return (struct timespec){ .tv_sec = ns / DCP_NS_PER_S, .tv_nsec = ns % DCP_NS_PER_S };
}

/* A condition whose pthread_cond_timedwait() takes times of CLOCK_MONOTONIC.
 * (pthread_cond_clockwait() would need glibc 2.30, and the wheel is for 2.28.) */
static inline int dcp_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t how;
	int rc = pthread_condattr_init(&how);

	if (rc)
		return rc;
	pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
	rc = pthread_cond_init(cond, &how);
	pthread_condattr_destroy(&how);
	return rc;
}
