/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/geometry/tiling.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"

#define NO_GROUP UINT32_MAX

static int check_piece(const struct dcp_tensor *t, const struct dcp_piece *p,
		       struct dcp_err *err)
{
	uint64_t volume;

	for (uint32_t d = 0; d < t->ndim; d++)
		if (!dcp_range_ok(p->lo[d], p->len[d], t->shape[d]))
			return dcp_fail_at(err, -EBADMSG, p->off,
					   "piece %llu+%llu leaves dimension %u of size %llu",
					   (unsigned long long)p->lo[d],
					   (unsigned long long)p->len[d], d,
					   (unsigned long long)t->shape[d]);
	if (!dcp_shape_volume(p->len, t->ndim, &volume) ||
	    !dcp_range_ok(p->run_lo, p->run_n, volume))
		return dcp_fail_at(err, -EBADMSG, p->off,
				   "piece holds elements %llu+%llu of %llu",
				   (unsigned long long)p->run_lo, (unsigned long long)p->run_n,
				   (unsigned long long)volume);
	return 0;
}

struct edges {
	uint64_t *at;
	size_t n;
	bool sorted;
};

/* Neighbouring pieces of a grid have the same edges; edges that were just seen are left out. */
static void add_edge(struct edges *e, uint64_t at)
{
	if (e->n && (e->at[e->n - 1] == at || (e->n > 1 && e->at[e->n - 2] == at)))
		return;
	if (e->n && at < e->at[e->n - 1])
		e->sorted = false;
	e->at[e->n++] = at;
}

/* The beginning and the end of the box of @p along dimension @d, clipped to @box. */
static uint64_t begin_in(const struct dcp_piece *p, const struct dcp_box *box, uint32_t d)
{
	return DCP_MAX(p->lo[d], box->lo[d]);
}

static uint64_t end_in(const struct dcp_piece *p, const struct dcp_box *box, uint32_t d)
{
	return DCP_MIN(p->lo[d] + p->len[d], box->lo[d] + box->len[d]);
}

/* Sorted, distinct edges of dimension @d: both ends of every piece, and of the box. */
static int collect_cuts(struct dcp_tiling *tl, const struct dcp_box *box, uint32_t d, size_t n,
			struct dcp_arena *arena)
{
	const struct dcp_tensor *t = tl->t;
	struct edges e = { dcp_arena_alloc(arena, (2 * n + 2) * sizeof(uint64_t)), 0, true };
	size_t distinct = 1;

	if (!e.at)
		return -ENOMEM;
	add_edge(&e, box->lo[d]);
	for (size_t i = 0; i < n; i++) {
		const struct dcp_piece *p = &t->pieces[tl->order[i]];

		add_edge(&e, begin_in(p, box, d));
		add_edge(&e, end_in(p, box, d));
	}
	add_edge(&e, box->lo[d] + box->len[d]);
	if (!e.sorted) /* the edges of a grid are sorted if its pieces are in order */
		DCP_SORT(e.at, e.n, dcp_by_u64);
	for (size_t i = 1; i < e.n; i++)
		if (e.at[i] != e.at[distinct - 1])
			e.at[distinct++] = e.at[i];
	tl->cut[d] = e.at;
	tl->ncell[d] = (uint32_t)(distinct - 1);
	return 0;
}

uint32_t dcp_tiling_cell(const struct dcp_tiling *tl, uint32_t d, uint64_t at)
{
	const uint64_t *cut = tl->cut[d];
	uint32_t next;

	DCP_BISECT(next, 1, tl->ncell[d], cut[next] <= at);
	return next - 1;
}

static int compare_pieces(const void *a, const void *b, void *ctx)
{
	const struct dcp_tensor *t = ctx;

	return dcp_piece_compare(&t->pieces[*(const uint32_t *)a],
				 &t->pieces[*(const uint32_t *)b], t->ndim);
}

static bool same_box(const struct dcp_tensor *t, uint32_t a, uint32_t b)
{
	size_t n = t->ndim * sizeof(uint64_t);

	return !n || (!memcmp(t->pieces[a].lo, t->pieces[b].lo, n) &&
		      !memcmp(t->pieces[a].len, t->pieces[b].len, n));
}

