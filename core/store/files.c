/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/base/err.h"
#include "core/parse/dir.h"
#include "core/store/guard.h"
#include "core/store/unpack.h"

struct slot {
	struct dcp_file file;
	int origin; /* the file that was indexed: file.fd itself, or what file was decoded from
		     */
	int exact;  /* descriptor + 1; 0: not opened yet */
	bool ready; /* set last, with release; file and origin are then final */
};

struct dcp_files {
	int dirfd;
	const struct dcp_file_id *ids;
	size_t n;
	struct dcp_files_opts opts;
	pthread_mutex_t lock; /* filling a slot */
	struct slot slots[];
};

int dcp_files_create(int dirfd, const struct dcp_file_id *ids, size_t n,
		     const struct dcp_files_opts *opts, struct dcp_files **out)
{
	struct dcp_files *f = calloc(1, sizeof(*f) + n * sizeof(f->slots[0]));

	if (!f)
		return -ENOMEM;
	f->dirfd = dirfd;
	f->ids = ids;
	f->n = n;
	f->opts = *opts;
	f->opts.map &= dcp_guard_enabled();
	pthread_mutex_init(&f->lock, NULL);
	*out = f;
	return 0;
}

void dcp_files_destroy(struct dcp_files *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->n; i++) {
		struct dcp_file *file = &f->slots[i].file;

		if (!f->slots[i].ready)
			continue;
		if (file->map)
			munmap((void *)(uintptr_t)file->map, file->size);
		if (f->slots[i].origin != file->fd)
			close(f->slots[i].origin);
		close(file->fd);
		if (f->slots[i].exact)
			close(f->slots[i].exact - 1);
	}
	pthread_mutex_destroy(&f->lock);
	free(f);
}

bool dcp_files_unpacked(const struct dcp_files *f, uint32_t number)
{
	return number < f->n && f->ids[number].unpacked;
}

const char *dcp_files_name(const struct dcp_files *f, uint32_t number)
{
	return number < f->n ? f->ids[number].name : "(no such file)";
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

/*
 * Content that changed shows in size or mtime; a file that was replaced has no name left. The
 * ctime alone also moves for chmod and new hard links, which change no byte.
 */
static int same_content(const struct stat *st, const struct dcp_file_id *id)
{
	struct dcp_file_id now;

	dcp_file_id_from_stat(st, &now);
	if (now.size < id->size)
		return -EIO;
	if (now.size != id->size || now.mtime_ns != id->mtime_ns || now.ino != id->ino ||
	    now.dev != id->dev || st->st_nlink == 0)
		return -ESTALE;
	return 0;
}

/* Open it, and see that it is the one. */
static int open_origin(const struct dcp_files *f, const struct dcp_file_id *id, int *fd,
		       struct dcp_err *err)
{
	struct stat st;
	int rc = dcp_open_beneath(f->dirfd, id->name, fd, &st, err);

	if (rc < 0)
		return rc;
	rc = same_content(&st, id);
	if (rc == -EIO)
		dcp_fail(err, rc, (uint64_t)st.st_size,
			 "%s is %lld bytes; it was %llu when it was indexed", id->name,
			 (long long)st.st_size, (unsigned long long)id->size);
	else if (rc < 0)
		dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%s changed since it was indexed",
			 id->name);
	return rc;
}

/* What it decodes to. */
static int open_decoded(const struct dcp_files *f, const struct dcp_file_id *id, int *fd,
			struct dcp_err *err)
{
	struct dcp_file_id now = { 0 };
	uint64_t size = 0;
	int rc;

	if (!f->opts.unpack)
		return dcp_fail(err, -ENOTSUP, DCP_ERR_NO_OFFSET,
				"%s: compressed, and nobody decodes it", id->name);
	rc = dcp_unpack_open(f->opts.unpack, f->dirfd, id->name, fd, &size, &now, err);
	if (rc < 0)
		return rc;
	if (size != id->unpacked || now.size != id->size || now.ino != id->ino ||
	    now.dev != id->dev || now.mtime_ns != id->mtime_ns)
		return dcp_fail(err, -ESTALE, DCP_ERR_NO_OFFSET,
				"%s changed since it was indexed", id->name);
	return 0;
}

static int open_slot(struct dcp_files *f, uint32_t number, struct dcp_err *err)
{
	const struct dcp_file_id *id = &f->ids[number];
	struct slot *slot = &f->slots[number];
	dcp_auto_fd int origin = -1, decoded = -1;
	int rc = open_origin(f, id, &origin, err);

	if (rc == 0 && id->unpacked)
		rc = open_decoded(f, id, &decoded, err);
	if (rc < 0)
		return rc;
	slot->file.size = id->unpacked ? id->unpacked : id->size;
	slot->file.fd = id->unpacked ? decoded : origin;
	slot->origin = origin;
	if (f->opts.map && slot->file.size && dcp_is_local(slot->file.fd)) {
		void *p = mmap(NULL, slot->file.size, PROT_READ, MAP_SHARED, slot->file.fd, 0);

		slot->file.map = p == MAP_FAILED ? NULL : p; /* no room: pread does it too */
	}
	dcp_take_fd(&origin);
	dcp_take_fd(&decoded);
	__atomic_store_n(&slot->ready, true, __ATOMIC_RELEASE);
	return 0;
}

int dcp_files_get(struct dcp_files *f, uint32_t number, const struct dcp_file **out,
		  struct dcp_err *err)
{
	int rc = 0;

	if (number >= f->n)
		return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET, "index row: file %u of %zu",
				number, f->n);
	if (!__atomic_load_n(&f->slots[number].ready, __ATOMIC_ACQUIRE)) {
		pthread_mutex_lock(&f->lock);
		if (!f->slots[number].ready)
			rc = open_slot(f, number, err);
		pthread_mutex_unlock(&f->lock);
	}
	if (rc < 0)
		return rc;
	*out = &f->slots[number].file;
	return 0;
}

/* Another open file of the same, for its own read-ahead: none. */
static int open_exact(const struct dcp_files *f, uint32_t number)
{
	struct stat st;
	int fd;

	if (dcp_open_beneath(f->dirfd, f->ids[number].name, &fd, &st, NULL) < 0)
		return -1;
	if (same_content(&st, &f->ids[number]) < 0) {
		close(fd);
		return -1;
	}
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	return fd;
}

int dcp_files_exact_fd(struct dcp_files *f, uint32_t number)
{
	struct slot *slot = &f->slots[number];
	int fd = __atomic_load_n(&slot->exact, __ATOMIC_ACQUIRE) - 1;

	if (fd >= 0)
		return fd;
	if (f->ids[number].unpacked) /* a copy of ours, by no name */
		return slot->file.fd;
	pthread_mutex_lock(&f->lock);
	fd = slot->exact - 1;
	if (fd < 0) {
		fd = open_exact(f, number);
		if (fd >= 0)
			__atomic_store_n(&slot->exact, fd + 1, __ATOMIC_RELEASE);
		else
			fd = slot->file.fd; /* no room, or it changed: reading will tell */
	}
	pthread_mutex_unlock(&f->lock);
	return fd;
}

int dcp_files_check(struct dcp_files *f, uint32_t number)
{
	struct stat st;

	if (fstat(f->slots[number].origin, &st) < 0)
		return -EIO;
	return same_content(&st, &f->ids[number]);
}

const struct dcp_files_opts *dcp_files_opts(const struct dcp_files *f)
{
	return &f->opts;
}
