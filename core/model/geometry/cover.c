/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/geometry/cover.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"

enum {
	MAX_BOXES = 1 << 20,
	MAX_STEPS = 1 << 26, /* comparisons of two boxes: a second */
};

/* A box of the tensor that lies in piece @from, whole or not. */
struct part {
	uint64_t *lo, *len;
	uint64_t off;
	const uint64_t *stride; /* in the file; NULL: row-major over len, and nothing was cut */
	uint64_t volume;
	uint32_t from;
};

struct cover {
	const struct dcp_tensor *t;
	struct dcp_arena *arena;
	struct dcp_buf parts, kept, work; /* struct part */
	uint64_t steps;
	struct dcp_err *err;
};

static struct part *parts_of(const struct dcp_buf *b, size_t *n)
{
	*n = b->n / sizeof(struct part);
	return (struct part *)(void *)b->p;
}

static int too_many(struct cover *c)
{
	return dcp_fail(c->err, -E2BIG, "its %zu pieces overlap in too many ways",
			c->t->npieces);
}

static int add(struct cover *c, struct dcp_buf *to, const struct part *p)
{
	if (to->n / sizeof(*p) >= MAX_BOXES)
		return too_many(c);
	return dcp_buf_add(to, p, sizeof(*p));
}

static uint64_t volume_of(const uint64_t *len, uint32_t ndim)
{
	uint64_t v = 1;

	for (uint32_t d = 0; d < ndim; d++)
		v *= len[d];
	return v;
}

static const uint64_t *row_major(struct cover *c, const uint64_t *len)
{
	uint64_t step = 1, *stride = dcp_arena_calloc(c->arena, c->t->ndim + 1, sizeof(step));

	for (uint32_t d = c->t->ndim; stride && d-- > 0;) {
		stride[d] = step;
		step *= len[d];
	}
	return stride;
}

/* [lo, lo + len) of @p, which becomes a part of its own in @to. */
static int add_box(struct cover *c, struct dcp_buf *to, const struct part *p,
		   const uint64_t *lo, const uint64_t *len)
{
	uint32_t ndim = c->t->ndim;
	struct part q = *p;

	q.lo = dcp_arena_alloc(c->arena, (2 * ndim + 1) * sizeof(*q.lo));
	if (!q.lo)
		return -ENOMEM;
	q.len = q.lo + ndim;
	memcpy(q.lo, lo, ndim * sizeof(*lo));
	memcpy(q.len, len, ndim * sizeof(*len));
	q.volume = volume_of(len, ndim);
	if (!p->stride)
		q.stride = row_major(c, p->len);
	if (!q.stride)
		return -ENOMEM;
	for (uint32_t d = 0; d < ndim; d++)
		q.off += (lo[d] - p->lo[d]) * q.stride[d] * c->t->itemsize;
	return add(c, to, &q);
}

/*
 * Elements [from, to) of the flattening of the box @whole, the first of which lies at its off,
 * as boxes: the end of a row, whole rows, the start of a row, in each dimension.
 */
static int add_run(struct cover *c, const struct part *whole, uint64_t from, uint64_t to)
{
	uint32_t ndim = c->t->ndim;
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM], start = from;

	while (from < to) {
		uint64_t unit = 1, rest = from, n;
		uint32_t d = ndim, k;
		struct part p = *whole;
		int rc;

		/* The slowest dimension along which whole units start here and fit. */
		while (d > 1 && from % (unit * whole->len[d - 1]) == 0 &&
		       to - from >= unit * whole->len[d - 1])
			unit *= whole->len[--d];
		if (d == 0)
			return -EINVAL; /* no dimensions: a run of one element is whole */
		for (k = ndim; k-- > 0; rest /= whole->len[k]) {
			lo[k] = whole->lo[k] + rest % whole->len[k];
			len[k] = k < d ? 1 : whole->len[k];
		}
		n = DCP_MIN((to - from) / unit,
			    whole->len[d - 1] - (lo[d - 1] - whole->lo[d - 1]));
		len[d - 1] = n;
		p.off = whole->off + (from - start) * c->t->itemsize;
		p.stride = row_major(c, whole->len);
		if (!p.stride)
			return -ENOMEM;
		p.lo = lo;
		p.len = len;
		rc = add_box(c, &c->parts, &p, lo, len);
		if (rc < 0)
			return rc;
		from += n * unit;
	}
	return 0;
}

static int refuse_encoded(struct cover *c, const struct dcp_piece *p)
{
	return dcp_fail_at(c->err, -ENOTSUP, p->off,
			   "its pieces overlap, and one of them is encoded as a whole");
}

static int add_piece(struct cover *c, uint32_t i)
{
	const struct dcp_piece *p = &c->t->pieces[i];
	struct part whole = {
		.lo = (uint64_t *)(uintptr_t)p->lo,
		.len = (uint64_t *)(uintptr_t)p->len,
		.off = p->off,
		.stride = p->stride,
		.volume = volume_of(p->len, c->t->ndim),
		.from = i,
	};

	if (p->run_n == 0)
		return 0;
	if (p->run_n == whole.volume)
		return add(c, &c->parts, &whole);
	if (p->filter != DCP_FILTER_NONE)
		return refuse_encoded(c, p);
	return add_run(c, &whole, p->run_lo, p->run_lo + p->run_n);
}

