/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks hold everything already, by another layout: a rank keeps what it holds and gets what
 * it lacks from a holder. The parts of either side have nothing in common with each other, so
 * what part a has of part b comes from a's holders as a whole.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/model/geometry/meet.h"
#include "core/model/job/job_int.h"

struct moving {
	const struct dcp_job *job;
	const struct job_kind *k;
	struct job_teams of_has, of_needs;
	const struct job_team *has, *needs;
	struct dcp_arena arena; /* of one cut */
	bool groups;
	uint32_t *part, nparts; /* the first rank of each part that exists */
	uint32_t from;          /* the part that is being moved */
	uint64_t *found;  /* elements that some rank holds, by the first rank that needs them */
	uint64_t missing; /* elements of parts that no rank holds */
	job_move_fn fn;
	void *ctx;
};

/* A holder of the part that is moved, for @rank: itself, else one of its group, else one of
 * all, in turn. */
static uint32_t holder(const struct moving *m, uint32_t rank)
{
	const uint32_t *v = m->has->copy;
	uint32_t n = m->has->ncopies, group = m->job->opts.group, a = m->from;
	uint32_t first, near;

	if (n == 1)
		return a + v[0];
	/* the first of its group, or after it */
	DCP_BISECT(first, 0, n, (a + v[first]) / group < rank / group);
	for (near = 0; first + near < n && (a + v[first + near]) / group == rank / group;
	     near++)
		if (a + v[first + near] == rank)
			return rank;
	return a + (near ? v[first + rank % near] : v[rank % n]);
}

/* @n elements of the part that is moved go to the ranks that need the part of rank @first. */
static void move_part(struct moving *m, uint32_t first, uint64_t n)
{
	uint64_t bytes = n * m->k->ntensors * m->k->t.itemsize;
	uint32_t group = m->job->opts.group, last = JOB_NONE;

	m->found[first] += n;
	m->missing -= n;
	for (uint32_t i = 0; i < m->needs->ncopies; i++) {
		uint32_t to = first + m->needs->copy[i];
		struct job_move move = { holder(m, to), to, bytes };

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

static void move_hit(void *ctx, const struct dcp_spread_hit *hit)
{
	uint32_t n = dcp_spread_parts(hit);

	for (uint32_t i = 0; i < n; i++)
		move_part(ctx, dcp_spread_part(hit, i), hit->n);
}

static int move_box(void *ctx, const struct dcp_meet *box)
{
	struct moving *m = ctx;

	dcp_spread_meet(m->needs->spread, &(struct dcp_spread_box){ box->lo, box->n }, move_hit,
			m);
	return 0;
}

/* The parts that are there, box by box: @tl has the tensor as one piece. */
static int move_parts(struct moving *m, const struct dcp_tiling *tl, struct dcp_err *err)
{
	const struct dcp_job *job = m->job;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < m->nparts; i++) {
		uint64_t n = 0;
		struct dcp_cut cut;

		dcp_arena_reset(&m->arena);
		m->from = m->part[i];
		rc = dcp_layout_cut_by_rule(job->opts.from, &m->k->from, m->from, m->k->t.ndim,
					    m->k->t.shape, &m->arena, &cut, err);
		if (rc < 0)
			return rc;
		if (cut.flat)
			n = cut.flat_n;
		else
			dcp_cut_volume(&cut, &n);
		rc = dcp_meet(tl, &cut, 0, n, move_box, m);
	}
	return rc;
}

static void add_parts(void *ctx, const struct dcp_spread_hit *hit)
{
	uint32_t n = dcp_spread_parts(hit);
	struct moving *m = ctx;

	for (uint32_t i = 0; i < n; i++)
		m->part[m->nparts++] = dcp_spread_part(hit, i);
}

static void add_missing(void *ctx, const struct dcp_spread_hit *hit)
{
	struct moving *m = ctx;

	m->missing += hit->n * dcp_spread_parts(hit);
}

static int check_found(const struct moving *m, struct dcp_err *err)
{
	struct dcp_spread_box whole = dcp_job_whole(m->k);

	for (uint32_t r = 0; m->missing && r < m->job->ranks; r++) {
		uint64_t held;

		if (dcp_spread_first(m->needs->spread, r) != r)
			continue;
		held = dcp_spread_count(m->needs->spread, r, &whole);
		if (m->found[r] != held)
			return dcp_fail(err, -EINVAL,
					"%.160s: rank %u of %.80s needs %llu elements of it "
					"that no rank of %.80s holds",
					m->k->t.key, r, dcp_layout_name(m->job->opts.to),
					(unsigned long long)(held - m->found[r]),
					dcp_layout_name(m->job->opts.from));
	}
	return 0;
}

static int move_kind(struct moving *m, struct dcp_arena *arena, struct dcp_err *err)
{
	struct dcp_spread_box whole = dcp_job_whole(m->k);
	struct dcp_piece all = { .lo = whole.lo, .len = whole.len };
	struct dcp_tensor t = m->k->t;
	struct dcp_tiling tl;
	int rc = dcp_job_team(&m->of_has, m->k, &m->k->from, &m->has, err);

	if (rc == 0)
		rc = dcp_job_team(&m->of_needs, m->k, &m->k->to, &m->needs, err);
	dcp_shape_volume(t.shape, t.ndim, &all.run_n);
	if (rc < 0 || !all.run_n)
		return rc;
	t.pieces = &all;
	t.npieces = 1;
	dcp_arena_reset(arena);
	rc = dcp_tiling_init(&tl, &t, arena, err);
	if (rc < 0)
		return rc;
	m->nparts = 0;
	m->missing = 0;
	memset(m->found, 0, m->job->ranks * sizeof(*m->found));
	dcp_spread_meet(m->has->spread, &whole, add_parts, m);
	dcp_spread_meet(m->needs->spread, &whole, add_missing, m);
	rc = move_parts(m, &tl, err);
	return rc < 0 ? rc : check_found(m, err);
}

static int move_all(const struct dcp_job *job, bool groups, job_move_fn fn, void *ctx,
		    struct dcp_err *err)
{
	struct moving m = { .job = job, .groups = groups, .fn = fn, .ctx = ctx };
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(job->opts.memory);
	int rc = 0;

	dcp_arena_init(&m.arena, job->opts.memory);
	dcp_job_teams_init(&m.of_has, job, job->opts.from);
	dcp_job_teams_init(&m.of_needs, job, job->opts.to);
	m.part = calloc(job->ranks, sizeof(*m.part));
	m.found = calloc(job->ranks, sizeof(*m.found));
	if (!m.part || !m.found)
		rc = -ENOMEM;
	for (size_t i = 0; rc == 0 && i < job->kind.n; i++) {
		m.k = JOB_AT(job->kind, struct job_kind, i);
		rc = move_kind(&m, &arena, err);
	}
	free(m.part);
	free(m.found);
	dcp_job_teams_finish(&m.of_has);
	dcp_job_teams_finish(&m.of_needs);
	dcp_arena_finish(&m.arena);
	return rc == -ENOMEM ? dcp_job_no_memory(job, err) : rc;
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
