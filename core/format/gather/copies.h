/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies: what several files hold of each key, kept until all of them are read.
 *
 * A rank's file holds its part of a tensor; the whole is known only when all files are read. A
 * family that needs only the union of all pieces emits it with dcp_copies_emit(); one that must
 * find out first how the parts fit (Megatron's mp_rank files do not say) examines the copies.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/intern.h"
#include "core/format/format.h"
#include "core/format/gather/join.h"
#include "core/model/tensor.h"

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
