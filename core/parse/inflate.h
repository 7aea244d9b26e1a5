/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inflate: what comes out of a compressed item.
 *
 * zstd streams as the checkpoint extensions write them: one frame or several in a row, an
 * empty frame at the end, no recorded content size. Nothing else may follow the frames. The
 * only file that sees libarchive's headers.
 */
#pragma once
#include <stdint.h>

struct dcp_buf;
struct dcp_err;
struct dcp_source;

/*
 * Append everything that the stream @src decodes to, at most @limit bytes, to @out.
 * Returns 0, -EBADMSG (not zstd, damaged or cut), -E2BIG (more than @limit), -ENOMEM, or what
 * reading @src gave. After a failure @out may hold a part.
 */
int dcp_inflate_zstd(const struct dcp_source *src, struct dcp_buf *out, uint64_t limit,
		     struct dcp_err *err);

/*
 * The same into @out_fd at its current position; *@n receives the number of bytes (also after
 * a failure). What writing gave (-ENOSPC, -EIO) is passed on.
 */
int dcp_inflate_zstd_fd(const struct dcp_source *src, int out_fd, uint64_t limit, uint64_t *n,
			struct dcp_err *err);

/* "3.6.2": the libarchive in use. */
const char *dcp_inflate_libarchive_version(void);
