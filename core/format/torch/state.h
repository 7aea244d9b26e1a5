/* SPDX-License-Identifier: Apache-2.0 */
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
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/format/gather/join.h"
#include "core/parse/pyjson/pyjson.h"

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
