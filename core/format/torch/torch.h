/* SPDX-License-Identifier: Apache-2.0 */
/* torch: declarations for the families that read torch's pickles. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/format/gather/join.h"
#include "core/model/dtype.h"
#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pyjson/pyjson.h"

/*
 * state: emits the tensors and objects of one torch.save stream to a sink.
 *
 * Tensors are emitted as plain pieces of the file that contains the stream, with strides and byte
 * order as stored. If tensors have the same storage, place, shape and strides, all but the first
 * are emitted as aliases of the first.
 *
 * If other files hold other parts of a tensor (DTensor, ShardedTensor), the key of the tensor is
 * emitted as broken, with an advice; the part in this file is emitted beside it, named by its
 * place:
 *
 *	w           "only [0:3,0:10] of [7, 10] is in this file: ..."
 *	w.@0:3,0:10 a tensor of shape [3, 10]
 */

struct dcp_buf;
struct dcp_err;
struct dcp_leaf;
struct dcp_pv;
struct dcp_sink;
struct dcp_stretch;
struct dcp_tensor;
struct dcp_torch;
struct dcp_shard_parts;

struct dcp_torch_state {
	const struct dcp_torch *t;
	const struct dcp_pv *root; /* the value to emit; NULL: the root of the stream */
	const struct dcp_sink *sink;
	const char *const *prefix; /* path components put in front of every path */
	size_t nprefix;
	uint32_t file; /* the sink's number of the file that contains the stream */
	uint64_t base; /* where the stream starts in that file */
	/* Not NULL: why the stream's bytes cannot be found in the file (it is compressed).
	 * Every tensor with elements gets this error. */
	const char *sealed;
	/* May be NULL. The bytes of the stream, for an object that is the whole stream. */
	const struct dcp_stretch *stored;
	/* The key of a stream that is a single value without a mapping; NULL: "". */
	const char *whole;
	/* For torch.distributed.checkpoint: its metadata has an entry for an object that is the
	 * whole stream. */
	bool entry;
	bool tuples; /* open tuples like lists, not only search them for tensors */
	struct dcp_buf *containers; /* may be NULL; receives classes of containers (dcp_walk) */
	/* Open every list (core/parse/pyjson/pyjson.h). */
	bool lists;
	/* May be NULL. Called with each leaf before it is emitted. Returns 1 if the caller emits
	 * the leaf itself, 0 if not, negative to stop. */
	int (*take)(void *ctx, const struct dcp_leaf *leaf);
	/* A tensor is left out if this is true for its key: the caller emits the tensor itself. */
	bool (*skip)(void *ctx, const char *key);
	/* May be NULL. For a caller that also reads the files with the other parts of a tensor:
	 * receives the whole tensor, with the key and path of the whole, but only the pieces in
	 * this file; and a broken tensor with its error. */
	int (*shard)(void *ctx, const struct dcp_tensor *t);
	/*
	 * May be NULL. The same for shards of tensors that consist of several tensors: receives
	 * them as shards of file @who with the name @name. Their keys lack the first @own
	 * components of the prefix, which name the rank.
	 */
	struct dcp_shard_parts *parts;
	uint32_t who;
	const char *name;
	size_t own;
	void *ctx;
};

/* Emit every leaf separately; nested mappings are opened by the rules of dcp_pyjson_walk_in(). A
 * broken leaf is emitted with its error. Returns 0, -ENOMEM or the error of the sink. */
int dcp_torch_state_emit(const struct dcp_torch_state *s);

/* Returns -ENOTSUP if file @name is a part of a checkpoint in an unsupported form and would
 * otherwise look like a model; else 0. */
int dcp_torch_state_check(const struct dcp_torch *t, const char *name, struct dcp_err *err);

/* Emit the whole value as one object under @key, whose path is the prefix, and the tensors inside
 * it by themselves. A value that is a tensor is emitted as a tensor. */
int dcp_torch_state_emit_whole(const struct dcp_torch_state *s, const char *key);

/* Emit the same value as the item @key of a sink (core/model/tensor.h); the keys of tensors inside
 * it follow from the prefix. @listed: as the only item of a list. */
int dcp_torch_state_emit_item(const struct dcp_torch_state *s, const char *key,
			      const char *const *path, size_t npath, bool listed);

/* ---- only for the files of this folder ---- */

struct dcp_arena;

/* ranks: the names of torch.save files of ranks, and the parts of a Llama in Meta's files. */

