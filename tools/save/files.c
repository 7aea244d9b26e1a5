/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/save/save_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"

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
	/* The user does not know the names of temporary files: name only OUT. */
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

static int save_open_direct(const struct save *s, uint32_t file)
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

/* Write whole pages of the file by O_DIRECT, if the memory has the same alignment; the rest at both
 * ends is written normally. */
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
	if (rc == -EINVAL) { /* the file system needs a larger alignment */
		dcp_close_fd(&pen->direct);
		return save_pwrite(pen->fd, p, n, at);
	}
	if (rc == 0)
		__atomic_fetch_add(&s->direct, hi - lo, __ATOMIC_RELAXED);
	if (rc == 0)
		rc = save_pwrite(pen->fd, p, lo - at, at);
	return rc == 0 ? save_pwrite(pen->fd, p + (hi - at), end - hi, hi) : rc;
}

/* A file that only other processes wrote need not be synced here. */
int save_sync_files(struct save *s, struct dcp_err *err)
{
	for (uint32_t i = 0; i < save_nfiles(s); i++) {
		dcp_auto_fd int fd = save_open(s, i);

		if (fd < 0 || fdatasync(fd) < 0)
			return save_fail(s, fd < 0 ? fd : -errno, save_files(s)[i].name, err);
	}
	return 0;
}

/*
 * .NAME.dcpfs-journal: a head, then struct save_sum of each piece. All processes that share the
 * save map it, so that sums that a killed process has recorded are kept. Rank 0 keeps it locked as
 * long as it lives.
 */

static const char magic[8] = "dcpfsSV1";

struct head {
	char magic[8];
	uint64_t plan, npieces; /* hash of the plan */
};

int save_journal_open(struct save *s, struct dcp_err *err)
{
	struct stat st, named;

	for (;;) {
		int fd = openat(s->parent_fd, s->journal,
				O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
				save_mode(s, 0666));

		s->fresh = fd >= 0;
		if (fd < 0 && errno == EEXIST)
			fd = openat(s->parent_fd, s->journal, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0 && errno == ENOENT)
			continue; /* removed meanwhile */
		if (fd < 0)
			return dcp_fail(err, -errno, "%s: no file can be made there: %s",
					s->parent, strerror(errno));
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			close(fd);
			return dcp_fail(err, -EBUSY,
					"%s/%s is being written by another process", s->parent,
					s->name);
		}
		/* Another process may have finished and removed the journal before it was locked
		 * here. */
		if (fstat(fd, &st) == 0 &&
		    fstatat(s->parent_fd, s->journal, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
		    st.st_ino == named.st_ino) {
			s->journal_fd = fd;
			return 0;
		}
		close(fd);
	}
}

bool save_journal_has_plan(const struct save *s)
{
	char found[sizeof(magic)];

	return pread(s->journal_fd, found, sizeof(found), 0) == sizeof(found) &&
	       memcmp(found, magic, sizeof(magic)) == 0;
}

/* Is it the journal of this plan? */
static bool is_same(const struct save *s, size_t size)
{
	struct head head;
	struct stat st;

	return fstat(s->journal_fd, &st) == 0 && (uint64_t)st.st_size == size &&
	       pread(s->journal_fd, &head, sizeof(head), 0) == sizeof(head) &&
	       memcmp(head.magic, magic, sizeof(magic)) == 0 && head.plan == s->hash &&
	       head.npieces == s->npieces;
}

static int map_journal(struct save *s, size_t size)
{
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->journal_fd, 0);

	if (map == MAP_FAILED)
		return -errno;
	s->map = map;
	s->mapped = size;
	s->noted = (struct save_sum *)(void *)((char *)map + sizeof(struct head));
	return 0;
}

/* Map the journal that rank 0 has begun. Without it all data is written, and no sums are
 * recorded. */
