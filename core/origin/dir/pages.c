/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/dir/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static uint64_t page_size(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

bool dcp_is_resident(const uint8_t *at)
{
	uintptr_t page = (uintptr_t)at / page_size() * page_size();
	unsigned char in = 1;

	return mincore((void *)page, 1, &in) < 0 || in & 1;
}

/* The pages of files of overlayfs belong to the files of the lower layers, so neither call of
 * dcp_is_cached() sees them. A mapping of a file that belongs to this user does. */
static bool is_own_of_overlay(int fd)
{
	struct statfs fs;
	struct stat st;

	return fstatfs(fd, &fs) == 0 && (uint32_t)fs.f_type == OVERLAYFS_SUPER_MAGIC &&
	       fstat(fd, &st) == 0 && (geteuid() == 0 || st.st_uid == geteuid());
}

static bool is_mapped(int fd, uint64_t off)
{
	unsigned char in = 0;
	void *map = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, (off_t)(off - off % page_size()));

	if (map == MAP_FAILED)
		return false;
	mincore(map, 1, &in);
	munmap(map, 1);
	return in & 1;
}

bool dcp_is_cached(int fd, uint64_t off)
{
	const uint64_t range[] = { off, 1 };
	uint64_t counts[5]; /* the first: number of cached pages */
	char byte;
	struct iovec iov = { &byte, 1 };

	/* Kernels on which preadv2() begins to read missing pages (from Linux 6.3 on) nearly always
	 * have this call, which does not. */
	if (syscall(SYS_cachestat, fd, range, counts, 0) == 0)
		return counts[0] != 0 || (is_own_of_overlay(fd) && is_mapped(fd, off));
	return preadv2(fd, &iov, 1, (off_t)off, RWF_NOWAIT) == 1;
}

void dcp_bring_near(int fd, uint64_t off, uint64_t n)
{
	posix_fadvise(fd, (off_t)off, (off_t)n, POSIX_FADV_WILLNEED);
}

void dcp_stop_ahead(int fd)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

int dcp_copy_range(int from, uint64_t off, int fd, uint64_t to, uint64_t n)
{
	while (n) {
		off64_t in = (off64_t)off, out = (off64_t)to;
		ssize_t got = copy_file_range(from, &in, fd, &out, n, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		off += (uint64_t)got;
		to += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return 1;
}
