/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placement: which part of a tensor does one rank hold, by the placements of a DTensor?
 *
 * Shard(dim) cuts what is left of a dimension as torch.chunk() does: pieces of ceil(length /
 * n), the last ones shorter or empty. Replicate cuts nothing. _StridedShard(dim, f) cuts into f
 * chunks first and takes a piece of each. Where f is the number of parts into which the later
 * mesh dimensions cut the same dimension, those are applied first (FSDP2 over tensor parallel):
 * that gives the same in the even case, and what torch does in the uneven one.
 */
#pragma once
#include <stdint.h>

#include "core/model/geometry/cut.h"

struct dcp_err;
struct dcp_piece;

#define DCP_TPLACE_MAX 32 /* mesh dimensions; torch itself uses up to five */

enum dcp_tplace_kind { DCP_TPLACE_REPLICATE, DCP_TPLACE_SHARD, DCP_TPLACE_STRIDED };

/* One mesh dimension: @n ranks along it, this one is number @at. */
struct dcp_tplace {
	enum dcp_tplace_kind kind;
	uint32_t dim;
	uint64_t factor; /* of STRIDED */
	uint64_t n, at;
};

/*
 * Carry out @np placements in their order. @out lives in @arena. -EBADMSG (a dimension or
 * coordinate that is not there), -E2BIG (too many spans), -ENOMEM.
 */
int dcp_tplace_cut(const struct dcp_tplace *place, uint32_t np, uint32_t ndim,
		   const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
		   struct dcp_err *err);

/* [lo, lo + len) of the whole tensor is at @at of the local one. */
struct dcp_tplace_box {
	const uint64_t *lo, *at, *len;
};

/* The boxes of which @cut consists, in @arena. -E2BIG (more than @max), -ENOMEM. */
int dcp_tplace_boxes(const struct dcp_cut *cut, uint64_t max, struct dcp_arena *arena,
		     const struct dcp_tplace_box **out, size_t *n);

/*
 * The elements of @box, which has some, as the piece @p: box, run and place. The local tensor of
 * @shape and @stride (NULL: row-major) begins at p->off. -EBADMSG (it does not fit in 64 bits),
 * -ENOMEM.
 */
int dcp_tplace_piece(const struct dcp_tplace_box *box, uint32_t ndim, const uint64_t *shape,
		     const uint64_t *stride, uint32_t itemsize, struct dcp_arena *arena,
		     struct dcp_piece *p);
