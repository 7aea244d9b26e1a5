/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join: what ranks hold of one tensor, put together; before that, what files hold, kept until all
 * are read; after that, equal tensors by their places.
 *
 * An adapter says which box of the tensor, or which run of a box, lies where. Here the pieces are
 * sorted, equal ones are taken once and remembered once more from another file, pieces that overlap
 * are cut, and elements that no piece holds are counted. One thread at a time; buffers are kept
 * from one tensor to the next.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/format/format.h"
#include "core/model/tensor.h"

struct dcp_arena;

struct dcp_join {
	struct dcp_buf added;  /* struct dcp_piece, in the order of dcp_join_add() */
	struct dcp_buf order;  /* uint32_t: numbers in added, by place */
	struct dcp_buf copies; /* struct dcp_piece */
	struct dcp_err lost;   /* the first piece that cannot be had */
};

void dcp_join_finish(struct dcp_join *j);

/* Begin the next tensor. */
void dcp_join_begin(struct dcp_join *j);

/* Add one more piece. Its numbers are borrowed until the tensor was emitted. -ENOMEM. */
int dcp_join_add(struct dcp_join *j, const struct dcp_piece *p);

/*
 * Add the pieces of @part, which a rank holds as a tensor of its own, as far into the tensor as
 * @first says, one number for each dimension; their places lie in @arena. -EBADMSG: beyond 64 bits;
 * -ENOMEM.
 */
int dcp_join_add_part(struct dcp_join *j, const struct dcp_tensor *part, const uint64_t *first,
		      struct dcp_arena *arena);

/*
 * A piece cannot be had: the error of the tensor if no other piece has its elements. The first
 * reason counts.
 */
#define dcp_join_lose(j, ...)                                                                  \
	do {                                                                                   \
		if (!(j)->lost.code)                                                           \
			dcp_fail(&(j)->lost, __VA_ARGS__);                                     \
	} while (0)

/*
 * The pieces and copies of @t, whose shape is known: of equal pieces the first added, and as its
 * copy the next one of another file. @cut not NULL: pieces may overlap, and an element is that of
 * the first added that has it; what comes of that lies in @cut. Elements that are missing are
 * described in @why: by what was lost, else by @missing, which says why elements may be missing;
 * NULL: those are left to the index. Valid until the next tensor. Returns 0; 1: some overlapped;
 * -ENOMEM.
 */
int dcp_join_end(struct dcp_join *j, struct dcp_tensor *t, struct dcp_arena *cut,
		 const char *missing, struct dcp_err *why);

/*
 * copies: what several files hold of each key, kept until all of them are read.
 *
 * A rank's file holds its part of a tensor; the whole is known only when all files are read. A
 * family that needs only the union of all pieces emits it with dcp_copies_emit(); one that must
 * find out first how the parts fit (Megatron's mp_rank files do not say) examines the copies.
 */

/* What one file holds of a key. Everything lies in the arena. */
struct dcp_copy {
	struct dcp_copy *next; /* in the order of dcp_copies_add() */
	uint32_t who;          /* the caller's number of the file, */
	const char *file;      /* and what messages call it: borrowed */
	struct dcp_tensor t;
};

struct dcp_copies_key {
	struct dcp_copy *first, *last;
	size_t n;
};

struct dcp_copies {
	struct dcp_arena arena;
	struct dcp_intern names;
	struct dcp_buf keys;  /* struct dcp_copies_key, by number in names */
	struct dcp_join join; /* of the key at hand */
	size_t nbroken;
	struct dcp_err broken; /* of the first file that cannot be read */
};

void dcp_copies_init(struct dcp_copies *g);
void dcp_copies_finish(struct dcp_copies *g);

/*
 * Read the files 0 to @n - 1 of ranks. @read returns 1 when one cannot be read and @why says it:
 * then @emit_broken emits that, unless no file at all can be read; then the last error is given.
 * Returns 0, that or what @read and @emit_broken gave.
 */
int dcp_copies_read(struct dcp_copies *g, const struct dcp_load *in, size_t n,
		    int (*read)(void *ctx, size_t i, struct dcp_err *why),
		    int (*emit_broken)(void *ctx, size_t i, const char *why), void *ctx,
		    struct dcp_err *err);

/* Copy @t, which file @who, called @file, holds, with all it points at. -ENOMEM. */
int dcp_copies_add(struct dcp_copies *g, const struct dcp_tensor *t, uint32_t who,
		   const char *file);

/* Keys are numbered 0 to g->names.n - 1, in the order they came. Number of @key, which may be
 * one that no file holds. -ENOMEM. */
int dcp_copies_number(struct dcp_copies *g, const char *key, uint32_t *number);
struct dcp_copies_key *dcp_copies_at(const struct dcp_copies *g, uint32_t key);

/*
 * Emit key number @key as one tensor made of the pieces of all copies; of equal ones the first
 * is taken. A copy with an error counts only when elements are missing without it. @missing
 * says why elements may be missing, or is NULL. Returns 0, -ENOMEM or what the sink gave.
 */
int dcp_copies_emit(struct dcp_copies *g, uint32_t key, const struct dcp_sink *sink,
		    const char *missing);

/*
 * Emit all keys. A file that could not be read is why elements are missing; if all could, @missing
 * is.
 */
int dcp_copies_emit_all(struct dcp_copies *g, const struct dcp_sink *sink, const char *missing);

/* Do they have the same dtype and shape? */
bool dcp_copies_alike(const struct dcp_tensor *a, const struct dcp_tensor *b);

/*
 * places: which tensor was emitted before with the same bytes?
 *
 * A place is what says where and how a tensor is stored: dtype, shape, and all members of each
 * piece. Places are compared byte for byte, since a hash alone could be forged.
 */

struct dcp_tensor;

struct dcp_places {
	struct dcp_buf place;         /* of the tensor asked about */
	struct dcp_intern seen;       /* place to number */
	struct dcp_buf keys, key_off; /* of each number: its key, and where that starts */
};

/*
 * Set the alias_of of @t, which has pieces, to the key that was the first at its place, valid
 * until the next call; if @t is the first, its key is remembered. -ENOMEM; -E2BIG.
 */
int dcp_places_find(struct dcp_places *p, struct dcp_tensor *t);
void dcp_places_finish(struct dcp_places *p);
