/* SPDX-License-Identifier: Apache-2.0 */
/* The reference for what single ranks need, and for ranks that hold everything already. */
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "tests/unit/t/model/job_int.h"
#include "tests/unit/t/model/needs.h"

/* ---- what a rank needs ---- */

struct needing {
	uint64_t tensor;
	struct t_place place[T_PLAN_BYTES]; /* of the tensor that is being told */
	const char *wrong;
};

/* Every byte of the destination comes from the byte that the definitions say. */
static void see_bytes(struct needing *x, const struct t_job_need *need, uint64_t off,
		      uint64_t dst)
{
	for (uint64_t b = 0; b < need->s.run; b++) {
		struct t_place *p = &x->place[dst + b];

		if (!p->piece || p->piece->file != need->file || p->off != off + b)
			x->wrong = "needs: another place, or a byte twice";
		p->piece = NULL;
	}
}

static int see_need(void *ctx, const struct t_job_need *need)
{
	struct needing *x = ctx;
	uint64_t total = 1;
	bool any = false;

	if (need->tensor != x->tensor)
		return 0;
	for (uint32_t k = 0; k < need->s.ndim; k++)
		total *= need->s.count[k];
	for (uint64_t i = 0; !need->whole && i < total; i++) {
		uint64_t rest = i, off = need->s.off, dst = need->s.dst;

		for (uint32_t k = need->s.ndim; k-- > 0; rest /= need->s.count[k]) {
			off += rest % need->s.count[k] * need->s.file_stride[k];
			dst += rest % need->s.count[k] * need->s.dst_stride[k];
		}
		see_bytes(x, need, off, dst);
	}
	for (uint64_t b = 0; need->whole && b < T_PLAN_BYTES; b++)
		if (x->place[b].piece && x->place[b].piece->file == need->file &&
		    x->place[b].piece->off == need->s.off &&
		    x->place[b].piece->nbytes == need->s.run) {
			x->place[b].piece = NULL;
			any = true;
		}
	if (need->whole && !any)
		x->wrong = "needs: an item twice, or one that is not needed";
	return 0;
}

const char *t_job_check_needs(struct t_job_ask *a, uint64_t number)
{
	static struct needing x;
	struct t_job *w = a->w;

	for (uint32_t r = 0; r < dcp_layout_ranks(w->opts.to); r += 1 + w->ranks / 3) {
		uint64_t at[DCP_MAX_NDIM] = { 0 };

		memset(&x, 0, sizeof(x));
		x.tensor = number;
		for (uint64_t e = 0; a->has[r] && e < a->volume[r]; e++) {
			uint64_t off = 0;
			const struct dcp_piece *p;

			if (!t_cut_at(&a->cut[r], e, at))
				continue;
			p = t_job_piece(w, a->t, at, &off);
			for (uint32_t b = 0; p->filter != DCP_FILTER_ZERO && b < a->t->itemsize;
			     b++)
				x.place[e * a->t->itemsize + b] =
					(struct t_place){ p, off + b };
		}
		if (t_job_needs(a->job, r, see_need, &x, NULL) < 0)
			return "needs: refused";
		for (uint64_t b = 0; !x.wrong && b < T_PLAN_BYTES; b++)
			if (x.place[b].piece)
				x.wrong = "needs: a byte is missing";
		if (x.wrong)
			return x.wrong;
	}
	return NULL;
}

/* ---- held already ---- */

/* What each rank lacks comes from ranks that hold it. */
const char *t_job_check_from(struct t_job *w, const struct dcp_job *job, struct t_job_ask *a)
{
	static bool holds[T_JOB_RANKS][T_PLAN_BYTES];
	static uint64_t could[T_JOB_RANKS][T_JOB_RANKS], kept[T_JOB_RANKS], lacks[T_JOB_RANKS];
	struct dcp_job_flow rank[T_JOB_RANKS], group[T_JOB_RANKS];
	uint64_t rows[T_JOB_RANKS * T_JOB_RANKS], at[DCP_MAX_NDIM] = { 0 };
	bool lost = false; /* a rank needs what no rank holds */

	memset(could, 0, sizeof(could));
	memset(kept, 0, sizeof(kept));
	memset(lacks, 0, sizeof(lacks));
	for (size_t i = 0; i < w->n; i++) {
		a->t = &w->plan[i].t;
		memset(holds, 0, sizeof(holds));
		for (int side = 0; side < 2; side++) {
			if (t_job_ask(a, side ? w->opts.to : w->opts.from))
				return "the layout cannot cut it";
			for (uint32_t r = 0; r < w->ranks; r++)
				for (uint64_t e = 0; a->has[r] && e < a->volume[r]; e++) {
					bool held = false;
					uint64_t n = 0;

					if (!t_cut_at(&a->cut[r], e, at))
						continue;
					for (uint32_t d = 0; d < a->t->ndim; d++)
						n = n * a->t->shape[d] + at[d];
					if (!side) {
						holds[r][n] = true;
						continue;
					}
					if (holds[r][n])
						kept[r] += a->t->itemsize;
					else
						lacks[r] += a->t->itemsize;
					for (uint32_t s = 0; s < w->ranks; s++) {
						held |= holds[s][n];
						if (holds[s][n] && !holds[r][n])
							could[s][r] += a->t->itemsize;
					}
					lost |= !held;
				}
		}
	}
	if ((dcp_job_flows(job, rank, group, NULL) < 0) != lost ||
	    (dcp_job_sends(job, 0, w->ranks, rows, NULL) < 0) != lost)
		return lost ? "from: what no rank holds is not refused" : "from: refused";
	if (lost)
		return NULL;
	for (uint32_t r = 0; r < w->ranks; r++) {
		uint64_t got = 0;

		for (uint32_t s = 0; s < w->ranks; s++) {
			uint64_t n = rows[(size_t)s * w->ranks + r];

			if (s != r && n > could[s][r])
				return "from: a rank sends what it does not hold";
			got += s == r ? 0 : n;
		}
		if (rows[(size_t)r * w->ranks + r] != kept[r] || rank[r].keeps != kept[r])
			return "from: keeps something else";
		if (got != lacks[r] || rank[r].receives != lacks[r] || rank[r].reads)
			return "from: gets something else than it lacks";
	}
	return NULL;
}
