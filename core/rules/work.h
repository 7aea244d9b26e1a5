/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work: a tensor while operations change its shape: bits of stored items, each a box of the
 * current tensor, with strides.
 *
 * Every function puts new bits, made in its arena, in the place of those that @w has, which
 * others may share. They return 0, -ENOMEM, or -EINVAL or -E2BIG with the reason in its err, one
 * line without the key; then @w is of no more use.
 */
#pragma once
#include <stdint.h>

#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_err;

/* [lo, lo + len) of the tensor; neighbours are stride elements apart in the stored item. */
struct bit_dim {
	uint64_t lo, len, stride;
};

struct bit {
	const struct dcp_piece *of; /* the stored item it is a part of */
	uint32_t of_ndim;           /* dimensions of its box */
	uint64_t first;             /* its first element, counted in the item's elements */
	uint64_t item_n;            /* elements of the item */
	struct bit_dim *dim;        /* ndim of them, none empty */
};

struct work {
	uint32_t ndim;
	uint32_t itemsize;
	enum dcp_dtype dtype, cast;
	const char *dtype_name;
	uint64_t shape[DCP_MAX_NDIM];
	struct bit *bit;
	size_t n;
	struct dcp_arena *arena; /* of new bits */
	struct dcp_err *err;
};

/* The tensor as it is stored. @t must outlive whatever is made of it. */
int dcp_work_from(const struct dcp_tensor *t, struct dcp_arena *arena, struct work *out,
		  struct dcp_err *err);
/* Set dtype, shape and pieces of @out, and nothing else. */
int dcp_work_done(const struct work *w, struct dcp_arena *arena, struct dcp_tensor *out);

/* Dimension i becomes what order[i] was. */
int dcp_work_permute(struct work *w, const uint32_t *order);
/* The same elements in row-major order, in another shape of as many. */
int dcp_work_reshape(struct work *w, uint32_t ndim, const uint64_t *shape);
/* Elements [lo, lo + n) of dimension @d; -EINVAL where it has fewer. */
int dcp_work_narrow(struct work *w, uint32_t d, uint64_t lo, uint64_t n);
/* Dimension @d extended with zeros at its end to @n elements, no fewer than it has. */
int dcp_work_pad(struct work *w, uint32_t d, uint64_t n);
/* A new dimension of one element before dimension @d. */
int dcp_work_insert(struct work *w, uint32_t d);
/* Dimension @d as two: the shares it was stored in, each for itself and all equally long, and
 * what is in each. */
int dcp_work_shares(struct work *w, uint32_t d);
/* @k tensors end to end along dimension @d, into @out; -EINVAL where they differ in more than
 * that. */
int dcp_work_concat(const struct work *w, size_t k, uint32_t d, struct work *out);

/* A work whose bits are replaced, one by one. */
struct making {
	struct work was;
	struct work *w;
	size_t cap;
};

/* Begin: @w loses its bits, which are in what was; its ndim is set before any is added. */
struct making dcp_work_make(struct work *w);
/* A bit like @of with room for the dimensions of what is made, not yet set. */
int dcp_work_add(struct making *m, const struct bit *of, struct bit **out);
