/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/base/err.h"
#include "tools/save/save_int.h"

int save_fail(const struct save *s, int code, const char *file, struct dcp_err *err)
{
	return dcp_fail(err, code, DCP_ERR_NO_OFFSET, "%s/%s: writing %s: %s", s->parent,
			s->name, file, strerror(-code));
}

static int open_file(const struct save *s, uint32_t file, int flags)
{
	const struct save_file *f = &save_files(s)[file];
	int fd = openat(s->dir, f->last ? SAVE_LAST : f->name,
			flags | O_RDWR | O_NOFOLLOW | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

int save_open(const struct save *s, uint32_t file)
{
	return open_file(s, file, 0);
}

int save_open_direct(const struct save *s, uint32_t file)
{
	return open_file(s, file, O_DIRECT);
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

int save_remove_tree(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	int rc = 0;

	if (!dir) {
		rc = -errno;
		if (fd >= 0)
			close(fd);
		return rc == -ENOENT ? 0 : rc;
	}
	while (rc == 0 && (e = readdir(dir))) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		if (unlinkat(fd, e->d_name, 0) < 0)
			rc = errno == EISDIR || errno == EPERM ? save_remove_tree(fd, e->d_name)
							       : -errno;
	}
	closedir(dir);
	if (rc == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0)
		rc = -errno;
	return rc;
}
