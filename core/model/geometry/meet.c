/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A box of the array is walked in intervals: along each dimension the stretches that lie in
 * one span and one cell of the tiling. A tuple of intervals lies in one piece; the piece is
 * emitted where its first tuple comes by, as far as it and the spans reach.
 */
#include "core/model/geometry/meet.h"

#include "core/base/base.h"
#include "core/base/sort.h"
#include "core/model/geometry/tiling.h"

/* Where the walk is along one dimension. */
struct interval {
	const struct dcp_span *span;
	uint64_t first, end; /* of the array: the box that is walked */
	uint64_t index;      /* of the array: here the interval begins */
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

/* The interval that begins at tensor position i->lo, in the cell it is in. */
static void clip(struct walk *w, uint32_t d)
{
	struct interval *i = &w->at[d];

	i->n = DCP_MIN(i->to, w->tl->cut[d][w->cell[d] + 1]) - i->lo;
}

/* Begin at index @index of the array, which lies in another span than the last one. */
static void enter(struct walk *w, uint32_t d, uint64_t index)
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
	clip(w, d);
}

/* The next tuple of intervals, the last dimension first; false after the last. */
static bool step(struct walk *w)
{
	for (uint32_t d = w->cut->ndim; d-- > 0;) {
		struct interval *i = &w->at[d];

		i->index += i->n;
		if (i->lo + i->n < i->to) {
			i->lo += i->n;
			w->cell[d]++;
			clip(w, d);
			return true;
		}
		if (i->index < i->end) {
			enter(w, d, i->index);
			return true;
		}
		if (i->index - i->n == i->first) /* the only one: nothing to look for */
			i->index = i->first;
		else
			enter(w, d, i->first);
	}
	return false;
}

/* Those of the runs in @group that meet the box [lo, lo + n), which lies in theirs. */
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

/* Emit what begins at the current tuple, if anything does. */
static int emit(const struct walk *w)
{
	uint64_t lo[DCP_MAX_NDIM], n[DCP_MAX_NDIM], index[DCP_MAX_NDIM];
	uint32_t members;
	const uint32_t *group = dcp_tiling_group(w->tl, w->cell, &members);
	const struct dcp_piece *p = &w->tl->t->pieces[group[0]];
	const struct dcp_meet m = { p, lo, n, index };

	for (uint32_t d = 0; d < w->cut->ndim; d++) {
		const struct interval *i = &w->at[d];

		if (i->lo != i->from && i->lo != p->lo[d])
			return 0; /* an inner cell of it */
		lo[d] = i->lo;
		n[d] = DCP_MIN(i->to, p->lo[d] + p->len[d]) - i->lo;
		index[d] = i->index;
	}
	return members == 1 ? w->fn(w->ctx, &m) : emit_runs(w, group, members, lo, n, index);
}

/* The box of the array without the zeros after the spans; false: nothing else is in it. */
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
			enter(&w, d, lo[d]);
		}
		do {
			int rc = emit(&w);

			if (rc < 0)
				return rc;
		} while (step(&w));
	}
	return 0;
}
