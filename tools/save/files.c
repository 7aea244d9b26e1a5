/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "tools/save/save_int.h"

static pthread_mutex_t why_lock = PTHREAD_MUTEX_INITIALIZER;

int save_keep_why(struct save *s, int rc, const struct dcp_err *why)
{
	pthread_mutex_lock(&why_lock);
	if (!s->why.msg[0])
		s->why = *why;
	pthread_mutex_unlock(&why_lock);
	return rc;
}

int save_fail(const struct save *s, int code, const char *file, struct dcp_err *err)
{
	struct dcp_err why;

	pthread_mutex_lock(&why_lock);
	why = s->why;
	pthread_mutex_unlock(&why_lock);
	if (why.msg[0])
		return dcp_fail(err, code, "%s/%s: %.400s", s->parent, s->name, why.msg);
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

/* ---- a directory's files, written ---- */

void save_close_pen(struct save_pen *pen)
{
	dcp_close_fd(&pen->fd);
	dcp_close_fd(&pen->direct);
}

int save_pick_file(const struct save *s, struct save_pen *pen, uint32_t file)
{
	if (pen->fd >= 0 && pen->file == file)
		return 0;
	save_close_pen(pen);
	pen->fd = save_open(s, file);
	pen->file = file;
	if (pen->fd >= 0 && s->opts.direct)
		pen->direct = save_open_direct(s, file);
	return pen->fd < 0 ? pen->fd : 0;
}

/*
 * Whole pages of the file by O_DIRECT, if the memory is as far from a page's beginning; what is
 * left over at both ends as always.
 */
int save_write_file(struct save *s, struct save_pen *pen, uint32_t file, uint64_t at,
		    const void *from, uint64_t n)
{
	uint64_t end = at + n, lo = dcp_div_up(at, SAVE_PAGE) * SAVE_PAGE;
	uint64_t hi = end - end % SAVE_PAGE;
	int rc = save_pick_file(s, pen, file);
	const char *p = from;

	if (rc < 0)
		return rc;
	if (pen->direct < 0 || lo >= hi || ((uintptr_t)p - at) % SAVE_PAGE)
		return save_pwrite(pen->fd, p, n, at);
	rc = save_pwrite(pen->direct, p + (lo - at), hi - lo, lo);
	if (rc == -EINVAL) { /* larger pages are asked for */
		dcp_close_fd(&pen->direct);
		return save_pwrite(pen->fd, p, n, at);
	}
	if (rc == 0)
		__atomic_fetch_add(&s->direct, hi - lo, __ATOMIC_RELAXED);
	if (rc == 0)
		rc = save_pwrite(pen->fd, p, lo - at, at);
	return rc == 0 ? save_pwrite(pen->fd, p + (hi - at), end - hi, hi) : rc;
}

/* Of a file that only others wrote there is nothing to be brought to the disk. */
int save_sync_files(struct save *s, struct dcp_err *err)
{
	for (uint32_t i = 0; i < save_nfiles(s); i++) {
		dcp_auto_fd int fd = save_open(s, i);

		if (fd < 0 || fdatasync(fd) < 0)
			return save_fail(s, fd < 0 ? fd : -errno, save_files(s)[i].name, err);
	}
	return 0;
}
