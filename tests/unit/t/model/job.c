/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/job_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"

static bool is_whole_item(const struct dcp_piece *p)
{
	return p->enc || p->filter || p->stride;
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
		if (!found || w->owner[p->file][is_whole_item(p) ? p->off : here] != NO_RANK) {
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

static const char *want(struct t_job_ask *a, uint32_t rank, uint64_t e, const uint64_t *at)
{
	uint64_t off, n;
	const struct dcp_piece *p = t_job_piece(a->w, a->t, at, &off);

	(void)rank;
	(void)e;
	if (!p)
		return "reference: a hole";
	if (p->filter == DCP_FILTER_ZERO)
		return NULL;
	n = a->t->itemsize;
	if (is_whole_item(p)) {
		off = p->off;
		n = p->nbytes;
	}
	memset(&a->w->wanted[p->file][off], 1, n);
	return NULL;
}

static const char *move(struct t_job_ask *a, uint32_t rank, uint64_t e, const uint64_t *at)
{
	uint64_t off = 0;
	const struct dcp_piece *p = t_job_piece(a->w, a->t, at, &off);
	const uint32_t *owner = &a->w->owner[p->file][is_whole_item(p) ? p->off : off];

	(void)e;
	if (p->filter == DCP_FILTER_ZERO)
		return NULL;
	for (uint64_t b = 1; is_whole_item(p) && b < p->nbytes; b++)
		if (owner[b] != owner[0])
			return "an item that cannot be cut was cut";
	for (uint32_t b = 1; !a->w->shared && b < a->t->itemsize; b++)
		if (owner[b] != owner[0])
			return "an element was cut";
	for (uint32_t b = 0; b < a->t->itemsize; b++) {
		uint32_t from = a->w->owner[p->file][is_whole_item(p) ? p->off : off + b];

		if (from == NO_RANK)
			return "a needed byte is read by no rank";
		a->w->sends[from][rank]++;
		a->w->rank[rank].needs++;
	}
	return NULL;
}

/* The same for groups: a byte of the tensor is needed, and sent, once in each. */
static const char *move_in_groups(struct t_job_ask *a)
{
	struct t_job *w = a->w;
	uint64_t volume = 1, at[DCP_MAX_NDIM] = { 0 }, mine[DCP_MAX_NDIM];

	for (uint32_t d = 0; d < a->t->ndim; d++)
		volume *= a->t->shape[d];
	for (uint64_t i = 0; i < volume; i++) {
		uint64_t rest = i, off = 0;
		const struct dcp_piece *p;

		for (uint32_t d = a->t->ndim; d-- > 0; rest /= a->t->shape[d])
			at[d] = rest % a->t->shape[d];
		p = t_job_piece(w, a->t, at, &off);
		if (p->filter == DCP_FILTER_ZERO)
			continue;
		for (uint32_t g = 0; g * w->opts.group < w->ranks; g++) {
			bool needed = false;

			for (uint32_t r = g * w->opts.group;
			     r < w->ranks && r < (g + 1) * w->opts.group; r++)
				for (uint64_t e = 0; a->has[r] && !needed && e < a->volume[r];
				     e++)
					needed = t_cut_at(&a->cut[r], e, mine) &&
						 !memcmp(mine, at, a->t->ndim * sizeof(*at));
			for (uint32_t b = 0; needed && b < a->t->itemsize; b++) {
				uint64_t byte = is_whole_item(p) ? p->off : off + b;
				uint32_t from = w->owner[p->file][byte] / w->opts.group;

				w->group[g].needs++;
				if (from == g)
					w->group[g].keeps++;
				else
					w->group[from].sends++;
			}
		}
	}
	return NULL;
}

/* ---- what the plan says ---- */

struct reading {
	struct t_job *w;
	uint32_t rank, file;
	uint64_t off, n;
	const char *wrong;
};

static int see_read(void *ctx, uint32_t file, uint64_t off, uint64_t n)
{
	struct reading *x = ctx;

	if (n == 0 || file >= T_JOB_FILES || off + n > x->w->files[file].size)
		x->wrong = "reads: outside of the file";
	else if (file < x->file || (file == x->file && off < x->off))
		x->wrong = "reads: out of order";
	for (uint64_t b = off; !x->wrong && b < off + n; b++) {
		if (x->w->owner[file][b] != NO_RANK)
			x->wrong = "reads: a byte twice";
		x->w->owner[file][b] = x->rank;
	}
	x->file = file;
	x->off = off + n;
	x->n += n;
	return x->wrong ? -1 : 0;
}

static const char *check_reads(struct t_job *w, const struct dcp_job *job)
{
	struct reading x = { .w = w };
	struct dcp_job_sum sum;
	uint64_t all = 0, most = 0, element = 0, item = 0;

	memset(w->owner, 0xff, sizeof(w->owner));
	dcp_job_sum(job, &sum);
	for (x.rank = 0; !x.wrong && x.rank < w->ranks; x.rank++) {
		x.n = 0;
		dcp_job_reads(job, x.rank, see_read, &x);
		w->rank[x.rank].reads = x.n;
		w->group[x.rank / w->opts.group].reads += x.n;
		all += x.n;
		most = DCP_MAX(most, x.n);
	}
	if (x.wrong)
		return x.wrong;
	for (size_t i = 0; i < w->n; i++)
		element = DCP_MAX(element, w->plan[i].t.itemsize);
	item = sum.largest_item;
	if (all != sum.unique)
		return "reads: not as many bytes as the union";
	if (most > all / w->ranks + w->opts.align + element + item)
		return "reads: a part is larger than promised";
	return NULL;
}

static const char *check_union(const struct t_job *w)
{
	for (size_t f = 0; f < T_JOB_FILES; f++)
		for (uint64_t b = 0; b < w->files[f].size; b++) {
			if (w->wanted[f][b] != (w->owner[f][b] != NO_RANK))
				return w->wanted[f][b] ? "union: a byte is missing"
						       : "union: a byte too many";
		}
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

	if (dcp_job_groups(job) != groups)
		return "groups: another number";
	if (dcp_job_flows(job, rank, group, NULL) < 0)
		return "flows: refused";
	for (uint32_t r = 0; r < w->ranks; r++) {
		w->rank[r].keeps = w->sends[r][r];
		w->rank[r].receives = w->rank[r].needs - w->rank[r].keeps;
		for (uint32_t s = 0; s < w->ranks; s++)
			w->rank[r].sends += s == r ? 0 : w->sends[r][s];
		if (!same_flow(&rank[r], &w->rank[r]))
			return "flows: of a rank";
	}
	for (uint32_t g = 0; g < groups; g++) {
		w->group[g].receives = w->group[g].needs - w->group[g].keeps;
		if (!same_flow(&group[g], &w->group[g]))
			return "flows: of a group";
	}
	for (uint32_t r = 0; r < w->ranks; r++) {
		uint32_t n = DCP_MIN(w->ranks - r, 2u);

		if (dcp_job_sends(job, r, n, rows, NULL) < 0 ||
		    dcp_job_receives(job, r, from, NULL) < 0)
			return "exchange: refused";
		for (uint32_t s = 0; s < w->ranks; s++) {
			if (rows[s] != w->sends[r][s] ||
			    (n > 1 && rows[w->ranks + s] != w->sends[r + 1][s]))
				return "sends: another number of bytes";
			if (from[s] != w->sends[s][r])
				return "receives: another number of bytes";
		}
	}
	return NULL;
}

/* ---- all of it ---- */

static const char *check_tensors(struct t_job *w, const struct dcp_job *job,
				 const size_t *order, struct t_job_ask *a)
{
	const char *wrong = check_reads(w, job);

	for (int pass = 0; pass < 2 && !wrong; pass++) {
		for (size_t i = 0; i < w->n && !wrong; i++) {
			a->t = &w->plan[order[i]].t;
			wrong = t_job_ask(a, w->opts.to);
			for (uint32_t r = 0; r < w->ranks && !wrong; r++)
				wrong = each_element(a, r, pass ? move : want);
			if (pass && !wrong)
				wrong = move_in_groups(a);
			if (pass && !wrong)
				wrong = t_job_check_needs(a, i);
		}
		if (!pass && !wrong)
			wrong = check_union(w);
	}
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
	memset(w->group, 0, sizeof(w->group));
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
