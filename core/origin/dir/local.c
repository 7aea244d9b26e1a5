/* SPDX-License-Identifier: Apache-2.0 */
/* local: the file system. */
#include "core/origin/dir/dir_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"

/* entries: the content of a directory, and the identity of each file. */

size_t dcp_dir_memory(const char *path)
{
	return (size_t)DCP_DIR_MAX_NAMES * (272 + sizeof(struct dcp_dirent)) + 65536 +
	       strlen(path);
}

void dcp_input_close(struct dcp_input *in)
{
	dcp_blob_close(&in->blob);
}

void dcp_dir_close(struct dcp_dir *d)
{
	if (!d)
		return;
	dcp_site_close(&d->at);
	dcp_arena_finish(&d->arena);
	*d = (struct dcp_dir){ 0 };
}

const struct dcp_dirent *dcp_dir_find(const struct dcp_dir *d, const char *name)
{
	return DCP_FIND(&name, d->entries, d->n, dcp_by_text);
}

/* Times far from ours do not fit into nanoseconds: return the nearest that fits. */
static int64_t count_nanoseconds(struct timespec t)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)t.tv_sec, DCP_NS_PER_S, &ns) ||
	    __builtin_add_overflow(ns, (int64_t)t.tv_nsec, &ns))
		return t.tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

void dcp_file_id_from_stat(const struct stat *st, struct dcp_file_id *id)
{
	id->size = (uint64_t)st->st_size;
	id->dev = st->st_dev;
	id->ino = st->st_ino;
	id->mtime_ns = count_nanoseconds(st->st_mtim);
	id->ctime_ns = count_nanoseconds(st->st_ctim);
}

struct timespec dcp_file_time(int64_t ns)
{
	int64_t rest = ns % DCP_NS_PER_S;

	rest += rest < 0 ? DCP_NS_PER_S : 0;
	return (struct timespec){ .tv_sec = ns / DCP_NS_PER_S - (ns % DCP_NS_PER_S < 0),
				  .tv_nsec = rest };
}

