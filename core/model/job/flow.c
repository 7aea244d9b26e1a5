/* SPDX-License-Identifier: Apache-2.0 */
/* How much every rank, and every group of them, needs, reads, keeps and sends. */
#include <stdlib.h>
#include <string.h>

#include "core/model/job/job_int.h"

struct flows {
	const struct dcp_job *job;
	const struct job_team *team;
	struct dcp_job_flow *rank, *group;
	uint64_t *needs; /* by rank: of the kinds of this team */
	/* of the kind or the share that is being added */
	uint64_t each, all, groups;
};

/* What ranks need, so far, goes to them, and to groups once for each part. */
static void settle_needs(struct flows *f)
{
	uint32_t size = f->job->opts.group;

	for (uint32_t r = 0; r < f->job->ranks; r++) {
		f->rank[r].needs += f->needs[r];
		if (f->group && f->team->rank[r] & JOB_LEAD)
			f->group[r / size].needs += f->needs[r];
		f->needs[r] = 0;
	}
}

static void add_needs(void *ctx, const struct dcp_spread_hit *hit)
{
	struct flows *f = ctx;

	dcp_spread_add(f->team->spread, hit, hit->n * f->each, f->needs);
}

/* Zeros that are stored nowhere: no rank needs them from another. */
static void drop_zeros(struct flows *f, const struct job_kind *k, const struct dcp_piece *p)
{
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM], pos = p->run_lo, n = p->run_n;
	struct dcp_spread_box box = { lo, len };

	while (n) {
		dcp_run_box(k->t.ndim, p->len, &pos, &n, lo, len);
		for (uint32_t d = 0; d < k->t.ndim; d++)
			lo[d] += p->lo[d];
		dcp_spread_meet(f->team->spread, &box, add_needs, f);
	}
}

static void flow_begin(void *ctx, const struct job_sharing *x)
{
	struct dcp_spread_box whole = dcp_job_whole(x->k);
	struct flows *f = ctx;

	f->team = x->team;
	f->each = x->k->ntensors * x->k->t.itemsize;
	dcp_spread_meet(x->team->spread, &whole, add_needs, f);
	f->each = -f->each;
	for (size_t i = 0; i < x->k->t.npieces; i++)
		if (dcp_job_is_zeros(&x->k->t.pieces[i]))
			drop_zeros(f, x->k, &x->k->t.pieces[i]);
}

static void flow_end(void *ctx, const struct job_sharing *x)
{
	settle_needs(ctx);
}

/* Each holder of a part gets as many elements, and each group that has one. */
static void add_holders(void *ctx, const struct dcp_spread_hit *hit)
{
	const struct job_team *t = ((struct flows *)ctx)->team;
	uint32_t parts = dcp_spread_parts(hit);
	struct flows *f = ctx;

	f->all += hit->n * parts * t->ncopies;
	for (uint32_t i = 0; i < parts; i++) {
		uint32_t first = dcp_spread_part(hit, i), groups = 0;

		for (uint32_t c = 0; c < t->ncopies; c++)
			groups += (t->rank[first + t->copy[c]] & JOB_LEAD) != 0;
		f->groups += hit->n * groups;
	}
}

/* Elements of the box that go to ranks, and to groups. */
static void count_holders(struct flows *f, const struct job_sharing *x,
			  const struct job_share *s)
{
	f->all = f->groups = 0;
	if (x->k->wanted == JOB_ALL && x->team->ngroups) {
		f->all = s->volume * x->team->ncopies;
		f->groups = s->volume * x->team->ngroups;
	} else {
		dcp_spread_meet(x->team->spread, &s->box, add_holders, f);
	}
}

/* Elements of the box that a rank in the group of @rank needs. */
static uint64_t kept_in_group(const struct job_sharing *x, const struct job_share *s)
{
	uint32_t size = x->job->opts.group, first = s->reader / size * size;
	uint32_t end = first + DCP_MIN(x->job->ranks - first, size);
	uint64_t n = 0;

	for (uint32_t r = first; r < end; r++)
		if (x->team->rank[r] & JOB_LEAD)
			n += dcp_spread_count(x->team->spread, r, &s->box);
	return n;
}

static void flow_share(void *ctx, const struct job_sharing *x, const struct job_share *s)
{
	struct flows *f = ctx;
	struct dcp_job_flow *rank = &f->rank[s->reader], *group;
	uint64_t keeps = 0;

	if (x->team->rank[s->reader] & JOB_HAS)
		keeps = dcp_spread_count(x->team->spread, s->reader, &s->box);
	count_holders(f, x, s);
	rank->keeps += keeps * s->each;
	rank->sends += (f->all - keeps) * s->each;
	if (!f->group)
		return;
	group = &f->group[s->reader / x->job->opts.group];
	if (x->job->opts.group > 1)
		keeps = kept_in_group(x, s);
	group->keeps += keeps * s->each;
	group->sends += (f->groups - keeps) * s->each;
}

static int flow_all(struct flows *f, struct dcp_err *err)
{
	const struct dcp_job *job = f->job;
	struct job_sharing x = { .job = job,
				 .n = job->ranks,
				 .begin = flow_begin,
				 .fn = flow_share,
				 .end = flow_end,
				 .ctx = f };
	int rc;

	f->needs = calloc(job->ranks, sizeof(*f->needs));
	if (!f->needs)
		return dcp_job_no_memory(job, err);
	rc = dcp_job_share(&x, err);
	free(f->needs);
	return rc;
}

static int add_read(void *ctx, uint32_t file, uint64_t off, uint64_t n)
{
	*(uint64_t *)ctx += n;
	return 0;
}

static void flow_move(void *ctx, const struct job_move *m)
{
	struct dcp_job_flow *f = ctx;

	f[m->to].needs += m->bytes;
	if (m->from == m->to)
		f[m->to].keeps += m->bytes;
	else
		f[m->from].sends += m->bytes;
}

int dcp_job_flows(const struct dcp_job *job, struct dcp_job_flow *rank,
		  struct dcp_job_flow *group, struct dcp_err *err)
{
	struct flows f = { .job = job, .rank = rank, .group = group };
	int rc;

	memset(rank, 0, job->ranks * sizeof(*rank));
	if (group)
		memset(group, 0, job->groups * sizeof(*group));
	if (!job->opts.from)
		rc = flow_all(&f, err);
	else
		rc = dcp_job_moves(job, flow_move, rank, err);
	if (rc == 0 && job->opts.from && group && job->opts.group > 1)
		rc = dcp_job_group_moves(job, flow_move, group, err);
	else if (rc == 0 && job->opts.from && group)
		memcpy(group, rank, job->ranks * sizeof(*group));
	for (uint32_t r = 0; rc == 0 && r < job->ranks; r++) {
		dcp_job_reads(job, r, add_read, &rank[r].reads);
		rank[r].receives = rank[r].needs - rank[r].keeps;
		if (group)
			group[r / job->opts.group].reads += rank[r].reads;
	}
	for (uint32_t g = 0; rc == 0 && group && g < job->groups; g++)
		group[g].receives = group[g].needs - group[g].keeps;
	return rc;
}
