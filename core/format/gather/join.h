/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join: joins the pieces of a tensor that ranks hold. It also keeps the contents of files until all
 * files are read (copies), and finds tensors with the same bytes (places).
 *
 * An adapter says where each box of the tensor, or run of a box, lies. This code sorts the pieces,
 * keeps one of equal pieces and a copy of it from another file, cuts pieces that overlap, and
 * counts the elements that no piece holds. One thread at a time; buffers are kept from one tensor
 * to the next.
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
	struct dcp_buf order;  /* uint32_t: indices in added, sorted by place */
	struct dcp_buf copies; /* struct dcp_piece */
	struct dcp_err lost;   /* why the first missing piece is missing */
};

void dcp_join_finish(struct dcp_join *j);

/* Begin the next tensor. */
void dcp_join_begin(struct dcp_join *j);

/* Add a piece. Its arrays are borrowed until the tensor is emitted. -ENOMEM. */
int dcp_join_add(struct dcp_join *j, const struct dcp_piece *p);

/*
 * Add the pieces of @part, which a rank holds as its own tensor; @first is the index of its first
 * element in the whole tensor, one number per dimension. The new places lie in @arena. -EBADMSG (an
 * index beyond 64 bits), -ENOMEM.
 */
int dcp_join_add_part(struct dcp_join *j, const struct dcp_tensor *part, const uint64_t *first,
		      struct dcp_arena *arena);

/* Say why a piece is missing: this becomes the error of the tensor if no other piece has its
 * elements. The first reason counts. */
#define dcp_join_lose(j, ...)                                                                  \
	do {                                                                                   \
		if (!(j)->lost.code)                                                           \
			dcp_fail(&(j)->lost, __VA_ARGS__);                                     \
	} while (0)

/*
 * Set the pieces and copies of @t, whose shape is known. Of equal pieces, the first one added is
 * the piece, and the next one from another file is its copy. With @cut not NULL, pieces may
 * overlap: an element then belongs to the first added piece that has it, and the cut pieces lie in
 * @cut. If elements are missing, @why describes them, with the reason of dcp_join_lose() or else
 * with @missing; without both, the index reports the elements. The pieces are valid until the next
 * tensor. Returns 0, 1 (pieces overlapped) or -ENOMEM.
 */
int dcp_join_end(struct dcp_join *j, struct dcp_tensor *t, struct dcp_arena *cut,
		 const char *missing, struct dcp_err *why);

/*
 * copies: the tensors that several files hold under each key, kept until all files are read.
 *
 * The file of a rank holds the rank's part of a tensor; the whole tensor is known only after all
 * files are read. A family that needs only the union of all pieces emits it with
 * dcp_copies_emit(). A family that must first find out how the parts fit together (Megatron's
 * mp_rank files do not say it) examines the copies.
 */

/* The tensor that one file holds under a key. All of it lies in the arena. */
struct dcp_copy {
	struct dcp_copy *next; /* in the order of dcp_copies_add() */
	uint32_t who;          /* the caller's number of the file */
	const char *file;      /* the file's name in messages: borrowed */
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
	struct dcp_join join; /* of the current key */
	size_t nbroken;
	struct dcp_err broken; /* the error of the first unreadable file */
};

void dcp_copies_init(struct dcp_copies *g);
void dcp_copies_finish(struct dcp_copies *g);

/*
 * Read the files 0 to @n - 1 of ranks. @read returns 1 with the reason in @why if a file cannot be
 * read; then @emit_broken emits the reason. If no file can be read, the last error is returned
 * instead. Returns 0, this error, or an error of @read or @emit_broken.
 */
int dcp_copies_read(struct dcp_copies *g, const struct dcp_load *in, size_t n,
		    int (*read)(void *ctx, size_t i, struct dcp_err *why),
		    int (*emit_broken)(void *ctx, size_t i, const char *why), void *ctx,
		    struct dcp_err *err);

/* Add a deep copy of @t, which is in file @who with the name @file. -ENOMEM. */
int dcp_copies_add(struct dcp_copies *g, const struct dcp_tensor *t, uint32_t who,
		   const char *file);

/* Get the number of @key, which need not be in any file. Keys are numbered from 0 to
 * g->names.n - 1 in the order in which they were added. -ENOMEM. */
int dcp_copies_number(struct dcp_copies *g, const char *key, uint32_t *number);
struct dcp_copies_key *dcp_copies_at(const struct dcp_copies *g, uint32_t key);

/*
 * Emit key number @key as one tensor of the pieces of all copies; of equal pieces the first is
 * taken. The error of a copy matters only if elements are missing without that copy. @missing
 * says why elements may be missing, or is NULL. Returns 0, -ENOMEM or the error of the sink.
 */
int dcp_copies_emit(struct dcp_copies *g, uint32_t key, const struct dcp_sink *sink,
		    const char *missing);

/* Emit all keys. The reason for missing elements is the unreadable file, if there is one, else
 * @missing. */
int dcp_copies_emit_all(struct dcp_copies *g, const struct dcp_sink *sink, const char *missing);

/* Do @a and @b have the same dtype and shape? */
bool dcp_copies_alike(const struct dcp_tensor *a, const struct dcp_tensor *b);

/*
 * places: which tensor with the same bytes was emitted before?
 *
 * The place of a tensor describes where and how it is stored: dtype, shape, and all members of
 * each piece. Places are compared byte for byte, since a hash alone could be forged.
 */

struct dcp_tensor;

struct dcp_places {
	struct dcp_buf place;         /* of the tensor in dcp_places_find() */
	struct dcp_intern seen;       /* place to number */
	struct dcp_buf keys, key_off; /* for each number, its key and where the key starts */
};

/*
 * Set alias_of of @t, which has pieces, to the key of the first tensor with the same place; the key
 * is valid until the next call. If @t is the first tensor with its place, its key is stored.
 * -ENOMEM, -E2BIG.
 */
int dcp_places_find(struct dcp_places *p, struct dcp_tensor *t);
void dcp_places_finish(struct dcp_places *p);
