/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch/torch.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/model/tensor.h"

enum { MAX_SPANS = 1024 };

/* The spans of one dimension, being cut. */
struct axis {
	struct dcp_span *span;
	size_t n;
	uint64_t len;
};

/* Number @at of @n chunks of @len, as torch.chunk() cuts. */
static void chunk(uint64_t len, uint64_t n, uint64_t at, uint64_t *lo, uint64_t *hi)
{
	uint64_t full = dcp_div_up(len, n);

	/* at < n and full * (n - 1) < len + n: only the ends need care. */
	*lo = full && at > len / full ? len : DCP_MIN(at * full, len);
	*hi = len - *lo < full ? len : *lo + full;
}

/* Append [lo, hi) of the array @from to @to. */
static int take(struct axis *to, const struct axis *from, uint64_t lo, uint64_t hi)
{
	for (size_t i = 0; i < from->n && lo < hi; i++) {
		const struct dcp_span *s = &from->span[i];
		uint64_t a = DCP_MAX(lo, s->at), b = DCP_MIN(hi, s->at + s->n);

		if (a >= b)
			continue;
		if (to->n == MAX_SPANS)
			return -E2BIG;
		to->span[to->n++] = (struct dcp_span){ to->len, s->lo + (a - s->at), b - a };
		to->len += b - a;
	}
	return 0;
}

/* Cut @a into @factor chunks and keep piece @at of @n of each. */
static int cut(struct axis *a, struct axis *scratch, uint64_t factor, uint64_t n, uint64_t at)
{
	struct axis to = { scratch->span, 0, 0 };

	/* After the last chunk that holds anything there is nothing to keep. */
	for (uint64_t i = 0; i < factor && i < a->len; i++) {
		uint64_t lo, hi, from, upto;
		int rc;

		chunk(a->len, factor, i, &lo, &hi);
		chunk(hi - lo, n, at, &from, &upto);
		rc = take(&to, a, lo + from, lo + upto);
		if (rc < 0)
			return rc;
	}
	scratch->span = a->span;
	*a = to;
	return 0;
}

/* What the placements after number @i cut dimension @dim into. */
static uint64_t cut_later(const struct dcp_tplace *place, uint32_t np, uint32_t i)
{
	uint64_t product = 1;

	for (uint32_t k = i + 1; k < np; k++)
		if (place[k].kind != DCP_TPLACE_REPLICATE && place[k].dim == place[i].dim &&
		    dcp_ckd_mul(&product, product, place[k].n))
			return 0;
	return product;
}

static int cut_axis(const struct dcp_tplace *place, uint32_t np, uint32_t dim, struct axis *a,
		    struct axis *scratch)
{
	uint32_t later[DCP_TPLACE_MAX], nlater = 0;
	int rc = 0;

	for (uint32_t i = 0; i < np && rc == 0; i++) {
		const struct dcp_tplace *p = &place[i];

		if (p->kind == DCP_TPLACE_REPLICATE || p->dim != dim)
			continue;
		if (p->kind == DCP_TPLACE_SHARD)
			rc = cut(a, scratch, 1, p->n, p->at);
		else if (p->factor > 1 && p->factor == cut_later(place, np, i))
			later[nlater++] = i;
		else
			rc = cut(a, scratch, p->factor, p->n, p->at);
	}
	while (nlater-- > 0 && rc == 0)
		rc = cut(a, scratch, 1, place[later[nlater]].n, place[later[nlater]].at);
	return rc;
}

static int check(const struct dcp_tplace *place, uint32_t np, uint32_t ndim,
		 struct dcp_err *err)
{
	if (np > DCP_TPLACE_MAX)
		return dcp_fail(err, -E2BIG,
				"placements over %u mesh dimensions, at most %d are possible",
				np, DCP_TPLACE_MAX);
	for (uint32_t i = 0; i < np; i++) {
		const struct dcp_tplace *p = &place[i];

		if (p->n == 0 || p->at >= p->n)
			return dcp_fail(err, -EBADMSG,
					"coordinate %" PRIu64 " of a mesh dimension of %" PRIu64
					" ranks",
					p->at, p->n);
		if (p->kind != DCP_TPLACE_REPLICATE && p->dim >= ndim)
			return dcp_fail(err, -EBADMSG,
					"Shard(%u) of a tensor of %u dimension%s", p->dim, ndim,
					dcp_s(ndim));
		if (p->kind == DCP_TPLACE_STRIDED && (!p->factor || p->factor > MAX_SPANS))
			return dcp_fail(err, -EBADMSG,
					"_StridedShard with split_factor %" PRIu64, p->factor);
	}
	return 0;
}

