/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For jobs that read each byte once: computes flows without a loop over ranks. Items in order of
 * file and offset are cut by stripes into cells. How many ranks need how many bytes of a cell, and
 * how many of them the owner of its stripe needs, are closed forms
 * (core/model/layout/spread/spread.h).
 */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The part of an item in the stripes of one round: bytes [lo, hi) of the item. */
struct strip {
	const struct dcp_piece *piece;
	uint64_t lo, next, hi; /* next: where the second stripe begins */
	uint64_t round;
	uint32_t first, n; /* owners: one for each stripe */
};

struct cells {
	const struct dcp_job *job;
	const struct dcp_stripes *of;
	const struct job_kind *k;
	const struct job_team *team;
	struct job_teams teams;
	bool same; /* all ranks that have the key need the whole item */
	void (*fn)(void *ctx, const struct cells *x, const struct strip *s);
	void *ctx;
};

/* Where stripe @i of the strip begins, in bytes of the item. */
static uint64_t find_edge(const struct cells *x, const struct strip *s, uint32_t i)
{
	return i == 0 ? s->lo : i >= s->n ? s->hi : s->next + (i - 1) * x->of->size;
}

static void pass_item(const struct cells *x, const struct job_item *item)
{
	const struct dcp_stripes *of = x->of;
	struct strip s = { .piece = &x->k->t.pieces[item->pattern - x->k->first] };
	uint64_t stripe = dcp_stripe_at(of, item->file, item->off);
	uint64_t end = dcp_stripe_at(of, item->file, item->off + item->n - 1) + 1;

	for (; stripe < end; stripe += s.n, s.lo = s.hi) {
		s.round = stripe / of->ranks;
		s.first = (uint32_t)(stripe % of->ranks);
		s.n = (uint32_t)DCP_MIN(end - stripe, (uint64_t)of->ranks - s.first);
		s.next = dcp_stripe_start(of, item->file, stripe + 1) - item->off;
		s.hi = DCP_MIN(s.next + (s.n - 1) * of->size, item->n);
		x->fn(x->ctx, x, &s);
	}
}

/* Pass all strips to x->fn, in order of stripes. */
static int each_strip(struct cells *x, struct dcp_err *err)
{
	const struct dcp_job *job = x->job;
	int rc = 0;

	x->of = &job->of;
	x->k = NULL;
	dcp_job_teams_init(&x->teams, job, job->opts.to);
	for (size_t i = 0; rc == 0 && i < job->item.n; i++) {
		const struct job_item *item = JOB_AT(job->item, struct job_item, job->order[i]);
		const struct job_kind *k = dcp_job_kind_of(job, item);

		if (!item->n || k->wanted == JOB_NOTHING)
			continue;
		if (k != x->k)
			rc = dcp_job_team(&x->teams, k, &k->to, &x->team, err);
		x->k = k;
		x->same = x->team->same && k->wanted == JOB_ALL;
		if (rc == 0)
			pass_item(x, item);
	}
	dcp_job_teams_finish(&x->teams);
	return rc;
}

/* A box of an item: @each bytes of each of its elements. */
typedef void (*box_fn)(void *ctx, const struct cells *x, const struct dcp_spread_box *box,
		       uint64_t each);

/* Pass elements [pos, pos + n) of the box of a piece, as boxes. */
static void box_run(const struct cells *x, const struct dcp_piece *p, uint64_t pos, uint64_t n,
		    uint64_t each, box_fn fn, void *ctx)
{
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
	struct dcp_spread_box box = { lo, len };

	while (n) {
		dcp_run_box(x->k->t.ndim, p->len, &pos, &n, lo, len);
		for (uint32_t d = 0; d < x->k->t.ndim; d++)
			lo[d] += p->lo[d];
		fn(ctx, x, &box, each);
	}
}

/* Pass the boxes of bytes [lo, hi) of an item, which may begin and end inside of elements. */
static void each_box(const struct cells *x, const struct dcp_piece *p, uint64_t lo, uint64_t hi,
		     box_fn fn, void *ctx)
{
	uint64_t size = x->k->t.itemsize, head = DCP_MIN((size - lo % size) % size, hi - lo);
	uint64_t at = lo / size;

	if (head) {
		box_run(x, p, p->run_lo + at, 1, head, fn, ctx);
		lo += head;
		at++;
	}
	if (hi - lo >= size)
		box_run(x, p, p->run_lo + at, (hi - lo) / size, size, fn, ctx);
	if ((hi - lo) % size)
		box_run(x, p, p->run_lo + hi / size, 1, (hi - lo) % size, fn, ctx);
}

