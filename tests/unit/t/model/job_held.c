/* SPDX-License-Identifier: Apache-2.0 */
/* The reference for ranks that hold everything already. */
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "tests/unit/t/model/job_int.h"

/* ---- held already ---- */

/* What each rank lacks comes from ranks that hold it. */
const char *t_job_check_from(struct t_job *w, const struct dcp_job *job, struct t_job_ask *a)
{
	static bool holds[T_JOB_RANKS][T_PLAN_BYTES];
	static uint64_t could[T_JOB_RANKS][T_JOB_RANKS], kept[T_JOB_RANKS], lacks[T_JOB_RANKS];
	struct dcp_job_flow rank[T_JOB_RANKS], group[T_JOB_RANKS];
	uint64_t rows[T_JOB_RANKS * T_JOB_RANKS], at[DCP_MAX_NDIM] = { 0 };
	bool lost = false; /* a rank needs what no rank holds */

	memset(could, 0, sizeof(could));
	memset(kept, 0, sizeof(kept));
	memset(lacks, 0, sizeof(lacks));
	for (size_t i = 0; i < w->n; i++) {
		a->t = &w->plan[i].t;
		memset(holds, 0, sizeof(holds));
		for (int side = 0; side < 2; side++) {
			if (t_job_ask(a, side ? w->opts.to : w->opts.from))
				return "the layout cannot cut it";
			for (uint32_t r = 0; r < w->ranks; r++)
				for (uint64_t e = 0; a->has[r] && e < a->volume[r]; e++) {
					bool held = false;
					uint64_t n = 0;

					if (!t_cut_at(&a->cut[r], e, at))
						continue;
					for (uint32_t d = 0; d < a->t->ndim; d++)
						n = n * a->t->shape[d] + at[d];
					if (!side) {
						holds[r][n] = true;
						continue;
					}
					if (holds[r][n])
						kept[r] += a->t->itemsize;
					else
						lacks[r] += a->t->itemsize;
					for (uint32_t s = 0; s < w->ranks; s++) {
						held |= holds[s][n];
						if (holds[s][n] && !holds[r][n])
							could[s][r] += a->t->itemsize;
					}
					lost |= !held;
				}
		}
	}
	if ((dcp_job_flows(job, rank, group, NULL) < 0) != lost ||
	    (dcp_job_sends(job, 0, w->ranks, rows, NULL) < 0) != lost)
		return lost ? "from: what no rank holds is not refused" : "from: refused";
	if (lost)
		return NULL;
	for (uint32_t r = 0; r < w->ranks; r++) {
		uint64_t got = 0;

		for (uint32_t s = 0; s < w->ranks; s++) {
			uint64_t n = rows[(size_t)s * w->ranks + r];

			if (s != r && n > could[s][r])
				return "from: a rank sends what it does not hold";
			got += s == r ? 0 : n;
		}
		if (rows[(size_t)r * w->ranks + r] != kept[r] || rank[r].keeps != kept[r])
			return "from: keeps something else";
		if (got != lacks[r] || rank[r].receives != lacks[r] || rank[r].reads)
			return "from: gets something else than it lacks";
	}
	return NULL;
}
