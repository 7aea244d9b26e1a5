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
