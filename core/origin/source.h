/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source: foreign bytes by position, from a file, memory, or a window of either.
 *
 * Every parser reads from a source, so it can be tested on memory and fuzzed. Reads are positional
 * and need no lock: a source may be shared by threads.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/origin/origin.h"

struct dcp_source {
	/*
	 * Read all @n bytes at @off, or return a negative errno: -EIO also if fewer bytes arrived.
	 */
	int (*read)(const struct dcp_source *src, uint64_t off, void *buf, size_t n);
	uint64_t size;
	/* for the implementations */
	const void *mem;
	const struct dcp_source *parent;
	uint64_t base;
	struct dcp_blob blob;
};

/* @mem must outlive the source. */
struct dcp_source dcp_source_mem(const void *mem, size_t n);

/* Borrows @fd. The size is taken from fstat now; if the file shrinks later, reads give -EIO. */
int dcp_source_fd(int fd, struct dcp_source *out);

/* Borrows the resources that @blob owns. */
struct dcp_source dcp_source_blob(const struct dcp_blob *blob);

/* [off, off + n) of @parent, which must outlive it. Clamped to the parent's size. */
struct dcp_source dcp_source_window(const struct dcp_source *parent, uint64_t off, uint64_t n);

/* Bounds-checked read: -EBADMSG when [off, off + n) is not inside the source. */
int dcp_source_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n);
