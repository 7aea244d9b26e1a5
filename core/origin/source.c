/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/source.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/ckd.h"

static int read_mem(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	memcpy(buf, (const char *)src->mem + off, n);
	return 0;
}

static int read_fd(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	char *to = buf;

	while (n) {
		ssize_t got = pread(src->fd, to, n, (off_t)off);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EIO;
		to += got;
		off += (uint64_t)got;
		n -= (size_t)got;
	}
	return 0;
}

static int read_window(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	return src->parent->read(src->parent, src->base + off, buf, n);
}

struct dcp_source dcp_source_mem(const void *mem, size_t n)
{
	return (struct dcp_source){ .read = read_mem, .mem = mem, .size = n, .fd = -1 };
}

int dcp_source_fd(int fd, struct dcp_source *out)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	*out = (struct dcp_source){ .read = read_fd, .fd = fd, .size = (uint64_t)st.st_size };
	return 0;
}

struct dcp_source dcp_source_window(const struct dcp_source *parent, uint64_t off, uint64_t n)
{
	if (off > parent->size)
		off = parent->size;
	if (n > parent->size - off)
		n = parent->size - off;
	return (struct dcp_source){
		.read = read_window, .parent = parent, .base = off, .size = n, .fd = -1
	};
}

int dcp_source_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	if (!dcp_range_ok(off, n, src->size))
		return -EBADMSG;
	return n ? src->read(src, off, buf, n) : 0;
}
