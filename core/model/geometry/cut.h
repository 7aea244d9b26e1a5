/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cut: the part of a tensor that one rank holds, as an array of its own.
 *
 * Along each dimension the array takes an ordered list of spans of the tensor and lays them end
 * to end; the array is their cartesian product. One span a dimension is a box (torch's Shard);
 * several are a strided shard, or the q, k and v parts of a fused tensor:
 *
 *	shard(0, groups=[4,2,2]), rank 1 of 2       axis 0: [2,4) [5,6) [7,8)
 *	the local array has 4 rows: 2 3 5 7 of the tensor
 *
 * A flat cut then takes a run of that array's row-major flattening, as one dimension, with
 * zeros after it (ZeRO's and Megatron's padding). An axis may end in zeros too (a shard
 * padded to its neighbours' size).
 *
 * Nothing here owns memory: arrays live in the arena of the caller that made them. All counts are
 * elements.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_box;

/* [lo, lo + n) of the tensor is at [at, at + n) of the array. Never empty. */
struct dcp_span {
	uint64_t at, lo, n;
};

/*
 * Spans in order of @at, without gaps from 0. Positions after the last span, up to @len, are zeros.
 * len 0: no span, the array is empty. Spans may be anywhere in the tensor, in any order; they do
 * not overlap.
 */
struct dcp_axis {
	const struct dcp_span *span;
	size_t n;
	uint64_t len;
};

struct dcp_cut {
	uint32_t ndim;               /* the tensor's */
	const struct dcp_axis *axis; /* ndim */
	bool flat;
	uint64_t flat_lo, flat_n; /* run of the flattened array, when flat */
	uint64_t pad;             /* zero elements after the run, when flat */
};

/* The whole tensor. -ENOMEM. */
int dcp_cut_whole(struct dcp_cut *out, uint32_t ndim, const uint64_t *shape,
		  struct dcp_arena *arena);
/* The box [lo, lo + len). -ENOMEM. */
int dcp_cut_box(struct dcp_cut *out, uint32_t ndim, const uint64_t *lo, const uint64_t *len,
		struct dcp_arena *arena);

/* The number of positions of an axis that spans fill; the others up to @len are zeros. */
static inline uint64_t dcp_axis_filled(const struct dcp_axis *axis)
{
	return axis->n ? axis->span[axis->n - 1].at + axis->span[axis->n - 1].n : 0;
}

/* Does an axis end in zeros? */
bool dcp_cut_is_padded(const struct dcp_cut *cut);

/* Is the cut a whole tensor of this shape, unchanged? */
bool dcp_cut_is_whole(const struct dcp_cut *cut, const uint64_t *shape);

/* The array's own dimensions (1 when flat) into @shape (DCP_MAX_NDIM); returns how many. */
uint32_t dcp_cut_shape(const struct dcp_cut *cut, uint64_t *shape);

/* Elements of the array, padding included; false on overflow. */
bool dcp_cut_volume(const struct dcp_cut *cut, uint64_t *out);

/*
 * Is it a valid cut of a tensor of this shape? Checked: spans are not empty, lie inside it and
 * are laid end to end with zeros only after them; a flat run lies inside the array; the volume
 * fits in 64 bits. Not checked: spans that overlap.
 */
bool dcp_cut_fits(const struct dcp_cut *cut, uint32_t ndim, const uint64_t *shape);

/* A box of the tensor that holds all elements of the cut: the smallest such box, but for a flat cut
 * perhaps a larger one. False: the cut has no elements. The cut must fit its tensor. */
bool dcp_cut_bounds(const struct dcp_cut *cut, struct dcp_box *out);

/* A copy that owns nothing of the original. -ENOMEM. */
int dcp_cut_copy(struct dcp_cut *out, const struct dcp_cut *cut, struct dcp_arena *arena);

/* The span that holds index @i of the array, which must be in a span; @hint: where to look
 * first. */
static inline const struct dcp_span *dcp_axis_find(const struct dcp_axis *a, uint64_t i,
						   const struct dcp_span *hint)
{
	size_t next;

	if (i - hint->at < hint->n)
		return hint;
	DCP_BISECT(next, 1, a->n, a->span[next].at <= i);
	return &a->span[next - 1];
}

/* Take the next box [lo, lo + n) off a run [*pos, *pos + *left) of the flattened @shape. Call it
 * until *left is 0. */
void dcp_run_box(uint32_t ndim, const uint64_t *shape, uint64_t *pos, uint64_t *left,
		 uint64_t *lo, uint64_t *n);

/*
 * meet: the boxes in which a cut and the pieces of a tensor meet.
 *
 * Both sides are cartesian products, or runs of a flattening; a run of a box of n dimensions
 * is at most 2n - 1 boxes. So any request splits into boxes that lie in one piece, in one span
 * of each dimension and, row-major, in one place of the cut's array; single elements need not be
 * examined. Pure: no I/O, no allocation.
 */

struct dcp_tiling;

/* The box [lo, lo + n) of the tensor is in @piece, and at @index of the array of the cut (before a
 * flat cut flattens it). */
struct dcp_meet {
	const struct dcp_piece *piece;
	const uint64_t *lo, *n, *index; /* ndim each; for the call only */
};

/*
 * Call @fn for every box in which elements [@first, @first + @count) of @cut (of its run, when
 * flat; padding excluded) meet a piece. A negative return of @fn ends the walk and is returned.
 * Boxes come in the order of their first element in the array, except that the boxes of a piece
 * that was stored as runs come together. Neighbouring spans that continue each other count as one.
 * O(cells and spans met + boxes).
 */
typedef int (*dcp_meet_fn)(void *ctx, const struct dcp_meet *m);
int dcp_meet(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t first,
	     uint64_t count, dcp_meet_fn fn, void *ctx);
