/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard: which part of which tensor is a pickled DTensor or ShardedTensor?
 *
 *	DTensor        _local_tensor, and _spec: mesh (its sizes, this rank's coordinates) and
 *	               placements; the global shape stands in the call that rebuilds it
 *	ShardedTensor  local shards, each with its offsets and sizes; the global shape stands in
 *	               its metadata
 *
 * Both occur in files that each rank wrote with torch.save. The answer is what the rank's file
 * holds, as pieces of the whole tensor. Sources: torch/distributed/tensor/_api.py and
 * _dtensor_spec.py, torch/distributed/_shard/sharded_tensor/api.py of torch 1.12 to 2.15.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

struct dcp_arena;
struct dcp_err;
struct dcp_torch;
struct dcp_tplace_box;

struct dcp_tshard {
	const char *what;    /* "DTensor", "ShardedTensor" */
	struct dcp_tensor t; /* dtype and shape of the whole; the pieces that are here */
	bool whole;          /* one piece, and it is everything */
	/*
	 * Of a DTensor whose local part consists of several tensors
	 * (core/format/torch/shard/parts.h), t has no pieces and no dtype: that part, its shape,
	 * and which elements it has.
	 */
	bool parted;
	struct dcp_pv local;
	const char *class;
	const uint64_t *local_shape;
	const struct dcp_tplace_box *box;
	size_t nbox;
};

/* Is @v one? Looks at its class alone. */
bool dcp_tshard_is(struct dcp_pv v);

/*
 * Read @v, a value of @t, whose stream starts at byte @base of file number @file. What @out
 * points at lives in @arena; its key and path are not set. Returns 1, or 0 (it is neither),
 * -EBADMSG, -ENOTSUP (a sum that was not added up), -E2BIG, -ENOMEM.
 */
int dcp_tshard_read(const struct dcp_torch *t, struct dcp_pv v, uint32_t file, uint64_t base,
		    struct dcp_arena *arena, struct dcp_tshard *out, struct dcp_err *err);

/* "0:3, 0:10" */
const char *dcp_tshard_region(char *buf, size_t n, const struct dcp_piece *p, uint32_t ndim);
