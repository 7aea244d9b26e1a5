/* SPDX-License-Identifier: Apache-2.0 */
/* spread_int: what the files of spread share. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/layout/layout_int.h"
#include "core/model/layout/spread/spread.h"
#include "core/model/tensor.h"

/* A placement that cuts something, and the mesh dimension that it cuts it over. */
struct spread_step {
	const struct place *p;
	uint32_t parts, stride; /* of ranks */
	const bool *has;        /* by coordinate: do these ranks have the key? */
	bool all;               /* do they all? */
};

/* An interval of the array that steps leave: what a part has of a box along one dimension. */
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
	bool odd; /* of the ranks that have the key none can cut such a tensor */
	uint32_t *copies, ncopies, base;
	const uint64_t *shape;
};

/* A hit that is being made: as far as the walk over steps has come. */
struct spread_walk {
	const struct dcp_spread *s;
	struct spread_range at[DCP_MAX_NDIM]; /* for the flattening */
	struct dcp_spread_hit hit;
	const struct dcp_spread_box *box;
	dcp_spread_fn fn;
	void *ctx;
};
