/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends how much to whom. A kind is computed once: how many bytes of each of its patterns
 * each part holds. Items of a pattern come in file order, so those read by one rank follow each
 * other and are counted, not looked at; only items that a boundary cuts are computed by
 * themselves, fewer than there are ranks.
 */
#include <errno.h>
#include <string.h>

#include "core/model/job_int.h"
#include "core/model/overlap.h"

/* Bytes of one pattern, or of a stretch of one item. */
struct share {
	uint32_t reader;
	uint64_t count;       /* of items that are read by the same rank */
	const uint64_t *part; /* bytes of each part in one of them */
};

struct sharing {
	const struct dcp_job *job;
	const struct job_kind *k;
	struct job_who who;
	struct dcp_arena arena, scratch;
	uint64_t *part, *slice, *done; /* ncut each */
	uint32_t first, n;             /* readers that are asked about */
	int (*fn)(void *ctx, struct sharing *x, const struct share *s);
	int (*begin)(void *ctx, struct sharing *x); /* a kind; may be NULL */
	void *ctx;
};

static bool asked(const struct sharing *x, uint32_t reader)
{
	return reader - x->first < x->n;
}

/* An item that several ranks read parts of. */
static int share_cut(struct sharing *x, uint32_t p, const struct job_item *item,
		     uint32_t reader)
{
	uint64_t end = 0;
	int rc = 0;

	memset(x->done, 0, x->who.ncut * sizeof(*x->done));
	for (; rc == 0 && end < item->n; reader++) {
		struct share s = { reader, 1, x->slice };
		uint64_t next = dcp_job_part_end(x->job, item, reader);

		if (next <= end)
			continue;
		for (uint32_t i = 0; i < x->who.ncut; i++) {
			uint64_t below =
				next == item->n
					? x->part[i]
					: dcp_job_held_below(x->k, p, &x->who.cut[i], next);

			x->slice[i] = below - x->done[i];
			x->done[i] = below;
		}
		end = next;
		if (asked(x, reader))
			rc = x->fn(x->ctx, x, &s);
	}
	return rc;
}

/* The items of a pattern, those of one reader at a time. */
static int share_pattern(struct sharing *x, uint32_t p)
{
	const struct dcp_job *job = x->job;
	const struct job_item *items = job->item.p;
	const uint32_t *i = &job->by_pattern[job->start[x->k->first + p]];
	const uint32_t *end = &job->by_pattern[job->start[x->k->first + p + 1]];
	bool atom = dcp_job_is_atom(&x->k->t.pieces[p]), any = false;
	struct dcp_piece_cut piece;
	int rc = 0;

	dcp_piece_cut(&piece, &x->k->t.pieces[p], x->k->t.ndim);
	for (uint32_t c = 0; c < x->who.ncut; c++) {
		x->part[c] = dcp_overlap(&piece.cut, &x->who.cut[c]) * x->k->t.itemsize;
		any |= x->part[c] != 0;
	}
	while (any && rc == 0 && i < end) {
		struct share s = { job->owner[*i], 0, x->part };

		for (; i < end && job->owner[*i] == s.reader; i++) {
			if (atom || dcp_job_part_end(job, &items[*i], s.reader) == items[*i].n)
				s.count++;
			else if (rc == 0)
				rc = share_cut(x, p, &items[*i], s.reader);
		}
		if (rc == 0 && s.count && asked(x, s.reader))
			rc = x->fn(x->ctx, x, &s);
	}
	return rc;
}

/* Does a reader that is asked about read anything of this kind? */
static bool is_read(const struct sharing *x)
{
	const struct dcp_job *job = x->job;
	uint32_t i = job->start[x->k->first];
	uint32_t end = job->start[x->k->first + (uint32_t)x->k->t.npieces];
	const struct job_item *items = job->item.p;

	if (x->n == job->ranks)
		return true;
	for (; i < end; i++) {
		const struct job_item *item = &items[job->by_pattern[i]];
		uint32_t owner = job->owner[job->by_pattern[i]];

		if (asked(x, owner) ||
		    (owner < x->first && dcp_job_part_end(job, item, owner) < item->n))
			return true;
	}
	return false;
}

