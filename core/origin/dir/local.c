/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local: the file system.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/origin/dir/dir_int.h"
#include "core/origin/dir/seen.h"
#include "core/origin/origin.h"

/* ---- directories ---- */

static int look(const struct dcp_site *at, const char *name, struct dcp_dirent *out)
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
		rc = look(at, d->d_name, &e);
		if (rc == -ENOENT) /* gone since the directory was read */
			continue;
		if (rc == 0)
			rc = fn(ctx, d->d_name, strlen(d->d_name), &e);
		if (rc < 0)
			return rc;
	}
}

static int list(const struct dcp_site *at, dcp_entry_fn *fn, void *ctx, struct dcp_err *err)
{
	dcp_auto_fd int fd = openat(at->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	int rc;

	if (!stream)
		return -errno;
	dcp_take_fd(&fd); /* the stream's now */
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

static int below(const struct dcp_site *at, const char *name, struct dcp_site *out)
{
	return place_of(dcp_open_below(at->fd, name, O_RDONLY | O_DIRECTORY), out);
}

static bool barred(const struct dcp_site *at, const char *name)
{
	struct stat st;
	int need = fstatat(at->fd, name, &st, 0) == 0 && S_ISDIR(st.st_mode) ? X_OK : 0;

	return faccessat(at->fd, name, R_OK | need, AT_EACCESS) < 0 && errno == EACCES;
}

static int again(const struct dcp_site *at, struct dcp_site *out)
{
	int fd = fcntl(at->fd, F_DUPFD_CLOEXEC, 3);

	return place_of(fd < 0 ? -errno : fd, out);
}

static void close_place(struct dcp_site *at)
{
	dcp_close_fd(&at->fd);
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

/* The directory of the regular file @path. Links to it are its user's to follow. */
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

static int find(const char *source, struct dcp_site *out, char **only, struct dcp_err *err)
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

static int id(const struct dcp_site *at, const char *name, struct dcp_file_id *out)
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

/*
 * Content that changed shows in size or mtime. The ctime alone also moves for chmod, new hard
 * links and lost names, which change no byte.
 */
static int check(const struct dcp_blob *b, const struct dcp_file_id *want, bool named)
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

static uint64_t size(const struct dcp_blob *b)
{
	struct stat st;

	return fstat(b->fd, &st) < 0 ? 0 : (uint64_t)st.st_size;
}

static const uint8_t *map(struct dcp_blob *b)
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

static const struct dcp_blob_ops ops = {
	.read = read_all, .check = check, .size = size, .map = map, .close = close_blob
};

int dcp_blob_of_fd(int fd, struct dcp_blob *out)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	*out = (struct dcp_blob){ .ops = &ops, .fd = fd, .size = (uint64_t)st.st_size };
	return 0;
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
	.find = find,
	.list = list,
	.look = look,
	.below = below,
	.open = open_file,
	.id = id,
	.barred = barred,
	.again = again,
	.close = close_place,
};
