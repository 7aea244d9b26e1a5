/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who holds what of the tensors of a kind? Ranks that agree in the coordinates that the rule
 * looks at hold the same, so one of them is asked; parts that turn out equal are one.
 */
#include <errno.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/model/job_int.h"
#include "core/model/overlap.h"

/* What is known of the ranks with the same coordinates. */
struct asked {
	uint32_t part; /* JOB_NONE: nothing */
	bool done;
};

struct asking {
	const struct dcp_layout *l;
	const struct dcp_mesh *mesh;
	uint32_t dims;
	struct asked *by; /* by coordinates in the dimensions that count */
	uint32_t *slot;   /* parts by their hash */
	size_t nslot;
	struct job_who *who;
};

static uint64_t cut_hash(const struct dcp_cut *cut)
{
	uint64_t run[3] = { cut->flat, cut->flat_lo, cut->flat_n };
	uint64_t h = dcp_hash64(run, sizeof(run));

	for (uint32_t d = 0; d < cut->ndim; d++)
		h = dcp_hash64_more(h, cut->axis[d].span,
				    cut->axis[d].n * sizeof(struct dcp_span));
	return h;
}

static bool cut_equal(const struct dcp_cut *a, const struct dcp_cut *b)
{
	if (a->flat != b->flat || a->flat_lo != b->flat_lo || a->flat_n != b->flat_n)
		return false;
	for (uint32_t d = 0; d < a->ndim; d++)
		if (a->axis[d].n != b->axis[d].n || a->axis[d].len != b->axis[d].len ||
		    memcmp(a->axis[d].span, b->axis[d].span,
			   a->axis[d].n * sizeof(struct dcp_span)) != 0)
			return false;
	return true;
}

/* The number of a part, given to it if it is new. */
static uint32_t number_of(struct asking *q, const struct dcp_cut *cut, uint64_t held)
{
	struct job_who *w = q->who;
	size_t i = cut_hash(cut) & (q->nslot - 1);

	for (; q->slot[i]; i = (i + 1) & (q->nslot - 1))
		if (cut_equal(&w->cut[q->slot[i] - 1], cut))
			return q->slot[i] - 1;
	w->cut[w->ncut] = *cut;
	w->held[w->ncut] = held;
	q->slot[i] = ++w->ncut;
	return w->ncut - 1;
}

static uint32_t coordinates(const struct asking *q, uint32_t rank)
{
	uint32_t at[DCP_LAYOUT_MAX_DIMS], n = 0;

	dcp_layout_coords(q->l, rank, at);
	for (uint32_t d = 0; d < q->mesh->ndim; d++)
		if (q->dims >> d & 1)
			n = n * q->mesh->size[d] + at[d];
	return n;
}

static int ask(struct asking *q, const struct job_kind *k, const struct dcp_layout_rule *rule,
	       struct dcp_arena *arena, struct dcp_err *err)
{
	uint32_t ranks = dcp_layout_ranks(q->l);
	bool all = q->dims + 1 == 1u << q->mesh->ndim;

	for (uint32_t r = 0; r < ranks; r++) {
		struct asked *a = &q->by[all ? r : coordinates(q, r)];
		struct dcp_cut cut;
		uint64_t held;
		int rc;

		if (!a->done) {
			rc = dcp_layout_cut_by_rule(q->l, rule, r, k->t.ndim, k->t.shape, arena,
						    &cut, err);
			if (rc < 0)
				return rc;
			held = rc ? dcp_cut_held(&cut) : 0;
			a->part = held ? number_of(q, &cut, held) : JOB_NONE;
			a->done = true;
		}
		q->who->of[r] = a->part;
	}
	return 0;
}

