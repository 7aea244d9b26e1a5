/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/job_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"

/* Each rank reads it for itself. */
static bool is_opaque(const struct dcp_piece *p)
{
	return p->filter != DCP_FILTER_ZERO && (p->enc || p->filter);
}

/* By definition: is element @at of the tensor in the piece, and where? */
static bool piece_has(const struct dcp_tensor *t, const struct dcp_piece *p, const uint64_t *at,
		      uint64_t *off)
{
	uint64_t number = 0, element = 0;

	for (uint32_t d = 0; d < t->ndim; d++) {
		if (at[d] < p->lo[d] || at[d] >= p->lo[d] + p->len[d])
			return false;
		number = number * p->len[d] + (at[d] - p->lo[d]);
		element += p->stride ? (at[d] - p->lo[d]) * p->stride[d] : 0;
	}
	if (number < p->run_lo || number >= p->run_lo + p->run_n)
		return false;
	*off = p->off + (p->stride ? element : number - p->run_lo) * t->itemsize;
	return true;
}

const struct dcp_piece *t_job_piece(const struct t_job *w, const struct dcp_tensor *t,
				    const uint64_t *at, uint64_t *off)
{
	const struct dcp_piece *found = NULL;
	uint64_t here;

	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];

		if (!piece_has(t, p, at, &here))
			continue;
		if (!found || (p->filter != DCP_FILTER_ZERO && w->read[p->file][here])) {
			found = p;
			*off = here;
		}
	}
	return found;
}

/* Call @fn for every element that @rank holds of the tensor. */
static const char *each_element(struct t_job_ask *a, uint32_t rank,
				const char *(*fn)(struct t_job_ask *a, uint32_t rank,
						  uint64_t e, const uint64_t *at))
{
	uint64_t at[DCP_MAX_NDIM] = { 0 };
	const char *wrong = NULL;

	for (uint64_t e = 0; a->has[rank] && !wrong && e < a->volume[rank]; e++)
		if (t_cut_at(&a->cut[rank], e, at))
			wrong = fn(a, rank, e, at);
	return wrong;
}

const char *t_job_ask(struct t_job_ask *a, const struct dcp_layout *l)
{
	dcp_arena_reset(&a->arena);
	memset(a->has, 0, sizeof(a->has));
	for (uint32_t r = 0; r < dcp_layout_ranks(l); r++) {
		int rc = dcp_layout_cut(l, r, a->t->key, a->t->ndim, a->t->shape, &a->arena,
					&a->cut[r], NULL);

		if (rc < 0)
			return "the layout cannot cut it";
		a->has[r] = rc == 1;
		if (rc)
			dcp_cut_volume(&a->cut[r], &a->volume[r]);
	}
	return NULL;
}

/*
 * Is anything that the rank needs of the tensor decoded, or are bytes of some elements reversed?
 * Then a view reads all of it.
 */
static bool is_viewed(struct t_job_ask *a, uint32_t rank)
{
	uint64_t at[DCP_MAX_NDIM] = { 0 }, off;
	int swaps = 0;

	for (uint64_t e = 0; a->has[rank] && e < a->volume[rank]; e++) {
		const struct dcp_piece *p = t_cut_at(&a->cut[rank], e, at)
						    ? t_job_piece(a->w, a->t, at, &off)
						    : NULL;

		if (p && is_opaque(p))
			return true;
		if (p && p->filter != DCP_FILTER_ZERO)
			swaps |= p->swap ? 1 : 2;
	}
	a->w->reversed |= swaps == 1;
	return swaps == 3;
}

/* Mark what is needed of files, which what is read depends on. */
static const char *mark_wanted(struct t_job_ask *a, uint32_t rank, uint64_t e,
			       const uint64_t *at)
{
	uint64_t off, stripe = a->w->stripe;
	const struct dcp_piece *p = t_job_piece(a->w, a->t, at, &off);

	(void)rank;
	(void)e;
	if (!p)
		return "reference: a hole";
	for (uint32_t b = 0; p->filter != DCP_FILTER_ZERO && b < a->t->itemsize; b++) {
		a->w->wanted[p->file][off + b] = 1;
		a->w->owner[p->file][off + b] =
			stripe ? (uint32_t)((a->w->base[p->file] + (off + b) / stripe) %
					    a->w->ranks)
			       : NO_RANK;
	}
	return NULL;
}

static const char *count_moved(struct t_job_ask *a, uint32_t rank, uint64_t e,
			       const uint64_t *at)
{
	uint64_t off = 0;
	const struct dcp_piece *p = t_job_piece(a->w, a->t, at, &off);

	(void)e;
	for (uint32_t b = 0; p->filter != DCP_FILTER_ZERO && b < a->t->itemsize; b++) {
		a->w->rank[rank].needs++;
		if (a->w->stripe)
			a->w->sends[a->w->owner[p->file][off + b]][rank]++;
	}
	return NULL;
}

