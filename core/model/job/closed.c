/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each byte read once, without asking rank by rank: items in order of file and offset are cut by
 * stripes into cells; how many ranks need how much of a cell, and how much of it the owner of its
 * stripe has, are closed forms (core/model/layout/spread/spread.h).
 */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct cells;

/* A box of a cell: @each bytes of each of its elements. */
struct share {
	uint64_t stripe, each;
	uint32_t owner;
	void (*fn)(void *ctx, const struct cells *x, const struct share *s);
	struct dcp_spread_box box;
};

struct cells {
	const struct dcp_job *job;
	const struct dcp_stripes *of;
	const struct job_kind *k;
	const struct job_team *team;
	struct job_teams teams;
	uint32_t first, n; /* owners that are asked about */
	void (*fn)(void *ctx, const struct cells *x, const struct share *s);
	/* If not NULL: before those of a round, what of the item is in its stripes */
	void (*round)(void *ctx, const struct cells *x, const struct share *s);
	/* If not NULL: instead of fn, where all ranks that have the key need all of it */
	void (*same)(void *ctx, const struct cells *x, const struct share *s);
	void *ctx;
};

/* Elements [pos, pos + n) of a piece's box. */
static void share_run(const struct cells *x, const struct dcp_piece *p, uint64_t pos,
		      uint64_t n, uint64_t each, const struct share *of)
{
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
	struct share s = { of->stripe, each, of->owner, of->fn, { lo, len } };

	while (n) {
		dcp_run_box(x->k->t.ndim, p->len, &pos, &n, lo, len);
		for (uint32_t d = 0; d < x->k->t.ndim; d++)
			lo[d] += p->lo[d];
		of->fn(x->ctx, x, &s);
	}
}

/* Bytes [lo, hi) of an item, which may begin and end inside of elements. */
static void share_bytes(const struct cells *x, const struct dcp_piece *p, uint64_t lo,
			uint64_t hi, const struct share *s)
{
	uint64_t size = x->k->t.itemsize, head = DCP_MIN((size - lo % size) % size, hi - lo);
	uint64_t at = lo / size;

	if (head) {
		share_run(x, p, p->run_lo + at, 1, head, s);
		lo += head;
		at++;
	}
	if (hi - lo >= size)
		share_run(x, p, p->run_lo + at, (hi - lo) / size, size, s);
	if ((hi - lo) % size)
		share_run(x, p, p->run_lo + hi / size, 1, (hi - lo) % size, s);
}

/* Bytes [lo, end) of an item, which are in the stripes of one round. */
static void share_round(const struct cells *x, const struct job_item *item, uint64_t lo,
			uint64_t end)
{
	const struct dcp_piece *p = &x->k->t.pieces[item->pattern - x->k->first];
	struct share s = { .stripe = dcp_stripe_at(x->of, item->file, item->off + lo) };
	bool same = x->same && x->team->same && x->k->wanted == JOB_ALL;

	s.fn = x->round;
	if (x->round)
		share_bytes(x, p, lo, end, &s);
	s.fn = x->fn;
	for (uint64_t hi; lo < end; lo = hi, s.stripe++) {
		hi = dcp_stripe_start(x->of, item->file, s.stripe + 1) - item->off;
		hi = DCP_MIN(hi, end);
		s.owner = dcp_stripe_owner(x->of, s.stripe);
		s.each = hi - lo;
		if (same)
			x->same(x->ctx, x, &s);
		else if (s.owner - x->first < x->n)
			share_bytes(x, p, lo, hi, &s);
	}
}

static void share_item(const struct cells *x, const struct job_item *item)
{
	uint32_t ranks = x->of->ranks;

	for (uint64_t lo = 0, hi; lo < item->n; lo = hi) {
		uint64_t stripe = dcp_stripe_at(x->of, item->file, item->off + lo);

		hi = dcp_stripe_start(x->of, item->file, (stripe / ranks + 1) * ranks) -
		     item->off;
		hi = DCP_MIN(hi, item->n);
		share_round(x, item, lo, hi);
	}
}

/* Pass every share of those owners to x->fn, in order of stripes. */
static int each_share(struct cells *x, struct dcp_err *err)
{
	const struct dcp_job *job = x->job;
	int rc = 0;

	dcp_job_teams_init(&x->teams, job, job->opts.to);
	x->k = NULL;
	for (size_t i = 0; rc == 0 && i < job->item.n; i++) {
		const struct job_item *item = JOB_AT(job->item, struct job_item, job->order[i]);
		const struct job_kind *k = dcp_job_kind_of(job, item);

		if (!item->n || k->wanted == JOB_NOTHING)
			continue;
		if (k != x->k)
			rc = dcp_job_team(&x->teams, k, &k->to, &x->team, err);
		x->k = k;
		if (rc == 0)
			share_item(x, item);
	}
	dcp_job_teams_finish(&x->teams);
	return rc;
}

/* ---- flows ---- */

