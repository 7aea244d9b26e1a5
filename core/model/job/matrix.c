/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends how much to whom: rows and columns of the table of ranks by ranks. */
#include <string.h>

#include "core/model/job/job_int.h"

/* ---- what some ranks send ---- */

struct rows {
	const struct dcp_job *job;
	const struct job_team *team;
	uint32_t first, n;
	uint64_t *v;
	/* of the share that is being added */
	uint64_t *row, each;
};

static void add_holders(void *ctx, const struct dcp_spread_hit *hit)
{
	const struct rows *rows = ctx;

	dcp_spread_add(rows->team->spread, hit, hit->n * rows->each, rows->row);
}

static void row_share(void *ctx, const struct job_sharing *x, const struct job_share *s)
{
	struct rows *rows = ctx;

	rows->team = x->team;
	rows->row = rows->v + (size_t)(s->reader - rows->first) * x->job->ranks;
	rows->each = s->each;
	dcp_spread_meet(x->team->spread, &s->box, add_holders, rows);
}

static void row_move(void *ctx, const struct job_move *m)
{
	struct rows *rows = ctx;

	if (m->from - rows->first < rows->n)
		rows->v[(size_t)(m->from - rows->first) * rows->job->ranks + m->to] += m->bytes;
}

int dcp_job_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
		  struct dcp_err *err)
{
	struct rows r = { .job = job, .first = first, .n = n, .v = rows };
	struct job_sharing x = {
		.job = job, .first = first, .n = n, .fn = row_share, .ctx = &r
	};

	memset(rows, 0, (size_t)n * job->ranks * sizeof(*rows));
	return job->opts.from ? dcp_job_moves(job, row_move, &r, err) : dcp_job_share(&x, err);
}

/* ---- what one rank receives ---- */

struct column {
	uint32_t rank;
	uint64_t *from;
};

static void column_share(void *ctx, const struct job_sharing *x, const struct job_share *s)
{
	const struct column *c = ctx;

	if (x->team->rank[c->rank] & JOB_HAS)
		c->from[s->reader] +=
			dcp_spread_count(x->team->spread, c->rank, &s->box) * s->each;
}

static void column_move(void *ctx, const struct job_move *m)
{
	const struct column *c = ctx;

	if (m->to == c->rank)
		c->from[m->from] += m->bytes;
}

int dcp_job_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
		     struct dcp_err *err)
{
	struct column c = { rank, from };
	struct job_sharing x = { .job = job, .n = job->ranks, .fn = column_share, .ctx = &c };

	memset(from, 0, job->ranks * sizeof(*from));
	return job->opts.from ? dcp_job_moves(job, column_move, &c, err)
			      : dcp_job_share(&x, err);
}
