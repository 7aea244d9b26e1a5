/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch: what the families that read torch's pickles share.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/format/gather/join.h"
#include "core/model/dtype.h"
#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pyjson/pyjson.h"

/*
 * state: the tensors and objects of one torch.save stream, emitted to a sink.
 *
 * Tensors are emitted as plain pieces of the file the stream lies in, strides and byte order as
 * stored. Of tensors with the same storage, place, shape and strides the later ones are emitted
 * as aliases of the first.
 *
 * The key of a tensor whose other parts are in other files (DTensor, ShardedTensor) is emitted as
 * broken, with what to do; the part in this file is emitted beside it, named by its place:
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
struct dcp_tparts;

struct dcp_tstate {
	const struct dcp_torch *t;
	const struct dcp_pv *root; /* NULL: the whole of it; else a value in it */
	const struct dcp_sink *sink;
	const char *const *prefix; /* path components put in front of every path */
	size_t nprefix;
	uint32_t file; /* number the sink gave to the file the stream lies in */
	uint64_t base; /* where the stream starts in that file */
	/* Not NULL: why the stream's bytes cannot be found in the file (it is compressed).
	 * Every tensor with elements gets this error. */
	const char *sealed;
	/* May be NULL: the bytes of the stream, for an object that is all of it. */
	const struct dcp_stretch *stored;
	/* The key of a stream that is one value, with no mapping around it; NULL: "". */
	const char *whole;
	/*
	 * Of torch.distributed.checkpoint: an object that is all of the stream is one of its
	 * metadata.
	 */
	bool entry;
	bool tuples;                /* tuples are opened like lists, not only looked into */
	struct dcp_buf *containers; /* may be NULL: gets their classes (struct dcp_walk) */
	/* Open every list (core/parse/pyjson/pyjson.h). */
	bool lists;
	/*
	 * May be NULL. Called with each leaf first; 1: emitted elsewhere; 0: not; negative: stop.
	 */
	int (*take)(void *ctx, const struct dcp_leaf *leaf);
	/* Leave out tensors for whose key this is true: they are emitted elsewhere. */
	bool (*skip)(void *ctx, const char *key);
	/* May be NULL. For a caller that has the other files too: gets tensors of which they hold
	 * parts, as pieces of the whole; key and path as always, broken ones with their error. */
	int (*shard)(void *ctx, const struct dcp_tensor *t);
	/*
	 * May be NULL. The same for shards of tensors that consist of several: gets them as of file
	 * @who, called @name. Keys lack the first @own components of the prefix, which stand for
	 * the rank.
	 */
	struct dcp_tparts *parts;
	uint32_t who;
	const char *name;
	size_t own;
	void *ctx;
};

/*
 * Emit every leaf by itself: nested mappings are opened as dcp_pyjson_walk_in() says.
 * A leaf that is broken is emitted with its error. Returns 0, -ENOMEM or what the sink gave.
 */
int dcp_tstate_emit(const struct dcp_tstate *s);

/*
 * -ENOTSUP: file @name is a part of a checkpoint in a form that is not read, and would pass for a
 * model; or 0.
 */
int dcp_tstate_check(const struct dcp_torch *t, const char *name, struct dcp_err *err);

/*
 * The same of the file @name of @in's directory, which torch.save did not write, as the values of a
 * plain pickle; @whole as above. -EBADMSG: it is none either, and @err keeps what it says.
 */
struct dcp_load;

/*
 * Emit the whole value as one object under @key, whose path is the prefix, and the tensors
 * inside it by themselves. A value that is a tensor is emitted as a tensor.
 */
int dcp_tstate_emit_whole(const struct dcp_tstate *s, const char *key);

/*
 * Emit the same value as the item @key of a sink (core/model/tensor.h), with the keys that tensors
 * inside have by the prefix; @listed: as the one item of a list.
 */
int dcp_tstate_emit_item(const struct dcp_tstate *s, const char *key, const char *const *path,
			 size_t npath, bool listed);

/* ---- for the files of this folder alone ---- */

struct dcp_arena;

/*
 * ranks: what does the name of a rank's torch.save file say? And how do Meta's ranks hold a Llama?
 */

/* A file's name, taken apart. */
struct dcp_rank_name {
	const char *set; /* of the files that belong together: the name up to the rank */
	size_t len;
	uint64_t rank;
	uint64_t world; /* how many ranks the name says there are; 0: it does not */
};

/* false: not the name of a rank's file. */
bool dcp_rank_name(const char *file, struct dcp_rank_name *out);

