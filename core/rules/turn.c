/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other shapes of the same elements. What a box with strides cannot say becomes several boxes:
 * a row that was cut where a dimension is split, each row where dimensions are merged whose
 * rows do not follow each other.
 */
#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/rules/work.h"

#define bad(w, ...) dcp_fail((w)->err, -EINVAL, __VA_ARGS__)

#define ADDED UINT32_MAX

/* Dimension i of @ndim becomes what order[i] was, or is new (ADDED). What is new, and what is
 * not in @order, has one element. */
static int rearrange(struct work *w, uint32_t ndim, const uint32_t *order)
{
	struct making m = dcp_work_make(w);
	struct bit *b;
	int rc = 0;

	w->ndim = ndim;
	for (uint32_t d = 0; d < ndim; d++)
		w->shape[d] = order[d] == ADDED ? 1 : m.was.shape[order[d]];
	for (size_t i = 0; rc == 0 && i < m.was.n; i++) {
		const struct bit_dim *from = m.was.bit[i].dim;

		rc = dcp_work_add(&m, &m.was.bit[i], &b);
		for (uint32_t d = 0; rc == 0 && d < ndim; d++)
			b->dim[d] = order[d] == ADDED ? (struct bit_dim){ 0, 1, 1 }
						      : from[order[d]];
	}
	return rc;
}

int dcp_work_permute(struct work *w, const uint32_t *order)
{
	return rearrange(w, w->ndim, order);
}

int dcp_work_insert(struct work *w, uint32_t d)
{
	uint32_t order[DCP_MAX_NDIM];

	if (w->ndim == DCP_MAX_NDIM || w->ndim < d)
		return bad(w, "no dimension can be added to one of %u", w->ndim);
	for (uint32_t k = 0; k <= w->ndim; k++)
		order[k] = k == d ? ADDED : k - (k > d);
	return rearrange(w, w->ndim + 1, order);
}

/* A bit as it was, its dimensions as well. */
static int add_same(struct making *m, const struct bit *of, struct bit **out)
{
	int rc = dcp_work_add(m, of, out);

	if (rc == 0)
		memcpy((*out)->dim, of->dim, m->w->ndim * sizeof(*of->dim));
	return rc;
}

int dcp_work_narrow(struct work *w, uint32_t d, uint64_t lo, uint64_t n)
{
	struct making m = dcp_work_make(w);
	struct bit *b;
	int rc = 0;

	if (!dcp_range_ok(lo, n, w->shape[d]))
		return bad(w, "elements %llu to %llu of dimension %u, which has %llu",
			   (unsigned long long)lo, (unsigned long long)(lo + n), d,
			   (unsigned long long)w->shape[d]);
	w->shape[d] = n;
	for (size_t i = 0; rc == 0 && i < m.was.n; i++) {
		const struct bit_dim *from = &m.was.bit[i].dim[d];
		uint64_t begin = DCP_MAX(from->lo, lo),
			 end = DCP_MIN(from->lo + from->len, lo + n);

		if (begin >= end)
			continue;
		rc = add_same(&m, &m.was.bit[i], &b);
		if (rc < 0)
			return rc;
		b->first += (begin - from->lo) * from->stride;
		b->dim[d].lo = begin - lo;
		b->dim[d].len = end - begin;
	}
	return rc;
}

int dcp_work_pad(struct work *w, uint32_t d, uint64_t n)
{
	struct making m = dcp_work_make(w);
	struct dcp_piece *zeros = dcp_arena_calloc(w->arena, 1, sizeof(*zeros));
	struct bit of = { .of = zeros, .of_ndim = w->ndim }, *b;
	uint64_t has = w->shape[d], step = 1;
	int rc = zeros ? 0 : -ENOMEM;

	w->shape[d] = n;
	for (size_t i = 0; rc == 0 && i < m.was.n; i++)
		rc = add_same(&m, &m.was.bit[i], &b);
	if (rc < 0 || n == has)
		return rc;
	if (w->n == 0 || !dcp_shape_volume(w->shape, w->ndim, &step))
		return bad(w, "%s",
			   w->n ? "its shape would not fit in 64 bits" : "it has no elements");
	zeros->filter = DCP_FILTER_ZERO;
	zeros->file = w->bit[0].of->file;
	rc = dcp_work_add(&m, &of, &b);
	step = 1;
	for (uint32_t k = w->ndim; rc == 0 && k-- > 0; step *= b->dim[k].len)
		b->dim[k] = k == d ? (struct bit_dim){ has, n - has, step }
				   : (struct bit_dim){ 0, w->shape[k], step };
	return rc;
}

