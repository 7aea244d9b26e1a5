/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack: the pieces of a tensor as one blob, as the index keeps them.
 *
 *   u8      1 or 2, the version of this form
 *   varint  number of pieces; then for each
 *           (2: first for each DCP_PACK_BLOCK of them
 *     varint  lo[ndim], len[ndim]    the box that holds theirs, but for those without elements
 *     varint  bytes                  they take up here
 *           )
 *     u8      bits 0-1 enc, 2-3 filter, 4 swap, 5 strides follow, 6 a run follows,
 *             7 the third bit of filter
 *     u8      enc                    if bits 0-1 say 3: a part of an item
 *     varint  item_lo, item_n        then
 *     varint  file, off, nbytes
 *     varint  lo[ndim], len[ndim]
 *     varint  stride[ndim]           if bit 5
 *     varint  run_lo, run_n          if bit 6; else the run is the whole box
 *
 * Many pieces are packed in blocks, so that a reader that wants a few decodes only a few. Varints
 * are unsigned LEB128. A blob comes from a cache that may have been changed: it is checked
 * like any foreign bytes, and its pieces must still pass dcp_tiling_init().
 */
#pragma once
#include <stddef.h>

#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_buf;
struct dcp_err;

void dcp_pack_pieces(struct dcp_buf *out, const struct dcp_tensor *t);

/* More pieces than this are packed in blocks of so many. */
#define DCP_PACK_BLOCK 32

/* The pieces of a tensor of @ndim dimensions that meet @only, or all (NULL), in their order, in
 * @arena. What is left out is not checked. -EBADMSG or -ENOMEM; nothing beyond the blob is read. */
int dcp_unpack_part(const void *blob, size_t n, uint32_t ndim, const struct dcp_box *only,
		    struct dcp_arena *arena, struct dcp_piece **pieces, size_t *npieces,
		    struct dcp_err *err);