/* Stripes of one size. */
struct dealing {
	struct dcp_job *job;
	struct cells x;
	uint64_t stripe, all, keeps; /* of the stripe that is being added */
	uint64_t round, *in;         /* bytes that each rank needs of a round */
	uint64_t *most_in, *most_out;
	/* of the share that is being added */
	uint64_t each, found;
};

static void add_holders(void *ctx, const struct dcp_spread_hit *hit)
{
	struct dealing *d = ctx;

	dcp_spread_add(d->x.team->spread, hit, hit->n * d->each, d->in);
}

static void count_holders(void *ctx, const struct dcp_spread_hit *hit)
{
	struct dealing *d = ctx;

	d->found += hit->n * dcp_spread_parts(hit) * d->x.team->ncopies;
}

static void leave_round(struct dealing *d)
{
	for (uint32_t r = 0; r < d->job->ranks; r++) {
		d->most_in[r] = DCP_MAX(d->most_in[r], d->in[r]);
		d->in[r] = 0;
	}
}

/* What the owner keeps is in no message. */
static void leave_stripe(struct dealing *d)
{
	uint32_t owner = dcp_stripe_owner(d->x.of, d->stripe);

	d->most_out[owner] = DCP_MAX(d->most_out[owner], d->all - d->keeps);
	d->in[owner] -= d->keeps;
	d->all = d->keeps = 0;
}

/* Elements of the box that ranks of @rank's node need. */
static uint64_t kept_in_group(const struct cells *x, const struct share *s)
{
	uint32_t size = x->job->opts.group, first = s->owner / size * size;
	uint32_t end = first + DCP_MIN(x->job->ranks - first, size);
	uint64_t n = 0;

	for (uint32_t r = first; r < end; r++)
		if (x->team->rank[r] & JOB_HAS)
			n += dcp_spread_count(x->team->spread, r, &s->box);
	return n;
}

static void enter_stripe(struct dealing *d, uint64_t stripe)
{
	uint64_t round = stripe / d->job->ranks;

	if (stripe == d->stripe)
		return;
	leave_stripe(d);
	d->stripe = stripe;
	if (round != d->round)
		leave_round(d);
	d->round = round;
}

/* What each rank needs of a round comes in, but for what it keeps of its own stripe. */
static void deal_round(void *ctx, const struct cells *x, const struct share *s)
{
	struct dealing *d = ctx;

	enter_stripe(d, s->stripe);
	d->each = s->each;
	d->x.team = x->team;
	dcp_spread_meet(x->team->spread, &s->box, add_holders, d);
}

/* All ranks need @all of a stripe, its owner @keeps, and ranks of its node @near. */
static void add_flow(struct dealing *d, const struct share *s, uint64_t all, uint64_t keeps,
		     uint64_t near)
{
	struct dcp_job_flow *rank = &d->job->rank[s->owner],
			    *group = &d->job->group[s->owner / d->job->opts.group];

	d->all += all;
	d->keeps += keeps;
	rank->keeps += keeps;
	rank->sends += all - keeps;
	group->keeps += near;
	group->sends += all - near;
}

static void deal_share(void *ctx, const struct cells *x, const struct share *s)
{
	struct dealing *d = ctx;
	uint64_t keeps = 0, near;

	enter_stripe(d, s->stripe);
	d->found = x->team->ncopies;
	for (uint32_t i = 0; i < x->k->t.ndim; i++)
		d->found *= s->box.len[i];
	if (x->k->wanted != JOB_ALL) {
		d->found = 0;
		d->x.team = x->team;
		dcp_spread_meet(x->team->spread, &s->box, count_holders, d);
	}
	if (x->team->rank[s->owner] & JOB_HAS)
		keeps = dcp_spread_count(x->team->spread, s->owner, &s->box);
	near = x->job->opts.group > 1 ? kept_in_group(x, s) : keeps;
	add_flow(d, s, d->found * s->each, keeps * s->each, near * s->each);
}

static void deal_same(void *ctx, const struct cells *x, const struct share *s)
{
	uint32_t size = x->job->opts.group, first = s->owner / size * size, near = 0;
	uint64_t keeps = x->team->rank[s->owner] & JOB_HAS ? s->each : 0;

	for (uint32_t r = first; r < first + size && r < x->job->ranks; r++)
		near += x->team->rank[r] & JOB_HAS;
	enter_stripe(ctx, s->stripe);
	add_flow(ctx, s, s->each * x->team->ncopies, keeps, s->each * near);
}

