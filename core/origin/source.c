/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/source.h"

#include <errno.h>
#include <string.h>

#include "core/base/bytes.h"

static int read_mem(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	memcpy(buf, (const char *)src->mem + off, n);
	return 0;
}

static int read_blob(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	return dcp_blob_read(&src->blob, off, buf, n);
}

static int read_window(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	return src->parent->read(src->parent, src->base + off, buf, n);
}

struct dcp_source dcp_source_mem(const void *mem, size_t n)
{
	return (struct dcp_source){ .read = read_mem, .mem = mem, .size = n };
}

struct dcp_source dcp_source_blob(const struct dcp_blob *blob)
{
	return (struct dcp_source){ .read = read_blob, .blob = *blob, .size = blob->size };
}

int dcp_source_fd(int fd, struct dcp_source *out)
{
	struct dcp_blob blob;
	int rc = dcp_blob_of_fd(fd, &blob);

	if (rc == 0)
		*out = dcp_source_blob(&blob);
	return rc;
}

struct dcp_source dcp_source_window(const struct dcp_source *parent, uint64_t off, uint64_t n)
{
	if (off > parent->size)
		off = parent->size;
	if (n > parent->size - off)
		n = parent->size - off;
	return (struct dcp_source){
		.read = read_window, .parent = parent, .base = off, .size = n
	};
}

int dcp_source_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	if (!dcp_range_ok(off, n, src->size))
		return -EBADMSG;
	return n ? src->read(src, off, buf, n) : 0;
}
