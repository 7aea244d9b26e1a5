/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each intersection of the cut and a piece is one box with strides on both sides. Dimensions that
 * continue each other on both sides are merged, which gives a descriptor. The last few descriptors
 * are held back, because the next may continue one of them.
 */
#include "core/model/geometry/strided.h"

#include <errno.h>

#include <string.h>

#include "core/base/base.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/tiling.h"

enum { HELD = 8 };

/* A box while it is built: dimensions are added from the innermost outward. */
struct shape {
	uint64_t run;
	uint32_t n;
	struct {
		uint64_t count, file, dst;
	} dim[DCP_MAX_NDIM];
};

struct emitter {
	uint64_t itemsize;
	uint64_t base;                 /* element of the array that is byte 0 */
	uint64_t stride[DCP_MAX_NDIM]; /* of the array, in elements */
	uint32_t ndim;
	struct dcp_strided held[HELD];
	size_t nheld;
	dcp_strided_fn fn;
	void *ctx;
};

static void add_dim(struct shape *s, uint64_t count, uint64_t file, uint64_t dst)
{
	if (count == 1)
		return;
	if (s->n == 0 && file == s->run && dst == s->run) {
		s->run *= count;
	} else if (s->n && file == s->dim[s->n - 1].count * s->dim[s->n - 1].file &&
		   dst == s->dim[s->n - 1].count * s->dim[s->n - 1].dst) {
		s->dim[s->n - 1].count *= count;
	} else {
		s->dim[s->n].count = count;
		s->dim[s->n].file = file;
		s->dim[s->n++].dst = dst;
	}
}

static void put_shape(struct dcp_strided *out, const struct shape *s)
{
	out->run = s->run;
	out->ndim = DCP_MIN(s->n, DCP_STRIDED_DIMS);
	for (uint32_t k = 0; k < out->ndim; k++) {
		uint32_t from = out->ndim - 1 - k;

		out->count[k] = s->dim[from].count;
		out->file_stride[k] = s->dim[from].file;
		out->dst_stride[k] = s->dim[from].dst;
	}
}

/* After the descriptor has grown: merge dimensions that continue each other now. */
static void merge_dims(struct dcp_strided *s)
{
	struct shape shape;

	shape.run = s->run;
	shape.n = 0;
	for (uint32_t k = s->ndim; k-- > 0;)
		add_dim(&shape, s->count[k], s->file_stride[k], s->dst_stride[k]);
	put_shape(s, &shape);
}

static bool same_place(const struct dcp_piece *a, const struct dcp_piece *b)
{
	return a == b || (a->file == b->file && a->swap == b->swap &&
			  a->filter == DCP_FILTER_NONE && b->filter == DCP_FILTER_NONE);
}

/* The dimension in which @b continues @a, if all others are the same. @b has all dimensions of @a,
 * or lacks this one. */
static bool grow_dim(struct dcp_strided *a, const struct dcp_strided *b)
{
	uint64_t file = b->off - a->off, dst = b->dst - a->dst;
	bool lacks = b->ndim + 1 == a->ndim;

	if (a->run != b->run || (!lacks && a->ndim != b->ndim))
		return false;
	for (uint32_t k = 0; k < a->ndim; k++) {
		uint64_t more = lacks ? 1 : b->count[k];
		bool same = true;

		if (file != a->count[k] * a->file_stride[k] ||
		    dst != a->count[k] * a->dst_stride[k])
			continue;
		for (uint32_t i = 0; i < a->ndim && same; i++) {
			uint32_t j = lacks && i > k ? i - 1 : i;

			if (i == k)
				same = lacks || (a->file_stride[i] == b->file_stride[i] &&
						 a->dst_stride[i] == b->dst_stride[i]);
			else
				same = a->count[i] == b->count[j] &&
				       a->file_stride[i] == b->file_stride[j] &&
				       a->dst_stride[i] == b->dst_stride[j];
		}
		if (same) {
			a->count[k] += more;
			return true;
		}
	}
	return false;
}

static bool same_dims(const struct dcp_strided *a, const struct dcp_strided *b)
{
	for (uint32_t k = 0; k < a->ndim; k++)
		if (a->count[k] != b->count[k] || a->file_stride[k] != b->file_stride[k] ||
		    a->dst_stride[k] != b->dst_stride[k])
			return false;
	return a->ndim == b->ndim;
}

/* Merge @b into @a, if one descriptor can hold both. @b begins after the beginning of @a. */
static bool join_strided(struct dcp_strided *a, const struct dcp_strided *b)
{
	uint64_t file = b->off - a->off, dst = b->dst - a->dst;

	if (b->off <= a->off || b->dst <= a->dst || !same_place(a->piece, b->piece))
		return false;
	if (grow_dim(a, b)) {
		merge_dims(a);
		return true;
	}
	if (!same_dims(a, b))
		return false;
	if (file == a->run && dst == a->run) {
		a->run += b->run;
		merge_dims(a);
		return true;
	}
	if (a->run != b->run || a->ndim == DCP_STRIDED_DIMS)
		return false;
	for (uint32_t k = a->ndim++; k > 0; k--) {
		a->count[k] = a->count[k - 1];
		a->file_stride[k] = a->file_stride[k - 1];
		a->dst_stride[k] = a->dst_stride[k - 1];
	}
	a->count[0] = 2;
	a->file_stride[0] = file;
	a->dst_stride[0] = dst;
	return true;
}

