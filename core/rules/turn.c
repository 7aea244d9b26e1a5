/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other shapes of the same elements. A result that one box with strides cannot describe becomes
 * several boxes. That is so if a split cuts through a row, or if the rows of merged dimensions do
 * not follow each other: each row is a box.
 */
#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/rules/rules.h"
#include "core/rules/rules_int.h"

/* Begin to replace the bits of @w, which the caller still has in a copy. The caller sets w->ndim
 * before it adds a bit. */
static struct making dcp_work_make(struct work *w)
{
	struct making m = { .was = *w, .w = w };

	w->bit = NULL;
	w->n = 0;
	return m;
}

/* Add a bit like @of with room for the dimensions of the result, which the caller sets. */
static int dcp_work_add(struct making *m, const struct bit *of, struct bit **out)
{
	struct work *w = m->w;

	if (w->n == DCP_RULES_MAX_PIECES)
		return dcp_fail(m->w->err, -E2BIG, "it would have more than %u pieces",
				DCP_RULES_MAX_PIECES);
	if (w->n == m->cap) {
		size_t cap = m->cap ? m->cap * 2 : 16;
		struct bit *grown = dcp_arena_alloc(m->w->arena, cap * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		if (w->n)
			memcpy(grown, w->bit, w->n * sizeof(*grown));
		w->bit = grown;
		m->cap = cap;
	}
	*out = &w->bit[w->n];
	**out = *of;
	(*out)->dim = dcp_arena_alloc(m->w->arena, (w->ndim + 1) * sizeof(*(*out)->dim));
	if (!(*out)->dim)
		return -ENOMEM;
	w->n++;
	return 0;
}

/* ---- from what is stored ---- */

/* Set the strides of a row-major box of lengths @len. */
static void set_strides(uint32_t ndim, const uint64_t *len, uint64_t *stride)
{
	uint64_t step = 1;

	for (uint32_t d = ndim; d-- > 0; step *= len[d])
		stride[d] = step;
}

/* Split the run of a box into boxes: first the elements up to the next whole row of each dimension,
 * from the last dimension to the first, then whole rows, from the first dimension to the last. */
static int add_run(struct making *m, const struct dcp_piece *p, const struct bit *of)
{
	uint64_t at = p->run_lo, end = p->run_lo + p->run_n, stride[DCP_MAX_NDIM];
	uint32_t ndim = m->w->ndim;
	struct bit *b;
	int rc;

	set_strides(ndim, p->len, stride);
	while (at < end) {
		uint32_t d = ndim;
		uint64_t rest = at, n = 1;

		/* The outermost dimension of which a whole row begins at @at. */
		while (d > 0 && at % stride[d - 1] == 0 && stride[d - 1] <= end - at)
			d--;
		rc = dcp_work_add(m, of, &b);
		if (rc < 0)
			return rc;
		b->first += at - p->run_lo;
		for (uint32_t k = 0; k < ndim; k++) {
			uint64_t i = rest / stride[k];

			n = k < d   ? 1
			    : k > d ? p->len[k]
				    : DCP_MIN(p->len[k] - i, (end - at) / stride[k]);
			b->dim[k] = (struct bit_dim){ p->lo[k] + i, n, stride[k] };
			rest %= stride[k];
		}
		n = d < ndim ? b->dim[d].len * stride[d] : 1;
		at += n;
	}
	return 0;
}

static int add_piece(struct making *m, const struct dcp_piece *p)
{
	struct bit of = { .of = p,
			  .of_ndim = m->w->ndim,
			  .first = p->item_lo,
			  .item_n = p->item_n ? p->item_n : p->run_n },
		   *b;
	uint64_t stride[DCP_MAX_NDIM], volume;
	int rc;

	if (!dcp_shape_volume(p->len, m->w->ndim, &volume) ||
	    !dcp_range_ok(p->run_lo, p->run_n, volume))
		return dcp_fail(m->w->err, -EBADMSG, "its pieces are invalid");
	if (p->run_n == 0)
		return 0;
	if (p->run_n != volume)
		return add_run(m, p, &of);
	rc = dcp_work_add(m, &of, &b);
	if (rc < 0)
		return rc;
	set_strides(m->w->ndim, p->len, stride);
	for (uint32_t d = 0; d < m->w->ndim; d++)
		b->dim[d] = (struct bit_dim){ p->lo[d], p->len[d],
					      p->stride ? p->stride[d] : stride[d] };
	return 0;
}

int dcp_work_from(const struct dcp_tensor *t, struct dcp_arena *arena, struct work *out,
		  struct dcp_err *err)
{
	struct making m = { .w = out };
	uint64_t n;
	int rc = 0;

	if (t->ndim > DCP_MAX_NDIM || !dcp_tensor_nbytes(t, &n))
		return dcp_fail(err, -EBADMSG, "its shape is invalid");
	*out = (struct work){ .ndim = t->ndim,
			      .itemsize = t->itemsize,
			      .dtype = t->dtype,
			      .cast = t->cast,
			      .dtype_name = t->dtype_name,
			      .arena = arena,
			      .err = err };
	if (t->ndim)
		memcpy(out->shape, t->shape, t->ndim * sizeof(*t->shape));
	for (size_t i = 0; rc == 0 && i < t->npieces; i++)
		rc = add_piece(&m, &t->pieces[i]);
	return rc;
}

/* ---- to what an index keeps ---- */

static bool is_dense(const struct bit *b, uint32_t ndim)
{
	uint64_t step = 1;

	for (uint32_t d = ndim; d-- > 0; step *= b->dim[d].len)
		if (b->dim[d].len > 1 && b->dim[d].stride != step)
			return false;
	return true;
}

/* Is it all of a stored item, in the item's own shape? */
static bool is_item(const struct bit *b, uint32_t ndim, uint64_t volume)
{
	if (b->of->item_n || b->first || volume != b->item_n || !is_dense(b, ndim))
		return false;
	if (b->of->enc != DCP_ENC_TORCH)
		return true;
	for (uint32_t d = 0; ndim == b->of_ndim && d < ndim; d++)
		if (b->dim[d].len != b->of->len[d])
			return false;
	return ndim == b->of_ndim;
}

static int put_piece(const struct work *w, const struct bit *b, struct dcp_arena *arena,
		     struct dcp_piece *p)
{
	uint64_t *dims = dcp_arena_calloc(arena, 3 * w->ndim + 1, sizeof(*dims)), span = 1;

	if (!dims)
		return -ENOMEM;
	*p = *b->of;
	p->run_lo = 0;
	p->run_n = 1;
	for (uint32_t d = 0; d < w->ndim; d++) {
		dims[d] = b->dim[d].lo;
		dims[w->ndim + d] = b->dim[d].len;
		dims[2 * w->ndim + d] = b->dim[d].stride;
		p->run_n *= b->dim[d].len;
		span += (b->dim[d].len - 1) * b->dim[d].stride;
	}
	p->lo = dims;
	p->len = dims + w->ndim;
	p->stride = is_dense(b, w->ndim) ? NULL : dims + 2 * w->ndim;
	p->item_lo = p->item_n = 0;
	if (p->filter == DCP_FILTER_ZERO) {
		p->stride = NULL;
	} else if (p->enc == DCP_ENC_PLAIN && !dcp_filter_encodes(p->filter)) {
		p->off += b->first * w->itemsize;
		p->nbytes = span * w->itemsize;
	} else if (!is_item(b, w->ndim, p->run_n)) {
		p->stride = dims + 2 * w->ndim;
		p->item_lo = b->first;
		p->item_n = b->item_n;
	}
	return 0;
}

int dcp_work_done(const struct work *w, struct dcp_arena *arena, struct dcp_tensor *out)
{
	struct dcp_piece *p = dcp_arena_calloc(arena, w->n + 1, sizeof(*p));
	uint64_t *shape = dcp_arena_calloc(arena, w->ndim + 1, sizeof(*shape));
	int rc = p && shape ? 0 : -ENOMEM;

	for (size_t i = 0; rc == 0 && i < w->n; i++)
		rc = put_piece(w, &w->bit[i], arena, &p[i]);
	if (rc < 0)
		return rc;
	memcpy(shape, w->shape, w->ndim * sizeof(*shape));
	out->dtype = w->dtype;
	out->cast = w->cast;
	out->dtype_name = w->dtype_name;
	out->itemsize = w->itemsize;
	out->ndim = w->ndim;
	out->shape = shape;
	out->pieces = p;
	out->npieces = w->n;
	return 0;
}

#define bad(w, ...) dcp_fail((w)->err, -EINVAL, __VA_ARGS__)

#define ADDED UINT32_MAX

/* Dimension i of the @ndim results is the old dimension order[i], or a new one (ADDED). New
 * dimensions, and old ones that are not in @order, have one element. */
static int rearrange_dims(struct work *w, uint32_t ndim, const uint32_t *order)
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
	return rearrange_dims(w, w->ndim, order);
}