static int share_kind(struct sharing *x, struct dcp_err *err)
{
	int rc = dcp_job_who(x->job, x->k, x->job->opts.to, &x->k->to, &x->arena, &x->who, err);

	if (rc < 0)
		return rc;
	x->part = dcp_arena_calloc(&x->arena, x->who.ncut, sizeof(*x->part));
	x->slice = dcp_arena_calloc(&x->arena, x->who.ncut, sizeof(*x->slice));
	x->done = dcp_arena_calloc(&x->arena, x->who.ncut, sizeof(*x->done));
	if (!x->part || !x->slice || !x->done)
		return dcp_job_no_memory(x->job, err);
	if (x->begin)
		rc = x->begin(x->ctx, x);
	for (uint32_t p = 0; rc == 0 && p < x->k->t.npieces; p++)
		rc = share_pattern(x, p);
	return rc;
}

static int share_all(struct sharing *x, struct dcp_err *err)
{
	const struct dcp_job *job = x->job;
	int rc = 0;

	dcp_arena_init(&x->arena, job->opts.memory);
	for (size_t i = 0; rc == 0 && i < job->kind.n; i++) {
		x->k = JOB_AT(job->kind, struct job_kind, i);
		if (x->k->wanted != JOB_NOTHING && is_read(x))
			rc = share_kind(x, err);
	}
	dcp_arena_finish(&x->arena);
	return rc;
}

/* ---- flows ---- */

struct flows {
	struct dcp_job_flow *rank, *group;
	uint32_t *parts; /* of one group */
};

/* What is needed of a kind's tensors, by ranks and by groups. */
static int flow_begin(void *ctx, struct sharing *x)
{
	const struct job_who *w = &x->who;
	uint64_t size = x->k->ntensors * x->k->t.itemsize;
	struct flows *f = ctx;

	for (uint32_t r = 0; r < x->job->ranks; r++)
		if (w->of[r] != JOB_NONE)
			f->rank[r].needs += w->held[w->of[r]] * size;
	for (uint32_t g = 0; f->group && g < x->job->groups; g++) {
		uint32_t n = dcp_job_group_parts(x->job, w, g, f->parts);

		for (uint32_t i = 0; i < n; i++)
			f->group[g].needs += w->held[f->parts[i]] * size;
	}
	return 0;
}

static int flow_share(void *ctx, struct sharing *x, const struct share *s)
{
	const struct job_who *w = &x->who;
	uint32_t mine = w->of[s->reader], g = s->reader / x->job->opts.group, n;
	uint64_t keeps = mine == JOB_NONE ? 0 : s->part[mine], all = 0, groups = 0;
	struct flows *f = ctx;

	for (uint32_t c = 0; c < w->ncut; c++) {
		all += s->part[c] * (w->first[c + 1] - w->first[c]);
		groups += s->part[c] * w->groups[c];
	}
	f->rank[s->reader].keeps += keeps * s->count;
	f->rank[s->reader].sends += (all - keeps) * s->count;
	if (!f->group)
		return 0;
	n = dcp_job_group_parts(x->job, w, g, f->parts);
	keeps = 0;
	for (uint32_t i = 0; i < n; i++)
		keeps += s->part[f->parts[i]];
	f->group[g].keeps += keeps * s->count;
	f->group[g].sends += (groups - keeps) * s->count;
	return 0;
}

