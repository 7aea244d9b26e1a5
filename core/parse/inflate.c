/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libarchive reads the stream as its "raw" format behind a filter that is named, not guessed:
 * guessing would take bytes that are no zstd stream for content.
 */
#include "core/parse/inflate.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/parse/source.h"

enum { WINDOW = 1 << 16 };

struct feed {
	const struct dcp_source *src;
	uint64_t pos;
	int rc; /* what reading the source gave */
	unsigned char window[WINDOW];
};

/* Takes decoded bytes; a negative errno ends the decoding. */
struct drain {
	int (*take)(struct drain *d, const void *p, size_t n, struct dcp_err *err);
	struct dcp_buf *buf;
	int fd;
	uint64_t n;
};

static la_ssize_t feed_read(struct archive *a, void *ctx, const void **p)
{
	struct feed *f = ctx;
	size_t n = DCP_MIN(f->src->size - f->pos, (uint64_t)WINDOW);

	if (n == 0)
		return 0;
	f->rc = dcp_source_read(f->src, f->pos, f->window, n);
	if (f->rc < 0) {
		archive_set_error(a, EIO, "read error");
		return -1;
	}
	f->pos += n;
	*p = f->window;
	return (la_ssize_t)n;
}

static int take_buf(struct drain *d, const void *p, size_t n, struct dcp_err *err)
{
	dcp_buf_add(d->buf, p, n);
	if (dcp_buf_error(d->buf))
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET,
				"out of memory after %llu decoded bytes",
				(unsigned long long)d->n);
	return 0;
}

static int take_fd(struct drain *d, const void *p, size_t n, struct dcp_err *err)
{
	const char *from = p;

	while (n > 0) {
		ssize_t did = write(d->fd, from, n);

		if (did < 0 && errno == EINTR)
			continue;
		if (did < 0)
			return dcp_fail(err, -errno, DCP_ERR_NO_OFFSET,
					"writing decoded bytes: %s", strerror(errno));
		from += did;
		n -= (size_t)did;
	}
	return 0;
}

/* What the library says went wrong, in our words. */
static int decode_error(struct archive *a, const struct feed *f, struct dcp_err *err)
{
	const char *said = archive_error_string(a);

	if (f->rc < 0)
		return dcp_fail(err, f->rc, f->pos, "compressed bytes cannot be read");
	if (archive_errno(a) == ENOMEM)
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory decoding zstd");
	return dcp_fail(err, -EBADMSG, f->pos, "damaged zstd stream before byte %llu: %s",
			(unsigned long long)f->pos, said ? said : "cut short");
}

static int drain_all(struct archive *a, const struct feed *f, struct drain *d, uint64_t limit,
		     struct dcp_err *err)
{
	for (;;) {
		const void *p;
		size_t n;
		la_int64_t off;
		int rc = archive_read_data_block(a, &p, &n, &off);

		if (rc == ARCHIVE_EOF)
			return 0;
		if (rc != ARCHIVE_OK)
			return decode_error(a, f, err);
		if (n > limit - d->n)
			return dcp_fail(err, -E2BIG, DCP_ERR_NO_OFFSET,
					"zstd stream decodes to more than %llu bytes",
					(unsigned long long)limit);
		rc = d->take(d, p, n, err);
		if (rc < 0)
			return rc;
		d->n += n;
	}
}

/* Does the stream start as a zstd frame, skippable ones included? The filter would also take
 * the frames of long-gone versions. */
static int check_magic(const struct dcp_source *src, struct dcp_err *err)
{
	unsigned char m[4] = { 0 };
	uint32_t magic;
	int rc;

	if (src->size < sizeof(m))
		return dcp_fail(err, -EBADMSG, 0, "%llu bytes are no zstd stream",
				(unsigned long long)src->size);
	rc = dcp_source_read(src, 0, m, sizeof(m));
	if (rc < 0)
		return dcp_fail(err, rc, 0, "compressed bytes cannot be read");
	magic = dcp_load_le32(m);
	if (magic == 0xfd2fb528u || (magic & 0xfffffff0u) == 0x184d2a50u)
		return 0;
	return dcp_fail(err, -EBADMSG, 0,
			"no zstd stream: starts with %02x %02x %02x %02x, expected 28 b5 2f fd",
			m[0], m[1], m[2], m[3]);
}

static int inflate(const struct dcp_source *src, struct drain *d, uint64_t limit,
		   struct dcp_err *err)
{
	struct feed f = { .src = src };
	struct archive_entry *entry;
	struct archive *a;
	int rc = check_magic(src, err);

	if (rc < 0)
		return rc;
	a = archive_read_new();
	if (!a)
		return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory decoding zstd");
	/* "empty" is the format of a stream whose frames hold nothing. It also steps in when
	 * nothing could be decoded; opening then succeeds with the error noted. */
	if (archive_read_support_format_raw(a) != ARCHIVE_OK ||
	    archive_read_support_format_empty(a) != ARCHIVE_OK ||
	    archive_read_append_filter(a, ARCHIVE_FILTER_ZSTD) != ARCHIVE_OK) {
		rc = dcp_fail(err, -ENOTSUP, DCP_ERR_NO_OFFSET,
			      "this libarchive has no zstd decoder: %s",
			      archive_error_string(a));
		goto out;
	}
	rc = archive_read_open(a, &f, NULL, feed_read, NULL);
	if (rc == ARCHIVE_OK)
		rc = archive_errno(a) ? ARCHIVE_FATAL : archive_read_next_header(a, &entry);
	if (rc == ARCHIVE_EOF)
		rc = 0;
	else if (rc != ARCHIVE_OK)
		rc = decode_error(a, &f, err);
	else
		rc = drain_all(a, &f, d, limit, err);
out:
	archive_read_free(a);
	return rc;
}

int dcp_inflate_zstd(const struct dcp_source *src, struct dcp_buf *out, uint64_t limit,
		     struct dcp_err *err)
{
	struct drain d = { .take = take_buf, .buf = out };

	return inflate(src, &d, limit, err);
}

int dcp_inflate_zstd_fd(const struct dcp_source *src, int out_fd, uint64_t limit, uint64_t *n,
			struct dcp_err *err)
{
	struct drain d = { .take = take_fd, .fd = out_fd };
	int rc = inflate(src, &d, limit, err);

	*n = d.n;
	return rc;
}

const char *dcp_inflate_libarchive_version(void)
{
	static const char lead[] = "libarchive ";
	const char *text = archive_version_string();

	return strncmp(text, lead, strlen(lead)) == 0 ? text + strlen(lead) : text;
}
