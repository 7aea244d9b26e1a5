/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meet: the boxes in which a cut and the pieces of a tensor meet.
 *
 * Both sides are cartesian products, or runs of a flattening; a run of a box of n dimensions
 * is at most 2n - 1 boxes. So any request splits into boxes that lie in one piece, in one span
 * of each dimension and, row-major, in one place of the cut's array; single elements need not be
 * examined. Pure: no I/O, no allocation.
 */
#pragma once
#include <stdint.h>

#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"

struct dcp_tiling;

/* The box [lo, lo + n) of the tensor lies in @piece and is at @index of the cut's array
 * (before a flat cut flattens it). */
struct dcp_meet {
	const struct dcp_piece *piece;
	const uint64_t *lo, *n, *index; /* ndim each; for the call only */
};

/*
 * Call @fn for every meeting of elements [@first, @first + @count) of what @cut holds (of its
 * run, when flat; without padding); a negative return ends it and is returned. Boxes of
 * one piece come together where it was stored as runs; otherwise all come in the order of
 * their first element in the array. Neighbouring spans that continue each other are one.
 * O(cells and spans met + meetings).
 */
typedef int (*dcp_meet_fn)(void *ctx, const struct dcp_meet *m);
int dcp_meet(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t first,
	     uint64_t count, dcp_meet_fn fn, void *ctx);
