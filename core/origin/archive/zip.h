/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip: where does each member's data lie in a ZIP archive?
 *
 * Reads the central directory (zip64 included) and each wanted local header. It opens
 * nothing and inflates nothing: a compressed member is listed with stored == false for
 * the caller to decode or to refuse. All offsets count from the start of the source, which is
 * the start of the archive (a window, when the archive lies inside a bigger file).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_arena;
struct dcp_err;
struct dcp_source;

#define DCP_ZIP_MAX_MEMBERS (1u << 22) /* a 3D-parallel torch.save of everything has < 10^6 */

struct dcp_zip_member {
	const char *name;    /* NUL-terminated, in the arena; may hold anything but NUL */
	uint64_t header_off; /* local header */
	uint64_t size;       /* bytes once unpacked */
	uint64_t packed;     /* bytes in the archive; of a stored one the same */
	uint32_t crc32;      /* as recorded; 0 may mean "not computed"; not checked yet */
	bool stored;   /* method 0 and not encrypted: the bytes in the file are the content */
	bool deflated; /* method 8 and not encrypted */
};

/*
 * List the members of @src in directory order, allocated in @arena.
 * Promise: header_off lies inside @src, before the directory, and so does header_off + packed.
 * Returns 0, -EBADMSG (not a well-formed ZIP), -ENOTSUP (multi-disk), -E2BIG (too many
 * members), -ENOMEM, or what reading @src gave. Out-parameters are written only on success.
 */
int dcp_zip_list(const struct dcp_source *src, struct dcp_arena *arena,
		 struct dcp_zip_member **out, size_t *n, struct dcp_err *err);

/*
 * Offset of the first data byte of @m: one read of its local header, whose name must be
 * the directory's. Promise: [*off, *off + m->packed) lies inside @src.
 */
int dcp_zip_data(const struct dcp_source *src, const struct dcp_zip_member *m, uint64_t *off,
		 struct dcp_err *err);
