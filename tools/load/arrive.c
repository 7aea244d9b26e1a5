/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that were read, placed in the parts that need them; a part that has all of them is complete. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "tools/load/execute.h"

int dcpload_part(const struct dcpload_plan *p, uint64_t i, struct dcpload_part *out)
{
	const struct load_want *w;

	if (i >= p->nwant)
		return -ENOENT;
	w = &p->want[i];
	*out = (struct dcpload_part){ .key = w->key,
				      .dtype = w->to_name,
				      .stored = w->dtype_name,
				      .itemsize = w->itemsize,
				      .ndim = w->ndim,
				      .complete = w->complete,
				      .global_ndim = w->global_ndim,
				      .data = w->target.base,
				      .nbytes = w->nbytes,
				      .user = w->user };
	if (w->ndim)
		memcpy(out->shape, w->shape, w->ndim * sizeof(*out->shape));
	if (w->global_ndim)
		memcpy(out->global_shape, w->global_shape,
		       w->global_ndim * sizeof(*out->global_shape));
	return 0;
}

int load_arrived(struct dcpload_plan *p, uint32_t number, uint64_t n)
{
	struct load_want *w = &p->want[number];
	uint64_t total = atomic_fetch_add(&p->arrived, n) + n;
	struct dcpload_part part;
	int rc = 0;

	if (p->hooks.progress)
		rc = p->hooks.progress(p->hooks.ctx, total, p->report.needed);
	if (rc < 0 || atomic_fetch_sub(&w->left, n) != n)
		return rc;
	w->complete = 1;
	if (!p->hooks.commit)
		return 0;
	dcpload_part(p, number, &part);
	return p->hooks.commit(p->hooks.ctx, number, &part);
}

struct placing {
	struct dcpload_plan *p;
	uint32_t want;
	uint64_t lo; /* file offset of @src */
	const uint8_t *src;
};

static int place_part(void *ctx, const struct dcp_strided *s)
{
	struct placing *pl = ctx;

	load_place(&pl->p->want[pl->want].target, s, pl->src + (s->off - pl->lo));
	return load_arrived(pl->p, pl->want, dcp_strided_bytes(s));
}

static uint64_t end_of(const struct load_need *need)
{
	return need->s.off + dcp_strided_extent(&need->s);
}

/* Move @a on to the needs that may meet [lo, hi) of @file. */
static int advance(struct dcpload_plan *p, struct load_active *a, uint32_t file, uint64_t lo,
		   uint64_t hi)
{
	size_t kept = 0;

	for (size_t i = 0; i < a->n; i++)
		if (p->need[a->need[i]].file == file && end_of(&p->need[a->need[i]]) > lo)
			a->need[kept++] = a->need[i];
	a->n = kept;
	for (; a->next < p->nneed; a->next++) {
		const struct load_need *need = &p->need[a->next];

		if (need->file > file || (need->file == file && need->s.off >= hi))
			break;
		if (need->file < file || end_of(need) <= lo)
			continue;
		if (dcp_array_grow((void **)&a->need, &a->cap, a->n, sizeof(*a->need)) < 0)
			return -ENOMEM;
		a->need[a->n++] = (uint32_t)a->next;
	}
	return 0;
}

int load_place_stretch(struct dcpload_plan *p, struct load_active *a, uint32_t file,
		       uint64_t lo, uint64_t hi, const uint8_t *src)
{
	int64_t start = dcp_now_ns(CLOCK_MONOTONIC);
	uint64_t before = p->arrived;
	int rc = advance(p, a, file, lo, hi);

	for (size_t i = 0; i < a->n && rc == 0; i++) {
		const struct load_need *need = &p->need[a->need[i]];
		const struct load_target *t = &p->want[need->want].target;
		struct placing pl = { p, need->want, lo, src };

		rc = dcp_strided_clip(&need->s, lo, hi, t->plain ? 1 : t->from, place_part,
				      &pl);
	}
	p->report.place_ns += (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - start);
	load_trace(p, DCPLOAD_EVENT_PLACE, start, p->arrived - before);
	return rc;
}
