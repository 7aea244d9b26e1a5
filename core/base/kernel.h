/* SPDX-License-Identifier: Apache-2.0 */
/* kernel: calls that the C library of Debian 12 has and older ones lack. Return values and errno are those of the calls. */
#pragma once
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static inline int dcp_pidfd_open(pid_t pid)
{
	return (int)syscall(__NR_pidfd_open, pid, 0);
}

static inline ssize_t dcp_process_madvise(int pidfd, const struct iovec *iov, size_t n,
					  int advice)
{
	return syscall(__NR_process_madvise, pidfd, iov, n, advice, 0);
}
