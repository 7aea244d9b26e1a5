/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip: archives of stored entries, emitted to a writer.
 *
 *	for each entry   local header, name, padding; its bytes; in torch's variant a descriptor
 *	at the end       the central directory, zip64 records where they are needed
 *
 * There are two variants. Python's zipfile has sizes and checksums in local headers and no padding.
 * torch has sizes and checksums in a descriptor after the bytes, pads local headers with an extra
 * field "FB" so that data begins at a multiple of 64 from the start of the archive, and always has
 * the zip64 records at the end.
 *
 * Checksums of data that is not seen here are filled in later (dcp_writer_crc32). Time stamps are
 * zero: 1980.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_writer;

enum dcp_zip_way { DCP_ZIP_PYTHON, DCP_ZIP_TORCH };

struct dcp_zipper {
	struct dcp_writer *w;
	enum dcp_zip_way way;
	uint64_t start; /* in the writer's file */
	struct dcp_buf entries, names;
	int rc;
};

void dcp_zipper_begin(struct dcp_zipper *z, struct dcp_writer *w, enum dcp_zip_way way);
/* Add an entry of @n bytes. */
void dcp_zipper_bytes(struct dcp_zipper *z, const char *name, const void *p, size_t n);
/* Add an entry of @n bytes followed by a part of a tensor. */
void dcp_zipper_part(struct dcp_zipper *z, const char *name, const void *p, size_t n,
		     size_t tensor, size_t part);
/*
 * Emit the central directory, and free the memory of @z. 0, -E2BIG (a name is too long), -ENOMEM.
 */
int dcp_zipper_end(struct dcp_zipper *z);
