/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure: the statistics of tensors, read once and then known beside the index.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/measure/stats.h"
#include "tools/trust/kept.h"
#include "tools/trust/walk.h"

/* What is known of a tensor. */
struct measured {
	struct kept_head head; /* done: it was measured */
	struct dcp_stats s;
	uint64_t unwritten; /* it lies in a hole of its file */
};

struct measuring {
	struct pick *p;
	const struct walk_keys *keys;
	bool histogram;
	unsigned jobs; /* as in struct walk */
	uint64_t rate;

	struct measured *m;           /* a record a key, in their order */
	struct dcp_stats_bins **bins; /* with histogram */
	enum cmd_exit code;           /* of what cannot be read, which was said */
	struct dcp_arena arena;
	size_t *by_id; /* number of the key that has the id, from 1; 0: none has */
	uint64_t most; /* the greatest id */
};

/* Fill the fields from m on. -ENOMEM. */
int measure_run(struct measuring *w);
void measure_finish(struct measuring *w);
