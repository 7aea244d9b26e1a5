/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that every rank and every group needs, reads, keeps and sends. */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/model/geometry/cut.h"

/*
 * For ranks that already hold everything by another layout: a rank keeps the elements that it
 * holds, and gets the others from a holder. The parts of one layout are disjoint, so all elements
 * that a held part and a needed part share come from the holders of the held part.
 */

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

/* Choose a holder of the moved part for @rank: @rank itself, else a rank of its group, else any
 * holder in turn. */
static uint32_t choose_holder(const struct moving *m, uint32_t rank)
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

/* Move @n elements of the moved part to the ranks that need the part of rank @first. */
static void move_part(struct moving *m, uint32_t first, uint64_t n)
{
	uint64_t bytes = n * m->k->ntensors * m->k->t.itemsize;
	uint32_t group = m->job->opts.group, last = JOB_NONE;

	m->found[first] += n;
	m->missing -= n;
	for (uint32_t i = 0; i < m->needs->ncopies; i++) {
		uint32_t to = first + m->needs->copy[i];
		struct job_move move = { choose_holder(m, to), to, bytes };

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

/* Move all existing parts, box by box: @tl has the tensor as a single piece. */
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

/* The same between groups: bytes that several ranks of a group lack are sent to the group once. */
static int dcp_job_group_moves(const struct dcp_job *job, job_move_fn fn, void *ctx,
			       struct dcp_err *err)
{
	return move_all(job, true, fn, ctx, err);
}

struct flows {
	struct dcp_job *job;
	const struct job_team *team;
	uint64_t *needs; /* by rank: needs of the kind that is being added */
	uint64_t each;
};

static void add_needs(void *ctx, const struct dcp_spread_hit *hit)
{
	struct flows *f = ctx;

	dcp_spread_add(f->team->spread, hit, hit->n * f->each, f->needs);
}

/* Subtract zeros that are not stored, because no rank needs them from another rank. */
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

/* Add the needs of a kind to its ranks, and to groups once for each part. */
static void add_kind(struct flows *f, const struct job_kind *k)
{
	struct dcp_spread_box whole = dcp_job_whole(k);
	struct dcp_job *job = f->job;

	f->each = k->ntensors * k->t.itemsize;
	dcp_spread_meet(f->team->spread, &whole, add_needs, f);
	f->each = -f->each;
	for (size_t i = 0; i < k->t.npieces && !k->opaque; i++)
		if (dcp_job_is_zeros(&k->t.pieces[i]))
			drop_zeros(f, k, &k->t.pieces[i]);
	for (uint32_t r = 0; r < job->ranks; r++) {
		job->rank[r].needs += f->needs[r];
		job->rank[r].reads += k->opaque ? f->needs[r] : 0;
		if (f->team->rank[r] & JOB_LEAD)
			job->group[r / job->opts.group].needs += f->needs[r];
		f->needs[r] = 0;
	}
	job->views |= k->opaque;
	job->mixed |= k->mixed;
}

/* For tensors of which some pieces must be decoded: the elements that a rank needs decide how it
 * reads the tensor. */
static int find_mixed_needs(struct dcp_job *job, struct dcp_err *err)
{
	struct job_needs x;
	int rc = 0;

	dcp_job_needs_init(&x, job);
	job->views = false;
	job->converts = job->casts;
	for (uint32_t r = 0; r < job->ranks && rc == 0; r++) {
		rc = dcp_job_needs(&x, r, err);
		job->views |= x.views != 0;
		job->rank[r].needs = job->rank[r].reads = x.views;
		for (size_t i = 0; i < x.n; i++) {
			job->rank[r].needs += dcp_strided_bytes(&x.v[i].s);
			job->converts |= x.v[i].want != 1;
		}
	}
	dcp_job_needs_finish(&x);
	return rc;
}

static int find_needs(struct dcp_job *job, struct dcp_err *err)
{
	struct flows f = { .job = job, .needs = calloc(job->ranks, sizeof(*f.needs)) };
	struct job_teams teams;
	int rc = f.needs ? 0 : -ENOMEM;

	dcp_job_teams_init(&teams, job, job->opts.to);
	for (size_t i = 0; rc == 0 && i < job->kind.n; i++) {
		const struct job_kind *k = JOB_AT(job->kind, struct job_kind, i);

		if (k->wanted == JOB_NOTHING)
			continue;
		rc = dcp_job_team(&teams, k, &k->to, &f.team, err);
		if (rc == 0)
			add_kind(&f, k);
	}
	dcp_job_teams_finish(&teams);
	free(f.needs);
	return rc == 0 && job->mixed ? find_mixed_needs(job, err) : rc;
}

static int add_read(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct dcp_job *job = ctx;

	(void)file;
	(void)off;
	job->rank[rank].reads += n;
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

const struct job_way *dcp_job_way(const struct dcp_job *job)
{
	return job->opts.exchange == DCP_JOB_ALL && job->plain ? &dcp_job_closed
							       : &dcp_job_each;
}

int dcp_job_find_flows(struct dcp_job *job, struct dcp_err *err)
{
	int rc;

	job->rank = calloc(job->ranks, sizeof(*job->rank));
	job->group = calloc(job->groups, sizeof(*job->group));
	if (!job->rank || !job->group)
		return dcp_job_no_memory(job, err);
	rc = find_needs(job, err);
	job->staging = DCP_MAX(job->opts.staging, (uint64_t)1 << 20);
	job->staging -= (job->views ? dcp_stripe_band(job->staging) : 0) +
			(job->opts.device ? dcp_stripe_share(job->staging) : 0);
	if (rc == 0)
		rc = dcp_job_way(job)->flows(job, err);
	if (rc == 0 &&
	    (job->opts.exchange != DCP_JOB_NEVER || job->opts.direct || job->opts.device))
		rc = dcp_job_way(job)->reads(job, DCP_JOB_EACH, add_read, job);
	for (uint32_t r = 0; r < job->ranks; r++)
		job->group[r / job->opts.group].reads += job->rank[r].reads;
	return rc == -ENOMEM ? dcp_job_no_memory(job, err) : DCP_MIN(rc, 0);
}

/* Find the moves of ranks that hold everything. */
static int find_moves(const struct dcp_job *job, struct dcp_job_flow *rank,
		      struct dcp_job_flow *group, struct dcp_err *err)
{
	int rc;

	memset(rank, 0, job->ranks * sizeof(*rank));
	rc = dcp_job_moves(job, flow_move, rank, err);
	for (uint32_t r = 0; rc == 0 && r < job->ranks; r++)
		rank[r].receives = rank[r].needs - rank[r].keeps;
	if (rc < 0 || !group)
		return rc;
	memset(group, 0, job->groups * sizeof(*group));
	rc = dcp_job_group_moves(job, flow_move, group, err);
	for (uint32_t g = 0; rc == 0 && g < job->groups; g++)
		group[g].receives = group[g].needs - group[g].keeps;
	return rc;
}

int dcp_job_flows(const struct dcp_job *job, struct dcp_job_flow *rank,
		  struct dcp_job_flow *group, struct dcp_err *err)
{
	if (job->opts.from)
		return find_moves(job, rank, group, err);
	memcpy(rank, job->rank, job->ranks * sizeof(*rank));
	if (group)
		memcpy(group, job->group, job->groups * sizeof(*group));
	return 0;
}