/* Does the piece hold its whole box? */
static bool is_whole(const struct dcp_piece *p, uint32_t ndim)
{
	uint64_t volume = 1;

	for (uint32_t d = 0; d < ndim; d++)
		volume *= p->len[d]; /* fits: check_piece() saw it */
	return p->run_n == volume;
}

/* The runs of one box must follow each other from its first element to its last. */
static int check_runs(const struct dcp_tensor *t, const uint32_t *group, uint32_t n,
		      struct dcp_err *err)
{
	const struct dcp_piece *first = &t->pieces[group[0]];
	char text[200];
	uint64_t volume = 1, next = 0;

	for (uint32_t d = 0; d < t->ndim; d++)
		volume *= first->len[d]; /* fits: check_piece() saw it */
	for (uint32_t i = 0; i <= n; i++) {
		uint64_t lo = i < n ? t->pieces[group[i]].run_lo : volume;

		if (lo < next && first->run_n == volume)
			return dcp_fail_at(err, -EBADMSG, t->pieces[group[i]].off,
					   "two pieces hold the same box %s",
					   dcp_box_text(text, sizeof(text), first->lo,
							first->len, t->ndim));
		if (lo != next)
			return dcp_fail_at(err, -EBADMSG, first->off,
					   "elements %llu to %llu of box %s are stored %s",
					   (unsigned long long)DCP_MIN(lo, next),
					   (unsigned long long)DCP_MAX(lo, next),
					   dcp_box_text(text, sizeof(text), first->lo,
							first->len, t->ndim),
					   lo < next ? "twice" : "nowhere");
		if (i < n)
			next = lo + t->pieces[group[i]].run_n;
	}
	return 0;
}

/* The cell of dimension @d that begins at @at, an edge: often the one where the last search
 * ended, or the next. */
static uint32_t cell_from(const struct dcp_tiling *tl, uint32_t d, uint64_t at, uint32_t last)
{
	if (tl->cut[d][last] == at)
		return last;
	if (tl->cut[d][last + 1] == at && last + 1 < tl->ncell[d])
		return last + 1;
	return dcp_tiling_cell(tl, d, at);
}

/* Record the group in every cell of its box; a cell that has a group already is an overlap. @last:
 * the first cell of the previous group along each dimension, updated here. */
static int fill_cells(struct dcp_tiling *tl, const struct dcp_box *box, uint32_t group,
		      uint32_t *last, struct dcp_err *err)
{
	const struct dcp_tensor *t = tl->t;
	const struct dcp_piece *p = &t->pieces[tl->order[group]];
	uint32_t lo[DCP_MAX_NDIM], hi[DCP_MAX_NDIM], at[DCP_MAX_NDIM];
	uint32_t d;

	for (d = 0; d < t->ndim; d++) {
		uint64_t end = end_in(p, box, d);

		lo[d] = at[d] = last[d] = cell_from(tl, d, begin_in(p, box, d), last[d]);
		hi[d] = tl->cut[d][lo[d] + 1] == end ? lo[d] + 1
						     : dcp_tiling_cell(tl, d, end - 1) + 1;
	}
	for (;;) {
		uint64_t linear = 0;

		for (d = 0; d < t->ndim; d++)
			linear = linear * tl->ncell[d] + at[d];
		if (tl->cell[linear] != NO_GROUP) {
			const struct dcp_piece *q = &t->pieces[tl->order[tl->cell[linear]]];
			char a[200], b[200];

			return dcp_fail_at(err, -EBADMSG, p->off, "pieces %s and %s overlap",
					   dcp_box_text(a, sizeof(a), q->lo, q->len, t->ndim),
					   dcp_box_text(b, sizeof(b), p->lo, p->len, t->ndim));
		}
		tl->cell[linear] = group;
		for (d = t->ndim; d-- > 0;) {
			if (++at[d] < hi[d])
				break;
			at[d] = lo[d];
		}
		if (d == UINT32_MAX)
			return 0;
	}
}

