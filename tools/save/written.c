/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What did dcpfs write? A directory with files of dcpfs has a list of them, .dcpfs-written: a line
 * a file, "SIZE MTIME NAME", mtime in ns. The last line of a name counts. Only what is as its line
 * says is replaced: it can be written again, other files cannot.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "tools/save/save_int.h"

#define LIST ".dcpfs-written"

enum { MAX_LIST = 256 << 20, MAX_DEPTH = 64 };

struct line {
	const char *name;
	uint64_t size;
	int64_t mtime_ns;
};

struct list {
	struct dcp_buf text,
		lines; /* lines: in the order of their names, of one name in that of the file */
};

static int64_t mtime_of(const struct stat *st)
{
	return st->st_mtim.tv_sec * 1000000000ll + st->st_mtim.tv_nsec;
}

static int append(const struct save *s, int dir, const struct dcp_buf *lines)
{
	dcp_auto_fd int fd = openat(
		dir, LIST, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
		save_mode(s, 0666));
	ssize_t got = fd < 0 ? -1 : write(fd, lines->p, lines->n);

	if (got < 0 || fdatasync(fd) < 0)
		return -errno;
	return (size_t)got < lines->n ? -ENOSPC : 0;
}

int save_note_written(const struct save *s, int dir)
{
	dcp_auto_buf struct dcp_buf lines = DCP_BUF_INIT;

	for (uint32_t i = 0; i < save_nfiles(s); i++) {
		const char *name = s->opts.file ? s->name : save_files(s)[i].name;
		/* Opened, so that NFS asks the server what other ranks have written. */
		dcp_auto_fd int fd =
			s->opts.file ? openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
				     : save_open(s, i);
		struct stat st;

		if (fd < 0 || fstat(fd, &st) < 0)
			return fd < 0 && !s->opts.file ? fd : -errno;
		if (!strchr(name, '\n'))
			dcp_buf_printf(&lines, "%" PRIu64 " %" PRId64 " %s\n",
				       (uint64_t)st.st_size, mtime_of(&st), name);
	}
	return dcp_buf_error(&lines) ? -ENOMEM : append(s, dir, &lines);
}

/* By name; of one name as they stand in the file. */
static int by_name(const void *a, const void *b)
{
	const struct line *x = a, *y = b;
	int by = strcmp(x->name, y->name);

	return by ? by : DCP_CMP(x->name, y->name);
}

/* Read a list; empty where no file is one. */
static int read_list(int at, const char *path, struct list *out)
{
	dcp_auto_fd int fd = openat(at, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	char *p;
	int rc;

	if (fd < 0 || fstat(fd, &st) < 0)
		return errno == ENOENT || errno == ELOOP ? 0 : -errno;
	if (!S_ISREG(st.st_mode))
		return 0;
	if (st.st_size > MAX_LIST)
		return -EFBIG;
	p = dcp_buf_grow(&out->text, (size_t)st.st_size);
	rc = p ? save_pread(fd, p, (uint64_t)st.st_size, 0) : -ENOMEM;
	for (char *end; rc == 0 && (end = strchr(p, '\n')); p = end + 1) {
		struct line line;
		int n = 0;

		*end = '\0';
		if (sscanf(p, "%" SCNu64 " %" SCNd64 "%n", &line.size, &line.mtime_ns, &n) ==
			    2 &&
		    p[n] == ' ') {
			line.name = p + n + 1;
			rc = dcp_buf_add(&out->lines, &line, sizeof(line));
		}
	}
	DCP_SORT(DCP_ITEMS(out->lines, struct line), DCP_NITEMS(out->lines, struct line),
		 by_name);
	return rc;
}

/*
 * NULL: the file is as it was written, or (its name ends with a slash) files below the directory
 * were. Else what it is.
 */
static const char *judge(const struct list *l, const char *name, const struct stat *st)
{
	const struct line *line = DCP_ITEMS(l->lines, struct line);
	size_t n = DCP_NITEMS(l->lines, struct line), i;

	DCP_BISECT(i, 0, n, strcmp(line[i].name, name) < 0);
	if (i == n || strncmp(line[i].name, name, strlen(name) + !S_ISDIR(st->st_mode)) != 0)
		return "was not written by dcpfs";
	while (i + 1 < n && strcmp(line[i + 1].name, name) == 0)
		i++;
	return S_ISDIR(st->st_mode) ||
			       (S_ISREG(st->st_mode) && line[i].size == (uint64_t)st->st_size &&
				line[i].mtime_ns == mtime_of(st))
		       ? NULL
		       : "was changed since dcpfs wrote it";
}

/*
 * Look for a file or directory that is not as it was written, below the directory called @path,
 * with a slash at its end or "". Its name is in @path then, and in *what what it is; else @path is
 * as before.
 */
static int look(const struct list *l, int parent, const char *name, char path[PATH_MAX],
		unsigned depth, const char **what)
{
	DIR *dir = save_open_dir(parent, name);
	size_t n = strlen(path);
	const char *in;
	struct stat st;
	int rc = 0;

	if (!dir)
		return -errno;
	while (rc == 0 && !*what && (in = save_next_name(dir))) {
		if (depth == 0 && strcmp(in, LIST) == 0)
			continue;
		if (fstatat(dirfd(dir), in, &st, AT_SYMLINK_NOFOLLOW) < 0)
			rc = -errno;
		else if ((size_t)snprintf(path + n, PATH_MAX - n, "%s%s", in,
					  S_ISDIR(st.st_mode) ? "/" : "") >= PATH_MAX - n)
			rc = -ENAMETOOLONG;
		else
			*what = depth < MAX_DEPTH ? judge(l, path, &st) : "is too deep";
		if (rc == 0 && !*what && S_ISDIR(st.st_mode))
			rc = look(l, dirfd(dir), in, path, depth + 1, what);
	}
	if (!*what)
		path[n] = '\0';
	closedir(dir);
	return rc;
}

int save_check_replaced(const struct save *s, struct dcp_err *err)
{
	struct list l = { .text = DCP_BUF_INIT, .lines = DCP_BUF_INIT };
	char path[PATH_MAX] = "", list[NAME_MAX + sizeof("/" LIST)];
	const char *what = NULL;
	struct stat st;
	int rc;

	if (!s->opts.force || fstatat(s->parent_fd, s->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	snprintf(list, sizeof(list), "%s/" LIST, s->opts.file ? "." : s->name);
	rc = read_list(s->parent_fd, list, &l);
	if (rc == 0 && s->opts.file)
		what = judge(&l, s->name, &st);
	else if (rc == 0)
		rc = look(&l, s->parent_fd, s->name, path, 0, &what);
	dcp_buf_finish(&l.text);
	dcp_buf_finish(&l.lines);
	if (rc < 0)
		return save_fail(s, rc, s->name, err);
	return what ? dcp_fail(err, -EEXIST,
			       "%s/%s%s%s %s (" LIST " there lists what was), and would be "
			       "lost; remove it first",
			       s->parent, s->name, *path ? "/" : "", path, what)
		    : 0;
}