/* Can it be one tensor with @first, along dimension @d? */
static int check_alike(const struct work *first, const struct work *w, uint32_t d)
{
	if (w->dtype != first->dtype || w->cast != first->cast ||
	    w->itemsize != first->itemsize || strcmp(w->dtype_name, first->dtype_name) != 0)
		return bad(w, "%s and %s cannot be one tensor%s", first->dtype_name,
			   w->dtype_name, first->cast || w->cast ? " once they are cast" : "");
	if (w->ndim != first->ndim)
		return bad(w, "tensors of %u and %u dimensions cannot be one", first->ndim,
			   w->ndim);
	for (uint32_t k = 0; k < first->ndim; k++)
		if (k != d && w->shape[k] != first->shape[k])
			return bad(w, "dimension %u is %llu here and %llu there", k,
				   (unsigned long long)first->shape[k],
				   (unsigned long long)w->shape[k]);
	return 0;
}

int dcp_work_concat(const struct work *w, size_t k, uint32_t d, struct work *out)
{
	struct making m = { .w = out };
	struct bit *b;
	int rc = 0;

	*out = w[0];
	out->bit = NULL;
	out->n = 0;
	for (size_t j = 1; rc == 0 && j < k; j++)
		rc = check_alike(&w[0], &w[j], d);
	out->shape[d] = 0;
	for (size_t j = 0; rc == 0 && j < k; j++) {
		for (size_t i = 0; i < w[j].n; i++) {
			rc = add_same(&m, &w[j].bit[i], &b);
			if (rc < 0)
				return rc;
			b->dim[d].lo += out->shape[d];
		}
		if (dcp_ckd_add(&out->shape[d], out->shape[d], w[j].shape[d]))
			return bad(w, "its shape would not fit in 64 bits");
	}
	return rc;
}

/* ---- reshape ---- */

/* Elements [at, at + n) of dimension @d of @from, as one box of dimensions d and d + 1. */
static int add_split(struct making *m, const struct bit *from, uint32_t d, uint64_t inner,
		     uint64_t at, uint64_t n)
{
	const struct bit_dim *was = &from->dim[d];
	struct bit *b;
	int rc;

	if (n == 0)
		return 0;
	rc = dcp_work_add(m, from, &b);
	if (rc < 0)
		return rc;
	memcpy(b->dim, from->dim, d * sizeof(*b->dim));
	memcpy(b->dim + d + 2, from->dim + d + 1, (m->w->ndim - d - 2) * sizeof(*b->dim));
	b->first += (at - was->lo) * was->stride;
	b->dim[d].lo = at / inner;
	b->dim[d].len = n < inner ? 1 : n / inner;
	b->dim[d].stride = was->stride * inner;
	b->dim[d + 1].lo = at % inner;
	b->dim[d + 1].len = DCP_MIN(n, inner);
	b->dim[d + 1].stride = was->stride;
	return 0;
}

/* Dimension @d in rows of @inner. */
static int split(struct work *w, uint32_t d, uint64_t inner)
{
	struct making m = dcp_work_make(w);
	int rc = 0;

	memmove(w->shape + d + 1, w->shape + d, (w->ndim - d) * sizeof(*w->shape));
	w->ndim++;
	w->shape[d] /= inner;
	w->shape[d + 1] = inner;
	for (size_t i = 0; rc == 0 && i < m.was.n; i++) {
		const struct bit *from = &m.was.bit[i];
		uint64_t at = from->dim[d].lo, n = from->dim[d].len, head = 0, rows;

		if (at % inner)
			head = DCP_MIN(n, inner - at % inner);
		rows = (n - head) / inner * inner;
		rc = add_split(&m, from, d, inner, at, head);
		if (rc == 0)
			rc = add_split(&m, from, d, inner, at + head, rows);
		if (rc == 0)
			rc = add_split(&m, from, d, inner, at + head + rows, n - head - rows);
	}
	return rc;
}

/* Dimensions d and d + 1 of @from as one, from its row @row on: @rows of them. */
static int add_merged(struct making *m, const struct bit *from, uint32_t d, uint64_t inner,
		      uint64_t row, uint64_t rows)
{
	const struct bit_dim *x = &from->dim[d], *y = &from->dim[d + 1];
	struct bit *b;
	int rc = dcp_work_add(m, from, &b);

	if (rc < 0)
		return rc;
	memcpy(b->dim, from->dim, d * sizeof(*b->dim));
	memcpy(b->dim + d + 1, from->dim + d + 2, (m->w->ndim - d - 1) * sizeof(*b->dim));
	b->first += row * x->stride;
	b->dim[d].lo = (x->lo + row) * inner + y->lo;
	b->dim[d].len = rows * y->len;
	b->dim[d].stride = rows > 1 && y->len == 1 ? x->stride : y->stride;
	return 0;
}

