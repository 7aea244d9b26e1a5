/* SPDX-License-Identifier: Apache-2.0 */
/* libarchive reads the stream as its "raw" format, by a filter that is named: without a name,
 * libarchive would pass on unchanged any bytes that none of its filters knows. */
#include "core/origin/archive/archive.h"

#include <archive.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/origin/origin.h"

enum { WINDOW = 1 << 16 };

/* libarchive depends on ICU and libxml2, whose loading takes three of the four milliseconds in
 * which dcpfs starts. So libarchive is loaded only when something compressed is met. */
#define LIBARCHIVE "libarchive.so.13"

static struct {
	__typeof__(&archive_errno) archive_errno;
	__typeof__(&archive_error_string) archive_error_string;
	__typeof__(&archive_filter_bytes) archive_filter_bytes;
	__typeof__(&archive_read_append_filter) archive_read_append_filter;
	__typeof__(&archive_read_data_block) archive_read_data_block;
	__typeof__(&archive_read_free) archive_read_free;
	__typeof__(&archive_read_new) archive_read_new;
	__typeof__(&archive_read_next_header) archive_read_next_header;
	__typeof__(&archive_read_open) archive_read_open;
	__typeof__(&archive_read_support_format_empty) archive_read_support_format_empty;
	__typeof__(&archive_read_support_format_raw) archive_read_support_format_raw;
	__typeof__(&archive_set_error) archive_set_error;
	__typeof__(&archive_version_string) archive_version_string;
} lib;

static const char *const functions[] = {
	/* in the order of the members of lib */
	"archive_errno",
	"archive_error_string",
	"archive_filter_bytes",
	"archive_read_append_filter",
	"archive_read_data_block",
	"archive_read_free",
	"archive_read_new",
	"archive_read_next_header",
	"archive_read_open",
	"archive_read_support_format_empty",
	"archive_read_support_format_raw",
	"archive_set_error",
	"archive_version_string",
};

static bool is_loaded;

static void load_library(void)
{
	char why[128];

	is_loaded = dcp_library_open(LIBARCHIVE, functions, DCP_LEN(functions), (void **)&lib,
				     why, sizeof(why)) == 0;
}

static bool is_there(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_library);
	return is_loaded;
}

static const struct {
	const char *name;
	int filter;
	unsigned n; /* bytes of magic */
	unsigned char magic[6];
} codecs[DCP_CODEC_COUNT] = {
	[DCP_CODEC_NONE] = { "no", 0, 0, { 0 } },
	[DCP_CODEC_GZIP] = { "gzip", ARCHIVE_FILTER_GZIP, 3, { 0x1f, 0x8b, 8 } },
	[DCP_CODEC_BZIP2] = { "bzip2", ARCHIVE_FILTER_BZIP2, 3, { 'B', 'Z', 'h' } },
	[DCP_CODEC_XZ] = { "xz", ARCHIVE_FILTER_XZ, 6, { 0xfd, '7', 'z', 'X', 'Z', 0 } },
	[DCP_CODEC_LZMA] = { "lzma", ARCHIVE_FILTER_LZMA, 3, { 0x5d, 0, 0 } },
	[DCP_CODEC_ZSTD] = { "zstd", ARCHIVE_FILTER_ZSTD, 4, { 0x28, 0xb5, 0x2f, 0xfd } },
	[DCP_CODEC_LZ4] = { "lz4", ARCHIVE_FILTER_LZ4, 4, { 0x04, 0x22, 0x4d, 0x18 } },
	[DCP_CODEC_DEFLATE] = { "deflate", ARCHIVE_FILTER_GZIP, 0, { 0 } },
};

/* With this header in front, bare deflate is a gzip stream for the filter, which does not check the
 * end. */
static const unsigned char gzip_head[10] = { 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff };
static const unsigned char gzip_end[8];

const char *dcp_codec_name(enum dcp_codec codec)
{
	return codecs[codec].name;
}