struct dcp_meta {
	struct dcp_copies *whole;     /* gets all parts, as pieces of the whole */
	struct dcp_copies embeddings; /* until the width of the model is known */
	uint64_t width;               /* 0: not known */
	size_t nranks;
};

/*
 * field: what one value inside a DCP .metadata says.
 *
 * A class has one name here, whichever module torch kept it in over the years. Every function
 * accepts any value; errors say what was found and what was expected.
 */

struct dcp_buf;
struct dcp_err;

enum dcp_tfield_class {
	DCP_TFIELD_OTHER,
	DCP_TFIELD_METADATA,
	DCP_TFIELD_INDEX,
	DCP_TFIELD_TENSOR,
	DCP_TFIELD_BYTES,
	DCP_TFIELD_CHUNK,
	DCP_TFIELD_PROPERTIES,
	DCP_TFIELD_INFO,
	DCP_TFIELD_STORAGE_META,
	DCP_TFIELD_SHARDED_1_12, /* a class that only torch 1.12 wrote */
	DCP_TFIELD_PLAN,         /* the parts of Megatron's all_local_plans */
};

/* Which of torch's classes is @v an object of? */
enum dcp_tfield_class dcp_tfield_class(struct dcp_pv v);

/* "module.Name" of an object, else Python's name of its type. Valid while @v is. */
const char *dcp_tfield_type(struct dcp_pv v, char *buf, size_t n);

/* torch.Size, tuple or list of non-negative numbers. @what names the field for messages. */
int dcp_tfield_dims(struct dcp_pv v, const char *what, uint64_t dims[DCP_MAX_NDIM],
		    uint32_t *ndim, struct dcp_err *err);

/* The dtype in a TensorProperties: name as torch has it ("bfloat16"), valid while @v is. */
int dcp_tfield_dtype(struct dcp_pv v, const char **name, struct dcp_err *err);

/* A _StorageInfo. */
struct dcp_tfield_info {
	const char *path; /* valid while the value is */
	size_t path_len;
	uint64_t off, nbytes;
	enum dcp_filter filter;
};
int dcp_tfield_info(struct dcp_pv v, struct dcp_tfield_info *out, struct dcp_err *err);

/* Append a str or an int in the form of Python's str(), a NUL as C0 80; false for anything
 * else. */
bool dcp_tfield_component(struct dcp_buf *out, struct dcp_pv v);

/*
 * placement: which part of a tensor does one rank hold, by the placements of a DTensor?
 *
 * Shard(dim) cuts what is left of a dimension as torch.chunk() does: pieces of ceil(length /
 * n), the last ones shorter or empty. Replicate cuts nothing. _StridedShard(dim, f) cuts into f
 * chunks first and takes a piece of each. Where f is the number of parts into which the later
 * mesh dimensions cut the same dimension, those are applied first (FSDP2 over tensor parallel):
 * that gives the same in the even case, and what torch does in the uneven one.
 */

struct dcp_err;
struct dcp_piece;

#define DCP_TPLACE_MAX 32 /* mesh dimensions; torch itself uses up to five */

enum dcp_tplace_kind { DCP_TPLACE_REPLICATE, DCP_TPLACE_SHARD, DCP_TPLACE_STRIDED };

/* One mesh dimension: @n ranks along it, this one is number @at. */
struct dcp_tplace {
	enum dcp_tplace_kind kind;
	uint32_t dim;
	uint64_t factor; /* of STRIDED */
	uint64_t n, at;
};

/*
 * Carry out @np placements in their order. @out lives in @arena. -EBADMSG (a dimension or
 * coordinate that is not there), -E2BIG (too many spans), -ENOMEM.
 */
int dcp_tplace_cut(const struct dcp_tplace *place, uint32_t np, uint32_t ndim,
		   const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
		   struct dcp_err *err);

/* [lo, lo + len) of the whole tensor is at @at of the local one. */
struct dcp_tplace_box {
	const uint64_t *lo, *at, *len;
};

/* The boxes of which @cut consists, in @arena. -E2BIG (more than @max), -ENOMEM. */
int dcp_tplace_boxes(const struct dcp_cut *cut, uint64_t max, struct dcp_arena *arena,
		     const struct dcp_tplace_box **out, size_t *n);

/*
 * The elements of @box, which has some, as the piece @p: box, run and place. The local tensor of
 * @shape and @stride (NULL: row-major) begins at p->off. -EBADMSG (it does not fit in 64 bits),
 * -ENOMEM.
 */
int dcp_tplace_piece(const struct dcp_tplace_box *box, uint32_t ndim, const uint64_t *shape,
		     const uint64_t *stride, uint32_t itemsize, struct dcp_arena *arena,
		     struct dcp_piece *p);
