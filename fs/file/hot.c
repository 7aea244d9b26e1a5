/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/file/file.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/base/base.h"
#include "fs/fs.h"
#include "fs/text/text.h"

/* <linux/fuse.h> of Debian 12 does not have these yet. */
struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define DEV_IOC_BACKING_OPEN _IOW(229, 1, struct backing_map)
#define DEV_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

enum { SHARE = 8, CHUNK = 1 << 20 }; /* one file may take an eighth of the budget */

struct dcpfs_hot {
	uint64_t budget;
	int fuse_fd;          /* atomic; -1: the kernel does not pass through */
	pthread_mutex_t lock; /* used, and every copy while it is made */
	uint64_t used;
};

struct dcpfs_hot *dcpfs_hot_create(uint64_t budget)
{
	struct dcpfs_hot *h = calloc(1, sizeof(*h));

	if (h) {
		h->budget = budget;
		h->fuse_fd = -1;
		pthread_mutex_init(&h->lock, NULL);
	}
	return h;
}

void dcpfs_hot_destroy(struct dcpfs_hot *h)
{
	if (h)
		pthread_mutex_destroy(&h->lock);
	free(h);
}

void dcpfs_hot_start(struct dcpfs_hot *h, int fuse_fd)
{
	__atomic_store_n(&h->fuse_fd, fuse_fd, __ATOMIC_RELEASE);
}

static int get_fuse_fd(const struct dcpfs_hot *h)
{
	return __atomic_load_n(&h->fuse_fd, __ATOMIC_ACQUIRE);
}

static int fill_copy(struct dcpfs *fs, struct dcpfs_file *f, dcpfs_hot_read read, int fd,
		     uint64_t size)
{
	dcp_auto_free char *buf = malloc(CHUNK);

	if (!buf)
		return -ENOMEM;
	for (uint64_t off = 0; off < size;) {
		size_t n = DCP_MIN((uint64_t)CHUNK, size - off);
		int rc = read(fs, f, off, buf, n);

		if (rc < 0)
			return rc;
		if (pwrite(fd, buf, n, (off_t)off) != (ssize_t)n)
			return -ENOSPC;
		off += n;
	}
	return 0;
}

/*
 * Write the content to a nameless file and register it; from then on the kernel holds the file. It
 * lies beside the indexes, else in memory: disk file systems cache in large folios, and reading
 * such a copy costs half as much as from a memory file.
 */
static int make_copy(struct dcpfs_hot *h, struct dcpfs *fs, struct dcpfs_file *f, uint64_t size,
		     dcpfs_hot_read read)
{
	dcp_auto_fd int fd = dcpfs_nameless(fs->opts.store.cache_dir, "dcpfs-hot");
	struct backing_map map = { 0 };

	if (fd < 0 || fill_copy(fs, f, read, fd, size) < 0)
		return 0;
	map.fd = fd;
	return DCP_MAX(ioctl(get_fuse_fd(h), DEV_IOC_BACKING_OPEN, &map), 0);
}

int dcpfs_hot_backing(struct dcpfs_hot *h, struct dcpfs *fs, struct dcpfs_file *f,
		      uint64_t size, dcpfs_hot_read read, struct dcpfs_hot_copy *copy)
{
	int id;

	if (!h || get_fuse_fd(h) < 0 || size == 0 || size > h->budget / SHARE)
		return 0;
	pthread_mutex_lock(&h->lock);
	if (!copy->backing_id && !copy->bytes && size <= h->budget - h->used) {
		copy->backing_id = make_copy(h, fs, f, size, read);
		if (copy->backing_id)
			h->used += size;
		copy->bytes = size; /* also after a failure: there is only one attempt */
	}
	id = copy->backing_id;
	pthread_mutex_unlock(&h->lock);
	return id;
}

void dcpfs_hot_drop(struct dcpfs_hot *h, struct dcpfs_hot_copy *copy)
{
	uint32_t id = (uint32_t)copy->backing_id;

	if (!h || !id)
		return;
	if (get_fuse_fd(h) >= 0)
		ioctl(get_fuse_fd(h), DEV_IOC_BACKING_CLOSE, &id);
	pthread_mutex_lock(&h->lock);
	h->used -= copy->bytes;
	pthread_mutex_unlock(&h->lock);
}
