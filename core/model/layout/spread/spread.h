/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spread: computes the parts of a tensor that all ranks of a layout hold, without a cut for each
 * rank.
 *
 * A rule cuts each dimension by itself, and then perhaps the flattening of the rest. So the ranks'
 * parts are a cartesian product: the part of dimension 0 that the coordinates in its mesh
 * dimensions leave, times that of dimension 1, and so on. Mesh dimensions that cut nothing hold
 * copies; the ranks of a part are its first rank plus offsets that are the same for every part.
 * Parts have no element in common.
 *
 * Arithmetic (struct deal) gives the number of elements that a rank has of a box, and the parts
 * that have any. A spread is made for one rule and number of dimensions, then set to one shape
 * after the other. One thread at a time.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/layout/layout.h"
#include "core/model/layout/rule.h"
#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_err;
struct dcp_spread;

/* Make a spread in @arena; @l and the key of the rule must outlive it. -ENOMEM. */
int dcp_spread_make(const struct dcp_layout *l, const struct dcp_layout_rule *rule,
		    uint32_t ndim, struct dcp_arena *arena, struct dcp_spread **out);

/* Set the tensor: its shape is borrowed. -EINVAL, -E2BIG: the layout cannot cut it; layout, line,
 * @key and rank in @err, as from dcp_layout_cut() for the first rank that has it. */
int dcp_spread_set(struct dcp_spread *s, const char *key, const uint64_t *shape,
		   struct dcp_err *err);

/* Offsets of the ranks of a part, from 0 up; *@n 0: no rank has the key. */
const uint32_t *dcp_spread_copies(const struct dcp_spread *s, uint32_t *n);
/* The first rank of the part that @rank has; UINT32_MAX: it does not have the key. */
uint32_t dcp_spread_first(const struct dcp_spread *s, uint32_t rank);
/* Does every element have a holder, whatever the shape? */
bool dcp_spread_is_complete(const struct dcp_spread *s);

struct dcp_spread_box {
	const uint64_t *lo, *len; /* ndim each, inside of the shape */
};

/* The number of elements of the box that @rank holds. @rank must have the key. */
uint64_t dcp_spread_count(const struct dcp_spread *s, uint32_t rank,
			  const struct dcp_spread_box *box);

/* Parts that hold @n elements of a box each: one for every choice of index[k] < dim[k].count, whose
 * first rank is @first + sum(index[k] * dim[k].stride). */
struct dcp_spread_hit {
	uint64_t n;
	uint32_t first, ndim;
	struct {
		uint32_t count, stride;
	} dim[DCP_LAYOUT_MAX_DIMS];
};

/* Call the function with every part that holds elements of the box, each once: in a few hits,
 * whatever the number of ranks. */
typedef void (*dcp_spread_fn)(void *ctx, const struct dcp_spread_hit *hit);
void dcp_spread_meet(const struct dcp_spread *s, const struct dcp_spread_box *box,
		     dcp_spread_fn fn, void *ctx);

/* The number of parts of a hit, and the first rank of part number @i. */
uint32_t dcp_spread_parts(const struct dcp_spread_hit *hit);
uint32_t dcp_spread_part(const struct dcp_spread_hit *hit, uint32_t i);

/* Add @v to the sums of all ranks that have one of the parts. */
void dcp_spread_add(const struct dcp_spread *s, const struct dcp_spread_hit *hit, uint64_t v,
		    uint64_t *sums);

/* spread_int: declarations that the files of spread share. */

/* A placement that cuts something, and the mesh dimension that it cuts it over. */
struct spread_step {
	const struct place *p;
	uint32_t parts, stride; /* of ranks */
	const bool *has;        /* by coordinate: the ranks have the key */
	bool all;               /* all ranks have the key */
};

/* The interval of a box, along one dimension, in the array that the steps leave to a part. */
struct spread_range {
	uint64_t lo, hi, len; /* len: of the array, where it is needed */
};

struct spread_axis {
	const struct spread_step *step;
	uint32_t nstep;
	struct deal deal; /* of the first step */
};

struct dcp_spread {
	const struct dcp_layout *l;
	struct dcp_layout_rule rule;
	uint32_t ndim, nflat;
	struct spread_axis *axis; /* ndim */
	const struct spread_step *flat;
	bool **has;       /* by mesh dimension and coordinate */
	uint32_t *stride; /* by mesh dimension: of ranks */
	uint32_t cutting; /* mesh dimensions, a bit each */
	bool complete;
	bool odd; /* none of the ranks that have the key can cut such a tensor */
	uint32_t *copies, ncopies, base;
	const uint64_t *shape;
};

/* State of the walk over steps that makes a hit. */
struct spread_walk {
	const struct dcp_spread *s;
	struct spread_range at[DCP_MAX_NDIM]; /* for the flattening */
	struct dcp_spread_hit hit;
	const struct dcp_spread_box *box;
	dcp_spread_fn fn;
	void *ctx;
};