struct asked {
	uint32_t rank;
	uint64_t bytes;
};

static void add_own(void *ctx, const struct cells *x, const struct dcp_spread_box *box,
		    uint64_t each)
{
	struct asked *a = ctx;

	a->bytes += dcp_spread_count(x->team->spread, a->rank, box) * each;
}

/* The number of bytes in [lo, hi) of the item that @rank needs. */
static uint64_t needs_of(const struct cells *x, const struct strip *s, uint64_t lo, uint64_t hi,
			 uint32_t rank)
{
	struct asked a = { .rank = rank };

	if (!(x->team->rank[rank] & JOB_HAS))
		return 0;
	if (x->same)
		return hi - lo;
	each_box(x, s->piece, lo, hi, add_own, &a);
	return a.bytes;
}

/* Sums of bytes by rank. Bytes that go to the same ranks as the bytes added before are summed
 * separately, in one number for each row, until bytes for other ranks come. */
struct table {
	uint64_t *v, *sum; /* @n rows of as many numbers as there are ranks; @n numbers */
	uint8_t *has;      /* by rank: it needs the bytes in @sum; as in a team */
	uint32_t n, ranks;
	/* of the box that is being added */
	const struct cells *x;
	uint64_t each, *row;
};

static int init_table(struct table *t, const struct dcp_job *job, uint64_t *v, uint32_t n)
{
	*t = (struct table){ .v = v, .n = n, .ranks = job->ranks };
	t->sum = calloc(n, sizeof(*t->sum));
	t->has = calloc(job->ranks, 1);
	return t->sum && t->has ? 0 : -ENOMEM;
}

static void finish_table(struct table *t)
{
	free(t->sum);
	free(t->has);
}

static void flush_table(struct table *t)
{
	for (uint32_t i = 0; i < t->n; i++) {
		uint64_t *row = &t->v[(size_t)i * t->ranks];

		for (uint32_t r = 0; t->sum[i] && r < t->ranks; r++)
			row[r] += t->has[r] & JOB_HAS ? t->sum[i] : 0;
		t->sum[i] = 0;
	}
}

static void add_hit(void *ctx, const struct dcp_spread_hit *hit)
{
	const struct table *t = ctx;

	dcp_spread_add(t->x->team->spread, hit, hit->n * t->each, t->row);
}

static void add_box(void *ctx, const struct cells *x, const struct dcp_spread_box *box,
		    uint64_t each)
{
	struct table *t = ctx;

	t->x = x;
	t->each = each;
	dcp_spread_meet(x->team->spread, box, add_hit, t);
}

/* Add to row @i the bytes of [lo, hi) of the item that each rank needs. */
static void add_to_table(struct table *t, uint32_t i, const struct cells *x,
			 const struct strip *s, uint64_t lo, uint64_t hi)
{
	if (x->same) {
		if (memcmp(t->has, x->team->rank, t->ranks) != 0) {
			flush_table(t);
			memcpy(t->has, x->team->rank, t->ranks);
		}
		t->sum[i] += hi - lo;
		return;
	}
	t->row = &t->v[(size_t)i * t->ranks];
	each_box(x, s->piece, lo, hi, add_box, t);
}

/* ---- flows ---- */

/* Stripes of one size. By rank: the bytes that it needs, sends and keeps of the stripes of a
 * round. */
struct dealing {
	struct dcp_job *job;
	struct table needs;
	uint64_t round, *in, *out, *kept, *most_in, *most_out;
	uint64_t *before; /* a part of @in, before the strip that is being added */
};

static void add_holders(void *ctx, const struct dcp_spread_hit *hit)
{
	uint64_t *found = ctx;

	*found += hit->n * dcp_spread_parts(hit);
}

static void count_holders(void *ctx, const struct cells *x, const struct dcp_spread_box *box,
			  uint64_t each)
{
	uint64_t *bytes = ctx, found = 0;

	dcp_spread_meet(x->team->spread, box, add_holders, &found);
	*bytes += found * x->team->ncopies * each;
}

/* The bytes in [lo, hi) of the item that all ranks together need. */
static uint64_t needs_of_all(const struct cells *x, const struct strip *s, uint64_t lo,
			     uint64_t hi)
{
	uint64_t bytes = 0;

	if (x->k->wanted == JOB_ALL)
		return (hi - lo) * x->team->ncopies;
	each_box(x, s->piece, lo, hi, count_holders, &bytes);
	return bytes;
}

