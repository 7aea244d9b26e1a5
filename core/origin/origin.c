/* SPDX-License-Identifier: Apache-2.0 */
#include "core/origin/origin.h"

#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"

int dcp_site_again(const struct dcp_site *at, struct dcp_site *out)
{
	int rc = at->row ? at->row->again(at, out) : -EBADF;

	if (rc == 0)
		out->seen = at->seen;
	return rc;
}

void dcp_site_close(struct dcp_site *at)
{
	if (at->row)
		at->row->close(at);
	*at = (struct dcp_site){ .fd = -1 };
}

int dcp_site_check_name(const char *name, struct dcp_err *err)
{
	if (!*name)
		return dcp_fail(err, -EINVAL, "an empty file name");
	if (*name == '/')
		return dcp_fail(err, -EXDEV,
				"%.300s: an absolute name, not one inside the directory", name);
	if (dcp_climbs(name))
		return dcp_fail(err, -EXDEV, "%.300s: names with \"..\" are not followed",
				name);
	return 0;
}

int dcp_site_open(const struct dcp_site *at, const char *name, struct dcp_blob *out,
		  struct dcp_file_id *id, struct dcp_err *err)
{
	int rc = dcp_site_check_name(name, err);

	return rc < 0 ? rc : at->row ? at->row->open(at, name, out, id, err) : -EBADF;
}

bool dcp_site_has(const struct dcp_site *at, const char *name)
{
	dcp_auto_blob struct dcp_blob blob = { 0 };

	return dcp_site_open(at, name, &blob, NULL, NULL) == 0;
}

int dcp_site_id(const struct dcp_site *at, const char *name, struct dcp_file_id *id)
{
	return at->row && at->row->id ? at->row->id(at, name, id) : -EBADF;
}

bool dcp_site_barred(const struct dcp_site *at, const char *name)
{
	return at->row && at->row->barred && at->row->barred(at, name);
}

int dcp_site_path(const struct dcp_site *at, const char *name, char path[PATH_MAX])
{
	return at->row && at->row->path ? at->row->path(at, name, path) : -ENOTSUP;
}

int dcp_blob_read(const struct dcp_blob *b, uint64_t off, void *to, size_t n)
{
	char *next = to;
	int rc = 0;

	while (n && rc == 0) {
		uint32_t now = (uint32_t)DCP_MIN(n, (size_t)1 << 30);
		struct dcp_read one = { b->fd, now, off, next, b };

		rc = b->ops->read(&one, 1);
		next += now;
		off += now;
		n -= now;
	}
	return rc;
}

uint64_t dcp_blob_size(const struct dcp_blob *b)
{
	return b->ops->size ? b->ops->size(b) : b->size;
}

int dcp_blob_check(const struct dcp_blob *b, const struct dcp_file_id *id, bool named)
{
	return b->ops->check ? b->ops->check(b, id, named) : 0;
}

void dcp_blob_close(struct dcp_blob *b)
{
	if (b->ops)
		b->ops->close(b);
	*b = (struct dcp_blob){ .fd = -1 };
}

/* ---- source ---- */

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