static int add_read(void *ctx, uint32_t file, uint64_t off, uint64_t n)
{
	(void)file;
	(void)off;
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
	struct flows f = { rank, group, NULL };
	struct sharing x = {
		.job = job, .n = job->ranks, .fn = flow_share, .begin = flow_begin, .ctx = &f
	};
	int rc;

	memset(rank, 0, job->ranks * sizeof(*rank));
	if (group)
		memset(group, 0, job->groups * sizeof(*group));
	dcp_arena_init(&x.scratch, job->opts.memory);
	f.parts = dcp_arena_calloc(&x.scratch, job->opts.group, sizeof(*f.parts));
	if (!f.parts)
		rc = dcp_job_no_memory(job, err);
	else if (!job->opts.from)
		rc = share_all(&x, err);
	else
		rc = dcp_job_moves(job, flow_move, rank, err);
	if (rc == 0 && job->opts.from && group)
		rc = dcp_job_group_moves(job, flow_move, group, err);
	dcp_arena_finish(&x.scratch);
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

/* ---- who to whom ---- */

struct rows {
	const struct dcp_job *job;
	uint32_t first, n;
	uint64_t *v;
};

static int row_share(void *ctx, struct sharing *x, const struct share *s)
{
	const struct job_who *w = &x->who;
	struct rows *rows = ctx;
	uint64_t *row = rows->v + (size_t)(s->reader - rows->first) * x->job->ranks;

	for (uint32_t c = 0; c < w->ncut; c++)
		for (uint32_t i = w->first[c]; s->part[c] && i < w->first[c + 1]; i++)
			row[w->rank[i]] += s->part[c] * s->count;
	return 0;
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
	struct rows r = { job, first, n, rows };
	struct sharing x = { .job = job, .first = first, .n = n, .fn = row_share, .ctx = &r };

	memset(rows, 0, (size_t)n * job->ranks * sizeof(*rows));
	return job->opts.from ? dcp_job_moves(job, row_move, &r, err) : share_all(&x, err);
}

/* ---- one rank ---- */

static void column_move(void *ctx, const struct job_move *m)
{
	struct rows *column = ctx;

	if (m->to == column->first)
		column->v[m->from] += m->bytes;
}

static void receive_item(const struct dcp_job *job, const struct job_kind *k, uint32_t p,
			 const struct job_item *item, uint32_t reader, uint64_t all,
			 const struct dcp_cut *cut, uint64_t *from)
{
	uint64_t end = 0, done = 0;

	for (; end < item->n; reader++) {
		uint64_t next = dcp_job_is_atom(&k->t.pieces[p])
					? item->n
					: dcp_job_part_end(job, item, reader);
		uint64_t below;

		if (next <= end)
			continue;
		below = next == item->n ? all : dcp_job_held_below(k, p, cut, next);
		from[reader] += below - done;
		done = below;
		end = next;
	}
}

static int receive_kind(const struct dcp_job *job, const struct job_kind *k, uint32_t rank,
			struct dcp_arena *arena, uint64_t *from, struct dcp_err *err)
{
	const struct job_item *items = job->item.p;
	struct dcp_cut cut;
	int rc = dcp_layout_cut_by_rule(job->opts.to, &k->to, rank, k->t.ndim, k->t.shape,
					arena, &cut, err);

	for (uint32_t p = 0; rc > 0 && p < k->t.npieces; p++) {
		uint64_t all =
			dcp_job_held_below(k, p, &cut, k->t.pieces[p].run_n * k->t.itemsize);
		uint32_t end = job->start[k->first + p + 1];

		for (uint32_t i = job->start[k->first + p]; all && i < end; i++)
			receive_item(job, k, p, &items[job->by_pattern[i]],
				     job->owner[job->by_pattern[i]], all, &cut, from);
	}
	return rc == -ENOMEM ? dcp_job_no_memory(job, err) : DCP_MIN(rc, 0);
}

int dcp_job_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
		     struct dcp_err *err)
{
	struct rows column = { job, rank, 1, from };
	struct dcp_arena arena;
	int rc = 0;

	memset(from, 0, job->ranks * sizeof(*from));
	if (job->opts.from)
		return dcp_job_moves(job, column_move, &column, err);
	dcp_arena_init(&arena, job->opts.memory);
	for (size_t i = 0; rc == 0 && i < job->kind.n; i++) {
		dcp_arena_reset(&arena);
		rc = receive_kind(job, JOB_AT(job->kind, struct job_kind, i), rank, &arena,
				  from, err);
	}
	dcp_arena_finish(&arena);
	return rc;
}