bool dcp_file_id_same(const struct dcp_file_id *a, const struct dcp_file_id *b)
{
	return a->size == b->size && a->dev == b->dev && a->ino == b->ino &&
	       a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

int dcp_file_id_content(const struct dcp_file_id *now, const struct dcp_file_id *want)
{
	if (now->size < want->size)
		return -EIO;
	return now->size == want->size && now->mtime_ns == want->mtime_ns &&
			       now->ino == want->ino && now->dev == want->dev
		       ? 0
		       : -ESTALE;
}

bool dcp_file_id_racy(const struct dcp_file_id *id, int64_t ns)
{
	return id->ino && id->ctime_ns > ns - DCP_TICK_NS;
}

void dcp_seen_finish(struct dcp_seen *s)
{
	dcp_intern_finish(&s->paths);
	dcp_buf_finish(&s->looks);
	*s = (struct dcp_seen){ 0 };
}

size_t dcp_seen_count(const struct dcp_seen *s)
{
	return DCP_NITEMS(s->looks, struct dcp_look);
}

const char *dcp_seen_path(const struct dcp_seen *s, size_t i)
{
	return dcp_intern_text(&s->paths, (uint32_t)i);
}

const struct dcp_look *dcp_seen_at(const struct dcp_seen *s, size_t i)
{
	return DCP_ITEMS(s->looks, struct dcp_look) + i;
}

static struct timespec time_of(struct statx_timestamp t)
{
	return (struct timespec){ .tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec };
}

/* Read the identity; a file that cannot be asked counts as missing. */
static void look_at(int dirfd, const char *name, struct dcp_file_id *id)
{
	struct stat st = { 0 };
	struct statx now;

	*id = (struct dcp_file_id){ 0 };
	if (statx(dirfd, name, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &now) < 0)
		return;
	st.st_size = (off_t)now.stx_size;
	st.st_dev = makedev(now.stx_dev_major, now.stx_dev_minor);
	st.st_ino = now.stx_ino;
	st.st_mtim = time_of(now.stx_mtime);
	st.st_ctim = time_of(now.stx_ctime);
	dcp_file_id_from_stat(&st, id);
}

static int add_look(struct dcp_seen *s, const char *path, int dirfd, const char *name,
		    bool listed)
{
	struct dcp_look look = { .listed = listed };
	int rc = dcp_intern_add(&s->paths, path, strlen(path) + 1, DCP_INTERN_NONE, NULL);

	if (rc <= 0)
		return rc;
	look_at(dirfd, name, &look.id);
	s->newest_ns = DCP_MAX(s->newest_ns, look.id.ctime_ns);
	return dcp_buf_add(&s->looks, &look, sizeof(look));
}

void dcp_seen_note(struct dcp_seen *s, int dirfd, const char *above, const char *name,
		   bool listed)
{
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT;

	if (!s || s->failed)
		return;
	if (dirfd == -1) { /* not a file system: the source is examined each time */
		s->failed = true;
		return;
	}
	dcp_buf_printf(&path, "%s%s%s", above ? above : "", above ? "/" : "", name);
	s->failed = dcp_buf_error(&path) || dcp_seen_count(s) == DCP_SEEN_MAX ||
		    add_look(s, path.p, dirfd, name, listed) < 0;
}

int dcp_seen_opening(struct dcp_seen *s, int code)
{
	if (s && (code == -EMFILE || code == -ENFILE || code == -ENOMEM))
		s->shortage = code;
	return code;
}

bool dcp_seen_same(const struct dcp_seen *s, uint64_t *calls)
{
	struct dcp_file_id now;

	if (s->failed)
		return false;
	for (size_t i = 0; i < dcp_seen_count(s); i++) {
		++*calls;
		look_at(AT_FDCWD, dcp_seen_path(s, i), &now);
		if (!dcp_file_id_same(&now, &dcp_seen_at(s, i)->id))
			return false;
	}
	return true;
}

/* ---- directories ---- */

static int look_at_name(const struct dcp_site *at, const char *name, struct dcp_dirent *out)
{
	struct stat st;

	*out = (struct dcp_dirent){ .name = name };
	if (fstatat(at->fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	out->is_link = S_ISLNK(st.st_mode);
	if (out->is_link) {
		dcp_auto_fd int target = dcp_open_below(at->fd, name, O_PATH);

		if (dcp_seen_opening(at->seen, target) < 0 || fstat(target, &st) < 0) {
			out->leads_out =
				fstatat(at->fd, name, &st, 0) == 0 && S_ISDIR(st.st_mode);
			return 0;
		}
	}
	out->is_dir = S_ISDIR(st.st_mode);
	out->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	return 0;
}

static int read_link(const struct dcp_site *at, const char *name, char *to, size_t size)
{
	ssize_t n = readlinkat(at->fd, name, to, size);

	return n < 0 ? -errno : (int)n;
}

static int list_stream(const struct dcp_site *at, DIR *stream, dcp_entry_fn *fn, void *ctx)
{
	for (;;) {
		struct dcp_dirent e;
		struct dirent *d;
		int rc;

		errno = 0;
		d = readdir(stream);
		if (!d)
			return -errno;
		if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
			continue;
		rc = look_at_name(at, d->d_name, &e);
		if (rc == -ENOENT) /* removed since the directory was read */
			continue;
		if (rc == 0)
			rc = fn(ctx, d->d_name, strlen(d->d_name), &e);
		if (rc < 0)
			return rc;
	}
}

static int list_dir(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx, struct dcp_err *err)
{
	dcp_auto_fd int fd = openat(at->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	int rc;

	if (!stream)
		return -errno;
	dcp_take_fd(&fd); /* now owned by the stream */
	rc = list_stream(at, stream, fn, ctx);
	closedir(stream);
	return rc;
}

struct dcp_site dcp_site_at(int fd)
{
	return (struct dcp_site){ .row = &dcp_origin_local, .fd = fd };
}

static int place_of(int fd, struct dcp_site *out)
{
	if (fd >= 0)
		*out = dcp_site_at(fd);
	return DCP_MIN(fd, 0);
}

static int open_below(const struct dcp_site *at, const char *name, struct dcp_site *out)
{
	return place_of(dcp_open_below(at->fd, name, O_RDONLY | O_DIRECTORY), out);
}

static bool is_barred(const struct dcp_site *at, const char *name)
{
	struct stat st;
	int need = fstatat(at->fd, name, &st, 0) == 0 && S_ISDIR(st.st_mode) ? X_OK : 0;

	return faccessat(at->fd, name, R_OK | need, AT_EACCESS) < 0 && errno == EACCES;
}

static int find_path(const struct dcp_site *at, const char *name, char path[PATH_MAX])
{
	dcp_auto_fd int fd = strcmp(name, ".") ? dcp_open_below(at->fd, name, O_PATH) : -1;
	char link[32];
	ssize_t n;

	if (fd < 0 && strcmp(name, ".") != 0)
		return fd;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd < 0 ? at->fd : fd);
	n = readlink(link, path, PATH_MAX);
	if (n <= 0 || n == PATH_MAX || *path != '/')
		return -ENOENT;
	path[n] = '\0';
	return 0;
}

static int open_again(const struct dcp_site *at, struct dcp_site *out)
{
	int fd = fcntl(at->fd, F_DUPFD_CLOEXEC, 3);

	return place_of(fd < 0 ? -errno : fd, out);
}

static void close_place(struct dcp_site *at)
{
	dcp_close_fd(&at->fd);
}

/* The real path of @path. A link of Hugging Face's cache is not resolved, because the files that
 * such links lead to have no proper names. */
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

/* Open the directory of the regular file @path. Links are followed, because the user gave the
 * path. */
static int find_file(const char *path, struct dcp_site *out, char **only)
{
	dcp_auto_free char *real = real_file(path), *dir = real ? strdup(real) : NULL;
	char *slash = dir ? strrchr(dir, '/') : NULL;
	int rc;

	if (!slash)
		return -errno;
	slash[slash == dir] = '\0';
	rc = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	rc = place_of(rc < 0 ? -errno : rc, out);
	if (rc == 0) {
		*only = real;
		real = NULL;
	}
	return rc;
}

static int find_source(const char *source, struct dcp_site *out, char **only,
		       struct dcp_err *err)
{
	int fd = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC), code = -errno;
	struct stat st;

	if (fd < 0 && code == -ENOTDIR && stat(source, &st) == 0 && S_ISREG(st.st_mode))
		return find_file(source, out, only);
	return place_of(fd < 0 ? code : fd, out);
}

/* ---- files ---- */

static int id_of(int rc, const struct stat *st, struct dcp_file_id *id)
{
	if (rc < 0)
		return -errno;
	dcp_file_id_from_stat(st, id);
	return 0;
}

static int find_id(const struct dcp_site *at, const char *name, struct dcp_file_id *out)
{
	struct stat st;
	bool self = strcmp(name, ".") == 0;

	return id_of(self ? fstat(at->fd, &st) : fstatat(at->fd, name, &st, 0), &st, out);
}

static int read_all(const struct dcp_read *reads, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (uint32_t done = 0; done < reads[i].n;) {
			ssize_t got = pread(reads[i].fd, (char *)reads[i].to + done,
					    reads[i].n - done, (off_t)(reads[i].off + done));

			if (got < 0 && errno == EINTR)
				continue;
			if (got <= 0)
				return got < 0 ? -errno : -EIO;
			done += (uint32_t)got;
		}
	return 0;
}

/* Changed content is visible in the size or mtime. The ctime also changes with chmod, new hard
 * links and removed names, which change no byte. */
static int check_content(const struct dcp_blob *b, const struct dcp_file_id *want, bool named)
{
	struct dcp_file_id now;
	struct stat st;
	int rc;

	if (fstat(b->fd, &st) < 0)
		return -EIO;
	dcp_file_id_from_stat(&st, &now);
	rc = dcp_file_id_content(&now, want);
	return rc == 0 && named && st.st_nlink == 0 ? -ESTALE : rc;
}

bool dcp_is_local(int fd)
{
	static const uint32_t kinds[] = {
		BTRFS_SUPER_MAGIC,
		EROFS_SUPER_MAGIC_V1,
		EXT4_SUPER_MAGIC, /* and ext2, ext3 */
		F2FS_SUPER_MAGIC,
		ISOFS_SUPER_MAGIC,
		MSDOS_SUPER_MAGIC,
		NILFS_SUPER_MAGIC,
		OVERLAYFS_SUPER_MAGIC,
		RAMFS_MAGIC,
		REISERFS_SUPER_MAGIC,
		SQUASHFS_MAGIC,
		TMPFS_MAGIC,
		UDF_SUPER_MAGIC,
		XFS_SUPER_MAGIC,
		0x2011bab0, /* exFAT */
		0x2fc12fc1, /* ZFS */
		0x3153464a, /* JFS */
		0x7366746e, /* NTFS */
		0xca451a4e, /* bcachefs */
	};
	struct statfs fs;

	if (fstatfs(fd, &fs) < 0)
		return false;
	for (size_t i = 0; i < DCP_LEN(kinds); i++)
		if ((uint32_t)fs.f_type == kinds[i])
			return true;
	return false;
}

static uint64_t measure_size(const struct dcp_blob *b)
{
	struct stat st;

	return fstat(b->fd, &st) < 0 ? 0 : (uint64_t)st.st_size;
}

static const uint8_t *map_file(struct dcp_blob *b)
{
	void *p = dcp_is_local(b->fd) ? mmap(NULL, b->size, PROT_READ, MAP_SHARED, b->fd, 0)
				      : MAP_FAILED;

	b->own = p == MAP_FAILED ? NULL : p;
	return b->own;
}

static void close_blob(struct dcp_blob *b)
{
	if (b->own)
		munmap(b->own, b->size);
	dcp_close_fd(&b->fd);
}

static const struct dcp_blob_ops ops = { .read = read_all,
					 .check = check_content,
					 .size = measure_size,
					 .map = map_file,
					 .close = close_blob };

int dcp_blob_of_fd(int fd, struct dcp_blob *out)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	*out = (struct dcp_blob){ .ops = &ops, .fd = fd, .size = (uint64_t)st.st_size };
	return 0;
}

int dcp_source_fd(int fd, struct dcp_source *out)
{
	struct dcp_blob blob;
	int rc = dcp_blob_of_fd(fd, &blob);

	if (rc == 0)
		*out = dcp_source_blob(&blob);
	return rc;
}

int dcp_path_look(const char *path, struct dcp_dirent *out)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	*out = (struct dcp_dirent){ .name = path,
				    .size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0,
				    .is_dir = S_ISDIR(st.st_mode) };
	return 0;
}