static int join_journal(struct save *s, size_t size)
{
	s->journal_fd = openat(s->parent_fd, s->journal, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (s->journal_fd >= 0 && is_same(s, size))
		s->resumed = map_journal(s, size) == 0 && s->opts.resume;
	return 0;
}

static int begin_journal(struct save *s, size_t size)
{
	struct head head = { .plan = s->hash, .npieces = s->npieces };
	int rc;

	s->resumed = s->opts.resume && is_same(s, size);
	if (s->opts.resume && !s->resumed)
		return -ESTALE;
	if (!s->resumed && ftruncate(s->journal_fd, SAVE_MARK) < 0)
		return -errno;
	rc = -posix_fallocate(s->journal_fd, 0, (off_t)size);
	if (rc == 0)
		rc = map_journal(s, size);
	if (rc == 0) {
		memcpy(head.magic, magic, sizeof(magic));
		memcpy(s->map, &head, sizeof(head));
	}
	return rc;
}

int save_journal_begin(struct save *s, struct dcp_err *err)
{
	size_t size = sizeof(struct head) + s->npieces * sizeof(struct save_sum);
	int rc = 0;

	/* A save of data in memory (by_owner) cannot be resumed. */
	if (!s->opts.by_owner)
		rc = save_leads(s) ? begin_journal(s, size) : join_journal(s, size);
	if (rc == -ESTALE)
		return rc;
	if (rc < 0)
		return save_fail(s, rc, s->journal, err);
	s->sums = calloc(s->npieces + 1, sizeof(*s->sums));
	return s->sums ? 0 : dcp_err_say(err, -ENOMEM);
}

void save_journal_close(struct save *s)
{
	if (s->map)
		munmap(s->map, s->mapped);
	free(s->sums);
	if (s->journal_fd >= 0)
		close(s->journal_fd); /* unlocks it */
	s->map = NULL;
	s->sums = s->noted = NULL;
	s->journal_fd = -1;
}

/*
 * The list of files that dcpfs wrote. A directory with such files has the list .dcpfs-written: for
 * each file a line "SIZE MTIME NAME", mtime in ns. The last line of a name counts. Only files that
 * are as their line says are replaced, because they can be written again; other files cannot.
 */

#define LIST ".dcpfs-written"

enum { MAX_LIST = 256 << 20, MAX_DEPTH = 64 };

struct line {
	const char *name;
	uint64_t size;
	int64_t mtime_ns;
};

struct list {
	struct dcp_buf text,
		lines; /* lines, ordered by name; lines of one name in the order of the file */
};

static int64_t mtime_of(const struct stat *st)
{
	return st->st_mtim.tv_sec * 1000000000ll + st->st_mtim.tv_nsec;
}

static int append_lines(const struct save *s, int dir, const struct dcp_buf *lines)
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
		/* Opening makes NFS ask the server for what other ranks have written. */
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
	return dcp_buf_error(&lines) ? -ENOMEM : append_lines(s, dir, &lines);
}

/* Order by name; lines of one name in the order of the file. */
static int by_name(const void *a, const void *b)
{
	const struct line *x = a, *y = b;
	int by = strcmp(x->name, y->name);

	return by ? by : DCP_CMP(x->name, y->name);
}

/* Read a list; it is empty if there is no list file. */
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

/* NULL: the file is as dcpfs wrote it; or the name ends with a slash, and dcpfs wrote files below
 * this directory. Otherwise a text that says what it is. */
static const char *judge_file(const struct list *l, const char *name, const struct stat *st)
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
 * Look below the directory @path, which ends with a slash or is "", for a file or directory that is
 * not as dcpfs wrote it. If there is one, @path becomes its name and *what says what it is;
 * otherwise @path is unchanged.
 */
static int look_in(const struct list *l, int parent, const char *name, char path[PATH_MAX],
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
			*what = depth < MAX_DEPTH ? judge_file(l, path, &st) : "is too deep";
		if (rc == 0 && !*what && S_ISDIR(st.st_mode))
			rc = look_in(l, dirfd(dir), in, path, depth + 1, what);
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
		what = judge_file(&l, s->name, &st);
	else if (rc == 0)
		rc = look_in(&l, s->parent_fd, s->name, path, 0, &what);
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
