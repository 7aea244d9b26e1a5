/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_int: what the files behind shard.h share.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/format/torch/placement.h"
#include "core/format/torch/shard/shard.h"
#include "core/parse/torch/torch.h"

#define DCP_TSHARD_MAX_PIECES (1u << 16) /* of one tensor in one file */

struct dcp_tshard_reading {
	const struct dcp_torch *t;
	uint32_t file;
	uint64_t base;
	struct dcp_arena *arena;
	struct dcp_tshard *out;
	struct dcp_err *err;
};

/* What it is, and what it was made of: the state of the tensor, and the arguments of
 * _rebuild_wrapper_subclass() (n 0: there was no such call). */
struct dcp_tshard_found {
	enum { DCP_TSHARD_NEITHER, DCP_TSHARD_DTENSOR, DCP_TSHARD_SHARDED } kind;
	struct dcp_pv state;
	const struct dcp_pv *arg;
	size_t n;
};

/* ---- piece.c ---- */

/* Failures, as text: "DTensor whose <why>". */
int dcp_tshard_no_memory(const struct dcp_tshard_reading *r);
int dcp_tshard_damaged(const struct dcp_tshard_reading *r, const char *why);

int dcp_tshard_set_shape(struct dcp_tshard_reading *r, struct dcp_pv size);
int dcp_tshard_set_dtype(struct dcp_tshard_reading *r, const char *name, enum dcp_dtype dtype,
			 uint32_t itemsize);

/* Read the tensor @v, a part of the whole: the type is that of the whole. */
int dcp_tshard_local(struct dcp_tshard_reading *r, struct dcp_pv v,
		     struct dcp_torch_tensor *tt);

/* Piece @p is @box, which is not empty, of the stored tensor @tt. */
int dcp_tshard_place(struct dcp_tshard_reading *r, struct dcp_piece *p,
		     const struct dcp_torch_tensor *tt, const struct dcp_tplace_box *box);

/* ---- dtensor.c ---- */

int dcp_tshard_dtensor(struct dcp_tshard_reading *r, const struct dcp_tshard_found *f);