int dcp_blob_open(const char *path, struct dcp_blob *out)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	int rc;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	rc = dcp_blob_of_fd(fd, out);
	if (rc == 0)
		dcp_take_fd(&fd);
	return rc;
}

static int open_file(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		     struct dcp_file_id *file, struct dcp_err *err)
{
	struct stat st;
	int fd, rc = dcp_open_beneath(at->fd, name, &fd, &st, err);

	if (rc < 0)
		return rc;
	*out = (struct dcp_blob){ .ops = &ops, .fd = fd, .size = (uint64_t)st.st_size };
	return file ? id_of(0, &st, file) : 0;
}

const struct dcp_origin dcp_origin_local = {
	.name = "file system",
	.find = find_source,
	.list = list_dir,
	.look = look_at_name,
	.link = read_link,
	.below = open_below,
	.open = open_file,
	.id = find_id,
	.barred = is_barred,
	.path = find_path,
	.again = open_again,
	.close = close_place,
};

/* ---- pages: what the kernel has in memory of a file ---- */

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static uint64_t page_size(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

bool dcp_is_resident(const uint8_t *at)
{
	uintptr_t page = (uintptr_t)at / page_size() * page_size();
	unsigned char in = 1;

	return mincore((void *)page, 1, &in) < 0 || in & 1;
}

/* Pages of overlayfs belong to the files of the lower layers, so neither call of dcp_is_cached()
 * sees them. A mapping shows them, if this user owns the file. */
static bool is_own_of_overlay(int fd)
{
	struct statfs fs;
	struct stat st;

	return fstatfs(fd, &fs) == 0 && (uint32_t)fs.f_type == OVERLAYFS_SUPER_MAGIC &&
	       fstat(fd, &st) == 0 && (geteuid() == 0 || st.st_uid == geteuid());
}

static bool is_mapped(int fd, uint64_t off)
{
	unsigned char in = 0;
	void *map = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, (off_t)(off - off % page_size()));

	if (map == MAP_FAILED)
		return false;
	mincore(map, 1, &in);
	munmap(map, 1);
	return in & 1;
}