struct feed {
	const struct dcp_source *src;
	const char *codec;
	const struct dcp_inflate_watch *watch;
	uint64_t pos;
	uint64_t framing; /* bytes that were added around those of the source */
	int rc;           /* result of reading the source */
	bool bare;        /* deflate */
	unsigned char window[WINDOW];
};

/* Consumer of decoded bytes; a negative errno ends the decoding with that error, and 1 ends it
 * because enough was decoded. */
struct drain {
	int (*take)(struct drain *d, const void *p, size_t n, struct dcp_err *err);
	struct dcp_buf *buf;
	unsigned char *head;
	size_t head_n;
	int fd;
	uint64_t n;
	bool summed; /* crc is kept */
	uint32_t crc;
};

static la_ssize_t feed_read(struct archive *a, void *ctx, const void **p)
{
	struct feed *f = ctx;
	size_t n = DCP_MIN(f->src->size - f->pos, (uint64_t)WINDOW);

	if (f->bare && f->framing == 0) {
		*p = gzip_head;
		return (la_ssize_t)(f->framing = sizeof(gzip_head));
	}
	if (n == 0 && f->bare && f->framing == sizeof(gzip_head)) {
		f->framing += sizeof(gzip_end);
		*p = gzip_end;
		return sizeof(gzip_end);
	}
	if (n == 0)
		return 0;
	f->rc = dcp_source_read(f->src, f->pos, f->window, n);
	if (f->rc < 0) {
		lib.archive_set_error(a, EIO, "read error");
		return -1;
	}
	f->pos += n;
	if (f->watch)
		f->watch->report(f->watch->ctx, f->pos);
	*p = f->window;
	return (la_ssize_t)n;
}

static int take_buf(struct drain *d, const void *p, size_t n, struct dcp_err *err)
{
	if (dcp_buf_add(d->buf, p, n) < 0)
		return dcp_fail(err, -ENOMEM, "out of memory after %llu decoded bytes",
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
			return dcp_fail(err, -errno, "writing decoded bytes: %s",
					strerror(errno));
		from += did;
		n -= (size_t)did;
	}
	return 0;
}

static int take_head(struct drain *d, const void *p, size_t n, struct dcp_err *err)
{
	size_t some = DCP_MIN(n, d->head_n - (size_t)d->n);

	memcpy(d->head + d->n, p, some);
	return d->n + n >= d->head_n;
}

/* Translate the error of the library into our message and code. */
static int decode_error(struct archive *a, const struct feed *f, struct dcp_err *err)
{
	const char *said = lib.archive_error_string(a);

	if (f->rc < 0)
		return dcp_fail_at(err, f->rc, f->pos, "compressed bytes cannot be read");
	if (lib.archive_errno(a) == ENOMEM)
		return dcp_fail(err, -ENOMEM, "out of memory decoding %s", f->codec);
	return dcp_fail_at(err, -EBADMSG, f->pos, "damaged %s stream before byte %llu: %s",
			   f->codec, (unsigned long long)f->pos, said ? said : "cut short");
}

static int drain_all(struct archive *a, const struct feed *f, struct drain *d, uint64_t limit,
		     struct dcp_err *err)
{
	for (;;) {
		const void *p;
		size_t n;
		la_int64_t off;
		int rc = lib.archive_read_data_block(a, &p, &n, &off);

		if (rc == ARCHIVE_EOF)
			return 0;
		if (rc != ARCHIVE_OK)
			return decode_error(a, f, err);
		if (n > limit - d->n)
			return dcp_fail(err, -E2BIG,
					"%s stream decodes to more than %llu bytes", f->codec,
					(unsigned long long)limit);
		rc = d->take(d, p, n, err);
		if (rc < 0)
			return rc;
		d->n += n;
		if (d->summed)
			d->crc = dcp_crc32(d->crc, p, n);
		if (rc > 0)
			return rc;
	}
}

static bool is_skippable(const unsigned char *m, size_t n)
{
	return n >= 4 && (dcp_load_le32(m) & 0xfffffff0u) == 0x184d2a50u;
}

