/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strided: a whole cut as strided descriptors, for whoever moves bytes by itself: the loader,
 * and clients that read backing files without the mount.
 *
 * A descriptor is @run bytes, repeated over up to DCP_STRIDED_DIMS counted dimensions with
 * strides in the file and in the destination (the cut's array, row-major). Neighbours that
 * merge into one larger descriptor are merged, across pieces of one file too. Descriptors
 * come in destination order of their first byte; together they cover every byte of the
 * destination exactly once, zeros of the padding aside. A tensor of more dimensions than fit
 * is told in more descriptors.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/cut.h"
#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_err;
struct dcp_tiling;

#define DCP_STRIDED_DIMS 4

struct dcp_strided {
	const struct dcp_piece *piece;          /* the first it came from: file, swap */
	uint64_t off;                           /* in the file, of the first run */
	uint64_t dst;                           /* in the destination, of the first run */
	uint64_t run;                           /* bytes */
	uint32_t ndim;                          /* counted dimensions in use, outermost first */
	uint64_t count[DCP_STRIDED_DIMS];       /* at least 2 each */
	uint64_t file_stride[DCP_STRIDED_DIMS]; /* bytes */
	uint64_t dst_stride[DCP_STRIDED_DIMS];  /* bytes */
};

/*
 * Tell every descriptor of @cut to @fn, whose negative return ends it and is returned. Works
 * piece by piece, never element by element: O(pieces touched + spans + descriptors).
 */
typedef int (*dcp_strided_fn)(void *ctx, const struct dcp_strided *s);
int dcp_strided_tell(const struct dcp_tiling *tl, const struct dcp_cut *cut, dcp_strided_fn fn,
		     void *ctx);
