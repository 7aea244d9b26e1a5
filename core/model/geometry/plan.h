/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: (cut of a tensor, byte range) -> where those bytes lie, in destination order.
 *
 * Pure: no I/O, no allocation; each segment costs O(ndim + log pieces + log spans). The
 * destination is the cut's array in row-major order; a range may start and end inside an
 * element. For a whole cut at once, in any order, see core/model/geometry/strided.h.
 *
 *	struct dcp_plan_iter it;
 *	struct dcp_seg s;
 *
 *	dcp_plan_start(&it, &tiling, cut, off, n);
 *	while (dcp_plan_next(&it, &s))
 *		... s.count runs of s.run bytes, s.stride apart in s.piece's file ...
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"

struct dcp_tiling;

struct dcp_seg {
	const struct dcp_piece *piece; /* NULL: @run zero bytes of padding */
	uint64_t off;                  /* file offset of the first run */
	uint64_t run;                  /* bytes of each run */
	uint64_t count;  /* number of runs, at least 1; the destination is contiguous */
	uint64_t stride; /* bytes between the starts of neighbouring runs in the file */
};

struct dcp_plan_iter {
	const struct dcp_tiling *tl;
	const struct dcp_cut *cut;
	uint64_t left;   /* bytes of the tensor still to come */
	uint64_t zeros;  /* bytes of the padding after them */
	bool padded;     /* axes end in zeros */
	uint64_t inside; /* bytes of the current element that are not wanted */
	/* The current element: its index in the array, and where it was found. */
	uint64_t index[DCP_MAX_NDIM];
	const struct dcp_span *span[DCP_MAX_NDIM];
	uint32_t cell[DCP_MAX_NDIM];
};

/*
 * Start at byte @off of the cut's array, for @n bytes: all inside it, and the cut one of the
 * tensor (dcp_cut_fits()). All pointers must outlive the iteration.
 */
void dcp_plan_start(struct dcp_plan_iter *it, const struct dcp_tiling *tl,
		    const struct dcp_cut *cut, uint64_t off, uint64_t n);

/* The next segment in destination order; false at the end of the range. */
bool dcp_plan_next(struct dcp_plan_iter *it, struct dcp_seg *out);
