/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/parse/dir_int.h"

enum { MAX_NAMES = 1000000, RETRIES = 100 };

/* A million names of 255 bytes, and their entries. */
static const size_t arena_limit = (size_t)MAX_NAMES * (272 + sizeof(struct dcp_dirent)) + 65536;

static bool has_dotdot(const char *name)
{
	for (const char *p = name; *p; p += strcspn(p, "/"), p += *p == '/')
		if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0'))
			return true;
	return false;
}

static int check_name(const char *name, struct dcp_err *err)
{
	if (!*name)
		return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET, "an empty file name");
	if (*name == '/')
		return dcp_fail(err, -EXDEV, DCP_ERR_NO_OFFSET,
				"%.300s: an absolute name, not one inside the directory", name);
	if (has_dotdot(name))
		return dcp_fail(err, -EXDEV, DCP_ERR_NO_OFFSET,
				"%.300s: names with \"..\" are not followed", name);
	return 0;
}

/* The kernel gives up with EAGAIN when somebody renames along the way. */
int dcp_open_kernel(int dirfd, const char *name, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};

	for (int i = 0; i < RETRIES; i++) {
		long fd = syscall(SYS_openat2, dirfd, name, &how, sizeof(how));

		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN && errno != EINTR)
			break;
	}
	return -errno;
}

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

	if (has_dotdot(name) || *name == '/')
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

static int open_below(int dirfd, const char *name, int flags)
{
	int fd = dcp_open_kernel(dirfd, name, flags);

	if (fd == -ENOSYS || fd == -EPERM)
		fd = dcp_open_walk(dirfd, name, flags);
	return fd == -EXDEV ? dcp_open_blob(dirfd, name, flags) : fd;
}

static int fail_open(struct dcp_err *err, int code, const char *name)
{
	if (code == -EXDEV)
		return dcp_fail(err, code, DCP_ERR_NO_OFFSET,
				"%.300s: leads outside the directory", name);
	return dcp_fail(err, code, DCP_ERR_NO_OFFSET, "%.300s: %s", name, strerror(-code));
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

/* O_NONBLOCK, so that a FIFO without a writer does not hang us before fstat can tell. */
int dcp_open_beneath(int dirfd, const char *name, int *fd, struct stat *st, struct dcp_err *err)
{
	dcp_auto_fd int got = -1;
	struct stat local;
	int code = check_name(name, err);

	if (code < 0)
		return code;
	got = open_below(dirfd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
	if (got == -ENXIO)
		return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
				"%.300s: a socket or device, not a regular file", name);
	if (got < 0)
		return fail_open(err, got, name);
	if (fstat(got, &local) < 0)
		return fail_open(err, -errno, name);
	if (!S_ISREG(local.st_mode))
		return dcp_fail(err, S_ISDIR(local.st_mode) ? -EISDIR : -EINVAL,
				DCP_ERR_NO_OFFSET, "%.300s: %s, not a regular file", name,
				kind_of(local.st_mode));
	/* io_uring answers -EAGAIN on descriptors that kept O_NONBLOCK. */
	if (fcntl(got, F_SETFL, 0) < 0)
		return fail_open(err, -errno, name);
	if (st)
		*st = local;
	*fd = dcp_take_fd(&got);
	return 0;
}

/* What an entry is; links stand for what they lead to inside the directory. */
static int stat_entry(int fd, const char *name, struct dcp_dirent *out)
{
	struct stat st;

	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISLNK(st.st_mode)) {
		dcp_auto_fd int target = open_below(fd, name, O_PATH);

		if (target < 0 || fstat(target, &st) < 0)
			return 0;
	}
	out->is_dir = S_ISDIR(st.st_mode);
	out->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	return 0;
}

static int add_entry(struct dcp_dir *d, struct dcp_buf *list, const char *name)
{
	struct dcp_dirent e = { 0 };
	int code = stat_entry(d->fd, name, &e);

	if (code == -ENOENT) /* gone since the directory was read */
		return 0;
	if (code < 0)
		return code;
	if (d->n == MAX_NAMES)
		return -E2BIG;
	e.name = dcp_arena_strndup(&d->arena, name, strlen(name));
	if (!e.name)
		return -ENOMEM;
	dcp_buf_add(list, &e, sizeof(e));
	d->n++;
	return dcp_buf_error(list);
}

