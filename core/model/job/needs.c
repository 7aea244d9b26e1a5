/* SPDX-License-Identifier: Apache-2.0 */
/* What one rank needs. Descriptors of a kind are made once, and given for each of its tensors. */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/buf.h"

struct job_described {
	struct job_described *next;
	uint32_t pattern;
	uint64_t views; /* bytes of a tensor that a view must decode, and nothing else of it */
	struct dcp_strided s;
};

struct describing {
	struct dcp_arena *arena;
	struct job_described **end; /* where the next one goes */
	bool swap, any, opaque;
};

static int describe(void *ctx, const struct dcp_strided *s)
{
	struct describing *x = ctx;
	struct job_described *d;

	if (dcp_job_is_zeros(s->piece))
		return 0;
	x->opaque |= dcp_job_is_opaque(s->piece) || (x->any && x->swap != s->piece->swap);
	x->swap = s->piece->swap;
	x->any = true;
	if (x->opaque)
		return -ECANCELED;
	d = dcp_arena_calloc(x->arena, 1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->pattern = s->piece->file;
	d->s = *s;
	d->s.piece = NULL;
	*x->end = d;
	x->end = &d->next;
	return 0;
}

static int describe_kind(struct job_needs *x, const struct job_kind *k, uint32_t rank,
			 struct job_described **out, struct dcp_err *err)
{
	struct describing d = { .arena = &x->arena, .end = out };
	struct dcp_tiling tl;
	struct dcp_cut cut;
	uint64_t volume;
	int rc;

	*out = NULL;
	dcp_arena_reset(&x->scratch);
	rc = dcp_layout_cut_by_rule(x->job->opts.to, &k->to, rank, k->t.ndim, k->t.shape,
				    &x->scratch, &cut, err);
	if (rc <= 0 || k->t.npieces == 0 || !dcp_cut_volume(&cut, &volume) || !volume)
		return DCP_MIN(rc, 0);
	rc = dcp_tiling_init(&tl, &k->t, &x->scratch, err);
	if (rc == 0)
		rc = dcp_strided_emit(&tl, &cut, describe, &d);
	if (!d.opaque)
		return rc;
	*out = dcp_arena_calloc(&x->arena, 1, sizeof(**out));
	if (!*out)
		return -ENOMEM;
	(*out)->views = volume * k->t.itemsize;
	return 0;
}

static int emit(struct job_needs *x, const struct job_tensor *t)
{
	const struct job_kind *k = JOB_AT(x->job->kind, struct job_kind, t->kind);

	for (const struct job_described *d = x->of[t->kind]; d; d = d->next) {
		const struct job_item *item;
		struct dcp_chunk_need *need;

		x->views += d->views;
		if (d->views)
			continue;
		if (DCP_GROW(x->v, x->cap, x->n) < 0)
			return -ENOMEM;
		item = JOB_AT(x->job->item, struct job_item, t->item + d->pattern);
		need = &x->v[x->n++];
		*need = (struct dcp_chunk_need){ d->s, item->file, 1 };
		need->s.off += item->off;
		if (k->t.pieces[d->pattern].swap || k->casts)
			need->want = k->t.itemsize;
	}
	return 0;
}

void dcp_job_needs_init(struct job_needs *x, const struct dcp_job *job)
{
	*x = (struct job_needs){ .job = job };
	dcp_arena_init(&x->arena, job->opts.memory);
	dcp_arena_init(&x->scratch, job->opts.memory);
}

void dcp_job_needs_finish(struct job_needs *x)
{
	dcp_arena_finish(&x->scratch);
	dcp_arena_finish(&x->arena);
	free(x->v);
}

int dcp_job_needs(struct job_needs *x, uint32_t rank, struct dcp_err *err)
{
	const struct dcp_job *job = x->job;
	int rc = 0;

	x->n = 0;
	x->views = 0;
	if (rank >= dcp_layout_ranks(job->opts.to))
		return 0;
	dcp_arena_reset(&x->arena);
	x->of = dcp_arena_calloc(&x->arena, job->kind.n + 1, sizeof(struct job_described *));
	if (!x->of)
		rc = -ENOMEM;
	for (size_t i = 0; rc >= 0 && i < job->kind.n; i++)
		rc = describe_kind(x, JOB_AT(job->kind, struct job_kind, i), rank, &x->of[i],
				   err);
	for (uint64_t i = 0; rc >= 0 && i < job->tensor.n; i++)
		rc = emit(x, JOB_AT(job->tensor, struct job_tensor, i));
	return rc == -ENOMEM ? dcp_job_no_memory(job, err) : DCP_MIN(rc, 0);
}
