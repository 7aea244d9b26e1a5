/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard: which part of which tensor does a pickled DTensor or ShardedTensor hold?
 *
 *	DTensor        _local_tensor, and _spec: mesh (its sizes, this rank's coordinates) and
 *	               placements; the global shape is in the call that rebuilds it
 *	ShardedTensor  local shards, each with its offsets and sizes; the global shape is in its
 *	               metadata
 *
 * Both occur in files that each rank wrote with torch.save. The result is the part in the rank's
 * file, as pieces of the whole tensor. Sources: torch/distributed/tensor/_api.py and
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
	struct dcp_tensor t; /* dtype and shape of the whole tensor; the pieces in this file */
	bool whole;          /* a single piece that is the whole tensor */
	/*
	 * True for a DTensor whose local part consists of several tensors (see dcp_tparts). Then t
	 * has no pieces and no dtype; the fields below give the local part, its shape, and which
	 * elements it has.
	 */
	bool parted;
	struct dcp_pv local;
	const char *class;
	const uint64_t *local_shape;
	const struct dcp_tplace_box *box;
	size_t nbox;
};

/* Is @v a DTensor or ShardedTensor? Examines only its class. */
bool dcp_tshard_is(struct dcp_pv v);

/*
 * Read @v, a value of @t, whose stream starts at byte @base of file number @file. The data that
 * @out points to lives in @arena; key and path of its tensor are not set. Returns 1, 0 (@v is
 * neither), -EBADMSG, -ENOTSUP (a partial sum), -E2BIG, -ENOMEM.
 */
int dcp_tshard_read(const struct dcp_torch *t, struct dcp_pv v, uint32_t file, uint64_t base,
		    struct dcp_arena *arena, struct dcp_tshard *out, struct dcp_err *err);

/* The box of @p as text: "0:3, 0:10". */
const char *dcp_tshard_region(char *buf, size_t n, const struct dcp_piece *p, uint32_t ndim);

/*
 * parts: joins a quantized tensor from the shards that several ranks hold.
 *
 * Such a tensor (torchao's Float8Tensor, OptimState8bit) consists of several tensors, its parts:
 * codes, scales, a table. The shard of each rank has all parts. A comparison of the shape of a
 * part with the shape of the shard shows how the part is cut:
 *
 *	as long as the shard along a dimension     cut where the shard is
 *	as long as a fraction of it                cut in blocks: a scale for each, or two codes in a byte
 *	one dimension, of a shard with several     the same, of the shard's elements in a row
 *	one element, a table, another form         the same on all ranks; where it differs, one for each shard
 *
 * The joined parts are KEY.qdata, KEY.scale, ..., as for a tensor that was not cut; KEY is an
 * object with the class and the settings of the tensor. A block_size that equals the shape of the
 * shard is left out of the settings, because it means either the shape of the whole tensor or that
 * of the shards; the shape of the scales shows which.
 */

struct dcp_copies;
struct dcp_sink;
struct dcp_torch;

struct dcp_tparts {
	struct dcp_arena arena;
	struct dcp_intern names; /* names of parts */
	struct dcp_buf lists;    /* the shards of each part, by number in names */
	struct dcp_intern keys;  /* keys of tensors */
	struct dcp_buf objects;  /* by number in keys */
};

/* A rank's shard of a tensor. */
struct dcp_tparts_shard {
	const char *key; /* key and path of the whole tensor */
	const char *const *path;
	size_t npath;
	uint32_t ndim;
	const uint64_t *shape, *local;    /* shape of the whole tensor, and of this shard */
	const struct dcp_tplace_box *box; /* which elements of the whole tensor it has */
	size_t nbox;
	uint32_t file; /* the sink's number of the file with the stream */
	uint64_t base; /* where the stream begins in the file */
	uint32_t who;  /* number and name of the file, for dcp_copies */
	const char *name;
};

void dcp_tparts_init(struct dcp_tparts *g);
void dcp_tparts_finish(struct dcp_tparts *g);

/*
 * Add the shard @s, which is the value @v of @t. Copies all of @s except the name of its file.
 * -ENOMEM.
 */
int dcp_tparts_add(struct dcp_tparts *g, const struct dcp_torch *t, struct dcp_pv v,
		   const struct dcp_tparts_shard *s);

/*
 * After all shards are added: add the pieces of each whole part to @copies, and emit the objects.
 * Returns 0, -ENOMEM, or the error of the sink.
 */
int dcp_tparts_join(struct dcp_tparts *g, struct dcp_copies *copies,
		    const struct dcp_sink *sink);
