/* SPDX-License-Identifier: Apache-2.0 */
/*
 * overlap: how many elements of a tensor two cuts share. Closed forms: no look at elements.
 *
 * Both are cartesian products of index sets, or runs of the flattening of one. As long as the
 * spans of every axis ascend, a run is a product between two places of the tensor's own
 * row-major order, whichever array it was counted in; so what two of them share is the product
 * of what their axes share, between the later of the beginnings and the earlier of the ends.
 *
 * Spans that ascend are what every layout gives. A piece is such a cut, too: dcp_piece_cut().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/cut.h"
#include "core/model/tensor.h"

/* Do the spans of every axis come in order of the tensor, none twice? */
bool dcp_cut_ascends(const struct dcp_cut *cut);

/* Elements of the tensor that both hold; padding is held by nobody. Both are cuts of one
 * tensor that fit it, and ascend. O(ndim * spans * log spans); boxes: O(ndim). */
uint64_t dcp_overlap(const struct dcp_cut *a, const struct dcp_cut *b);

/* Elements of the tensor that it holds: its volume without the padding. It need not ascend
 * unless it is flat and an axis of it is padded. */
uint64_t dcp_cut_held(const struct dcp_cut *cut);

/* Memory of a piece seen as a cut. */
struct dcp_piece_cut {
	struct dcp_cut cut;
	struct dcp_axis axis[DCP_MAX_NDIM];
	struct dcp_span span[DCP_MAX_NDIM];
};

/* What @p holds, in row-major order of its box. @out must stay where it is. */
void dcp_piece_cut(struct dcp_piece_cut *out, const struct dcp_piece *p, uint32_t ndim);

/* The same of elements [@first, @first + @n) of what it holds only. */
void dcp_piece_cut_part(struct dcp_piece_cut *out, const struct dcp_piece *p, uint32_t ndim,
			uint64_t first, uint64_t n);