/* Ranks by part, ascending, and of how many groups they are. */
static int list_ranks(const struct dcp_job *job, struct job_who *w, struct dcp_arena *arena)
{
	uint32_t *last = dcp_arena_calloc(arena, w->ncut, sizeof(*last));

	w->first = dcp_arena_calloc(arena, w->ncut + 2, sizeof(*w->first));
	w->rank = dcp_arena_calloc(arena, job->ranks, sizeof(*w->rank));
	w->groups = dcp_arena_calloc(arena, w->ncut, sizeof(*w->groups));
	if (!last || !w->first || !w->rank || !w->groups)
		return -ENOMEM;
	for (uint32_t r = 0; r < job->ranks; r++)
		if (w->of[r] != JOB_NONE)
			w->first[w->of[r] + 2]++;
	for (uint32_t k = 0; k < w->ncut; k++)
		w->first[k + 2] += w->first[k + 1];
	for (uint32_t r = 0; r < job->ranks; r++) {
		uint32_t k = w->of[r], group = r / job->opts.group + 1;

		if (k == JOB_NONE)
			continue;
		w->rank[w->first[k + 1]++] = r;
		w->groups[k] += last[k] != group;
		last[k] = group;
	}
	return 0;
}

int dcp_job_who(const struct dcp_job *job, const struct job_kind *k,
		const struct dcp_layout *layout, const struct dcp_layout_rule *rule,
		struct dcp_arena *arena, struct job_who *out, struct dcp_err *err)
{
	struct asking q = { .l = layout,
			    .mesh = dcp_layout_mesh(layout),
			    .dims = dcp_layout_rule_dims(layout, rule),
			    .nslot = 2,
			    .who = out };
	size_t n = 1;
	int rc;

	dcp_arena_reset(arena);
	for (uint32_t d = 0; d < q.mesh->ndim; d++)
		n *= q.dims >> d & 1 ? q.mesh->size[d] : 1;
	while (q.nslot < 2 * n)
		q.nslot *= 2;
	*out = (struct job_who){ .cut = dcp_arena_alloc(arena, n * sizeof(*out->cut)),
				 .held = dcp_arena_alloc(arena, n * sizeof(*out->held)),
				 .of = dcp_arena_alloc(arena, job->ranks * sizeof(*out->of)) };
	q.by = dcp_arena_calloc(arena, n, sizeof(*q.by));
	q.slot = dcp_arena_calloc(arena, q.nslot, sizeof(*q.slot));
	if (!out->cut || !out->held || !out->of || !q.by || !q.slot)
		return dcp_job_no_memory(job, err);
	memset(out->of, 0xff, job->ranks * sizeof(*out->of)); /* JOB_NONE */
	rc = ask(&q, k, rule, arena, err);
	if (rc == 0)
		rc = list_ranks(job, out, arena);
	return rc == -ENOMEM ? dcp_job_no_memory(job, err) : rc;
}

uint32_t dcp_job_group_parts(const struct dcp_job *job, const struct job_who *who,
			     uint32_t group, uint32_t *part)
{
	uint32_t first = group * job->opts.group, n = 0;
	uint32_t end = DCP_MIN(job->ranks - first, job->opts.group) + first;

	for (uint32_t r = first; r < end; r++) {
		uint32_t k = who->of[r], i = 0;

		while (i < n && part[i] != k)
			i++;
		if (k != JOB_NONE && i == n)
			part[n++] = k;
	}
	return n;
}

uint64_t dcp_job_held_below(const struct job_kind *k, uint32_t p, const struct dcp_cut *cut,
			    uint64_t bytes)
{
	const struct dcp_piece *piece = &k->t.pieces[p];
	uint64_t element = bytes / k->t.itemsize, rest = bytes % k->t.itemsize, n;
	struct dcp_piece_cut part;

	dcp_piece_cut_part(&part, piece, k->t.ndim, 0, element);
	n = dcp_overlap(&part.cut, cut) * k->t.itemsize;
	if (rest) {
		dcp_piece_cut_part(&part, piece, k->t.ndim, element, 1);
		n += dcp_overlap(&part.cut, cut) * rest;
	}
	return n;
}