/* Give the spans of @a the memory they need, and no more. */
static int keep(const struct axis *a, struct dcp_arena *arena, struct dcp_axis *out)
{
	struct dcp_span *span = dcp_arena_dup(arena, a->span, a->n, sizeof(*span));

	*out = (struct dcp_axis){ span, a->n, a->len };
	return span ? 0 : -ENOMEM;
}

int dcp_tplace_cut(const struct dcp_tplace *place, uint32_t np, uint32_t ndim,
		   const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
		   struct dcp_err *err)
{
	struct dcp_span spans[2][MAX_SPANS];
	struct dcp_axis *axis = dcp_arena_calloc(arena, ndim + 1, sizeof(*axis));
	int rc = axis ? check(place, np, ndim, err) : -ENOMEM;

	for (uint32_t k = 0; k < ndim && rc == 0; k++) {
		struct axis a = { spans[0], shape[k] != 0, shape[k] };
		struct axis scratch = { spans[1], 0, 0 };

		a.span[0] = (struct dcp_span){ 0, 0, shape[k] };
		rc = cut_axis(place, np, k, &a, &scratch);
		if (rc == 0)
			rc = keep(&a, arena, &axis[k]);
		if (rc == -E2BIG)
			dcp_fail(err, rc, "dimension %u is cut into more than %d spans", k,
				 MAX_SPANS);
	}
	if (rc == -ENOMEM)
		dcp_fail(err, rc, "out of memory for placements");
	if (rc == 0)
		*out = (struct dcp_cut){ .ndim = ndim, .axis = axis };
	return rc;
}

/* Each span of each dimension with each of the others. */
int dcp_tplace_boxes(const struct dcp_cut *cut, uint64_t max, struct dcp_arena *arena,
		     const struct dcp_tplace_box **out, size_t *count)
{
	struct dcp_tplace_box *box;
	uint32_t ndim = cut->ndim;
	uint64_t n = 1;

	for (uint32_t k = 0; k < ndim; k++)
		if (dcp_ckd_mul(&n, n, cut->axis[k].n) || n > max)
			return -E2BIG;
	box = dcp_arena_calloc(arena, n + 1, sizeof(*box));
	if (!box)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t *dims = dcp_arena_calloc(arena, 3 * (size_t)ndim + 1, sizeof(*dims));
		uint64_t rest = i;

		if (!dims)
			return -ENOMEM;
		for (uint32_t k = ndim; k-- > 0; rest /= cut->axis[k].n) {
			const struct dcp_span *s = &cut->axis[k].span[rest % cut->axis[k].n];

			dims[k] = s->lo;
			dims[ndim + k] = s->at;
			dims[2 * ndim + k] = s->n;
		}
		box[i] = (struct dcp_tplace_box){ dims, dims + ndim, dims + 2 * ndim };
	}
	*out = box;
	*count = n;
	return 0;
}

int dcp_tplace_piece(const struct dcp_tplace_box *box, uint32_t ndim, const uint64_t *shape,
		     const uint64_t *stride, uint32_t itemsize, struct dcp_arena *arena,
		     struct dcp_piece *p)
{
	uint64_t *own = dcp_arena_calloc(arena, ndim + 1u, sizeof(*own));
	uint64_t dense = 1, first = 0, n = 0, step;
	bool bad = false;

	if (!own)
		return -ENOMEM;
	for (uint32_t k = ndim; k-- > 0;) {
		own[k] = stride ? stride[k] : dense;
		bad |= dcp_ckd_mul(&dense, dense, shape[k]) ||
		       dcp_ckd_mul(&step, box->at[k], own[k]) ||
		       dcp_ckd_add(&first, first, step);
	}
	p->lo = box->lo;
	p->len = box->len;
	p->stride = stride || memcmp(box->len, shape, ndim * sizeof(*shape)) ? own : NULL;
	bad |= !dcp_shape_volume(box->len, ndim, &p->run_n) ||
	       !dcp_stride_span(box->len, own, ndim, &n) ||
	       dcp_ckd_mul(&p->nbytes, n, itemsize) || dcp_ckd_mul(&first, first, itemsize) ||
	       dcp_ckd_add(&p->off, p->off, first);
	return bad ? -EBADMSG : 0;
}