int dcp_work_insert(struct work *w, uint32_t d)
{
	uint32_t order[DCP_MAX_NDIM];

	if (w->ndim == DCP_MAX_NDIM || w->ndim < d)
		return bad(w, "no dimension can be added to one of %u", w->ndim);
	for (uint32_t k = 0; k <= w->ndim; k++)
		order[k] = k == d ? ADDED : k - (k > d);
	return rearrange_dims(w, w->ndim + 1, order);
}

/* Add a copy of a bit with its dimensions. */
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

/* Can @w be joined with @first along dimension @d? */
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

/* Add elements [at, at + n) of dimension @d of @from as one box over dimensions d and d + 1. */
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

/* Split dimension @d into rows of @inner elements. */
static int split_dim(struct work *w, uint32_t d, uint64_t inner)
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

/* Add @rows rows of @from, from row @row on, with dimensions d and d + 1 merged. */
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

static int merge_dims(struct work *w, uint32_t d)
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

/* suffix[i]: the product of the dimensions from i on; suffix[0]: all elements. */
static void set_suffixes(uint32_t ndim, const uint64_t *shape, uint64_t *suffix)
{
	suffix[ndim] = 1;
	for (uint32_t d = ndim; d-- > 0;)
		suffix[d] = suffix[d + 1] * shape[d];
}

