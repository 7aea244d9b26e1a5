/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one kind of link that leads out of a directory and is followed: that of Hugging Face's
 * download cache, where every file of a checkpoint is one.
 *
 *	models--ORG--NAME/blobs/<hash>                   the bytes
 *	models--ORG--NAME/snapshots/<revision>/<file>    -> ../../blobs/<hash>
 *	models--ORG--NAME/snapshots/<revision>/unet/<file>  -> ../../../blobs/<hash>
 *
 * Only this form, only between directories of these names beside each other, only to a file
 * that is not a link itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/origin/dir/dir_int.h"

enum { MAX_UP = 8 };

/* "../../blobs/<hash>": how many levels up, and the hash; 0: anything else. */
static int parse(const char *link, const char **hash)
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

/* Below @dirfd: "../" @up times, then @name. */
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

/* The directory that @name lies in, and its last component. No link on the way, so that what
 * is above it is what stands in the name. */
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
	up = parse(link, &hash);
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