/* Hold @s back, merged with a held descriptor that it continues, if there is one. */
static int hold_strided(struct emitter *t, const struct dcp_strided *s)
{
	size_t k = t->nheld;
	int rc;

	while (k > 0 && !join_strided(&t->held[k - 1], s))
		k--;
	/* the grown descriptor may now continue its neighbour, or be continued by it */
	if (k > 0) {
		while (--k > 0 && join_strided(&t->held[k - 1], &t->held[k]))
			memmove(&t->held[k], &t->held[k + 1],
				(--t->nheld - k) * sizeof(t->held[0]));
		return 0;
	}
	if (t->nheld == HELD) {
		rc = t->fn(t->ctx, &t->held[0]);
		if (rc < 0)
			return rc;
		memmove(&t->held[0], &t->held[1], --t->nheld * sizeof(t->held[0]));
	}
	t->held[t->nheld++] = *s;
	return 0;
}

/* Hold @s once for every tuple of the outer dimensions of @shape that do not fit in @s. */
static int hold_each(struct emitter *t, struct dcp_strided *s, const struct shape *shape,
		     uint32_t outer)
{
	uint64_t off = s->off, dst = s->dst;
	int rc = 0;

	if (outer == DCP_STRIDED_DIMS)
		return hold_strided(t, s);
	for (uint64_t i = 0; i < shape->dim[outer - 1].count && rc == 0; i++) {
		s->off = off + i * shape->dim[outer - 1].file;
		s->dst = dst + i * shape->dim[outer - 1].dst;
		rc = hold_each(t, s, shape, outer - 1);
	}
	return rc;
}

static int emit_meet(void *ctx, const struct dcp_meet *m)
{
	struct emitter *t = ctx;
	const struct dcp_piece *p = m->piece;
	uint64_t dense = 1, element = 0, index = 0;
	struct dcp_strided s = { .piece = p };
	struct shape shape;

	shape.run = t->itemsize;
	shape.n = 0;
	for (uint32_t d = t->ndim; d-- > 0;) {
		uint64_t stride = p->stride ? p->stride[d] : dense;

		add_dim(&shape, m->n[d], stride * t->itemsize, t->stride[d] * t->itemsize);
		element += (m->lo[d] - p->lo[d]) * stride;
		index += m->index[d] * t->stride[d];
		dense *= p->len[d];
	}
	s.off = p->off + (element - p->run_lo) * t->itemsize;
	s.dst = (index - t->base) * t->itemsize;
	put_shape(&s, &shape);
	return hold_each(t, &s, &shape, DCP_MAX(shape.n, DCP_STRIDED_DIMS));
}

int dcp_strided_part(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t first,
		     uint64_t n, dcp_strided_fn fn, void *ctx)
{
	uint64_t volume = 1;
	struct emitter t;
	int rc;

	if (cut->flat)
		n = first < cut->flat_n ? DCP_MIN(n, cut->flat_n - first) : 0;
	t.itemsize = tl->t->itemsize;
	t.base = first + (cut->flat ? cut->flat_lo : 0);
	t.ndim = cut->ndim;
	t.nheld = 0;
	t.fn = fn;
	t.ctx = ctx;
	for (uint32_t d = t.ndim; d-- > 0; volume *= cut->axis[d].len)
		t.stride[d] = volume;
	rc = dcp_meet(tl, cut, first, n, emit_meet, &t);
	for (size_t i = 0; i < t.nheld && rc == 0; i++)
		rc = fn(ctx, &t.held[i]);
	return rc;
}

int dcp_strided_emit(const struct dcp_tiling *tl, const struct dcp_cut *cut, dcp_strided_fn fn,
		     void *ctx)
{
	uint64_t n;

	if (cut->flat)
		n = cut->flat_n;
	else if (!dcp_cut_volume(cut, &n))
		n = 0; /* cannot happen with a cut that fits */
	return dcp_strided_part(tl, cut, 0, n, fn, ctx);
}

struct runs {
	uint64_t inside,
		/* @skip: bytes of the first element before the request; @n: requested bytes */
		n;
	uint64_t found;
	dcp_run_fn fn;
	void *ctx;
};

