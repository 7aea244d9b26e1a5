/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure: the statistics of tensors, read once and then known beside the index.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/measure/stats.h"
#include "core/store/view/measure.h"
#include "tools/out.h"
#include "tools/trust/walk.h"

/* Has it NaN or infinity? */
static inline bool measured_is_bad(const struct dcp_measured *m)
{
	return m->s.nans || m->s.infs;
}

struct measuring {
	struct pick *p;
	const struct walk_keys *keys;
	bool histogram;
	bool known;    /* nothing is read: only what is kept */
	unsigned jobs; /* as in struct walk */
	uint64_t rate;

	struct dcp_measured *m;       /* a record a key, in their order */
	struct dcp_stats_bins **bins; /* with histogram */
	enum cmd_exit code;           /* of what cannot be read, which was said */
	struct dcp_arena arena;
};

/* Fill the fields from m on. -ENOMEM. */
int measure_run(struct measuring *w);
void measure_finish(struct measuring *w);

/* Numbers of one tensor, or of several as one. */
struct measure_row {
	const char *name;
	const struct walk_key *key; /* of several the first */
	struct dcp_measured m;
	struct dcp_stats_bins *bins;
	uint64_t tensors;
	bool mixed; /* several dtypes */
};

struct dcp_stats_of measure_of(const struct measure_row *r);
/* A row of a list of these fields. */
extern const struct out_field measure_fields[];
void measure_put_row(struct out *o, const struct measure_row *r);
