/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "tools/save/save_int.h"

int save_fail(const struct save *s, int code, const char *file, struct dcp_err *err)
{
	/* Names that are our own mean nothing to the user: only OUT is named. */
	if (strcmp(file, s->journal) == 0 || strcmp(file, s->part) == 0)
		return dcp_fail(err, code, "%s/%s: %s", s->parent, s->name, strerror(-code));
	return dcp_fail(err, code, "%s/%s: writing %s: %s", s->parent, s->name, file,
			strerror(-code));
}

int save_narrow(const struct save *s, int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || (save_mode(s, st.st_mode) != st.st_mode &&
				   fchmod(fd, save_mode(s, st.st_mode) & 07777) < 0))
		return -errno;
	return 0;
}

int save_open_parent(const struct save *s, const char **name, bool make)
{
	int dir = fcntl(s->dir, F_DUPFD_CLOEXEC, 0);
	char part[NAME_MAX + 1];

	if (dir < 0)
		return -errno;
	for (const char *slash; dir >= 0 && (slash = strchr(*name, '/')); *name = slash + 1) {
		int up = dir;

		if (slash - *name > NAME_MAX) {
			close(up);
			return -ENAMETOOLONG;
		}
		snprintf(part, sizeof(part), "%.*s", (int)(slash - *name), *name);
		dir = make && mkdirat(up, part, save_mode(s, 0777)) < 0 && errno != EEXIST
			      ? -1
			      : openat(up, part,
				       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (dir < 0)
			dir = -errno;
		close(up);
	}
	return dir;
}

int save_open_at(const struct save *s, const struct save_file *f, int flags)
{
	const char *name = f->last ? SAVE_LAST : f->name;
	int dir = save_open_parent(s, &name, flags & O_CREAT), fd;

	if (dir < 0)
		return dir;
	fd = openat(dir, name, flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC, save_mode(s, 0666));
	fd = fd < 0 ? -errno : fd;
	close(dir);
	return fd;
}

int save_open(const struct save *s, uint32_t file)
{
	return save_open_at(s, &save_files(s)[file], 0);
}

int save_open_direct(const struct save *s, uint32_t file)
{
	return save_open_at(s, &save_files(s)[file], O_DIRECT);
}

int save_pwrite(int fd, const void *p, uint64_t n, uint64_t off)
{
	while (n) {
		ssize_t got = pwrite(fd, p, DCP_MIN(n, (uint64_t)1 << 30), (off_t)off);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EIO;
		p = (const char *)p + got;
		off += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return 0;
}

int save_pread(int fd, void *p, uint64_t n, uint64_t off)
{
	while (n) {
		ssize_t got = pread(fd, p, n, (off_t)off);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EIO;
		p = (char *)p + got;
		off += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return 0;
}

DIR *save_open_dir(int parent, const char *name)
{
	dcp_auto_fd int fd =
		openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (dir)
		dcp_take_fd(&fd);
	return dir;
}

const char *save_next_name(DIR *dir)
{
	const struct dirent *e;

	while ((e = readdir(dir)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			return e->d_name;
	return NULL;
}

int save_remove_tree(int parent, const char *name)
{
	DIR *dir = save_open_dir(parent, name);
	const char *in;
	int rc = 0;

	if (!dir)
		return errno == ENOENT ? 0 : -errno;
	while (rc == 0 && (in = save_next_name(dir)))
		if (unlinkat(dirfd(dir), in, 0) < 0)
			rc = errno == EISDIR || errno == EPERM
				     ? save_remove_tree(dirfd(dir), in)
				     : -errno;
	closedir(dir);
	if (rc == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0)
		rc = -errno;
	return rc;
}
