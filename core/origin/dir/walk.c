/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk: a path opened one component at a time, where the kernel has no openat2.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/text.h"
#include "core/origin/dir/dir_int.h"

bool dcp_is_link(int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

static int open_component(int dirfd, const char *name, int flags)
{
	int fd = openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC), code = -errno;
	struct stat st;

	if (fd < 0)
		return dcp_is_link(dirfd, name) ? -EXDEV : code;
	/* O_PATH | O_NOFOLLOW opens a link itself. */
	if ((flags & O_PATH) && fstat(fd, &st) == 0 && S_ISLNK(st.st_mode)) {
		close(fd);
		return -EXDEV;
	}
	return fd;
}

int dcp_open_walk(int dirfd, const char *name, int flags)
{
	dcp_auto_fd int held = -1;
	char part[NAME_MAX + 1];
	int at = dirfd;

	if (dcp_climbs(name) || *name == '/')
		return -EXDEV;
	for (;;) {
		size_t n = strcspn(name, "/");
		bool last = name[n] == '\0';
		int fd;

		if (n > NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(part, name, n);
		part[n] = '\0';
		fd = open_component(at, n ? part : ".", last ? flags : O_PATH | O_DIRECTORY);
		if (fd < 0 || last)
			return fd;
		dcp_close_fd(&held);
		at = held = fd;
		name += n + 1;
	}
}
