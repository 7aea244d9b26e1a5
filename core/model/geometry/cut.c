/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/geometry/cut.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/model/geometry/tiling.h"
#include "core/model/tensor.h"

int dcp_cut_box(struct dcp_cut *out, uint32_t ndim, const uint64_t *lo, const uint64_t *len,
		struct dcp_arena *arena)
{
	struct dcp_axis *axis = dcp_arena_calloc(arena, ndim, sizeof(*axis));
	struct dcp_span *span = dcp_arena_calloc(arena, ndim, sizeof(*span));

	if (!axis || !span)
		return -ENOMEM;
	for (uint32_t d = 0; d < ndim; d++) {
		span[d] = (struct dcp_span){ .lo = lo ? lo[d] : 0, .n = len[d] };
		axis[d] = (struct dcp_axis){ &span[d], len[d] ? 1 : 0, len[d] };
	}
	*out = (struct dcp_cut){ .ndim = ndim, .axis = axis };
	return 0;
}

int dcp_cut_whole(struct dcp_cut *out, uint32_t ndim, const uint64_t *shape,
		  struct dcp_arena *arena)
{
	return dcp_cut_box(out, ndim, NULL, shape, arena);
}

bool dcp_cut_is_padded(const struct dcp_cut *cut)
{
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (dcp_axis_filled(&cut->axis[d]) < cut->axis[d].len)
			return true;
	return false;
}

bool dcp_cut_is_whole(const struct dcp_cut *cut, const uint64_t *shape)
{
	if (cut->flat)
		return false;
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (cut->axis[d].len != shape[d] || cut->axis[d].n > 1 ||
		    dcp_axis_filled(&cut->axis[d]) < shape[d])
			return false;
	return true;
}

uint32_t dcp_cut_shape(const struct dcp_cut *cut, uint64_t *shape)
{
	if (cut->flat) {
		shape[0] = cut->flat_n + cut->pad;
		return 1;
	}
	for (uint32_t d = 0; d < cut->ndim; d++)
		shape[d] = cut->axis[d].len;
	return cut->ndim;
}

bool dcp_cut_volume(const struct dcp_cut *cut, uint64_t *out)
{
	uint64_t n = 1;

	if (cut->flat)
		return !dcp_ckd_add(out, cut->flat_n, cut->pad);
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (cut->axis[d].len == 0) {
			*out = 0;
			return true;
		}
	for (uint32_t d = 0; d < cut->ndim; d++)
		if (dcp_ckd_mul(&n, n, cut->axis[d].len))
			return false;
	*out = n;
	return true;
}

static bool axis_fits(const struct dcp_axis *a, uint64_t size)
{
	uint64_t at = 0;

	for (size_t i = 0; i < a->n; i++) {
		const struct dcp_span *s = &a->span[i];

		if (s->at != at || s->n == 0 || !dcp_range_ok(s->lo, s->n, size) ||
		    dcp_ckd_add(&at, at, s->n))
			return false;
	}
	return at <= a->len;
}

bool dcp_cut_fits(const struct dcp_cut *cut, uint32_t ndim, const uint64_t *shape)
{
	struct dcp_cut array = *cut;
	uint64_t volume;

	if (cut->ndim != ndim)
		return false;
	for (uint32_t d = 0; d < ndim; d++)
		if (!axis_fits(&cut->axis[d], shape[d]))
			return false;
	array.flat = false;
	return dcp_cut_volume(&array, &volume) &&
	       (!cut->flat || (dcp_range_ok(cut->flat_lo, cut->flat_n, volume) &&
			       dcp_cut_volume(cut, &volume)));
}

/* Indices [lo, lo + n) of the array that a flat cut takes, or all. */
static void bound_array(const struct dcp_cut *cut, uint64_t *lo, uint64_t *end)
{
	uint64_t shape[DCP_MAX_NDIM], pos = cut->flat_lo, left = cut->flat_n;

	for (uint32_t d = 0; d < cut->ndim; d++) {
		shape[d] = cut->axis[d].len;
		lo[d] = cut->flat ? UINT64_MAX : 0;
		end[d] = cut->flat ? 0 : shape[d];
	}
	while (cut->flat && left) {
		uint64_t at[DCP_MAX_NDIM], n[DCP_MAX_NDIM];

		dcp_run_box(cut->ndim, shape, &pos, &left, at, n);
		for (uint32_t d = 0; d < cut->ndim; d++) {
			lo[d] = DCP_MIN(lo[d], at[d]);
			end[d] = DCP_MAX(end[d], at[d] + n[d]);
		}
	}
}

