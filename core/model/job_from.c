/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks hold everything already, by another layout: a rank keeps what it holds and gets what
 * it lacks from a holder. The parts of either side have nothing in common with each other, so
 * what part a has of part b comes from a's holders as a whole.
 */
#include <errno.h>

#include "core/model/job_int.h"
#include "core/model/overlap.h"

struct moving {
	const struct dcp_job *job;
	struct dcp_arena arena[2]; /* of who holds, of who needs */
	struct job_who has, needs;
	bool groups;
	job_move_fn fn;
	void *ctx;
};

/* A holder of part @a for @rank: itself, else one of its group, else one of all, in turn. */
static uint32_t holder(const struct moving *m, uint32_t a, uint32_t rank)
{
	const struct job_who *w = &m->has;
	const uint32_t *v = &w->rank[w->first[a]];
	uint32_t n = w->first[a + 1] - w->first[a], group = m->job->opts.group;
	uint32_t lo = 0, hi = n, near;

	if (w->of[rank] == a)
		return rank;
	while (lo < hi) { /* the first of its group, or behind it */
		uint32_t mid = lo + (hi - lo) / 2;

		if (v[mid] / group < rank / group)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (near = 0; lo + near < n && v[lo + near] / group == rank / group; near++)
		;
	return near ? v[lo + rank % near] : v[rank % n];
}

/* Part @a of those that are there goes, as far as it is in part @b, to whoever needs that. */
static void move_parts(const struct moving *m, uint32_t a, uint32_t b, uint64_t bytes)
{
	const struct job_who *w = &m->needs;
	uint32_t group = m->job->opts.group, last = JOB_NONE;

	for (uint32_t i = w->first[b]; i < w->first[b + 1]; i++) {
		struct job_move move = { holder(m, a, w->rank[i]), w->rank[i], bytes };

		if (m->groups) {
			move.from /= group;
			move.to /= group;
			if (move.to == last)
				continue;
			last = move.to;
		}
		m->fn(m->ctx, &move);
	}
}

static int move_kind(struct moving *m, const struct job_kind *k, struct dcp_err *err)
{
	const struct dcp_job *job = m->job;
	uint64_t volume, size = k->ntensors * k->t.itemsize;
	int rc = dcp_job_who(job, k, job->opts.from, &k->from, &m->arena[0], &m->has, err);

	if (rc == 0)
		rc = dcp_job_who(job, k, job->opts.to, &k->to, &m->arena[1], &m->needs, err);
	if (rc < 0)
		return rc;
	for (uint32_t b = 0; b < m->needs.ncut; b++) {
		uint64_t found = 0;

		for (uint32_t a = 0; a < m->has.ncut; a++) {
			volume = dcp_overlap(&m->has.cut[a], &m->needs.cut[b]);
			found += volume;
			if (volume)
				move_parts(m, a, b, volume * size);
		}
		if (found != m->needs.held[b])
			return dcp_fail(err, -EINVAL, DCP_ERR_NO_OFFSET,
					"%.160s: rank %u of %.80s needs %llu elements of it "
					"that no rank of %.80s holds",
					k->t.key, m->needs.rank[m->needs.first[b]],
					dcp_layout_name(job->opts.to),
					(unsigned long long)(m->needs.held[b] - found),
					dcp_layout_name(job->opts.from));
	}
	return 0;
}

static int move_all(const struct dcp_job *job, bool groups, job_move_fn fn, void *ctx,
		    struct dcp_err *err)
{
	struct moving m = { .job = job, .groups = groups, .fn = fn, .ctx = ctx };
	int rc = 0;

	dcp_arena_init(&m.arena[0], job->opts.memory / 2);
	dcp_arena_init(&m.arena[1], job->opts.memory / 2);
	for (size_t i = 0; rc == 0 && i < job->kind.n; i++)
		rc = move_kind(&m, JOB_AT(job->kind, struct job_kind, i), err);
	dcp_arena_finish(&m.arena[0]);
	dcp_arena_finish(&m.arena[1]);
	return rc;
}

int dcp_job_moves(const struct dcp_job *job, job_move_fn fn, void *ctx, struct dcp_err *err)
{
	return move_all(job, false, fn, ctx, err);
}

int dcp_job_group_moves(const struct dcp_job *job, job_move_fn fn, void *ctx,
			struct dcp_err *err)
{
	return move_all(job, true, fn, ctx, err);
}
