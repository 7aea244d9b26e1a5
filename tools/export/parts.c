/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a tensor that the ranks of a layout write. Some formats take the array of each rank;
 * others take boxes that cover each element once: an element that several ranks hold is written by
 * the rank with the least to write so far.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/model/geometry/tiling.h"
#include "core/model/layout/layout.h"
#include "tools/export/export.h"

enum { MAX_PARTS = 1 << 20 }; /* of one tensor */

struct cutting {
	struct exporting *x;
	const struct dcp_write_tensor *t;
	struct dcp_buf parts;   /* struct dcp_write_part */
	struct dcp_arena arena; /* memory of one tensor */
	const char *why;
};

enum cmd_exit export_open_layout(struct exporting *x)
{
	return pick_layout(&x->pick, x->opts->layout, &x->layouts, &x->layout);
}

enum cmd_exit export_layout(struct exporting *x)
{
	enum cmd_exit code = export_open_layout(x);

	if (code != CMD_OK || !x->layout)
		return code;
	x->held = calloc(dcp_layout_ranks(x->layout), sizeof(*x->held));
	return x->held ? CMD_OK : cmd_fail(CMD_ENV, "export: %s", strerror(ENOMEM));
}

/* ---- boxes of a cut ---- */

static int add_box(struct cutting *c, uint32_t rank, const uint64_t *lo, const uint64_t *len)
{
	uint32_t ndim = c->t->ndim;
	struct dcp_write_part part = { .rank = rank, .ndim = ndim };
	uint64_t *copy = dcp_arena_calloc(&c->x->arena, 2 * (size_t)ndim + 1, sizeof(*copy));

	for (uint32_t d = 0; d < ndim; d++)
		if (len[d] == 0)
			return 0;
	if (!copy || DCP_NITEMS(c->parts, part) >= MAX_PARTS)
		return copy ? -E2BIG : -ENOMEM;
	memcpy(copy, lo, ndim * sizeof(*lo));
	memcpy(copy + ndim, len, ndim * sizeof(*len));
	part.lo = copy;
	part.shape = copy + ndim;
	return dcp_buf_add(&c->parts, &part, sizeof(part));
}

/* Add the product of the spans. */
static int add_spans(struct cutting *c, uint32_t rank, const struct dcp_cut *cut)
{
	uint64_t lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
	size_t at[DCP_MAX_NDIM] = { 0 };
	uint32_t d;
	int rc;

	for (d = 0; d < cut->ndim; d++)
		if (cut->axis[d].n == 0)
			return 0;
	for (;;) {
		for (d = 0; d < cut->ndim; d++) {
			lo[d] = cut->axis[d].span[at[d]].lo;
			len[d] = cut->axis[d].span[at[d]].n;
		}
		rc = add_box(c, rank, lo, len);
		for (d = cut->ndim; d > 0 && ++at[d - 1] == cut->axis[d - 1].n; d--)
			at[d - 1] = 0;
		if (rc < 0 || d == 0)
			return rc;
	}
}

/* A run of the flattening of one box. */
static int add_run(struct cutting *c, uint32_t rank, const struct dcp_cut *cut)
{
	uint64_t shape[DCP_MAX_NDIM], lo[DCP_MAX_NDIM], len[DCP_MAX_NDIM];
	uint64_t at = cut->flat_lo, left = cut->flat_n;
	int rc = 0;

	for (uint32_t d = 0; d < cut->ndim; d++) {
		shape[d] = cut->axis[d].len;
		if (cut->axis[d].n > 1 || dcp_axis_filled(&cut->axis[d]) != shape[d]) {
			c->why = "the layout cuts it into parts that are not boxes";
			return 0;
		}
	}
	while (rc == 0 && left) {
		dcp_run_box(cut->ndim, shape, &at, &left, lo, len);
		for (uint32_t d = 0; d < cut->ndim; d++)
			lo[d] += cut->axis[d].span[0].lo;
		rc = add_box(c, rank, lo, len);
	}
	return rc;
}