static int merge(struct work *w, uint32_t d)
{
	struct making m = dcp_work_make(w);
	uint64_t inner = w->shape[d + 1];
	int rc = 0;

	w->ndim--;
	w->shape[d] *= inner;
	memmove(w->shape + d + 1, w->shape + d + 2, (w->ndim - d - 1) * sizeof(*w->shape));
	for (size_t i = 0; rc == 0 && i < m.was.n; i++) {
		const struct bit_dim *x = &m.was.bit[i].dim[d], *y = x + 1;

		if (y->len == inner && (inner == 1 || x->stride == y->stride * inner)) {
			rc = add_merged(&m, &m.was.bit[i], d, inner, 0, x->len);
			continue;
		}
		for (uint64_t row = 0; rc == 0 && row < x->len; row++)
			rc = add_merged(&m, &m.was.bit[i], d, inner, row, 1);
	}
	return rc;
}

/* Elements in the dimensions after each one, and of all: suffix[0]. */
static void suffixes(uint32_t ndim, const uint64_t *shape, uint64_t *suffix)
{
	suffix[ndim] = 1;
	for (uint32_t d = ndim; d-- > 0;)
		suffix[d] = suffix[d + 1] * shape[d];
}

/* Insert rows of @at elements into dimension @d, or leave it: those below follow each other. */
static int cut_at(struct work *w, uint64_t at)
{
	uint64_t suffix[DCP_MAX_NDIM + 1];

	suffixes(w->ndim, w->shape, suffix);
	for (uint32_t d = 0; d < w->ndim; d++) {
		if (suffix[d] <= at || suffix[d + 1] >= at)
			continue;
		if (at % suffix[d + 1] || suffix[d] % at)
			return 0;
		if (w->ndim == DCP_MAX_NDIM)
			return dcp_fail(w->err, -E2BIG, "more than %d dimensions",
					DCP_MAX_NDIM);
		return split(w, d, at / suffix[d + 1]);
	}
	return 0;
}

static bool stands_in(uint64_t at, const uint64_t *suffix, uint32_t ndim)
{
	for (uint32_t d = 0; d <= ndim; d++)
		if (suffix[d] == at)
			return true;
	return false;
}

/* Take the dimensions of one element away. */
static int drop_ones(struct work *w)
{
	uint32_t order[DCP_MAX_NDIM], n = 0;

	for (uint32_t d = 0; d < w->ndim; d++)
		if (w->shape[d] != 1)
			order[n++] = d;
	return rearrange(w, n, order);
}

/*
 * Dimensions of one element aside, cut into rows wherever the new shape has an edge that the
 * old one has not, then merge where the new one has none. Where an edge of one lies across one
 * of the other, all between is merged first and so comes to lie in rows.
 */
int dcp_work_reshape(struct work *w, uint32_t ndim, const uint64_t *shape)
{
	uint64_t want[DCP_MAX_NDIM + 1], has[DCP_MAX_NDIM + 1];
	int rc;

	if (w->n == 0) { /* no elements, or none that are stored */
		w->ndim = ndim;
		memcpy(w->shape, shape, ndim * sizeof(*shape));
		return 0;
	}
	suffixes(ndim, shape, want);
	rc = drop_ones(w);
	for (uint32_t d = 0; rc == 0 && d <= ndim; d++)
		rc = cut_at(w, want[d]);
	for (uint32_t d = w->ndim; rc == 0 && d-- > 1;) {
		suffixes(w->ndim, w->shape, has);
		if (!stands_in(has[d], want, ndim))
			rc = merge(w, d - 1);
	}
	for (uint32_t d = 0; rc == 0 && d <= ndim; d++)
		rc = cut_at(w, want[d]);
	for (uint32_t d = 0; rc == 0 && d < ndim; d++)
		if (shape[d] == 1)
			rc = dcp_work_insert(w, d);
	return rc;
}

int dcp_work_shares(struct work *w, uint32_t d)
{
	uint64_t n = DCP_MAX(w->shape[d], 1u), shape[DCP_MAX_NDIM];

	/* As long as the first, which ends where another begins. */
	for (size_t i = 0; i < w->n; i++)
		n = w->bit[i].dim[d].lo ? DCP_MIN(n, w->bit[i].dim[d].lo) : n;
	for (size_t i = 0; i < w->n; i++)
		if (w->bit[i].dim[d].lo % n || w->bit[i].dim[d].len > n || w->shape[d] % n)
			return bad(w, "the shares of dimension %u are not equally long", d);
	if (w->ndim == DCP_MAX_NDIM)
		return bad(w, "no dimension can be added to one of %u", w->ndim);
	memcpy(shape, w->shape, d * sizeof(*shape));
	memcpy(shape + d + 1, w->shape + d, (w->ndim - d) * sizeof(*shape));
	shape[d] = DCP_MAX(w->shape[d] / n, 1u);
	shape[d + 1] /= shape[d];
	return dcp_work_reshape(w, w->ndim + 1, shape);
}
