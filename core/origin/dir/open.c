/* SPDX-License-Identifier: Apache-2.0 */
/* Opening files below a directory: no name, however it is written, leads out of the directory. */
#include "core/origin/dir/dir_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"

/* walk: a path opened one component at a time, where the kernel has no openat2. */

static bool is_link(int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

static int open_component(int dirfd, const char *name, int flags)
{
	int fd = openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC), code = -errno;
	struct stat st;

	if (fd < 0)
		return is_link(dirfd, name) ? -EXDEV : code;
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

/*
 * Only one kind of link that leads out of a directory is followed: that of Hugging Face's download
 * cache, where every file of a checkpoint is such a link.
 *
 *	models--ORG--NAME/blobs/<hash>                   the bytes
 *	models--ORG--NAME/snapshots/<revision>/<file>    -> ../../blobs/<hash>
 *	models--ORG--NAME/snapshots/<revision>/unet/<file>  -> ../../../blobs/<hash>
 *
 * The link must have this form, the two directories must have these names and lie beside each
 * other, and the target must not be a link itself.
 */

enum { MAX_UP = 8 };

/* Parse "../../blobs/<hash>": returns the number of levels up, and the hash; 0: another form. */
static int parse_link(const char *link, const char **hash)
{
	int up = 0;

	for (; strncmp(link, "../", 3) == 0; link += 3)
		up++;
	if (up < 2 || up > MAX_UP || strncmp(link, "blobs/", 6) != 0)
		return 0;
	link += 6;
	*hash = link;
	while ((*link >= '0' && *link <= '9') || (*link >= 'a' && *link <= 'z') ||
	       (*link >= 'A' && *link <= 'Z'))
		link++;
	return *link || link == *hash ? 0 : up;
}

/* Open "../" @up times, then @name, relative to @dirfd. */
static int open_above(int dirfd, int up, const char *name)
{
	char path[3 * MAX_UP + 16] = "";
	char *at = path;

	for (; up > 0; up--)
		at = stpcpy(at, "../");
	strcpy(at, name);
	return openat(dirfd, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool same_dir(int a, int b)
{
	struct stat sa, sb;

	return a >= 0 && b >= 0 && fstat(a, &sa) == 0 && fstat(b, &sb) == 0 &&
	       sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* Open the directory of @name and find the last component. No link is allowed on the way, so that
 * the directories above are those written in the name. */
static int open_parent(int dirfd, const char *name, const char **last)
{
	const char *slash = strrchr(name, '/');
	char path[PATH_MAX];

	*last = slash ? slash + 1 : name;
	if (slash && (size_t)(slash - name) >= sizeof(path))
		return -ENAMETOOLONG;
	memcpy(path, name, slash ? (size_t)(slash - name) : 0);
	path[slash ? slash - name : 0] = '\0';
	return dcp_open_walk(dirfd, slash ? path : ".", O_PATH | O_DIRECTORY);
}

int dcp_open_blob(int dirfd, const char *name, int flags)
{
	dcp_auto_fd int parent = -1, above = -1, snapshots = -1, blobs = -1;
	char link[PATH_MAX];
	const char *hash = NULL, *last;
	ssize_t n;
	int up, fd;

	parent = open_parent(dirfd, name, &last);
	n = parent < 0 ? -1 : readlinkat(parent, last, link, sizeof(link) - 1);
	if (n < 0)
		return -EXDEV;
	link[n] = '\0';
	up = parse_link(link, &hash);
	if (!up)
		return -EXDEV;
	above = open_above(parent, up - 1, "");
	snapshots = open_above(parent, up, "snapshots");
	blobs = open_above(parent, up, "blobs");
	if (!same_dir(above, snapshots) || blobs < 0)
		return -EXDEV;
	fd = openat(blobs, hash, flags | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? (errno == ELOOP ? -EXDEV : -errno) : fd;
}

enum { RETRIES = 100 };

/* The kernel returns EAGAIN if a directory on the way is renamed meanwhile. */
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
