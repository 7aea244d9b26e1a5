/* SPDX-License-Identifier: Apache-2.0 */
/* spread_int: what the files of spread share. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/layout_deal.h"
#include "core/model/spread.h"
#include "core/model/tensor.h"

/* A placement that cuts something, and the mesh dimension that it cuts it over. */
struct spread_step {
	const struct place *p;
	uint32_t parts, stride; /* of ranks */
	const bool *has;        /* by coordinate: do these ranks have the key? */
};

/* An interval of the array that steps leave: what a part has of a box along one dimension. */
struct spread_hit {
	uint32_t first;
	uint64_t lo, hi, len; /* len: of the array, when anybody needs it */
};

struct spread_axis {
	const struct spread_step *step;
	uint32_t nstep;
	struct deal deal;       /* of the first step */
	struct spread_hit *hit; /* room for all parts */
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
	bool odd; /* of the ranks that have the key none can cut such a tensor */
	uint32_t *copies, ncopies, base;
	const uint64_t *shape;
};

/* spread_flat.c: of the array with the intervals @at along its dimensions, flattened. */
uint64_t dcp_spread_flat_count(const struct dcp_spread *s, uint32_t rank,
			       const struct spread_hit *at);
void dcp_spread_flat_meet(const struct dcp_spread *s, uint32_t first,
			  const struct spread_hit *at, dcp_spread_fn fn, void *ctx);