/* With stripes of this size; *@most: bytes of messages of the rank that has most in a round. */
static int deal(struct dealing *d, uint64_t size, uint64_t *most, struct dcp_err *err)
{
	struct dcp_job *job = d->job;
	int rc;

	free(job->of.base);
	job->of = (struct dcp_stripes){ .size = size, .ranks = job->ranks };
	if (dcp_stripes_number(&job->of, job->opts.files, job->opts.nfiles) < 0)
		return -ENOMEM;
	memset(d->in, 0, 3 * job->ranks * sizeof(*d->in));
	for (uint32_t r = 0; r < job->ranks; r++)
		job->rank[r].keeps = job->rank[r].sends = 0;
	for (uint32_t g = 0; g < job->groups; g++)
		job->group[g].keeps = job->group[g].sends = 0;
	d->stripe = d->all = d->keeps = d->round = 0;
	d->x = (struct cells){ .job = job,
			       .of = &job->of,
			       .n = job->ranks,
			       .fn = deal_share,
			       .round = deal_round,
			       .same = deal_same,
			       .ctx = d };
	rc = each_share(&d->x, err);
	leave_stripe(d);
	leave_round(d);
	*most = 0;
	for (uint32_t r = 0; r < job->ranks; r++)
		*most = DCP_MAX(*most, d->most_in[r] + d->most_out[r]);
	return rc;
}

static int closed_flows(struct dcp_job *job, struct dcp_err *err)
{
	struct dealing d = { .job = job, .in = calloc(3 * (size_t)job->ranks, sizeof(*d.in)) };
	uint64_t next, most = 0;
	int rc = d.in ? 0 : -ENOMEM;

	d.most_in = d.in + job->ranks;
	d.most_out = d.most_in + job->ranks;
	while (rc == 0 && (next = dcp_stripe_size(job->staging, job->ranks, 0, job->of.size,
						  most)) != job->of.size)
		rc = deal(&d, next, &most, err);
	for (uint32_t r = 0; r < job->ranks; r++) {
		struct dcp_job_flow *f = &job->rank[r], *g = &job->group[r / job->opts.group];

		f->receives = f->needs - f->reads - f->keeps; /* reads: through views, so far */
		g->receives += f->needs - f->reads;
	}
	for (uint32_t g = 0; g < job->groups; g++)
		job->group[g].receives -= job->group[g].keeps;
	free(d.in);
	return rc;
}

/* ---- who sends how much to whom ---- */

struct rows {
	const struct cells *x;
	uint64_t *v, *row, each;
	uint32_t rank;
};

static void add_row(void *ctx, const struct dcp_spread_hit *hit)
{
	const struct rows *rows = ctx;

	dcp_spread_add(rows->x->team->spread, hit, hit->n * rows->each, rows->row);
}

static void row_share(void *ctx, const struct cells *x, const struct share *s)
{
	struct rows *rows = ctx;

	rows->x = x;
	rows->row = rows->v + (size_t)(s->owner - x->first) * x->job->ranks;
	rows->each = s->each;
	dcp_spread_meet(x->team->spread, &s->box, add_row, rows);
}

static int closed_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
			struct dcp_err *err)
{
	struct rows r = { .v = rows };
	struct cells x = {
		.job = job, .of = &job->of, .first = first, .n = n, .fn = row_share, .ctx = &r
	};

	return each_share(&x, err);
}

static void column_share(void *ctx, const struct cells *x, const struct share *s)
{
	const struct rows *c = ctx;

	if (x->team->rank[c->rank] & JOB_HAS)
		c->v[s->owner] += dcp_spread_count(x->team->spread, c->rank, &s->box) * s->each;
}

static int closed_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
			   struct dcp_err *err)
{
	struct rows c = { .v = from, .rank = rank };
	struct cells x = {
		.job = job, .of = &job->of, .n = job->ranks, .fn = column_share, .ctx = &c
	};

	return each_share(&x, err);
}

/* ---- what is read ---- */

/* Blocks of the union in each stripe; short gaps are read along. */
static int closed_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx)
{
	const struct job_extent *e = job->extent.p;
	uint64_t stripe = UINT64_MAX, lo = 0, hi = 0, size = 0;
	uint32_t file = 0;
	int rc = 0;

	for (size_t i = 0; i < job->extent.n && rc >= 0; i++) {
		uint64_t end = e[i].off + e[i].n, start = e[i].off, stop;

		for (; start < end && rc >= 0; start = stop) {
			uint64_t at = dcp_stripe_at(&job->of, e[i].file, start);
			uint64_t from = start - start % DCP_CHUNK_BLOCK, to;

			stop = DCP_MIN(dcp_stripe_start(&job->of, e[i].file, at + 1), end);
			if (rank != DCP_JOB_EACH && dcp_stripe_owner(&job->of, at) != rank)
				continue;
			to = dcp_div_up(stop, DCP_CHUNK_BLOCK) * DCP_CHUNK_BLOCK;
			if (at == stripe && from <= hi + DCP_STRIDED_NEAR) {
				hi = DCP_MAX(hi, to);
				continue;
			}
			if (hi)
				rc = fn(ctx, dcp_stripe_owner(&job->of, stripe), file, lo,
					DCP_MIN(hi, size) - lo);
			stripe = at;
			file = e[i].file;
			size = job->opts.files[file].size;
			lo = from;
			hi = to;
		}
	}
	if (rc >= 0 && hi)
		rc = fn(ctx, dcp_stripe_owner(&job->of, stripe), file, lo,
			DCP_MIN(hi, size) - lo);
	return rc;
}

const struct job_way dcp_job_closed = {
	closed_flows,
	closed_sends,
	closed_receives,
	closed_reads,
};
