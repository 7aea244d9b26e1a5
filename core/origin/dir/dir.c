/* SPDX-License-Identifier: Apache-2.0 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/origin/dir/dir_int.h"
#include "core/origin/dir/seen.h"

/* What an entry is; links stand for what they lead to inside the directory. */
static int stat_entry(const struct dcp_dir *d, const char *name, struct dcp_dirent *out)
{
	struct stat st;

	if (fstatat(d->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISLNK(st.st_mode)) {
		dcp_auto_fd int target = dcp_open_below(d->fd, name, O_PATH);

		if (dcp_seen_opening(d->seen, target) < 0 || fstat(target, &st) < 0)
			return 0;
	}
	out->is_dir = S_ISDIR(st.st_mode);
	out->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	return 0;
}

static int add_entry(struct dcp_dir *d, struct dcp_buf *list, const char *name)
{
	struct dcp_dirent e = { 0 };
	int code = stat_entry(d, name, &e);

	if (code == -ENOENT) /* gone since the directory was read */
		return 0;
	if (code < 0)
		return code;
	if (d->n == DCP_DIR_MAX_NAMES)
		return -E2BIG;
	e.name = dcp_arena_strdup(&d->arena, name);
	if (!e.name)
		return -ENOMEM;
	dcp_buf_add(list, &e, sizeof(e));
	d->n++;
	return dcp_buf_error(list);
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
	DCP_SORT(d->entries, d->n, dcp_by_text);
	return 0;
}

/* List the directory open at @fd (taken, also on failure), called @path in messages. */
static int dir_from_fd(int fd, const char *path, struct dcp_seen *seen, struct dcp_dir *out,
		       struct dcp_err *err)
{
	struct dcp_dir d = { .fd = fd, .seen = seen };
	int code = -ENOMEM;

	dcp_arena_init(&d.arena, dcp_dir_memory(path));
	d.path = dcp_arena_strdup(&d.arena, path);
	if (d.path)
		code = dcp_seen_opening(seen, list(&d));
	if (code == 0) {
		*out = d;
		return 0;
	}
	dcp_dir_close(&d);
	if (code == -E2BIG)
		return dcp_fail(err, code, "%.300s: more than %d names", path,
				DCP_DIR_MAX_NAMES);
	return dcp_fail(err, code, "%.300s: %s", path, strerror(-code));
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
	d.path = dcp_arena_strdup(&d.arena, real);
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
		code = stat_entry(&d, d.entries->name, d.entries);
	}
	if (code == 0)
		*out = d;
	else
		dcp_dir_close(&d);
	return code;
}

static int open_path(const char *path, struct dcp_seen *seen, struct dcp_dir *out,
		     struct dcp_err *err)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 && errno == ENOTDIR && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
		int code = dir_of_file(path, out);

		return code == 0 ? 0 : dcp_open_fail(err, code, path);
	}
	if (fd < 0)
		return dcp_fail(err, -errno, "%.300s: %s", path, strerror(errno));
	return dir_from_fd(fd, path, seen, out, err);
}

int dcp_dir_open_seen(const char *path, struct dcp_seen *seen, struct dcp_dir *out,
		      struct dcp_err *err)
{
	dcp_seen_note(seen, AT_FDCWD, NULL, path, true);
	return open_path(path, seen, out, err);
}

int dcp_dir_open(const char *path, struct dcp_dir *out, struct dcp_err *err)
{
	return open_path(path, NULL, out, err);
}

void dcp_dir_note(const struct dcp_dir *d, const char *name)
{
	dcp_seen_note(d->seen, d->fd, d->path, name, false);
}

int dcp_dir_open_at(const struct dcp_dir *parent, const char *name, struct dcp_dir *out,
		    struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;
	int fd, code = dcp_dir_check_name(name, err);

	if (code < 0)
		return code;
	if (parent->archive)
		return dcp_archive_open_at(parent, name, out, err);
	if (dcp_buf_printf(&path, "%s/%s", parent->path, name) < 0)
		return dcp_fail(err, -ENOMEM, "out of memory");
	dcp_seen_note(parent->seen, parent->fd, parent->path, name, true);
	fd = dcp_open_below(parent->fd, name, O_RDONLY | O_DIRECTORY);
	if (dcp_seen_opening(parent->seen, fd) < 0)
		return dcp_open_fail(err, fd, path.p);
	return dir_from_fd(fd, path.p, parent->seen, out, err);
}

/* Everything of @d but its entries. */
static int copy_head(const struct dcp_dir *d, struct dcp_dir *out)
{
	struct dcp_dir part = { .fd = -1, .archive = d->archive, .seen = d->seen };

	dcp_arena_init(&part.arena, dcp_dir_memory(d->path));
	part.path = dcp_arena_strdup(&part.arena, d->path);
	if (d->within)
		part.within = dcp_arena_strdup(&part.arena, d->within);
	part.entries = dcp_arena_calloc(&part.arena, d->n, sizeof(*part.entries));
	if (!part.path || !part.entries || (d->within && !part.within)) {
		dcp_arena_finish(&part.arena);
		return -ENOMEM;
	}
	if (!d->archive)
		part.fd = fcntl(d->fd, F_DUPFD_CLOEXEC, 3);
	if (!d->archive && part.fd < 0) {
		int code = dcp_seen_opening(d->seen, -errno);

		dcp_arena_finish(&part.arena);
		return code;
	}
	*out = part;
	return 0;
}

int dcp_dir_only(const struct dcp_dir *d, bool (*keep)(void *ctx, const struct dcp_dirent *e),
		 void *ctx, struct dcp_dir *out)
{
	struct dcp_dir part;
	int code = copy_head(d, &part);

	for (size_t i = 0; code == 0 && i < d->n; i++) {
		const struct dcp_dirent *e = &d->entries[i];
		struct dcp_dirent *mine = &part.entries[part.n];

		if (!keep(ctx, e))
			continue;
		*mine = *e;
		mine->name = dcp_arena_strdup(&part.arena, e->name);
		if (!mine->name) {
			dcp_dir_close(&part);
			return -ENOMEM;
		}
		part.n++;
	}
	if (code == 0)
		*out = part;
	return code;
}

int dcp_dir_input(const struct dcp_dir *d, const char *name, struct dcp_input *out,
		  struct dcp_err *err)
{
	struct dcp_input in = { .fd = -1 };
	int code;

	if (d->archive)
		return dcp_archive_input(d, name, out, err);
	dcp_dir_note(d, name);
	code = dcp_seen_opening(d->seen, dcp_open_beneath(d->fd, name, &in.fd, NULL, err));
	if (code < 0)
		return code;
	code = dcp_source_fd(in.fd, &in.src);
	if (code < 0) {
		dcp_close_fd(&in.fd);
		return dcp_fail(err, code, "%.300s: cannot be read", name);
	}
	*out = in;
	return 0;
}