bool dcp_cut_bounds(const struct dcp_cut *cut, struct dcp_box *out)
{
	uint64_t from[DCP_MAX_NDIM], to[DCP_MAX_NDIM];

	if (cut->flat && cut->flat_n == 0)
		return false;
	bound_array(cut, from, to);
	for (uint32_t d = 0; d < cut->ndim; d++) {
		uint64_t lo = UINT64_MAX, end = 0;

		for (size_t i = 0; i < cut->axis[d].n; i++) {
			const struct dcp_span *s = &cut->axis[d].span[i];
			uint64_t a = DCP_MAX(s->at, from[d]), b = DCP_MIN(s->at + s->n, to[d]);

			if (a >= b)
				continue;
			lo = DCP_MIN(lo, s->lo + (a - s->at));
			end = DCP_MAX(end, s->lo + (b - s->at));
		}
		if (lo >= end)
			return false;
		out->lo[d] = lo;
		out->len[d] = end - lo;
	}
	return true;
}

int dcp_cut_copy(struct dcp_cut *out, const struct dcp_cut *cut, struct dcp_arena *arena)
{
	struct dcp_axis *axis = dcp_arena_calloc(arena, cut->ndim, sizeof(*axis));

	if (!axis)
		return -ENOMEM;
	for (uint32_t d = 0; d < cut->ndim; d++) {
		const struct dcp_axis *a = &cut->axis[d];
		struct dcp_span *span = dcp_arena_calloc(arena, a->n, sizeof(*span));

		if (!span)
			return -ENOMEM;
		if (a->n)
			memcpy(span, a->span, a->n * sizeof(*span));
		axis[d] = (struct dcp_axis){ span, a->n, a->len };
	}
	*out = *cut;
	out->axis = axis;
	return 0;
}

void dcp_run_box(uint32_t ndim, const uint64_t *shape, uint64_t *pos, uint64_t *left,
		 uint64_t *lo, uint64_t *n)
{
	uint64_t rest = *pos, volume = 1, took;
	uint32_t d = ndim;

	for (uint32_t k = ndim; k-- > 0; rest /= shape[k])
		lo[k] = rest % shape[k];
	/* whole rows of the last dimensions, as many as are left */
	while (d > 0 && lo[d - 1] == 0 && *left >= volume * shape[d - 1]) {
		d--;
		n[d] = shape[d];
		volume *= shape[d];
	}
	took = volume;
	if (d > 0) {
		d--;
		n[d] = DCP_MIN(shape[d] - lo[d], *left / volume);
		took *= n[d];
	}
	while (d > 0)
		n[--d] = 1;
	*pos += took;
	*left -= took;
}

/*
 * Walks a box of the array in intervals: an interval is a stretch of one dimension inside one span
 * and one cell of the tiling. A tuple of intervals is inside one piece. A piece is emitted at its
 * first tuple, as far as the piece and the spans reach.
 */

/* Position of the walk along one dimension. */
struct interval {
	const struct dcp_span *span;
	uint64_t first, end; /* of the array: the box that is walked */
	uint64_t index;      /* of the array: beginning of the interval */
	uint64_t lo, n;      /* of the tensor: the interval */
	uint64_t from, to;   /* of the tensor: the spans that continue each other */
};

struct walk {
	const struct dcp_tiling *tl;
	const struct dcp_cut *cut;
	struct interval at[DCP_MAX_NDIM];
	uint32_t cell[DCP_MAX_NDIM];
	dcp_meet_fn fn;
	void *ctx;
};

/* Set the interval that begins at tensor position i->lo, clipped to its cell. */
static void clip_interval(struct walk *w, uint32_t d)
{
	struct interval *i = &w->at[d];

	i->n = DCP_MIN(i->to, w->tl->cut[d][w->cell[d] + 1]) - i->lo;
}

/* Begin at index @index of the array, which is in another span than the last index. */
static void enter_span(struct walk *w, uint32_t d, uint64_t index)
{
	const struct dcp_axis *a = &w->cut->axis[d];
	struct interval *i = &w->at[d];
	const struct dcp_span *s = dcp_axis_find(a, index, i->span);
	uint64_t n;

	i->index = index;
	i->lo = i->from = s->lo + (index - s->at);
	n = s->at + s->n - index;
	while (n < i->end - index && s + 1 < a->span + a->n && s[1].lo == s->lo + s->n)
		n += (++s)->n;
	i->span = s;
	i->to = i->lo + DCP_MIN(n, i->end - index);
	w->cell[d] = dcp_tiling_cell(w->tl, d, i->lo);
	clip_interval(w, d);
}

/* The next tuple of intervals, the last dimension first; false after the last. */
static bool step_tuple(struct walk *w)
{
	for (uint32_t d = w->cut->ndim; d-- > 0;) {
		struct interval *i = &w->at[d];

		i->index += i->n;
		if (i->lo + i->n < i->to) {
			i->lo += i->n;
			w->cell[d]++;
			clip_interval(w, d);
			return true;
		}
		if (i->index < i->end) {
			enter_span(w, d, i->index);
			return true;
		}
		if (i->index - i->n == i->first) /* the only interval: nothing to search */
			i->index = i->first;
		else
			enter_span(w, d, i->first);
	}
	return false;
}

