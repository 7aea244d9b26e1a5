/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack: the pieces of a tensor as one blob, as the index keeps them.
 *
 *   u8      1, the version of this form
 *   varint  number of pieces; then for each
 *     u8      bits 0-1 enc, 2-3 filter, 4 swap, 5 strides follow, 6 a run follows,
 *             7 the third bit of filter
 *     varint  file, off, nbytes
 *     varint  lo[ndim], len[ndim]
 *     varint  stride[ndim]           if bit 5
 *     varint  run_lo, run_n          if bit 6; else the run is the whole box
 *
 * Varints are unsigned LEB128. A blob comes from a cache anybody may have touched: it is
 * checked like any foreign bytes, and what it says must still pass dcp_tiling_init().
 */
#pragma once
#include <stddef.h>

#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_buf;
struct dcp_err;

void dcp_pack_pieces(struct dcp_buf *out, const struct dcp_tensor *t);

/* Pieces of a tensor of @ndim dimensions, in @arena. -EBADMSG or -ENOMEM; nothing beyond it is
 * read. */
int dcp_unpack_pieces(const void *blob, size_t n, uint32_t ndim, struct dcp_arena *arena,
		      struct dcp_piece **pieces, size_t *npieces, struct dcp_err *err);