/* Emit the runs of dimensions @k and up; the first run is at @off and @dst. */
static int emit_runs(struct runs *x, const struct dcp_strided *s, uint32_t k, uint64_t off,
		     uint64_t dst)
{
	uint64_t lo = DCP_MAX(dst, x->inside), end = DCP_MIN(dst + s->run, x->inside + x->n);
	const struct dcp_run run = { s->piece, off + (lo - dst), lo - x->inside, end - lo };
	int rc = 0;

	if (k == s->ndim && lo < end) {
		x->found += run.n;
		rc = x->fn(x->ctx, &run);
	}
	for (uint64_t i = 0; k < s->ndim && rc == 0 && i < s->count[k]; i++)
		rc = emit_runs(x, s, k + 1, off + i * s->file_stride[k],
			       dst + i * s->dst_stride[k]);
	return rc;
}

static int runs_of(void *ctx, const struct dcp_strided *s)
{
	return emit_runs(ctx, s, 0, s->off, s->dst);
}

int dcp_strided_runs(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t off,
		     uint64_t n, dcp_run_fn fn, void *ctx)
{
	uint64_t size = tl->t->itemsize, first = off / size;
	struct runs x = { .inside = off % size, .n = n, .fn = fn, .ctx = ctx };
	int rc;

	if (n == 0)
		return 1;
	rc = dcp_strided_part(tl, cut, first, (off + n + size - 1) / size - first, runs_of, &x);
	return rc == -ECANCELED ? 0 : rc < 0 ? rc : x.found == n;
}

uint64_t dcp_strided_bytes(const struct dcp_strided *s)
{
	uint64_t n = s->run;

	for (uint32_t k = 0; k < s->ndim; k++)
		n *= s->count[k];
	return n;
}

uint64_t dcp_strided_extent(const struct dcp_strided *s)
{
	uint64_t n = s->run;

	for (uint32_t k = 0; k < s->ndim; k++)
		n += (s->count[k] - 1) * s->file_stride[k];
	return n;
}

/* ---- parts of one ---- */

uint32_t dcp_strided_widest(const struct dcp_strided *s)
{
	uint32_t k = 0;

	for (uint32_t i = 1; i < s->ndim; i++)
		if (s->file_stride[i] > s->file_stride[k])
			k = i;
	return k;
}

struct dcp_strided dcp_strided_without(const struct dcp_strided *s, uint32_t k)
{
	struct dcp_strided sub = *s;

	sub.ndim--;
	for (uint32_t i = k; i < sub.ndim; i++) {
		sub.count[i] = s->count[i + 1];
		sub.file_stride[i] = s->file_stride[i + 1];
		sub.dst_stride[i] = s->dst_stride[i + 1];
	}
	return sub;
}

/* A run begins @at bytes before byte @to: the bytes of its units that begin before @to. */
static uint64_t units_before(uint64_t at, uint64_t to, uint64_t unit)
{
	return to <= at ? 0 : (to - at + unit - 1) / unit * unit;
}

static int clip_run(const struct dcp_strided *s, uint64_t lo, uint64_t hi, uint64_t unit,
		    dcp_strided_fn fn, void *ctx)
{
	uint64_t from = units_before(s->off, lo, unit);
	uint64_t to = DCP_MIN(units_before(s->off, hi, unit), s->run);
	struct dcp_strided part = *s;

	if (from >= to)
		return 0;
	part.off += from;
	part.dst += from;
	part.run = to - from;
	return fn(ctx, &part);
}

/* Indices [@from, @from + @n) of dimension @k. */
static struct dcp_strided slice_dim(const struct dcp_strided *s, uint32_t k, uint64_t from,
				    uint64_t n)
{
	struct dcp_strided part = n == 1 ? dcp_strided_without(s, k) : *s;

	part.off += from * s->file_stride[k];
	part.dst += from * s->dst_stride[k];
	if (n > 1)
		part.count[k] = n;
	return part;
}

int dcp_strided_clip(const struct dcp_strided *s, uint64_t lo, uint64_t hi, uint64_t unit,
		     dcp_strided_fn fn, void *ctx)
{
	uint64_t extent = dcp_strided_extent(s), step, inner, first, end;
	uint32_t k;
	int rc = 0;

	if (s->off >= hi || s->off + extent <= lo)
		return 0;
	if (s->off >= lo && s->off + extent <= hi)
		return fn(ctx, s);
	k = dcp_strided_widest(s);
	if (s->ndim == 0 || s->file_stride[k] == 0)
		return clip_run(s, lo, hi, unit, fn, ctx);
	step = s->file_stride[k];
	inner = extent - (s->count[k] - 1) * step;
	/* The indices that touch the part, and among them the indices that are inside it. */
	first = s->off + inner > lo ? 0 : (lo - s->off - inner) / step + 1;
	end = DCP_MIN((hi - s->off - 1) / step + 1, s->count[k]);
	while (first < end && rc == 0) {
		uint64_t at = s->off + first * step, n = 1;
		bool inside = at >= lo && at + inner <= hi;
		struct dcp_strided part;

		if (inside)
			n = DCP_MIN((hi - at - inner) / step + 1, end - first);
		part = slice_dim(s, k, first, n);
		rc = inside ? fn(ctx, &part) : dcp_strided_clip(&part, lo, hi, unit, fn, ctx);
		first += n;
	}
	return rc;
}