/* ---- what the plan says ---- */

struct reading {
	struct t_job *w;
	const char *wrong;
};

static int see_read(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct reading *x = ctx;
	uint8_t *read;

	if (n == 0 || file >= T_JOB_FILES || off + n > x->w->files[file].size) {
		x->wrong = "reads: outside of the file";
		return -1;
	}
	read = x->w->read[file];
	for (uint64_t b = off; !x->wrong && b < off + n; b++) {
		if (x->w->stripe && read[b] && b % x->w->stripe >= 4096)
			x->wrong = "reads: a byte twice";
		if (x->w->stripe && b % x->w->stripe >= 4096 &&
		    (x->w->base[file] + b / x->w->stripe) % x->w->ranks != rank)
			x->wrong = "reads: a stripe of another rank";
		read[b] = 1;
	}
	x->w->rank[rank].reads += n;
	return x->wrong ? -1 : 0;
}

/* In each stripe whole blocks, and holes of up to 8 KiB between them. */
static const char *check_stripes(const struct t_job *w)
{
	enum { BLOCK = 4096, NEAR = 8192 };
	static uint8_t want[T_JOB_FILE_BYTES];

	for (size_t f = 0; f < T_JOB_FILES; f++) {
		uint64_t size = w->files[f].size, last = UINT64_MAX;

		memset(want, 0, sizeof(want));
		for (uint64_t b = 0; b < size; b++) {
			uint64_t lo = b - b % BLOCK;

			if (!w->wanted[f][b])
				continue;
			if (last != UINT64_MAX && last / w->stripe == b / w->stripe &&
			    lo <= last - last % BLOCK + BLOCK + NEAR)
				lo = last - last % BLOCK;
			memset(&want[lo], 1, DCP_MIN(b - b % BLOCK + BLOCK, size) - lo);
			last = b;
		}
		if (memcmp(want, w->read[f], size))
			return "reads: other blocks than are needed";
	}
	return NULL;
}

/* Whatever is needed is read; each rank or node by itself. */
static const char *check_union(const struct t_job *w)
{
	for (size_t f = 0; f < T_JOB_FILES; f++)
		for (uint64_t b = 0; b < w->files[f].size; b++)
			if (w->wanted[f][b] > w->read[f][b])
				return "union: a byte is missing";
	return NULL;
}

static bool same_flow(const struct dcp_job_flow *a, const struct dcp_job_flow *b)
{
	return a->needs == b->needs && a->reads == b->reads && a->keeps == b->keeps &&
	       a->sends == b->sends && a->receives == b->receives;
}

static const char *check_flows(struct t_job *w, const struct dcp_job *job)
{
	struct dcp_job_flow rank[T_JOB_RANKS], group[T_JOB_RANKS];
	uint64_t rows[T_JOB_RANKS * T_JOB_RANKS], from[T_JOB_RANKS];
	uint32_t groups = (w->ranks + w->opts.group - 1) / w->opts.group;
	bool near = w->opts.exchange == DCP_JOB_NODE;

	if (dcp_job_groups(job) != groups)
		return "groups: another number";
	if (dcp_job_flows(job, rank, group, NULL) < 0)
		return "flows: refused";
	if (dcp_job_sends(job, 0, w->ranks, rows, NULL) < 0)
		return "sends: refused";
	for (uint32_t r = 0; r < w->ranks; r++) {
		struct dcp_job_flow sum = { rank[r].needs, rank[r].reads,
					    rows[r * w->ranks + r] };

		for (uint32_t s = 0; s < w->ranks; s++) {
			uint64_t n = rows[r * w->ranks + s];

			if (!w->shared && !w->reversed && w->stripe && n != w->sends[r][s])
				return "sends: another number of bytes";
			if (n && r / w->opts.group != s / w->opts.group && !w->stripe)
				return "sends: to another node";
			sum.sends += s == r || near ? 0 : n;
			sum.receives += s == r ? 0 : rows[s * w->ranks + r];
		}
		if (!same_flow(&rank[r], &sum))
			return "flows: not what is sent";
		if (rank[r].needs != w->rank[r].needs)
			return "flows: needs";
		if (rank[r].reads != (w->opts.exchange == DCP_JOB_NEVER && !w->opts.direct
					      ? w->rank[r].needs
					      : w->rank[r].reads + w->viewed[r]))
			return "flows: reads";
		if (!((w->shared || w->reversed) && w->stripe) &&
		    rank[r].needs != rank[r].keeps + rank[r].receives + w->viewed[r])
			return "flows: needs that come from nowhere";
		if (dcp_job_receives(job, r, from, NULL) < 0)
			return "receives: refused";
		for (uint32_t s = 0; s < w->ranks; s++)
			if (from[s] != rows[s * w->ranks + r])
				return "receives: another number of bytes";
	}
	for (uint32_t g = 0; g < groups; g++) {
		struct dcp_job_flow sum = { .needs = group[g].needs };

		for (uint32_t r = 0; r < w->ranks; r++)
			for (uint32_t s = 0; s < w->ranks; s++) {
				uint64_t n = rows[r * w->ranks + s];
				bool here = r / w->opts.group == g, to = s / w->opts.group == g;

				sum.reads += here && s == r ? rank[r].reads : 0;
				sum.keeps += here && to ? n : 0;
				sum.sends += here && !to ? n : 0;
				sum.receives += !here && to ? n : 0;
			}
		if (!same_flow(&group[g], &sum))
			return "flows: of a group";
	}
	return NULL;
}

