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
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/format/torch/torch.h"
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
	 * (shard/shard.h), t has no pieces and no dtype: that part, its shape,
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

/*
 * parts: the whole of a quantized tensor, from the shards of it that several ranks hold.
 *
 * Such a tensor (torchao's Float8Tensor, OptimState8bit) consists of several: codes, scales, a
 * table. Each rank holds a shard that has all of them. How a part is cut follows from its shape
 * beside that of the shards:
 *
 *	as long as the shard along a dimension     cut where the shard is
 *	as long as a fraction of it                cut in blocks: a scale for each, or two codes in a byte
 *	one dimension, of a shard with several     the same, of the shard's elements in a row
 *	one element, a table, another form         the same on all ranks; where it differs, one for each shard
 *
 * The whole parts are KEY.qdata, KEY.scale, ... as those of a tensor that was not cut, and KEY is
 * an object of its class and its settings. A block_size that is the shape of the shard is left out
 * of those: it is the shape of the whole or that of the shards, and the shape of the scales tells.
 */

struct dcp_copies;
struct dcp_sink;
struct dcp_torch;

struct dcp_tparts {
	struct dcp_arena arena;
	struct dcp_intern names; /* of parts */
	struct dcp_buf lists;    /* by number in names: the shards of a part */
	struct dcp_intern keys;  /* of tensors */
	struct dcp_buf objects;  /* by number in keys */
};

/* A rank's shard of a tensor. */
struct dcp_tparts_shard {
	const char *key; /* of the whole tensor, and its path */
	const char *const *path;
	size_t npath;
	uint32_t ndim;
	const uint64_t *shape, *local;    /* of the whole, and of this shard */
	const struct dcp_tplace_box *box; /* which elements of the whole it has */
	size_t nbox;
	uint32_t
		file; /* the sink's number of the file in which the stream begins at byte @base */
	uint64_t base;
	uint32_t who; /* number and name of the file, for dcp_copies */
	const char *name;
};

void dcp_tparts_init(struct dcp_tparts *g);
void dcp_tparts_finish(struct dcp_tparts *g);

/*
 * Add the shard @s, which is the value @v of @t. All but the name of its file is copied. -ENOMEM.
 */
int dcp_tparts_add(struct dcp_tparts *g, const struct dcp_torch *t, struct dcp_pv v,
		   const struct dcp_tparts_shard *s);

/*
 * Once all shards were added: add what they hold of each whole part to @copies, and emit the
 * objects. -ENOMEM, or what the sink gave.
 */
int dcp_tparts_join(struct dcp_tparts *g, struct dcp_copies *copies,
		    const struct dcp_sink *sink);