bool dcp_is_cached(int fd, uint64_t off)
{
	const uint64_t range[] = { off, 1 };
	uint64_t counts[5]; /* the first: number of cached pages */
	char byte;
	struct iovec iov = { &byte, 1 };

	/* From Linux 6.3 on, preadv2() begins to read missing pages; but nearly all these kernels
	 * have cachestat(), which does not. */
	if (syscall(SYS_cachestat, fd, range, counts, 0) == 0)
		return counts[0] != 0 || (is_own_of_overlay(fd) && is_mapped(fd, off));
	return preadv2(fd, &iov, 1, (off_t)off, RWF_NOWAIT) == 1;
}

void dcp_bring_near(int fd, uint64_t off, uint64_t n)
{
	posix_fadvise(fd, (off_t)off, (off_t)n, POSIX_FADV_WILLNEED);
}

void dcp_stop_ahead(int fd)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

void dcp_forget_pages(int fd, const uint8_t *map, uint64_t size)
{
	if (map) /* pages that are mapped and were touched would stay */
		madvise((void *)(uintptr_t)map, size, MADV_DONTNEED);
	fdatasync(fd); /* pages that are not written yet would stay, too */
	/* The first call only marks pages that were just used, so call it twice. */
	for (int k = 0; k < 2; k++)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

int dcp_open_direct(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int dcp_copy_range(int from, uint64_t off, int fd, uint64_t to, uint64_t n)
{
	while (n) {
		off64_t in = (off64_t)off, out = (off64_t)to;
		ssize_t got = copy_file_range(from, &in, fd, &out, n, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		off += (uint64_t)got;
		to += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return 1;
}