/* Read the first bytes of @src, as many as the longest magic has. */
static int read_magic(const struct dcp_source *src, unsigned char m[8], size_t *n)
{
	*n = (size_t)DCP_MIN(src->size, (uint64_t)6);
	memset(m, 0, 8);
	return dcp_source_read(src, 0, m, *n);
}

static bool has_magic(enum dcp_codec codec, const unsigned char *m, size_t n)
{
	if (codec == DCP_CODEC_ZSTD && is_skippable(m, n))
		return true;
	return codecs[codec].n && n >= codecs[codec].n &&
	       memcmp(m, codecs[codec].magic, codecs[codec].n) == 0;
}

int dcp_inflate_codec(const struct dcp_source *src, enum dcp_codec *out)
{
	unsigned char m[8];
	size_t n;
	int rc = read_magic(src, m, &n);

	*out = DCP_CODEC_NONE;
	for (unsigned c = DCP_CODEC_NONE + 1; rc == 0 && c < DCP_CODEC_COUNT; c++)
		if (has_magic((enum dcp_codec)c, m, n)) {
			*out = (enum dcp_codec)c;
			break;
		}
	return rc;
}

/* Does the stream start with the magic of the codec? The filters would also accept frames of
 * obsolete versions. */
static int check_magic(const struct dcp_source *src, enum dcp_codec codec, struct dcp_err *err)
{
	const unsigned char *want = codecs[codec].magic;
	unsigned char m[8];
	size_t n;
	int rc = read_magic(src, m, &n);

	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "compressed bytes cannot be read");
	if (has_magic(codec, m, n))
		return 0;
	if (n < 4)
		return dcp_fail_at(err, -EBADMSG, 0, "%llu bytes are not a %s stream",
				   (unsigned long long)src->size, codecs[codec].name);
	return dcp_fail_at(
		err, -EBADMSG, 0,
		"not a %s stream: starts with %02x %02x %02x %02x, expected %02x %02x "
		"%02x %02x",
		codecs[codec].name, m[0], m[1], m[2], m[3], want[0], want[1], want[2], want[3]);
}

/* A gzip stream ends with the checksum and the length of the uncompressed bytes, 32 bits each. */
static int check_gzip(const struct dcp_source *src, const struct drain *d, struct dcp_err *err)
{
	unsigned char end[8];
	int rc = src->size < 18 ? -EBADMSG
				: dcp_source_read(src, src->size - 8, end, sizeof(end));

	if (rc < 0)
		return dcp_fail_at(err, rc, src->size, "damaged gzip stream: cut short");
	if (dcp_load_le32(end + 4) != (uint32_t)d->n)
		return dcp_fail_at(
			err, -EBADMSG, src->size - 4,
			"damaged gzip stream: %llu bytes came out, its end says %u (of "
			"several members in a row only one is read)",
			(unsigned long long)d->n, dcp_load_le32(end + 4));
	if (dcp_load_le32(end) != d->crc)
		return dcp_fail_at(err, -EBADMSG, src->size - 8,
				   "damaged gzip stream: its checksum is wrong");
	return 0;
}

/* Some filters stop at unknown bytes and report the end of the stream. */
static int check_end(struct archive *a, const struct feed *f, struct dcp_err *err)
{
	la_int64_t taken = lib.archive_filter_bytes(a, -1);

	if (f->bare)
		taken -= sizeof(gzip_head) + sizeof(gzip_end);
	if (taken >= 0 && (uint64_t)taken == f->src->size)
		return 0;
	return dcp_fail_at(err, -EBADMSG, (uint64_t)taken,
			   "damaged %s stream: it ends at byte %lld of %llu", f->codec,
			   (long long)taken, (unsigned long long)f->src->size);
}

static int fail_no_decoder(struct archive *a, enum dcp_codec codec, struct dcp_err *err)
{
	const char *said = lib.archive_error_string(a);

	return dcp_fail(err, -ENOTSUP, "this libarchive has no %s decoder%s%s",
			codecs[codec].name, said ? ": " : "", said ? said : "");
}

