/* SPDX-License-Identifier: Apache-2.0 */
/* archive: the content of archives and compressed files. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * inflate: decode compressed bytes.
 *
 * Compressed bytes occur in three places: whole files of the codecs below; members of ZIP archives;
 * and items inside a file, which the checkpoint extensions write as zstd streams (one or more
 * frames in a row, an empty frame at the end, no recorded content size). Other bytes after the
 * stream are an error. Checksums of the codec are verified, gzip's too, which libarchive
 * ignores; lzma has none, and zstd and lz4 have them only if the writer chose so. inflate.c is the
 * only file that includes libarchive's headers.
 */

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
	DCP_CODEC_DEFLATE, /* bare, as in ZIP archives: has no magic and no checksums */
};
#define DCP_CODEC_COUNT (DCP_CODEC_DEFLATE + 1)

/* "gzip" */
const char *dcp_codec_name(enum dcp_codec codec);

/* Find the codec of @src by its first bytes; NONE: not compressed, or by another codec. Returns 0,
 * or the error of reading. */
int dcp_inflate_codec(const struct dcp_source *src, enum dcp_codec *out);

/*
 * Append everything that the zstd stream @src decodes to, at most @limit bytes, to @out. Returns 0,
 * -EBADMSG (not zstd, damaged or cut), -E2BIG (more than @limit), -ENOMEM, or the error of reading
 * @src. After a failure @out may hold a part.
 */
int dcp_inflate_zstd(const struct dcp_source *src, struct dcp_buf *out, uint64_t limit,
		     struct dcp_err *err);

/* Called now and then with the number of source bytes consumed. */
struct dcp_inflate_watch {
	void (*report)(void *ctx, uint64_t taken);
	void *ctx;
};

/*
 * Decode @src with any codec into @out_fd at its current position; *@n receives the number of bytes
 * written, also after a failure. Errors of writing (-ENOSPC, -EIO) are passed on. -ENOTSUP: this
 * libarchive would need an external program for the codec. @watch may be NULL.
 */
int dcp_inflate_fd(const struct dcp_source *src, enum dcp_codec codec, int out_fd,
		   uint64_t limit, const struct dcp_inflate_watch *watch, uint64_t *n,
		   struct dcp_err *err);

/* Decode the first bytes, at most @n, into @head; *@got receives their number. Later bytes are not
 * examined, so 0 is returned even if they are damaged. */
int dcp_inflate_head(const struct dcp_source *src, enum dcp_codec codec, void *head, size_t n,
		     size_t *got, struct dcp_err *err);

/* "3.6.2": the libarchive in use. NULL: it cannot be loaded. */
const char *dcp_inflate_libarchive_version(void);

/*
 * tar: the places of the files' data in a tar archive.
 *
 * Reads headers, never data: ustar and older, GNU long names, pax path and size, sizes in base 256.
 * A file's bytes are contiguous, at [off, off + size) of the source. Directories, links, devices
 * and labels have no data and are left out. Refused as a whole are sparse and multi-volume
 * archives, truncated ones, and those with an absolute name, a ".." or a duplicate name.
 */

struct dcp_arena;

#define DCP_TAR_MAX_MEMBERS 1000000u   /* as many as a directory may have names */
#define DCP_TAR_MAX_HEADER (1u << 20)  /* one long name or pax header; paths have 4 KiB */
#define DCP_TAR_MAX_NAMES (256u << 20) /* all names together */

struct dcp_tar_member {
	const char *name; /* in the arena; no "./" in front, no NUL inside */
	uint64_t off, size;
};

/*
 * List the files of @src by name, bytewise, allocated in @arena. Every member lies inside @src, and
 * no two have the same name. Returns 0, -EBADMSG (damaged, cut, or no tar), -ENOTSUP (sparse,
 * multi-volume, unknown type), -EXDEV (a name that leads outside), -E2BIG, -ENOMEM, or the error of
 * reading @src. @out and @n are written only on success.
 */
int dcp_tar_list(const struct dcp_source *src, struct dcp_arena *arena,
		 struct dcp_tar_member **out, size_t *n, struct dcp_err *err);

/*
 * zip: the places of the members' data in a ZIP archive.
 *
 * Reads the central directory (zip64 included) and each wanted local header. It inflates nothing: a
 * compressed member is listed with stored == false, and the caller decodes or refuses it. All
 * offsets count from the start of the source, which is the start of the archive (a window, when the
 * archive lies inside a bigger file).
 */

#define DCP_ZIP_MAX_MEMBERS (1u << 22) /* a 3D-parallel torch.save of everything has < 10^6 */

struct dcp_zip_member {
	const char *name;    /* NUL-terminated, in the arena; may hold anything but NUL */
	uint64_t header_off; /* local header */
	uint64_t size;       /* bytes once unpacked */
	uint64_t packed;     /* bytes in the archive; equals size for a stored member */
	uint32_t crc32;      /* as recorded; 0 may mean "not computed"; not checked yet */
	bool stored;   /* method 0 and not encrypted: the bytes in the file are the content */
	bool deflated; /* method 8 and not encrypted */
};

/*
 * List the members of @src in directory order, allocated in @arena. header_off and header_off +
 * packed lie inside @src, before the directory. Returns 0, -EBADMSG (not a well-formed ZIP),
 * -ENOTSUP (multi-disk), -E2BIG (too many members), -ENOMEM, or the error of reading @src.
 * Out-parameters are written only on success.
 */
int dcp_zip_list(const struct dcp_source *src, struct dcp_arena *arena,
		 struct dcp_zip_member **out, size_t *n, struct dcp_err *err);

/* Offset of the first data byte of @m, by one read of its local header, which must have the same
 * name. [*off, *off + m->packed) lies inside @src. */
int dcp_zip_data(const struct dcp_source *src, const struct dcp_zip_member *m, uint64_t *off,
		 struct dcp_err *err);
