/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiling: finds the piece that holds element (i0, i1, ...).
 *
 * The edges of all pieces cut the index space into cells: cut[k] holds the sorted edge
 * positions of dimension k, and the cell table names the piece of each cell. A regular grid
 * of shards has as many cells as pieces; an irregular tiling has more. Building the table is
 * also the proof that the pieces tile the shape: a cell filled twice is an overlap, an empty
 * one a hole.
 *
 * Pieces with the same box and different runs (a flattened shard) share their cells; the runs
 * are then searched by element number. Pieces without elements are ignored.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_err;

/* A tiling with more cells than this (and 64 times its pieces) is refused as too irregular. */
#define DCP_TILING_MAX_CELLS (1u << 20)

struct dcp_tiling {
	const struct dcp_tensor *t; /* borrowed: must outlive the tiling */
	uint64_t *cut[DCP_MAX_NDIM];
	uint32_t ncell[DCP_MAX_NDIM]; /* cells along each dimension: edges minus one */
	uint32_t *cell;   /* row-major over ncell: first entry of the cell's group in order[] */
	uint32_t *order;  /* piece numbers, grouped by box, each group sorted by run_lo */
	uint32_t *ngroup; /* ngroup[i]: members of the group that starts at order[i] */
};

/*
 * Build the table in @arena. Checked: every box inside the shape, runs inside their box, no
 * overlap, no hole, products that fit. Returns 0, -EBADMSG with coordinates in @err,
 * -E2BIG (too irregular) or -ENOMEM. A tensor without elements needs no pieces.
 */
int dcp_tiling_init(struct dcp_tiling *tl, const struct dcp_tensor *t, struct dcp_arena *arena,
		    struct dcp_err *err);

/*
 * The same for the part of the tensor inside @box only. The box is inside the shape and not empty.
 * Pieces of @t that do not intersect it may be missing, and only elements inside it may be looked
 * up.
 */
int dcp_tiling_init_part(struct dcp_tiling *tl, const struct dcp_tensor *t,
			 const struct dcp_box *box, struct dcp_arena *arena,
			 struct dcp_err *err);

/* Index of the cell of dimension @d that holds position @at (below the shape). */
uint32_t dcp_tiling_cell(const struct dcp_tiling *tl, uint32_t d, uint64_t at);

/* Numbers of the @n pieces that share the box of a cell, ordered by run_lo; a single piece if the
 * box has no runs. */
const uint32_t *dcp_tiling_group(const struct dcp_tiling *tl, const uint32_t *cell,
				 uint32_t *n);

/*
 * cover: pieces that overlap, cut into pieces that do not.
 *
 * Some writers store elements more than once, but the pieces of a tensor must tile it. So an
 * element that several pieces hold belongs to the last of them, as if the pieces were copied into
 * the tensor one after another; the other pieces lose the elements that they share with it. Runs
 * become the boxes they consist of. Which elements are held does not change, so a hole stays a
 * hole.
 *
 * Whether copies of an element are equal is not checked.
 */

/*
 * Turn the plain pieces of @t, whose boxes are inside shapes that do not overflow, into pieces
 * without overlap in @arena, in the same order. Pieces that need no cut are unchanged. Returns 0,
 * -ENOTSUP (a cut through an encoded item, described in @err), -E2BIG (too many cuts) or -ENOMEM.
 */
int dcp_cover(const struct dcp_tensor *t, struct dcp_arena *arena, struct dcp_piece **out,
	      size_t *nout, struct dcp_err *err);