/*
 * libarchive takes the format "empty" for a stream whose frames have no content, but also if
 * nothing could be decoded: opening then succeeds, and the error is only noted. A filter that would
 * run an external program only gives a warning.
 */
static bool has_decoder(struct archive *a, enum dcp_codec codec)
{
	return lib.archive_read_support_format_raw(a) == ARCHIVE_OK &&
	       lib.archive_read_support_format_empty(a) == ARCHIVE_OK &&
	       lib.archive_read_append_filter(a, codecs[codec].filter) == ARCHIVE_OK;
}

static int inflate_feed(struct feed *f, enum dcp_codec codec, struct drain *d, uint64_t limit,
			struct dcp_err *err)
{
	struct archive_entry *entry;
	struct archive *a;
	int rc;

	f->bare = codec == DCP_CODEC_DEFLATE;
	rc = f->bare ? 0 : check_magic(f->src, codec, err);
	if (rc < 0)
		return rc;
	f->codec = codecs[codec].name;
	if (!is_there())
		return dcp_fail(err, -ENOTSUP,
				"%s streams are decoded by " LIBARCHIVE
				", which is not installed or lacks some of its functions",
				f->codec);
	a = lib.archive_read_new();
	if (!a)
		return dcp_fail(err, -ENOMEM, "out of memory decoding %s", f->codec);
	if (!has_decoder(a, codec)) {
		rc = fail_no_decoder(a, codec, err);
		lib.archive_read_free(a);
		return rc;
	}
	rc = lib.archive_read_open(a, f, NULL, feed_read, NULL);
	if (rc == ARCHIVE_OK)
		rc = lib.archive_errno(a) ? ARCHIVE_FATAL
					  : lib.archive_read_next_header(a, &entry);
	if (rc == ARCHIVE_EOF)
		rc = 0;
	else if (rc != ARCHIVE_OK)
		rc = decode_error(a, f, err);
	else
		rc = drain_all(a, f, d, limit, err);
	if (rc == 0)
		rc = check_end(a, f, err);
	lib.archive_read_free(a);
	return rc;
}

int dcp_inflate_zstd(const struct dcp_source *src, struct dcp_buf *out, uint64_t limit,
		     struct dcp_err *err)
{
	struct drain d = { .take = take_buf, .buf = out };
	struct feed f = { .src = src };

	return inflate_feed(&f, DCP_CODEC_ZSTD, &d, limit, err);
}

int dcp_inflate_fd(const struct dcp_source *src, enum dcp_codec codec, int out_fd,
		   uint64_t limit, const struct dcp_inflate_watch *watch, uint64_t *n,
		   struct dcp_err *err)
{
	struct drain d = { .take = take_fd, .fd = out_fd, .summed = codec == DCP_CODEC_GZIP };
	struct feed f = { .src = src, .watch = watch };
	int rc = inflate_feed(&f, codec, &d, limit, err);

	*n = d.n;
	if (rc == 0 && codec == DCP_CODEC_GZIP)
		rc = check_gzip(src, &d, err);
	return rc;
}

int dcp_inflate_head(const struct dcp_source *src, enum dcp_codec codec, void *head, size_t n,
		     size_t *got, struct dcp_err *err)
{
	struct drain d = { .take = take_head, .head = head, .head_n = n };
	struct feed f = { .src = src };
	int rc = inflate_feed(&f, codec, &d, UINT64_MAX, err);

	*got = (size_t)DCP_MIN(d.n, (uint64_t)n);
	return rc < 0 ? rc : 0;
}

const char *dcp_inflate_libarchive_version(void)
{
	static const char lead[] = "libarchive ";
	const char *text = is_there() ? lib.archive_version_string() : NULL;

	return text && strncmp(text, lead, strlen(lead)) == 0 ? text + strlen(lead) : text;
}
