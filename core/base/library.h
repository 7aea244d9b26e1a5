/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library: shared libraries that are opened when they are asked for, so that starting costs nothing
 * and a machine without them runs the rest.
 */
#pragma once
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/*
 * Open @library, for good, and have the addresses of its functions @names at @at; NULL: it has none
 * of that name. -ELIBACC: it cannot be opened; -ELIBBAD: it lacks some of them. @why, of @size
 * bytes, is then the reason, about the first that is missing.
 */
int dcp_library_open(const char *library, const char *const *names, size_t n, void **at,
		     char *why, size_t size);

/*
 * kernel: calls that the C library of Debian 12 has and older ones lack. Return values and errno
 * are those of the calls.
 */

static inline int dcp_pidfd_open(pid_t pid)
{
	return (int)syscall(__NR_pidfd_open, pid, 0);
}

static inline ssize_t dcp_process_madvise(int pidfd, const struct iovec *iov, size_t n,
					  int advice)
{
	return syscall(__NR_process_madvise, pidfd, iov, n, advice, 0);
}
