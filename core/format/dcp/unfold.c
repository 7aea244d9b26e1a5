/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor of shape [4, 18, 6] of which two tensor-parallel ranks hold rows each, flattened and
 * cut again by data-parallel rank, is stored by Megatron 0.12 as [4, 2, 1, 54]: a grid of
 * blocks of 1 x 9 x 6, each of 54 elements in a row. Chunks are runs of one block.
 *
 * Source: megatron/core/dist_checkpointing/strategies/torch.py of core_r0.12.0.
 */
#include <errno.h>

#include "core/base/ckd.h"
#include "core/base/text.h"
#include "core/format/dcp/dcp_int.h"

/* Sides of a block: @shape over the grid. The grid has one dimension more, a block's elements.
 */
static bool block_of(const struct dcp_tdcp_join *j, const uint64_t *shape, uint32_t ndim,
		     uint64_t *block)
{
	uint64_t volume;

	if (j->t.ndim != ndim + 1)
		return false;
	for (uint32_t k = 0; k < ndim; k++) {
		if (j->shape[k] == 0 || shape[k] % j->shape[k] != 0)
			return false;
		block[k] = shape[k] / j->shape[k];
	}
	return dcp_shape_volume(block, ndim, &volume) && volume == j->shape[ndim];
}

/* Its box in the grid becomes the box of its block, and the run of that. */
static bool unfold_piece(struct dcp_piece *p, const uint64_t *block, uint32_t ndim,
			 uint64_t *dims)
{
	for (uint32_t k = 0; k < ndim; k++) {
		if (p->len[k] != 1 || dcp_ckd_mul(&dims[k], p->lo[k], block[k]))
			return false;
		dims[ndim + k] = block[k];
	}
	p->run_lo = p->lo[ndim];
	p->run_n = p->len[ndim];
	p->lo = dims;
	p->len = dims + ndim;
	p->enc = DCP_ENC_TORCH_FLAT;
	return true;
}

void dcp_tdcp_unfold(struct dcp_tdcp_emitter *w, struct dcp_tdcp_join *j, const uint64_t *shape,
		     uint32_t ndim)
{
	struct dcp_piece *p = (struct dcp_piece *)(uintptr_t)j->t.pieces;
	size_t each = 2 * sizeof(uint64_t) * ndim, i = 0;
	uint64_t block[DCP_MAX_NDIM], *dims;

	if (!block_of(j, shape, ndim, block)) {
		dcp_fail(&j->why, -EBADMSG,
			 "mcore_data gives it %u dimension%s, which the %u it is stored with "
			 "are "
			 "not a grid of blocks of",
			 ndim, dcp_s(ndim), j->t.ndim);
		return;
	}
	dcp_buf_reset(&w->blocks);
	dims = dcp_buf_grow(&w->blocks, each * j->t.npieces + 1);
	if (!dims) {
		dcp_fail(&j->why, -ENOMEM, "out of memory for its pieces");
		return;
	}
	while (i < j->t.npieces && unfold_piece(&p[i], block, ndim, dims + 2 * ndim * i))
		i++;
	if (i < j->t.npieces) {
		dcp_fail_at(&j->why, -ENOTSUP, p[i].off,
			    "a chunk of several blocks of Megatron's flattened tensors");
		return;
	}
	j->t.ndim = ndim;
	j->t.ncopies = 0; /* their boxes are those of the grid */
	for (uint32_t k = 0; k < ndim; k++)
		j->shape[k] = shape[k];
}