/* The components of a file's name. */
struct dcp_rank_name {
	const char *set; /* the name up to the rank: equal for files that belong together */
	size_t len;
	uint64_t rank;
	uint64_t world; /* the number of ranks by the name; 0: not in the name */
};

/* Parse the name @file. False: it is not the name of a rank's file. */
bool dcp_rank_name(const char *file, struct dcp_rank_name *out);

struct dcp_meta {
	struct dcp_copies *whole;     /* receives all parts, as pieces of the whole tensors */
	struct dcp_copies embeddings; /* kept until the width of the model is known */
	uint64_t width;               /* 0: not known */
	size_t nranks;
};

/*
 * field: reads one value inside a DCP .metadata.
 *
 * A class has one enumerator here, although torch has moved it between modules over the years.
 * Every function accepts any value; messages have the value found and the value expected.
 */

enum dcp_torch_field_class {
	DCP_TORCH_FIELD_OTHER,
	DCP_TORCH_FIELD_METADATA,
	DCP_TORCH_FIELD_INDEX,
	DCP_TORCH_FIELD_TENSOR,
	DCP_TORCH_FIELD_BYTES,
	DCP_TORCH_FIELD_CHUNK,
	DCP_TORCH_FIELD_PROPERTIES,
	DCP_TORCH_FIELD_INFO,
	DCP_TORCH_FIELD_STORAGE_META,
	DCP_TORCH_FIELD_SHARDED_1_12, /* a class that only torch 1.12 wrote */
	DCP_TORCH_FIELD_PLAN,         /* the parts of Megatron's all_local_plans */
};

/* The class of torch of which @v is an object. */
enum dcp_torch_field_class dcp_torch_field_class(struct dcp_pv v);

/* "module.Name" of an object, else Python's name of the type. Valid as long as @v. */
const char *dcp_torch_field_type(struct dcp_pv v, char *buf, size_t n);

/* Read a torch.Size, tuple or list of non-negative numbers. @what is the field in messages. */
int dcp_torch_field_dims(struct dcp_pv v, const char *what, uint64_t dims[DCP_MAX_NDIM],
			 uint32_t *ndim, struct dcp_err *err);

/* Read torch's name of the dtype in a TensorProperties ("bfloat16"); valid as long as @v. */
int dcp_torch_field_dtype(struct dcp_pv v, const char **name, struct dcp_err *err);

/* A _StorageInfo. */
struct dcp_torch_field_info {
	const char *path; /* valid as long as the value */
	size_t path_len;
	uint64_t off, nbytes;
	enum dcp_filter filter;
};
int dcp_torch_field_info(struct dcp_pv v, struct dcp_torch_field_info *out,
			 struct dcp_err *err);

/* Append a str or an int in the form of Python's str(), a NUL as C0 80; false for any other
 * value. */
bool dcp_torch_field_component(struct dcp_buf *out, struct dcp_pv v);

/*
 * placement: computes the part of a tensor that one rank holds from the placements of a DTensor.
 *
 * Shard(dim) cuts the remaining part of a dimension like torch.chunk() does: pieces of ceil(length
 * / n), the last pieces shorter or empty. Replicate cuts nothing. _StridedShard(dim, f) first cuts
 * the dimension into f chunks and takes a piece of each chunk. If later mesh dimensions cut the
 * same dimension into f parts (FSDP2 over tensor parallel), their placements are applied first: the
 * result is the same for even cuts, and torch's result for uneven cuts.
 */

struct dcp_piece;

#define DCP_TORCH_PLACEMENT_MAX 32 /* mesh dimensions; torch itself uses up to five */

enum dcp_torch_placement_kind {
	DCP_TORCH_PLACEMENT_REPLICATE,
	DCP_TORCH_PLACEMENT_SHARD,
	DCP_TORCH_PLACEMENT_STRIDED
};

/* One mesh dimension with @n ranks, of which this rank is number @at. */
struct dcp_torch_placement {
	enum dcp_torch_placement_kind kind;
	uint32_t dim;
	uint64_t factor; /* of STRIDED */
	uint64_t n, at;
};

/* Apply @np placements in their order. @out lives in @arena. -EBADMSG (a dimension or coordinate
 * that does not exist), -E2BIG (too many spans), -ENOMEM. */
int dcp_torch_placement_cut(const struct dcp_torch_placement *place, uint32_t np, uint32_t ndim,
			    const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
			    struct dcp_err *err);

/* The box [lo, lo + len) of the whole tensor lies at index @at of the local tensor. */
struct dcp_torch_placement_box {
	const uint64_t *lo, *at, *len;
};

