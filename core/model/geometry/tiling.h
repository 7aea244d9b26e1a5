/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiling: which piece holds element (i0, i1, ...)?
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
 * The same only for the part of the tensor inside @box, which lies in the shape and is not
 * empty: pieces of @t that do not meet it may be missing, and only elements in it may be looked
 * up.
 */
int dcp_tiling_init_part(struct dcp_tiling *tl, const struct dcp_tensor *t,
			 const struct dcp_box *box, struct dcp_arena *arena,
			 struct dcp_err *err);

/* Index of the cell of dimension @d that holds position @at (below the shape). */
uint32_t dcp_tiling_cell(const struct dcp_tiling *tl, uint32_t d, uint64_t at);

/* Numbers of the @n pieces that share the box of a cell, by run_lo; one, if it has no runs. */
const uint32_t *dcp_tiling_group(const struct dcp_tiling *tl, const uint32_t *cell,
				 uint32_t *n);

/*
 * cover: pieces that overlap, cut into pieces that do not.
 *
 * Some writers store elements more than once. A tensor's pieces must tile it, so of several
 * pieces that hold an element the last one has it, as if they were copied into the tensor one
 * after another, and the others lose what they share with it. Runs become the boxes they
 * consist of. Which elements are held does not change, so a hole stays a hole.
 *
 * Whether copies of an element are equal is not checked.
 */

struct dcp_arena;
struct dcp_err;

/*
 * The plain pieces of @t, whose boxes lie inside shapes that do not overflow, as pieces without
 * overlap in @arena, in the same order. Pieces that need no cut come out as they were. Returns
 * 0, -ENOTSUP (a cut through an encoded item, described in @err), -E2BIG (too many cuts) or
 * -ENOMEM.
 */
int dcp_cover(const struct dcp_tensor *t, struct dcp_arena *arena, struct dcp_piece **out,
	      size_t *nout, struct dcp_err *err);