/* ---- all of it ---- */

static const char *check_tensors(struct t_job *w, const struct dcp_job *job,
				 const size_t *order, struct t_job_ask *a)
{
	struct reading x = { .w = w };
	struct dcp_job_sum sum;
	uint64_t stripes = 0;
	const char *wrong = NULL;

	dcp_job_sum(job, &sum);
	w->stripe = sum.stripe;
	for (size_t f = 0; f < T_JOB_FILES && w->stripe; f++) {
		w->base[f] = stripes;
		stripes += (w->files[f].size + w->stripe - 1) / w->stripe;
	}
	dcp_job_reads(job, DCP_JOB_EACH, see_read, &x);
	wrong = x.wrong;
	for (size_t i = 0; i < w->n && !wrong; i++) {
		a->t = &w->plan[order[i]].t;
		wrong = t_job_ask(a, w->opts.to);
		for (uint32_t r = 0; r < w->ranks && !wrong; r++) {
			bool viewed = is_viewed(a, r);

			if (viewed) {
				w->rank[r].needs += a->volume[r] * a->t->itemsize;
				w->viewed[r] += a->volume[r] * a->t->itemsize;
				continue;
			}
			wrong = each_element(a, r, mark_wanted);
			if (!wrong)
				wrong = each_element(a, r, count_moved);
		}
	}
	if (!wrong)
		wrong = w->stripe && !w->reversed ? check_stripes(w) : check_union(w);
	return wrong ? wrong : check_flows(w, job);
}

/* Are all ranks able to have all tensors? */
static bool can_cut(struct t_job *w, struct t_job_ask *a, const struct dcp_layout *l)
{
	for (size_t i = 0; i < w->n; i++) {
		a->t = &w->plan[i].t;
		if (t_job_ask(a, l))
			return false;
	}
	return true;
}

const char *t_job_check(struct t_job *w, const size_t *order, uint64_t *digest)
{
	static struct t_job_ask a;
	struct dcp_err err = { 0 };
	struct dcp_job *job;
	const char *wrong = NULL;
	bool can;
	int rc;

	memset(w->wanted, 0, sizeof(w->wanted));
	memset(w->sends, 0, sizeof(w->sends));
	memset(w->rank, 0, sizeof(w->rank));
	memset(w->read, 0, sizeof(w->read));
	memset(w->viewed, 0, sizeof(w->viewed));
	w->reversed = false;
	if (dcp_job_create(&w->opts, &job, &err) < 0)
		return "create: refused";
	a.w = w;
	a.job = job;
	dcp_arena_init(&a.arena, 1 << 24);
	for (size_t i = 0; i < w->n && !wrong; i++)
		if (dcp_job_add(job, &w->plan[order[i]].t, &err) < 0)
			wrong = "add: refused";
	can = can_cut(w, &a, w->opts.to) && (!w->opts.from || can_cut(w, &a, w->opts.from));
	rc = wrong ? 0 : dcp_job_finish(job, &err);
	if (rc < 0 && can)
		wrong = "finish: refused";
	else if (rc < 0 && (rc != -EINVAL || !err.msg[0]))
		wrong = "finish: refused without a reason";
	else if (rc == 0 && !can)
		wrong = "finish: what no layout can cut";
	if (wrong)
		fprintf(stderr, "%s\n", err.msg);
	if (!wrong && can)
		wrong = w->opts.from ? t_job_check_from(w, job, &a)
				     : check_tensors(w, job, order, &a);
	*digest = dcp_job_digest(job);
	dcp_arena_finish(&a.arena);
	dcp_job_free(job);
	return wrong;
}
