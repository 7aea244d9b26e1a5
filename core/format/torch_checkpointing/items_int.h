/* SPDX-License-Identifier: Apache-2.0 */
/*
 * items_int: what the files of torch_checkpointing's family share.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/format/format.h"
#include "core/format/gather/join.h"
#include "core/format/torch/shard/shard.h"
#include "core/format/torch_checkpointing/meta/meta.h"

/* ---- items.c: names of files ---- */

/* A file's name, taken apart. */
struct dcp_titems_name {
	const char *item; /* the name up to the rank or the extension */
	size_t len;
	enum dcp_titems_coding coding; /* by its extension */
	bool ranked;
	uint32_t rank;
};

/* false: not the name of an item's file. */
bool dcp_titems_name(const char *file, struct dcp_titems_name *out);

/* "rank_3", "rank3": a directory of a rank's files. */
bool dcp_titems_rank_dir(const char *name, uint32_t *rank);

/* One file to be read. */
struct dcp_titems_file {
	const char *name; /* below the version's directory */
	const char *item; /* NULL: it holds a dict of items (checkpoint_<rank>.pt) */
	const char *error;
	enum dcp_titems_coding coding;
	uint32_t rank, number; /* number at the sink */
	bool ranked;
	bool promised; /* metadata.pkl needs it */
	bool broken;
};

struct dcp_titems {
	const struct dcp_load *in;
	struct dcp_titems_meta meta; /* without entries where there is no metadata.pkl */
	bool has_meta;
	uint64_t world;
	struct dcp_arena arena;
	struct dcp_buf files; /* struct dcp_titems_file, by rank */
	size_t nfiles, at;
	struct dcp_copies copies;
	struct dcp_tparts parts;    /* shards of tensors that consist of several */
	struct dcp_buf faults;      /* const char * for each key of copies, or NULL */
	struct dcp_arena scratch;   /* of the tensor at hand */
	struct dcp_places places;   /* of what was put together */
	struct dcp_titems_emitted { /* what is in front of the paths of the file at hand */
		const char *path[2];
		size_t npath, nrank;
		char rank[24];
	} front;
};

/* ---- items.c: which files there are ---- */

struct dcp_titems_file *dcp_titems_file(const struct dcp_titems *r, size_t i);

/* A tensor of the file at hand, with its front: a part of something, or emitted as it is. Those
 * that say themselves which part they are come through the second. */
int dcp_titems_on_tensor(void *ctx, const struct dcp_tensor *t);
int dcp_titems_on_part(void *ctx, const struct dcp_tensor *t);

/* ---- join.c ---- */

/* Emit what was put together, and what metadata.pkl lists and no file holds. */
int dcp_titems_join(struct dcp_titems *r);

/* ---- read.c: what is in one file ---- */

/* Emit the file at hand. Returns 1 when it cannot be read: @why says it. */
int dcp_titems_read(struct dcp_titems *r, struct dcp_err *why);

/*
 * place: what a rank's file holds, compared with what metadata.pkl says of it.
 *
 * A tensor that is stored as it was in the rank's memory becomes a part of the whole; one that
 * says itself which part it is must say the same.
 */

struct dcp_arena;
struct dcp_err;
struct dcp_tensor;

/*
 * The local tensor @local of rank @rank, one whole piece or (without elements) none, as a part
 * of what @g describes. What @out points at lives in @arena and @local. -EBADMSG (it is not
 * what the metadata says: found and expected), -E2BIG, -ENOMEM.
 */
int dcp_titems_place(const struct dcp_titems_group *g, uint32_t rank,
		     const struct dcp_tensor *local, struct dcp_arena *arena,
		     struct dcp_tensor *out, struct dcp_err *err);

/* The same of @part, which is in pieces of the whole already: are they the right ones? */
int dcp_titems_compare(const struct dcp_titems_group *g, uint32_t rank,
		       const struct dcp_tensor *part, struct dcp_arena *arena,
		       struct dcp_err *err);