static int by_name(const void *a, const void *b)
{
	const struct dcp_dirent *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int list_names(struct dcp_dir *d, DIR *stream, struct dcp_buf *list)
{
	for (;;) {
		struct dirent *e;
		int code = 0;

		errno = 0;
		e = readdir(stream);
		if (!e)
			return -errno;
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			code = add_entry(d, list, e->d_name);
		if (code < 0)
			return code;
	}
}

static int list(struct dcp_dir *d)
{
	dcp_auto_buf struct dcp_buf found = DCP_BUF_INIT;
	dcp_auto_fd int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream;
	int code;

	if (fd < 0)
		return -errno;
	stream = fdopendir(fd);
	if (!stream)
		return -errno;
	dcp_take_fd(&fd); /* the stream's now */
	code = list_names(d, stream, &found);
	closedir(stream);
	if (code < 0)
		return code;
	d->entries = dcp_arena_calloc(&d->arena, d->n, sizeof(*d->entries));
	if (!d->entries)
		return -ENOMEM;
	if (d->n)
		memcpy(d->entries, found.p, d->n * sizeof(*d->entries));
	qsort(d->entries, d->n, sizeof(*d->entries), by_name);
	return 0;
}

/* List the directory open at @fd (taken, also on failure), called @path in messages. */
static int dir_from_fd(int fd, const char *path, struct dcp_dir *out, struct dcp_err *err)
{
	struct dcp_dir d = { .fd = fd };
	int code = -ENOMEM;

	dcp_arena_init(&d.arena, arena_limit + strlen(path));
	d.path = dcp_arena_strndup(&d.arena, path, strlen(path));
	if (d.path)
		code = list(&d);
	if (code == 0) {
		*out = d;
		return 0;
	}
	dcp_dir_close(&d);
	if (code == -E2BIG)
		return dcp_fail(err, code, DCP_ERR_NO_OFFSET, "%.300s: more than %d names",
				path, MAX_NAMES);
	return dcp_fail(err, code, DCP_ERR_NO_OFFSET, "%.300s: %s", path, strerror(-code));
}

/* Where @path really is. A link of Hugging Face's cache stays what it is: where it leads to,
 * files have no names. */
static char *real_file(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	dcp_auto_free char *above =
		slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	dcp_auto_fd int dir = -1, blob = -EXDEV;
	dcp_auto_free char *real = NULL;
	char *whole = NULL;

	if (above)
		dir = open(above, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir >= 0)
		blob = dcp_open_blob(dir, base, O_PATH);
	if (blob < 0)
		return realpath(path, NULL);
	real = realpath(above, NULL);
	if (!real || asprintf(&whole, "%s/%s", real, base) < 0)
		return NULL;
	return whole;
}

/* A directory of one entry, the regular file @path. Links to it are its user's to follow. */
static int dir_of_file(const char *path, struct dcp_dir *out)
{
	dcp_auto_free char *real = real_file(path);
	char *slash = real ? strrchr(real, '/') : NULL;
	struct dcp_dir d = { .fd = -1 };
	int code = -ENOMEM;

	if (!slash)
		return -errno;
	dcp_arena_init(&d.arena, 2 * strlen(real) + 65536);
	d.path = dcp_arena_strndup(&d.arena, real, strlen(real));
	d.entries = dcp_arena_calloc(&d.arena, 1, sizeof(*d.entries));
	slash[slash == real] = '\0';
	if (d.path && d.entries) {
		d.fd = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		code = d.fd < 0 ? -errno : 0;
	}
	if (code == 0) {
		d.entries->name = strrchr(d.path, '/') + 1;
		d.is_file = true;
		d.n = 1;
		code = stat_entry(d.fd, d.entries->name, d.entries);
	}
	if (code == 0)
		*out = d;
	else
		dcp_dir_close(&d);
	return code;
}

int dcp_dir_open(const char *path, struct dcp_dir *out, struct dcp_err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 && errno == ENOTDIR && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
		int code = dir_of_file(path, out);

		return code == 0 ? 0 : fail_open(err, code, path);
	}
	if (fd < 0)
		return dcp_fail(err, -errno, DCP_ERR_NO_OFFSET, "%.300s: %s", path,
				strerror(errno));
	return dir_from_fd(fd, path, out, err);
}