/* Subtract the bytes that owners keep, because they are in no message. */
static void leave_round(struct dealing *d)
{
	flush_table(&d->needs);
	for (uint32_t r = 0; r < d->job->ranks; r++) {
		uint64_t kept = d->kept[r], out = d->out[r] - kept;

		d->job->rank[r].keeps += kept;
		d->job->rank[r].sends += out;
		d->most_out[r] = DCP_MAX(d->most_out[r], out);
		d->most_in[r] = DCP_MAX(d->most_in[r], d->in[r] - kept);
	}
	memset(d->in, 0, 3 * d->job->ranks * sizeof(*d->in));
}

static void deal_strip(void *ctx, const struct cells *x, const struct strip *s)
{
	struct dealing *d = ctx;
	uint64_t lo = s->lo, hi;

	if (s->round != d->round)
		leave_round(d);
	d->round = s->round;
	memcpy(d->before, d->in + s->first, s->n * sizeof(*d->in));
	add_to_table(&d->needs, 0, x, s, s->lo, s->hi);
	for (uint32_t i = 0; i < s->n; i++, lo = hi) {
		uint32_t owner = s->first + i;

		hi = find_edge(x, s, i + 1);
		d->out[owner] += needs_of_all(x, s, lo, hi);
		/* few ranks need bytes of the strip */
		if (x->same || d->in[owner] != d->before[i])
			d->kept[owner] += needs_of(x, s, lo, hi, owner);
	}
}

/* Deal stripes of @size bytes; *@most: the largest number of message bytes of a rank in a round. */
static int deal_stripes(struct dealing *d, uint64_t size, uint64_t *most, struct dcp_err *err)
{
	struct dcp_job *job = d->job;
	struct cells x = { .job = job, .fn = deal_strip, .ctx = d };
	int rc;

	free(job->of.base);
	job->of = (struct dcp_stripes){ .size = size, .ranks = job->ranks };
	if (dcp_stripes_number(&job->of, job->opts.files, job->opts.nfiles) < 0)
		return -ENOMEM;
	memset(d->in, 0, 5 * (size_t)job->ranks * sizeof(*d->in));
	for (uint32_t r = 0; r < job->ranks; r++)
		job->rank[r].keeps = job->rank[r].sends = 0;
	d->round = 0;
	rc = each_strip(&x, err);
	leave_round(d);
	*most = 0;
	for (uint32_t r = 0; r < job->ranks; r++)
		*most = DCP_MAX(*most, d->most_in[r] + d->most_out[r]);
	return rc;
}

/* Bytes that a rank of a node reads and its own node needs stay in the node. */
static void keep_strip(void *ctx, const struct cells *x, const struct strip *s)
{
	struct dealing *d = ctx;
	uint32_t size = d->job->opts.group, begin = s->first / size * size, next;
	uint32_t last = DCP_MIN(d->job->ranks, (s->first + s->n + size - 1) / size * size);

	memcpy(d->before, d->in + begin, (last - begin) * sizeof(*d->in));
	add_to_table(&d->needs, 0, x, s, s->lo, s->hi);
	for (uint32_t i = 0; i < s->n; i = next) {
		uint32_t first = (s->first + i) / size * size;
		uint32_t end = DCP_MIN(d->job->ranks, first + size);
		uint64_t lo = find_edge(x, s, i), hi;

		next = DCP_MIN(s->n, end - s->first);
		hi = find_edge(x, s, next);
		for (uint32_t r = first; r < end; r++)
			if (x->same || d->in[r] != d->before[r - begin])
				d->job->group[first / size].keeps += needs_of(x, s, lo, hi, r);
	}
}