static int report_hole(const struct dcp_tiling *tl, uint64_t linear, struct dcp_err *err)
{
	char text[200];
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];

	for (uint32_t d = tl->t->ndim; d-- > 0; linear /= tl->ncell[d]) {
		const uint64_t *cut = tl->cut[d] + linear % tl->ncell[d];

		lo[d] = cut[0];
		len[d] = cut[1] - cut[0];
	}
	return dcp_fail(err, -EBADMSG, "elements %s are stored nowhere",
			dcp_box_text(text, sizeof(text), lo, len, tl->t->ndim));
}

/* Sort the distinct non-empty pieces that intersect @box, and count groups; returns the number of
 * pieces. */
static int order_pieces(struct dcp_tiling *tl, const struct dcp_box *box,
			struct dcp_arena *arena, size_t *count, struct dcp_err *err)
{
	const struct dcp_tensor *t = tl->t;
	size_t n = 0;
	int rc;

	if (t->npieces >= NO_GROUP)
		return dcp_fail(err, -E2BIG, "%zu pieces", t->npieces);
	tl->order = dcp_arena_calloc(arena, t->npieces, sizeof(*tl->order));
	tl->ngroup = dcp_arena_calloc(arena, t->npieces, sizeof(*tl->ngroup));
	if (!tl->order || !tl->ngroup)
		return -ENOMEM;
	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];

		rc = check_piece(t, p, err);
		if (rc < 0)
			return rc;
		if (p->run_n && dcp_box_meets(box, t->ndim, p->lo, p->len))
			tl->order[n++] = (uint32_t)i;
	}
	for (size_t i = 1; i < n; i++) /* usually sorted already: then no sort at all */
		if (compare_pieces(&tl->order[i - 1], &tl->order[i], (void *)(uintptr_t)t) >
		    0) {
			qsort_r(tl->order, n, sizeof(*tl->order), compare_pieces,
				(void *)(uintptr_t)t);
			break;
		}
	*count = n;
	return 0;
}

static bool has_elements(const struct dcp_box *box, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (box->len[d] == 0)
			return false;
	return true;
}

int dcp_tiling_init(struct dcp_tiling *tl, const struct dcp_tensor *t, struct dcp_arena *arena,
		    struct dcp_err *err)
{
	struct dcp_box all;

	for (uint32_t d = 0; d < t->ndim; d++) {
		all.lo[d] = 0;
		all.len[d] = t->shape[d];
	}
	return dcp_tiling_init_part(tl, t, &all, arena, err);
}

int dcp_tiling_init_part(struct dcp_tiling *tl, const struct dcp_tensor *t,
			 const struct dcp_box *box, struct dcp_arena *arena,
			 struct dcp_err *err)
{
	uint32_t last[DCP_MAX_NDIM] = { 0 };
	uint64_t cells = 1, limit;
	size_t n = 0;
	int rc;

	*tl = (struct dcp_tiling){ .t = t };
	rc = order_pieces(tl, box, arena, &n, err);
	if (rc < 0 || !has_elements(box, t->ndim))
		return rc;
	limit = DCP_MAX((uint64_t)DCP_TILING_MAX_CELLS, (uint64_t)n * 64);
	for (uint32_t d = 0; d < t->ndim; d++) {
		rc = collect_cuts(tl, box, d, n, arena);
		if (rc < 0)
			return rc;
		cells *= tl->ncell[d];
		if (cells > limit)
			return dcp_fail(err, -E2BIG,
					"%zu pieces cut the tensor into more than %llu cells",
					n, (unsigned long long)limit);
	}
	tl->cell = dcp_arena_alloc(arena, cells * sizeof(*tl->cell));
	if (!tl->cell)
		return -ENOMEM;
	memset(tl->cell, 0xff, cells * sizeof(*tl->cell)); /* NO_GROUP */
	for (uint32_t i = 0, next; i < n; i = next) {
		for (next = i + 1; next < n && same_box(t, tl->order[i], tl->order[next]);)
			next++;
		tl->ngroup[i] = next - i;
		rc = next - i == 1 && is_whole(&t->pieces[tl->order[i]], t->ndim)
			     ? 0
			     : check_runs(t, tl->order + i, next - i, err);
		if (rc == 0)
			rc = fill_cells(tl, box, i, last, err);
		if (rc < 0)
			return rc;
	}
	for (uint64_t c = 0; c < cells; c++)
		if (tl->cell[c] == NO_GROUP)
			return report_hole(tl, c, err);
	return 0;
}