/* Emit the runs in @group that intersect the box [lo, lo + n), which is inside their box. */
static int emit_runs(const struct walk *w, const uint32_t *group, uint32_t members,
		     const uint64_t *lo, const uint64_t *n, const uint64_t *index)
{
	const struct dcp_piece *pieces = w->tl->t->pieces, *p = &pieces[group[0]];
	uint64_t lowest = 0, highest = 0;
	uint32_t ndim = w->cut->ndim, next;

	for (uint32_t d = 0; d < ndim; d++) {
		lowest = lowest * p->len[d] + (lo[d] - p->lo[d]);
		highest = highest * p->len[d] + (lo[d] + n[d] - 1 - p->lo[d]);
	}
	DCP_BISECT(next, 1, members, pieces[group[next]].run_lo <= lowest);
	for (uint32_t i = next - 1; i < members && pieces[group[i]].run_lo <= highest; i++) {
		uint64_t box_lo[DCP_MAX_NDIM], box_n[DCP_MAX_NDIM], box_index[DCP_MAX_NDIM];
		const struct dcp_meet m = { &pieces[group[i]], box_lo, box_n, box_index };
		uint64_t pos = m.piece->run_lo, left = m.piece->run_n;

		while (left) {
			bool meets = true;
			int rc;

			dcp_run_box(ndim, p->len, &pos, &left, box_lo, box_n);
			for (uint32_t d = 0; d < ndim; d++) {
				uint64_t a = DCP_MAX(lo[d], p->lo[d] + box_lo[d]);
				uint64_t b =
					DCP_MIN(lo[d] + n[d], p->lo[d] + box_lo[d] + box_n[d]);

				meets &= a < b;
				box_lo[d] = a;
				box_n[d] = b - a;
				box_index[d] = index[d] + (a - lo[d]);
			}
			rc = meets ? w->fn(w->ctx, &m) : 0;
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

/* Emit the box that begins at the current tuple, if there is one. */
static int emit_box(const struct walk *w)
{
	uint64_t lo[DCP_MAX_NDIM], n[DCP_MAX_NDIM], index[DCP_MAX_NDIM];
	uint32_t members;
	const uint32_t *group = dcp_tiling_group(w->tl, w->cell, &members);
	const struct dcp_piece *p = &w->tl->t->pieces[group[0]];
	const struct dcp_meet m = { p, lo, n, index };

	for (uint32_t d = 0; d < w->cut->ndim; d++) {
		const struct interval *i = &w->at[d];

		if (i->lo != i->from && i->lo != p->lo[d])
			return 0; /* not the first cell of the piece */
		lo[d] = i->lo;
		n[d] = DCP_MIN(i->to, p->lo[d] + p->len[d]) - i->lo;
		index[d] = i->index;
	}
	return members == 1 ? w->fn(w->ctx, &m) : emit_runs(w, group, members, lo, n, index);
}

/* Clip a box of the array to the spans, without the zeros after them; false: nothing is left. */
static bool leave_zeros(const struct dcp_cut *cut, const uint64_t *lo, uint64_t *n)
{
	for (uint32_t d = 0; d < cut->ndim; d++) {
		uint64_t filled = dcp_axis_filled(&cut->axis[d]);

		if (lo[d] >= filled)
			return false;
		n[d] = DCP_MIN(n[d], filled - lo[d]);
	}
	return true;
}

int dcp_meet(const struct dcp_tiling *tl, const struct dcp_cut *cut, uint64_t first,
	     uint64_t count, dcp_meet_fn fn, void *ctx)
{
	uint64_t shape[DCP_MAX_NDIM], lo[DCP_MAX_NDIM], n[DCP_MAX_NDIM];
	uint64_t pos = first + (cut->flat ? cut->flat_lo : 0);
	bool padded = dcp_cut_is_padded(cut);
	struct walk w;

	w.tl = tl;
	w.cut = cut;
	w.fn = fn;
	w.ctx = ctx;
	for (uint32_t d = 0; d < cut->ndim; d++) {
		shape[d] = cut->axis[d].len;
		w.at[d].span = cut->axis[d].span;
	}
	while (count) {
		dcp_run_box(cut->ndim, shape, &pos, &count, lo, n);
		if (padded && !leave_zeros(cut, lo, n))
			continue;
		for (uint32_t d = 0; d < cut->ndim; d++) {
			w.at[d].first = lo[d];
			w.at[d].end = lo[d] + n[d];
			enter_span(&w, d, lo[d]);
		}
		do {
			int rc = emit_box(&w);

			if (rc < 0)
				return rc;
		} while (step_tuple(&w));
	}
	return 0;
}