static int closed_flows(struct dcp_job *job, struct dcp_err *err)
{
	struct dealing d = { .job = job, .in = calloc(6 * (size_t)job->ranks, sizeof(*d.in)) };
	struct cells x = { .job = job, .fn = keep_strip, .ctx = &d };
	int rc = d.in ? init_table(&d.needs, job, d.in, 1) : -ENOMEM;
	uint64_t next, most = 0;

	d.out = d.in + job->ranks;
	d.kept = d.out + job->ranks;
	d.most_in = d.kept + job->ranks;
	d.most_out = d.most_in + job->ranks;
	d.before = d.most_out + job->ranks;
	while (rc == 0 && (next = dcp_stripe_size(job->staging, job->ranks, 0, job->of.size,
						  most)) != job->of.size)
		rc = deal_stripes(&d, next, &most, err);
	if (rc == 0 && job->opts.group > 1)
		rc = each_strip(&x, err);
	for (uint32_t r = 0; r < job->ranks; r++) {
		struct dcp_job_flow *f = &job->rank[r], *g = &job->group[r / job->opts.group];

		/* so far @reads counts reads through views */
		f->receives = f->needs - f->reads - f->keeps;
		g->receives += f->needs - f->reads;
		g->sends += f->keeps + f->sends;
		g->keeps += job->opts.group > 1 ? 0 : f->keeps;
	}
	for (uint32_t g = 0; g < job->groups; g++) {
		job->group[g].receives -= job->group[g].keeps;
		job->group[g].sends -= job->group[g].keeps;
	}
	finish_table(&d.needs);
	free(d.in);
	return rc;
}

/* ---- who sends how much to whom ---- */

struct rows {
	struct table t;
	uint32_t first;
};

static void row_strip(void *ctx, const struct cells *x, const struct strip *s)
{
	struct rows *rows = ctx;
	uint32_t end = rows->first + rows->t.n;

	for (uint32_t i = rows->first > s->first ? rows->first - s->first : 0;
	     i < s->n && s->first + i < end; i++)
		add_to_table(&rows->t, s->first + i - rows->first, x, s, find_edge(x, s, i),
			     find_edge(x, s, i + 1));
}

static int closed_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *v,
			struct dcp_err *err)
{
	struct rows rows = { .first = first };
	struct cells x = { .job = job, .fn = row_strip, .ctx = &rows };
	int rc = init_table(&rows.t, job, v, n);

	if (rc == 0)
		rc = each_strip(&x, err);
	if (rc == 0)
		flush_table(&rows.t);
	finish_table(&rows.t);
	return rc;
}

struct column {
	uint64_t *from;
	uint32_t rank;
};

static void column_strip(void *ctx, const struct cells *x, const struct strip *s)
{
	const struct column *c = ctx;

	if (!needs_of(x, s, s->lo, s->hi, c->rank))
		return;
	for (uint32_t i = 0; i < s->n; i++)
		c->from[s->first + i] +=
			needs_of(x, s, find_edge(x, s, i), find_edge(x, s, i + 1), c->rank);
}

static int closed_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
			   struct dcp_err *err)
{
	struct column c = { from, rank };
	struct cells x = { .job = job, .fn = column_strip, .ctx = &c };

	return each_strip(&x, err);
}

/* ---- what is read ---- */

/* The blocks of the union in each stripe; short gaps are read too. */
static int closed_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx)
{
	const struct job_extent *e = job->extent.p;
	uint64_t stripe = UINT64_MAX, lo = 0, hi = 0, size = 0;
	uint32_t file = 0, reader = 0;
	int rc = 0;

	for (size_t i = 0; i < job->extent.n && rc >= 0; i++) {
		uint64_t end = e[i].off + e[i].n, start = e[i].off, stop;
		uint64_t at = dcp_stripe_at(&job->of, e[i].file, start);
		uint32_t owner = dcp_stripe_owner(&job->of, at);

		stop = dcp_stripe_start(&job->of, e[i].file, at + 1);
		for (; start < end && rc >= 0; at++, start = stop, stop += job->of.size) {
			uint64_t from = start - start % DCP_CHUNK_BLOCK, to;
			uint32_t now = owner;

			owner = owner + 1 < job->ranks ? owner + 1 : 0;
			if (rank != DCP_JOB_EACH && now != rank)
				continue;
			to = DCP_MIN(stop, end) + DCP_CHUNK_BLOCK - 1;
			to -= to % DCP_CHUNK_BLOCK;
			if (at == stripe && from <= hi + DCP_STRIDED_NEAR) {
				hi = DCP_MAX(hi, to);
				continue;
			}
			if (hi)
				rc = fn(ctx, reader, file, lo, DCP_MIN(hi, size) - lo);
			stripe = at;
			reader = now;
			file = e[i].file;
			size = job->opts.files[file].size;
			lo = from;
			hi = to;
		}
	}
	if (rc >= 0 && hi)
		rc = fn(ctx, reader, file, lo, DCP_MIN(hi, size) - lo);
	return rc;
}

const struct job_way dcp_job_closed = {
	closed_flows,
	closed_sends,
	closed_receives,
	closed_reads,
};