/* Add the array that the rank holds, in any number of boxes. */
static int add_array(struct cutting *c, uint32_t rank, const struct dcp_cut *cut)
{
	struct dcp_write_part part = { .rank = rank };
	uint64_t shape[DCP_MAX_NDIM], *copy;

	part.ndim = dcp_cut_shape(cut, shape);
	copy = dcp_arena_calloc(&c->x->arena, part.ndim + 1, sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	memcpy(copy, shape, part.ndim * sizeof(*copy));
	part.shape = copy;
	return dcp_buf_add(&c->parts, &part, sizeof(part));
}

static int add_rank(struct cutting *c, const struct dcp_layout_rule *rule, uint32_t rank)
{
	struct dcp_cut cut;
	int rc;

	dcp_arena_reset(&c->arena);
	rc = dcp_layout_cut_by_rule(c->x->layout, rule, rank, c->t->ndim, c->t->shape,
				    &c->arena, &cut, &c->x->err);
	if (rc <= 0)
		return rc == -EINVAL ? -EBADMSG : rc; /* the code that plan gives */
	if (!(c->x->format->takes & DCP_WRITE_BOXES))
		return add_array(c, rank, &cut);
	return cut.flat ? add_run(c, rank, &cut) : add_spans(c, rank, &cut);
}

/* ---- one owner each ---- */

static int by_place(const void *a, const void *b)
{
	const struct dcp_write_part *x = a, *y = b;

	for (uint32_t d = 0; d < x->ndim; d++) {
		if (x->lo[d] != y->lo[d])
			return DCP_CMP(x->lo[d], y->lo[d]);
		if (x->shape[d] != y->shape[d])
			return DCP_CMP(x->shape[d], y->shape[d]);
	}
	return 0;
}

static void keep_one_each(struct cutting *c)
{
	struct dcp_write_part *p = DCP_ITEMS(c->parts, struct dcp_write_part);
	size_t n = DCP_NITEMS(c->parts, struct dcp_write_part), kept = 0;
	uint64_t *held = c->x->held;

	DCP_SORT(p, n, by_place);
	for (size_t i = 0, end; i < n; i = end) {
		struct dcp_write_part best = p[i];

		for (end = i + 1; end < n && by_place(&p[i], &p[end]) == 0; end++)
			if (held[p[end].rank] < held[best.rank] ||
			    (held[p[end].rank] == held[best.rank] && p[end].rank < best.rank))
				best = p[end];
		held[best.rank] += dcp_write_part_bytes(c->t, &best);
		p[kept++] = best;
	}
	c->parts.n = kept * sizeof(*p);
}

/* Do the parts cover each element? */
static int check_cover(struct cutting *c)
{
	const struct dcp_write_part *p = DCP_ITEMS(c->parts, struct dcp_write_part);
	size_t n = DCP_NITEMS(c->parts, struct dcp_write_part);
	struct dcp_tensor t = { .key = c->t->key,
				.itemsize = c->t->itemsize,
				.ndim = c->t->ndim,
				.shape = c->t->shape,
				.npieces = n };
	struct dcp_tiling tiling;
	struct dcp_piece *pieces;
	int rc;

	dcp_arena_reset(&c->arena);
	pieces = dcp_arena_calloc(&c->arena, n + 1, sizeof(*pieces));
	if (!pieces)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		pieces[i] = (struct dcp_piece){ .lo = p[i].lo, .len = p[i].shape };
		dcp_shape_volume(p[i].shape, p[i].ndim, &pieces[i].run_n);
	}
	t.pieces = pieces;
	rc = dcp_tiling_init(&tiling, &t, &c->arena, NULL);
	if (rc == -EBADMSG || rc == -E2BIG)
		c->why = "in this layout its parts overlap, or some of it no rank has";
	return rc == -EBADMSG || rc == -E2BIG ? 0 : rc;
}

int export_parts(struct exporting *x, struct dcp_write_tensor *t, const char **why)
{
	struct cutting c = { .x = x, .t = t };
	struct dcp_layout_rule rule;
	uint64_t volume = 0;
	int rc = 0;

	dcp_arena_init(&c.arena, (size_t)1 << 28);
	dcp_layout_rule(x->layout, t->key, &rule);
	if (!dcp_shape_volume(t->shape, t->ndim, &volume))
		rc = -EFBIG;
	for (uint32_t rank = 0; rc == 0 && !c.why && rank < dcp_layout_ranks(x->layout); rank++)
		rc = add_rank(&c, &rule, rank);
	if (rc == 0 && !c.why && x->format->takes & DCP_WRITE_BOXES) {
		keep_one_each(&c);
		rc = check_cover(&c);
	} else if (rc == 0 && !c.parts.n && !c.why) {
		c.why = "no rank of the layout has it";
	}
	t->nparts = DCP_NITEMS(c.parts, struct dcp_write_part);
	t->parts = dcp_arena_calloc(&x->arena, t->nparts + 1, sizeof(*t->parts));
	if (!t->parts)
		rc = -ENOMEM;
	else if (t->nparts)
		memcpy((void *)(uintptr_t)t->parts, c.parts.p, c.parts.n);
	*why = c.why;
	dcp_buf_finish(&c.parts);
	dcp_arena_finish(&c.arena);
	return rc;
}

/* ---- the array of a rank ---- */

int export_local(struct exporting *x, struct dcp_write_tensor *t, const struct dcp_cut **cut,
		 const char **why)
{
	struct dcp_cut *own = dcp_arena_calloc(&x->arena, 1, sizeof(*own));
	uint64_t *shape = dcp_arena_calloc(&x->arena, DCP_MAX_NDIM, sizeof(*shape));
	int rc;

	*why = NULL;
	if (!x->layout)
		return 1;
	if (!own || !shape)
		return -ENOMEM;
	rc = dcp_layout_cut(x->layout, x->comm->rank, t->key, t->ndim, t->shape, &x->arena, own,
			    &x->err);
	if (rc <= 0)
		return rc == -EINVAL ? -EBADMSG : rc;
	if (dcp_cut_is_whole(own, t->shape))
		return 1;
	x->is_cut = true;
	*cut = own;
	t->ndim = dcp_cut_shape(own, shape);
	t->shape = shape;
	return 1;
}
