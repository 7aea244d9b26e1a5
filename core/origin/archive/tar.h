/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tar: where does each file's data lie in a tar archive?
 *
 * Reads headers, never data: ustar and older, GNU long names, pax path and size, sizes in base
 * 256. A file's bytes are contiguous, at [off, off + size) of the source. Directories, links,
 * devices and labels hold none and are left out. Refused as a whole are sparse and multi-volume
 * archives, truncated ones, and those with an absolute name, a ".." or a duplicate name.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_arena;
struct dcp_err;
struct dcp_source;

#define DCP_TAR_MAX_MEMBERS 1000000u   /* as many as a directory may have names */
#define DCP_TAR_MAX_HEADER (1u << 20)  /* of a long name or pax header; paths have 4 KiB */
#define DCP_TAR_MAX_NAMES (256u << 20) /* all names together */

struct dcp_tar_member {
	const char *name; /* in the arena; no "./" in front, no NUL inside */
	uint64_t off, size;
};

/*
 * List the files of @src by name, bytewise, allocated in @arena. Promises: every member lies
 * inside @src; no two have the same name.
 * Returns 0, -EBADMSG (damaged, cut, or no tar), -ENOTSUP (sparse, multi-volume, unknown type),
 * -EXDEV (a name that leads outside), -E2BIG, -ENOMEM, or what reading @src gave. @out and @n
 * are written only on success.
 */
int dcp_tar_list(const struct dcp_source *src, struct dcp_arena *arena,
		 struct dcp_tar_member **out, size_t *n, struct dcp_err *err);
