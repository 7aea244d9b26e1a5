/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank reads what of each tensor: boxes of its pieces. Items of a pattern come in file
 * order, so those read by one rank follow each other and are counted, not looked at; only items
 * that a boundary cuts are taken apart, fewer than there are ranks.
 */

#include "core/model/job/job_int.h"

static bool is_asked(const struct job_sharing *x, uint32_t reader)
{
	return reader - x->first < x->n;
}

static void share_box(const struct job_sharing *x, struct job_share *s)
{
	s->volume = 1;
	for (uint32_t d = 0; d < x->k->t.ndim; d++)
		s->volume *= s->box.len[d];
	x->fn(x->ctx, x, s);
}

/* Elements [pos, pos + n) of a piece's box, @each bytes of each of them. */
static void share_run(const struct job_sharing *x, const struct dcp_piece *p, uint64_t pos,
		      uint64_t n, uint64_t each, uint32_t reader)
{
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
	struct job_share s = { .reader = reader, .each = each };

	while (n) {
		dcp_run_box(x->k->t.ndim, p->len, &pos, &n, lo, len);
		for (uint32_t d = 0; d < x->k->t.ndim; d++)
			lo[d] += p->lo[d];
		s.box = (struct dcp_spread_box){ lo, len };
		share_box(x, &s);
	}
}

/* Bytes [lo, hi) of an item: parts of elements at its ends when items overlap oddly. */
static void share_bytes(const struct job_sharing *x, const struct dcp_piece *p, uint64_t lo,
			uint64_t hi, uint32_t reader)
{
	uint64_t size = x->k->t.itemsize, head = DCP_MIN((size - lo % size) % size, hi - lo);
	uint64_t at = lo / size;

	if (head) {
		share_run(x, p, p->run_lo + at, 1, head, reader);
		lo += head;
		at++;
	}
	if (hi - lo >= size)
		share_run(x, p, p->run_lo + at, (hi - lo) / size, size, reader);
	if ((hi - lo) % size)
		share_run(x, p, p->run_lo + hi / size, 1, (hi - lo) % size, reader);
}

/* @count items of a piece. */
static void share_whole(const struct job_sharing *x, const struct dcp_piece *p, uint64_t count,
			uint32_t reader)
{
	struct job_share s = { reader, count * x->k->t.itemsize, 1, { p->lo, p->len } };

	for (uint32_t d = 0; d < x->k->t.ndim; d++)
		s.volume *= p->len[d];
	if (s.volume == p->run_n)
		x->fn(x->ctx, x, &s);
	else
		share_run(x, p, p->run_lo, p->run_n, s.each, reader);
}

/* An item that several ranks read parts of. */
static void share_cut(const struct job_sharing *x, const struct dcp_piece *p,
		      const struct job_item *item, uint32_t reader)
{
	for (uint64_t end = 0, next; end < item->n; reader++, end = DCP_MAX(end, next)) {
		next = dcp_job_part_end(x->job, item, reader);
		if (next > end && is_asked(x, reader))
			share_bytes(x, p, end, next, reader);
	}
}

/* The items of a pattern, those of one reader at a time. */
static void share_pattern(const struct job_sharing *x, uint32_t pattern)
{
	const struct dcp_job *job = x->job;
	const struct job_item *items = job->item.p;
	const struct dcp_piece *p = &x->k->t.pieces[pattern];
	const uint32_t *i = &job->by_pattern[job->start[x->k->first + pattern]];
	const uint32_t *end = &job->by_pattern[job->start[x->k->first + pattern + 1]];
	bool atom = dcp_job_is_atom(p);

	while (i < end) {
		uint32_t reader = job->owner[*i];
		uint64_t count = 0;

		for (; i < end && job->owner[*i] == reader; i++) {
			if (atom || dcp_job_part_end(job, &items[*i], reader) == items[*i].n)
				count++;
			else
				share_cut(x, p, &items[*i], reader);
		}
		if (count && is_asked(x, reader))
			share_whole(x, p, count, reader);
	}
}

/* Does a reader that is asked about read anything of this kind? */
static bool is_read(const struct job_sharing *x)
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

		if (is_asked(x, owner) ||
		    (owner < x->first && dcp_job_part_end(job, item, owner) < item->n))
			return true;
	}
	return false;
}

/* Another team comes, or none. */
static void leave_team(struct job_sharing *x)
{
	if (x->team && x->end)
		x->end(x->ctx, x);
	x->team = NULL;
}

int dcp_job_share(struct job_sharing *x, struct dcp_err *err)
{
	const struct dcp_job *job = x->job;
	int rc = 0;

	dcp_job_teams_init(&x->teams, job, job->opts.to);
	for (size_t i = 0; rc == 0 && i < job->kind.n; i++) {
		x->k = JOB_AT(job->kind, struct job_kind, i);
		if (x->k->wanted == JOB_NOTHING || !is_read(x))
			continue;
		if (x->team && !dcp_job_is_team(x->team, x->k, &x->k->to))
			leave_team(x);
		rc = dcp_job_team(&x->teams, x->k, &x->k->to, &x->team, err);
		if (rc == 0 && x->begin)
			x->begin(x->ctx, x);
		for (uint32_t p = 0; rc == 0 && p < x->k->t.npieces; p++)
			if (!dcp_job_is_zeros(&x->k->t.pieces[p]))
				share_pattern(x, p);
	}
	if (rc == 0)
		leave_team(x);
	dcp_job_teams_finish(&x->teams);
	return rc;
}
