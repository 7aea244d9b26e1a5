/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of a kind are made once, and emitted for each of its tensors. */
#include "tests/unit/t/model/needs.h"

#include <errno.h>
#include <string.h>

#include "core/model/job/job_int.h"

struct described {
	struct described *next;
	uint32_t pattern;
	bool whole;
	struct dcp_strided s;
};

struct describing {
	struct dcp_arena *arena;
	struct described **end; /* where the next one goes */
	bool *emitted;          /* by pattern: the whole item was */
};

static int describe(void *ctx, const struct dcp_strided *s)
{
	struct describing *x = ctx;
	uint32_t p = s->piece->file;
	bool whole = dcp_job_is_opaque(s->piece);
	struct described *d;

	if ((whole && x->emitted[p]) || dcp_job_is_zeros(s->piece))
		return 0;
	x->emitted[p] |= whole;
	d = dcp_arena_alloc(x->arena, sizeof(*d));
	if (!d)
		return -ENOMEM;
	*d = (struct described){ NULL, p, whole, *s };
	d->s.piece = NULL;
	if (whole)
		d->s = (struct dcp_strided){ .off = 0 };
	*x->end = d;
	x->end = &d->next;
	return 0;
}

static int describe_kind(const struct dcp_job *job, const struct job_kind *k, uint32_t rank,
			 struct dcp_arena *arena, struct dcp_arena *scratch,
			 struct described **out, struct dcp_err *err)
{
	struct describing x = { .arena = arena, .end = out };
	struct dcp_tiling tl;
	struct dcp_cut cut;
	int rc;

	*out = NULL;
	dcp_arena_reset(scratch);
	x.emitted = dcp_arena_calloc(scratch, k->t.npieces, sizeof(*x.emitted));
	if (!x.emitted)
		return -ENOMEM;
	rc = dcp_layout_cut_by_rule(job->opts.to, &k->to, rank, k->t.ndim, k->t.shape, scratch,
				    &cut, err);
	if (rc <= 0 || k->t.npieces == 0)
		return DCP_MIN(rc, 0);
	rc = dcp_tiling_init(&tl, &k->t, scratch, err);
	return rc < 0 ? rc : dcp_strided_emit(&tl, &cut, describe, &x);
}

static int emit(const struct dcp_job *job, uint64_t number, const struct described *d,
		t_job_need_fn fn, void *ctx)
{
	const struct job_tensor *t = JOB_AT(job->tensor, struct job_tensor, number);
	struct t_job_need need = { .tensor = number };
	int rc = 0;

	for (; d && rc >= 0; d = d->next) {
		const struct job_item *item =
			JOB_AT(job->item, struct job_item, t->item + d->pattern);

		need.file = item->file;
		need.whole = d->whole;
		need.s = d->s;
		need.s.off += item->off;
		if (d->whole)
			need.s.run = item->n;
		rc = fn(ctx, &need);
	}
	return rc;
}

int t_job_needs(const struct dcp_job *job, uint32_t rank, t_job_need_fn fn, void *ctx,
		struct dcp_err *err)
{
	struct dcp_arena arena, scratch;
	struct described **of;
	int rc = 0;

	if (rank >= dcp_layout_ranks(job->opts.to))
		return 0;
	dcp_arena_init(&arena, job->opts.memory);
	dcp_arena_init(&scratch, job->opts.memory);
	of = dcp_arena_calloc(&arena, job->kind.n, sizeof(struct described *));
	if (!of)
		rc = -ENOMEM;
	for (size_t i = 0; rc >= 0 && i < job->kind.n; i++)
		rc = describe_kind(job, JOB_AT(job->kind, struct job_kind, i), rank, &arena,
				   &scratch, &of[i], err);
	for (uint64_t i = 0; rc >= 0 && i < job->tensor.n; i++)
		rc = emit(job, i, of[JOB_AT(job->tensor, struct job_tensor, i)->kind], fn, ctx);
	dcp_arena_finish(&scratch);
	dcp_arena_finish(&arena);
	if (rc == -ENOMEM)
		return dcp_job_no_memory(job, err);
	return DCP_MIN(rc, 0);
}
