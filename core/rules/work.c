/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rules/work.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/rules/rules.h"

struct making dcp_work_make(struct work *w)
{
	struct making m = { .was = *w, .w = w };

	w->bit = NULL;
	w->n = 0;
	return m;
}

int dcp_work_add(struct making *m, const struct bit *of, struct bit **out)
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

/* Row-major over @len. */
static void dense(uint32_t ndim, const uint64_t *len, uint64_t *stride)
{
	uint64_t step = 1;

	for (uint32_t d = ndim; d-- > 0; step *= len[d])
		stride[d] = step;
}

/*
 * The run of a box as boxes: the elements up to the next whole row of each dimension, from the
 * last one up, then whole rows, from the first one down.
 */
static int add_run(struct making *m, const struct dcp_piece *p, const struct bit *of)
{
	uint64_t at = p->run_lo, end = p->run_lo + p->run_n, stride[DCP_MAX_NDIM];
	uint32_t ndim = m->w->ndim;
	struct bit *b;
	int rc;

	dense(ndim, p->len, stride);
	while (at < end) {
		uint32_t d = ndim;
		uint64_t rest = at, n = 1;

		/* The outermost dimension whose rows fit: the rows inside are whole. */
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
	dense(m->w->ndim, p->len, stride);
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