int dcp_dir_open_at(const struct dcp_dir *parent, const char *name, struct dcp_dir *out,
		    struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;
	int fd, code = check_name(name, err);

	if (code < 0)
		return code;
	dcp_buf_printf(&path, "%s/%s", parent->path, name);
	if (dcp_buf_error(&path))
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory");
	fd = open_below(parent->fd, name, O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		return fail_open(err, fd, path.p);
	return dir_from_fd(fd, path.p, out, err);
}

int dcp_dir_only(const struct dcp_dir *d, bool (*keep)(void *ctx, const struct dcp_dirent *e),
		 void *ctx, struct dcp_dir *out)
{
	struct dcp_dir part = { .fd = fcntl(d->fd, F_DUPFD_CLOEXEC, 3) };
	bool failed = false;

	if (part.fd < 0)
		return -errno;
	dcp_arena_init(&part.arena, arena_limit + strlen(d->path));
	part.path = dcp_arena_strndup(&part.arena, d->path, strlen(d->path));
	part.entries = dcp_arena_calloc(&part.arena, d->n, sizeof(*part.entries));
	for (size_t i = 0; part.path && part.entries && !failed && i < d->n; i++) {
		const struct dcp_dirent *e = &d->entries[i];
		struct dcp_dirent *mine = &part.entries[part.n];

		if (!keep(ctx, e))
			continue;
		*mine = *e;
		mine->name = dcp_arena_strndup(&part.arena, e->name, strlen(e->name));
		failed = !mine->name;
		part.n++;
	}
	if (failed || !part.path || !part.entries) {
		dcp_dir_close(&part);
		return -ENOMEM;
	}
	*out = part;
	return 0;
}

int dcp_dir_input(const struct dcp_dir *d, const char *name, struct dcp_input *out,
		  struct dcp_err *err)
{
	struct dcp_input in = { .fd = -1 };
	int code = dcp_open_beneath(d->fd, name, &in.fd, NULL, err);

	if (code < 0)
		return code;
	code = dcp_source_fd(in.fd, &in.src);
	if (code < 0) {
		dcp_close_fd(&in.fd);
		return dcp_fail(err, code, DCP_ERR_NO_OFFSET, "%.300s: cannot be read", name);
	}
	*out = in;
	return 0;
}

void dcp_input_close(struct dcp_input *in)
{
	dcp_close_fd(&in->fd);
}

void dcp_dir_close(struct dcp_dir *d)
{
	if (!d)
		return;
	/* A zeroed struct has no arena block and fd 0, which is not ours. */
	if (d->path || d->fd > 0)
		dcp_close_fd(&d->fd);
	dcp_arena_finish(&d->arena);
	*d = (struct dcp_dir){ .fd = -1 };
}

const struct dcp_dirent *dcp_dir_find(const struct dcp_dir *d, const char *name)
{
	struct dcp_dirent key = { .name = name };

	return d->n ? bsearch(&key, d->entries, d->n, sizeof(key), by_name) : NULL;
}

/* Seconds far from our time do not fit in nanoseconds: the nearest that does. */
static int64_t nanoseconds(struct timespec t)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)t.tv_sec, (int64_t)1000000000, &ns) ||
	    __builtin_add_overflow(ns, (int64_t)t.tv_nsec, &ns))
		return t.tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

void dcp_file_id_from_stat(const struct stat *st, struct dcp_file_id *id)
{
	id->size = (uint64_t)st->st_size;
	id->dev = st->st_dev;
	id->ino = st->st_ino;
	id->mtime_ns = nanoseconds(st->st_mtim);
	id->ctime_ns = nanoseconds(st->st_ctim);
}

bool dcp_file_id_same(const struct dcp_file_id *a, const struct dcp_file_id *b)
{
	return a->size == b->size && a->dev == b->dev && a->ino == b->ino &&
	       a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}
