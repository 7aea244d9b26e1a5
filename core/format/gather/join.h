/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join: what ranks hold of one tensor, put together.
 *
 * An adapter says which box of the tensor, or which run of a box, lies where. Here the pieces are
 * sorted, equal ones are taken once and remembered once more from another file, pieces that overlap
 * are cut, and elements that no piece holds are counted. One thread at a time; buffers are kept
 * from one tensor to the next.
 */
#pragma once
#include "core/base/buf.h"
#include "core/base/err.h"
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
