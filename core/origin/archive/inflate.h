/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inflate: what comes out of compressed bytes.
 *
 * Three kinds of them: items inside a file, which are zstd streams as the checkpoint extensions
 * write them (one frame or several in a row, an empty frame at the end, no recorded content
 * size); members of ZIP archives; and whole files of the codecs below. Nothing else may follow.
 * Checksums of the codec are verified, gzip's too, which libarchive ignores; lzma has none, and
 * zstd and lz4 have them only if the writer chose so. inflate.c is the only file that includes
 * libarchive's headers.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_buf;
struct dcp_err;
struct dcp_source;

enum dcp_codec {
	DCP_CODEC_NONE,
	DCP_CODEC_GZIP,
	DCP_CODEC_BZIP2,
	DCP_CODEC_XZ,
	DCP_CODEC_LZMA,
	DCP_CODEC_ZSTD,
	DCP_CODEC_LZ4,
	DCP_CODEC_DEFLATE, /* bare, as in ZIP archives: known by no magic, without checksums */
};
#define DCP_CODEC_COUNT (DCP_CODEC_DEFLATE + 1)

/* "gzip" */
const char *dcp_codec_name(enum dcp_codec codec);

/* How the bytes of @src are compressed, judged by the first of them; NONE: not, or not by one of
 * these. Returns 0, or what reading gave. */
int dcp_inflate_codec(const struct dcp_source *src, enum dcp_codec *out);

/*
 * Append everything that the zstd stream @src decodes to, at most @limit bytes, to @out.
 * Returns 0, -EBADMSG (not zstd, damaged or cut), -E2BIG (more than @limit), -ENOMEM, or what
 * reading @src gave. After a failure @out may hold a part.
 */
int dcp_inflate_zstd(const struct dcp_source *src, struct dcp_buf *out, uint64_t limit,
		     struct dcp_err *err);

/* Called now and then with the number of source bytes consumed. */
struct dcp_inflate_watch {
	void (*report)(void *ctx, uint64_t taken);
	void *ctx;
};

/*
 * The same, of any codec, into @out_fd at its current position; *@n receives the number of
 * bytes (also after a failure). What writing gave (-ENOSPC, -EIO) is passed on. -ENOTSUP: this
 * libarchive cannot do it by itself. @watch may be NULL.
 */
int dcp_inflate_fd(const struct dcp_source *src, enum dcp_codec codec, int out_fd,
		   uint64_t limit, const struct dcp_inflate_watch *watch, uint64_t *n,
		   struct dcp_err *err);

/*
 * The first bytes that come out, at most @n of them, into @head; *@got receives how many. What
 * follows is not examined: 0 also when it is damaged.
 */
int dcp_inflate_head(const struct dcp_source *src, enum dcp_codec codec, void *head, size_t n,
		     size_t *got, struct dcp_err *err);

/* "3.6.2": the libarchive in use. NULL: it cannot be loaded. */
const char *dcp_inflate_libarchive_version(void);