static bool meet(const struct part *a, const struct part *b, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (a->lo[d] >= b->lo[d] + b->len[d] || b->lo[d] >= a->lo[d] + a->len[d])
			return false;
	return true;
}

/* What of @p lies outside @hole, which it meets, goes to @to. */
static int subtract(struct cover *c, struct dcp_buf *to, const struct part *p,
		    const struct part *hole)
{
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
	uint32_t ndim = c->t->ndim;
	int rc = 0;

	if (c->t->pieces[p->from].filter != DCP_FILTER_NONE) {
		bool inside = true;

		for (uint32_t d = 0; d < ndim; d++)
			inside = inside && p->lo[d] >= hole->lo[d] &&
				 p->lo[d] + p->len[d] <= hole->lo[d] + hole->len[d];
		return inside ? 0 : refuse_encoded(c, &c->t->pieces[p->from]);
	}
	memcpy(lo, p->lo, ndim * sizeof(*lo));
	memcpy(len, p->len, ndim * sizeof(*len));
	for (uint32_t d = 0; d < ndim && rc == 0; d++) {
		uint64_t end = lo[d] + len[d], hole_end = hole->lo[d] + hole->len[d];

		if (lo[d] < hole->lo[d]) {
			len[d] = hole->lo[d] - lo[d];
			rc = add_box(c, to, p, lo, len);
			lo[d] = hole->lo[d];
		}
		if (rc == 0 && end > hole_end) {
			lo[d] = hole_end;
			len[d] = end - hole_end;
			rc = add_box(c, to, p, lo, len);
			lo[d] = DCP_MAX(p->lo[d], hole->lo[d]);
			end = hole_end;
		}
		len[d] = end - lo[d];
	}
	return rc;
}

/* @p without what is kept already: parts come last first. */
static int keep(struct cover *c, const struct part *p)
{
	size_t nkept, n;
	int rc;

	dcp_buf_reset(&c->work);
	rc = add(c, &c->work, p);
	parts_of(&c->kept, &nkept);
	for (size_t k = 0; k < nkept && rc == 0; k++) {
		parts_of(&c->work, &n);
		for (size_t i = 0; i < n && rc == 0;) {
			struct part w = parts_of(&c->work, &n)[i];
			const struct part *have = parts_of(&c->kept, &nkept) + k;

			if (++c->steps > MAX_STEPS)
				return too_many(c);
			if (!meet(&w, have, c->t->ndim)) {
				i++;
				continue;
			}
			/* its remains do not meet this one any more: they may go to the end */
			rc = subtract(c, &c->work, &w, have);
			if (rc == 0) {
				size_t left;
				struct part *all = parts_of(&c->work, &left);

				all[i] = all[left - 1];
				c->work.n -= sizeof(*all);
				n = left - 1;
			}
		}
	}
	if (rc == 0) {
		dcp_buf_add(&c->kept, c->work.p, c->work.n);
		rc = c->kept.n / sizeof(*p) > MAX_BOXES ? too_many(c) : dcp_buf_error(&c->kept);
	}
	return rc;
}

static void to_piece(const struct cover *c, const struct part *p, struct dcp_piece *out)
{
	const struct dcp_piece *from = &c->t->pieces[p->from];
	uint64_t last = 0;

	*out = *from;
	if (p->lo == from->lo && from->run_n == p->volume)
		return; /* nothing was cut */
	for (uint32_t d = 0; d < c->t->ndim; d++)
		last += (p->len[d] - 1) * p->stride[d];
	out->lo = p->lo;
	out->len = p->len;
	out->stride = dcp_row_major(p->len, p->stride, c->t->ndim) ? NULL : p->stride;
	out->run_lo = 0;
	out->run_n = p->volume;
	out->off = p->off;
	out->nbytes = (last + 1) * c->t->itemsize;
}

static int hand_over(struct cover *c, struct dcp_piece **out, size_t *nout)
{
	size_t n;
	struct part *p = parts_of(&c->kept, &n);

	*out = dcp_arena_calloc(c->arena, n + 1, sizeof(**out));
	if (!*out)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		to_piece(c, &p[i], &(*out)[n - 1 - i]);
	*nout = n;
	return 0;
}

int dcp_cover(const struct dcp_tensor *t, struct dcp_arena *arena, struct dcp_piece **out,
	      size_t *nout, struct dcp_err *err)
{
	struct cover c = { .t = t, .arena = arena, .err = err };
	struct part *p;
	size_t n;
	int rc = t->npieces > MAX_BOXES ? too_many(&c) : 0;

	for (size_t i = 0; i < t->npieces && rc == 0; i++)
		rc = add_piece(&c, (uint32_t)i);
	for (p = parts_of(&c.parts, &n); n > 0 && rc == 0; n--)
		rc = keep(&c, &p[n - 1]);
	if (rc == 0)
		rc = hand_over(&c, out, nout);
	dcp_buf_finish(&c.parts);
	dcp_buf_finish(&c.kept);
	dcp_buf_finish(&c.work);
	return rc;
}