const uint32_t *dcp_tiling_group(const struct dcp_tiling *tl, const uint32_t *cell, uint32_t *n)
{
	uint64_t linear = 0;
	uint32_t group;

	for (uint32_t d = 0; d < tl->t->ndim; d++)
		linear = linear * tl->ncell[d] + cell[d];
	group = tl->cell[linear];
	*n = tl->ngroup[group];
	return &tl->order[group];
}

enum {
	MAX_BOXES = 1 << 20,
	MAX_STEPS = 1 << 26, /* comparisons of two boxes: a second */
};

/* A box of the tensor that is inside piece @from. */
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

static int fail_too_many(struct cover *c)
{
	return dcp_fail(c->err, -E2BIG, "its %zu pieces overlap in too many ways",
			c->t->npieces);
}

static int add_part(struct cover *c, struct dcp_buf *to, const struct part *p)
{
	if (to->n / sizeof(*p) >= MAX_BOXES)
		return fail_too_many(c);
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

/* Append the box [lo, lo + len) of @p to @to as a separate part. */
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
	return add_part(c, to, &q);
}

/* Add elements [from, to) of the flattened box @whole, stored from its off on, as boxes: in each
 * dimension the end of a row, whole rows, the start of a row. */
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
		return add_part(c, &c->parts, &whole);
	if (p->filter != DCP_FILTER_NONE)
		return refuse_encoded(c, p);
	return add_run(c, &whole, p->run_lo, p->run_lo + p->run_n);
}

static bool meets_part(const struct part *a, const struct part *b, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (a->lo[d] >= b->lo[d] + b->len[d] || b->lo[d] >= a->lo[d] + a->len[d])
			return false;
	return true;
}

/* Append the rest of @p outside of @hole to @to. The two intersect. */
static int subtract_hole(struct cover *c, struct dcp_buf *to, const struct part *p,
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

/* Keep @p without the elements that are kept already; parts come in reverse order. */
static int keep_part(struct cover *c, const struct part *p)
{
	size_t nkept, n;
	int rc;

	dcp_buf_reset(&c->work);
	rc = add_part(c, &c->work, p);
	parts_of(&c->kept, &nkept);
	for (size_t k = 0; k < nkept && rc == 0; k++) {
		parts_of(&c->work, &n);
		for (size_t i = 0; i < n && rc == 0;) {
			struct part w = parts_of(&c->work, &n)[i];
			const struct part *have = parts_of(&c->kept, &nkept) + k;

			if (++c->steps > MAX_STEPS)
				return fail_too_many(c);
			if (!meets_part(&w, have, c->t->ndim)) {
				i++;
				continue;
			}
			/* the remains do not intersect this part any more, so they may go to the
			 * end */
			rc = subtract_hole(c, &c->work, &w, have);
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
		rc = c->kept.n / sizeof(*p) > MAX_BOXES ? fail_too_many(c)
							: dcp_buf_error(&c->kept);
	}
	return rc;
}

static void make_piece(const struct cover *c, const struct part *p, struct dcp_piece *out)
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
		make_piece(c, &p[i], &(*out)[n - 1 - i]);
	*nout = n;
	return 0;
}

int dcp_cover(const struct dcp_tensor *t, struct dcp_arena *arena, struct dcp_piece **out,
	      size_t *nout, struct dcp_err *err)
{
	struct cover c = { .t = t, .arena = arena, .err = err };
	struct part *p;
	size_t n;
	int rc = t->npieces > MAX_BOXES ? fail_too_many(&c) : 0;

	for (size_t i = 0; i < t->npieces && rc == 0; i++)
		rc = add_piece(&c, (uint32_t)i);
	for (p = parts_of(&c.parts, &n); n > 0 && rc == 0; n--)
		rc = keep_part(&c, &p[n - 1]);
	if (rc == 0)
		rc = hand_over(&c, out, nout);
	dcp_buf_finish(&c.parts);
	dcp_buf_finish(&c.kept);
	dcp_buf_finish(&c.work);
	return rc;
}