/* The boxes of which @cut consists, in @arena. -E2BIG (more than @max), -ENOMEM. */
int dcp_torch_placement_boxes(const struct dcp_cut *cut, uint64_t max, struct dcp_arena *arena,
			      const struct dcp_torch_placement_box **out, size_t *n);

/*
 * Describe the elements of @box, which is not empty, as the piece @p: its box, run and place. The
 * local tensor, of @shape and @stride (NULL: row-major), begins at p->off. -EBADMSG (a number does
 * not fit in 64 bits), -ENOMEM.
 */
int dcp_torch_placement_piece(const struct dcp_torch_placement_box *box, uint32_t ndim,
			      const uint64_t *shape, const uint64_t *stride, uint32_t itemsize,
			      struct dcp_arena *arena, struct dcp_piece *p);

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

struct dcp_shard {
	const char *what;    /* "DTensor", "ShardedTensor" */
	struct dcp_tensor t; /* dtype and shape of the whole tensor; the pieces in this file */
	bool whole;          /* a single piece that is the whole tensor */
	/*
	 * True for a DTensor whose local part consists of several tensors (see dcp_shard_parts).
	 * Then t has no pieces and no dtype; the fields below give the local part, its shape, and
	 * which elements it has.
	 */
	bool parted;
	struct dcp_pv local;
	const char *class;
	const uint64_t *local_shape;
	const struct dcp_torch_placement_box *box;
	size_t nbox;
};

/* Is @v a DTensor or ShardedTensor? Examines only its class. */
bool dcp_shard_is(struct dcp_pv v);

/*
 * Read @v, a value of @t, whose stream starts at byte @base of file number @file. The data that
 * @out points to lives in @arena; key and path of its tensor are not set. Returns 1, 0 (@v is
 * neither), -EBADMSG, -ENOTSUP (a partial sum), -E2BIG, -ENOMEM.
 */
int dcp_shard_read(const struct dcp_torch *t, struct dcp_pv v, uint32_t file, uint64_t base,
		   struct dcp_arena *arena, struct dcp_shard *out, struct dcp_err *err);

/* The box of @p as text: "0:3, 0:10". */
const char *dcp_shard_region(char *buf, size_t n, const struct dcp_piece *p, uint32_t ndim);

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

struct dcp_shard_parts {
	struct dcp_arena arena;
	struct dcp_intern names; /* names of parts */
	struct dcp_buf lists;    /* the shards of each part, by number in names */
	struct dcp_intern keys;  /* keys of tensors */
	struct dcp_buf objects;  /* by number in keys */
};

/* A rank's shard of a tensor. */
struct dcp_shard_parts_shard {
	const char *key; /* key and path of the whole tensor */
	const char *const *path;
	size_t npath;
	uint32_t ndim;
	const uint64_t *shape, *local; /* shape of the whole tensor, and of this shard */
	const struct dcp_torch_placement_box
		*box; /* which elements of the whole tensor it has */
	size_t nbox;
	uint32_t file; /* the sink's number of the file with the stream */
	uint64_t base; /* where the stream begins in the file */
	uint32_t who;  /* number and name of the file, for dcp_copies */
	const char *name;
};

void dcp_shard_parts_init(struct dcp_shard_parts *g);
void dcp_shard_parts_finish(struct dcp_shard_parts *g);

/* Add the shard @s, which is the value @v of @t. Copies all of @s except the name of its file.
 * -ENOMEM. */
int dcp_shard_parts_add(struct dcp_shard_parts *g, const struct dcp_torch *t, struct dcp_pv v,
			const struct dcp_shard_parts_shard *s);

/* After all shards are added: add the pieces of each whole part to @copies, and emit the objects.
 * Returns 0, -ENOMEM, or the error of the sink. */
int dcp_shard_parts_join(struct dcp_shard_parts *g, struct dcp_copies *copies,
			 const struct dcp_sink *sink);

/* composer: recognises Composer's file names and states, for the families that may find them. */

/*
 * Does the name @file follow Composer's own templates: "ep1-ba6-rank3.pt", "ba6-rank3.pt.tar"? Then
 * @rank receives its rank, and @save (DCP_GROUP_MAX bytes) the name of the save, which is the name
 * of rank 0's file.
 */
bool dcp_composer_name(const char *file, char *save, uint64_t *rank);

/* Is the object of the stream a Composer state: {"state": {...}, "rng": [...]}? */
bool dcp_composer_is_state(const struct dcp_torch *t);
