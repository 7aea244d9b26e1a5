/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening below a directory: no name leads out of it, whatever it says.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/origin/dir/dir_int.h"

enum { RETRIES = 100 };

/* The kernel gives up with EAGAIN when a directory on the way is renamed meanwhile. */
static int open_kernel(int dirfd, const char *name, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};

	for (int i = 0; i < RETRIES; i++) {
		long fd = syscall(__NR_openat2, dirfd, name, &how, sizeof(how));

		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN && errno != EINTR)
			break;
	}
	return -errno;
}

int dcp_open_below(int dirfd, const char *name, int flags)
{
	int fd = open_kernel(dirfd, name, flags);

	if (fd == -ENOSYS || fd == -EPERM)
		fd = dcp_open_walk(dirfd, name, flags);
	return fd == -EXDEV ? dcp_open_blob(dirfd, name, flags) : fd;
}

int dcp_open_fail(struct dcp_err *err, int code, const char *name)
{
	if (code == -EXDEV)
		return dcp_fail(err, code, "%.300s: leads outside the directory", name);
	return dcp_fail(err, code, "%.300s: %s", name, strerror(-code));
}

static const char *kind_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return "a directory";
	case S_IFIFO:
		return "a FIFO";
	case S_IFSOCK:
		return "a socket";
	case S_IFCHR:
	case S_IFBLK:
		return "a device";
	default:
		return "something else";
	}
}

/* O_NONBLOCK, so that a FIFO without a writer does not hang us before fstat can say so. */
int dcp_open_beneath(int dirfd, const char *name, int *fd, struct stat *st, struct dcp_err *err)
{
	dcp_auto_fd int got = -1;
	struct stat local;
	int code = dcp_site_check_name(name, err);

	if (code < 0)
		return code;
	got = dcp_open_below(dirfd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
	if (got == -ENXIO)
		return dcp_fail(err, -EINVAL, "%.300s: a socket or device, not a regular file",
				name);
	if (got < 0)
		return dcp_open_fail(err, got, name);
	if (fstat(got, &local) < 0)
		return dcp_open_fail(err, -errno, name);
	if (!S_ISREG(local.st_mode))
		return dcp_fail(err, S_ISDIR(local.st_mode) ? -EISDIR : -EINVAL,
				"%.300s: %s, not a regular file", name, kind_of(local.st_mode));
	/* io_uring answers -EAGAIN on descriptors that kept O_NONBLOCK. */
	if (fcntl(got, F_SETFL, 0) < 0)
		return dcp_open_fail(err, -errno, name);
	if (st)
		*st = local;
	*fd = dcp_take_fd(&got);
	return 0;
}
