/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: (region of a tensor, byte range) -> where those bytes lie.
 *
 * The one place where file offsets are computed. Pure: no I/O, no allocation; each
 * segment costs O(ndim + log pieces). The destination is the region's elements in
 * row-major order; a range may start and end inside an element.
 *
 *	struct dcp_plan_iter it;
 *	struct dcp_seg s;
 *
 *	dcp_plan_start(&it, &tiling, lo, len, off, n);
 *	while (dcp_plan_next(&it, &s))
 *		... s.count runs of s.run bytes, s.stride apart in s.piece's file ...
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/tensor.h"

struct dcp_tiling;

struct dcp_seg {
	const struct dcp_piece *piece;
	uint64_t off;    /* file offset of the first run */
	uint64_t run;    /* bytes of each run */
	uint64_t count;  /* number of runs, at least 1; the destination is contiguous */
	uint64_t stride; /* bytes between the starts of neighbouring runs in the file */
};

struct dcp_plan_iter {
	const struct dcp_tiling *tl;
	const uint64_t *lo, *len; /* the region, in elements of the tensor */
	uint64_t pos, end;        /* bytes of the destination still to be told */
};

/*
 * Start at byte @off of the region [lo, lo + len), for @n bytes: both inside it, and the
 * region inside the shape. All pointers must outlive the iteration.
 */
void dcp_plan_start(struct dcp_plan_iter *it, const struct dcp_tiling *tl, const uint64_t *lo,
		    const uint64_t *len, uint64_t off, uint64_t n);

/* The next segment in destination order; false when the range is told. */
bool dcp_plan_next(struct dcp_plan_iter *it, struct dcp_seg *out);