/* Cut the dimension that @at falls into, so that an edge lies after every @at elements; leave it
 * whole if the numbers do not divide. */
static int cut_at(struct work *w, uint64_t at)
{
	uint64_t suffix[DCP_MAX_NDIM + 1];

	set_suffixes(w->ndim, w->shape, suffix);
	for (uint32_t d = 0; d < w->ndim; d++) {
		if (suffix[d] <= at || suffix[d + 1] >= at)
			continue;
		if (at % suffix[d + 1] || suffix[d] % at)
			return 0;
		if (w->ndim == DCP_MAX_NDIM)
			return dcp_fail(w->err, -E2BIG, "more than %d dimensions",
					DCP_MAX_NDIM);
		return split_dim(w, d, at / suffix[d + 1]);
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

/* Remove the dimensions of one element. */
static int drop_ones(struct work *w)
{
	uint32_t order[DCP_MAX_NDIM], n = 0;

	for (uint32_t d = 0; d < w->ndim; d++)
		if (w->shape[d] != 1)
			order[n++] = d;
	return rearrange_dims(w, n, order);
}

/*
 * Ignore dimensions of one element. Cut into rows wherever the new shape has an edge that the old
 * shape lacks, then merge where the new shape has no edge. A dimension that cannot be cut, because
 * edges of the two shapes cross, is merged with its neighbours first and cut afterwards.
 */
int dcp_work_reshape(struct work *w, uint32_t ndim, const uint64_t *shape)
{
	uint64_t want[DCP_MAX_NDIM + 1], has[DCP_MAX_NDIM + 1];
	int rc;

	if (w->n == 0) { /* no elements, or no stored elements */
		w->ndim = ndim;
		memcpy(w->shape, shape, ndim * sizeof(*shape));
		return 0;
	}
	set_suffixes(ndim, shape, want);
	rc = drop_ones(w);
	for (uint32_t d = 0; rc == 0 && d <= ndim; d++)
		rc = cut_at(w, want[d]);
	for (uint32_t d = w->ndim; rc == 0 && d-- > 1;) {
		set_suffixes(w->ndim, w->shape, has);
		if (!stands_in(has[d], want, ndim))
			rc = merge_dims(w, d - 1);
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

	/* Every share is as long as the first, which ends where the next one begins. */
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
