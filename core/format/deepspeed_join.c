/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what each tensor-parallel rank holds of a tensor to the whole of it: for every rank
 *boxes of the whole, each a stretch of that rank's elements in row-major order.
 *
 *	rows         rank 0 over rank 1 over ...
 *	columns      beside each other
 *	replicated   rank 0's
 *	halves       all first halves, then all second halves (dimension 0)
 *	subs         all first parts, then all second ones, ... along one dimension
 *	averaged     no file holds it
 *
 * Whatever was padded to a number of rows is cut to it.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/format/deepspeed_int.h"

/* ---- boxes ---- */

static int add_box(struct dcp_ds_whole *w, uint32_t local, uint64_t first, const uint64_t *lo,
		   const uint64_t *len)
{
	struct dcp_ds_box *b = &w->box[w->nbox++];
	uint64_t *dims = dcp_arena_calloc(w->arena, 2 * (size_t)w->ndim + 1, sizeof(*dims));

	if (!dims)
		return -ENOMEM;
	memcpy(dims, lo, w->ndim * sizeof(*lo));
	memcpy(dims + w->ndim, len, w->ndim * sizeof(*len));
	*b = (struct dcp_ds_box){
		.local = local, .first = first, .lo = dims, .len = dims + w->ndim
	};
	return dcp_shape_volume(len, w->ndim, &b->n) ? 0 : -EINVAL;
}

static int room_for(struct dcp_ds_whole *w, size_t n)
{
	w->box = dcp_arena_calloc(w->arena, n, sizeof(*w->box));
	return w->box ? 0 : -ENOMEM;
}

/* All ranks have the shape of the first, but for @dim. */
static bool alike(const struct dcp_ds_local *local, size_t n, uint32_t dim)
{
	for (size_t i = 1; i < n; i++) {
		if (local[i].ndim != local[0].ndim)
			return false;
		for (uint32_t d = 0; d < local[0].ndim; d++)
			if (d != dim && local[i].shape[d] != local[0].shape[d])
				return false;
	}
	return local[0].ndim > dim || dim == DCP_MAX_NDIM;
}

static int cut_along(const struct dcp_ds_local *local, size_t n, uint32_t dim,
		     struct dcp_ds_whole *w)
{
	uint64_t lo[DCP_MAX_NDIM] = { 0 };
	int rc = room_for(w, n);

	w->ndim = local[0].ndim;
	memcpy(w->shape, local[0].shape, w->ndim * sizeof(*w->shape));
	w->shape[dim] = 0;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		lo[dim] = w->shape[dim];
		if (dcp_ckd_add(&w->shape[dim], w->shape[dim], local[i].shape[dim]))
			return -EINVAL;
		rc = add_box(w, (uint32_t)i, 0, lo, local[i].shape);
	}
	return rc;
}

static int take_one(const struct dcp_ds_local *local, struct dcp_ds_whole *w)
{
	static const uint64_t origin[DCP_MAX_NDIM];
	int rc = room_for(w, 1);

	w->ndim = local->ndim;
	memcpy(w->shape, local->shape, w->ndim * sizeof(*w->shape));
	return rc < 0 ? rc : add_box(w, 0, 0, origin, local->shape);
}

/*
 * Each rank's rows are @nsub stretches of @width[sub][rank] rows; the whole has all of the
 * first stretch, then all of the second, ... @shape is one rank's, rows aside.
 */
static int cut_subs(const uint64_t *const *width, uint32_t nsub, size_t n,
		    const uint64_t *shape, uint32_t ndim, struct dcp_ds_whole *w)
{
	uint64_t lo[DCP_MAX_NDIM] = { 0 }, len[DCP_MAX_NDIM], row = 1;
	int rc = room_for(w, nsub * n);

	w->ndim = ndim;
	memcpy(w->shape, shape, ndim * sizeof(*shape));
	memcpy(len, shape, ndim * sizeof(*shape));
	if (!dcp_shape_volume(shape + 1, ndim - 1, &row))
		return -EINVAL;
	w->shape[0] = 0;
	for (uint32_t s = 0; s < nsub; s++)
		for (size_t i = 0; rc == 0 && i < n; i++) {
			uint64_t before = 0;

			for (uint32_t k = 0; k < s; k++)
				before += width[k][i];
			lo[0] = w->shape[0];
			len[0] = width[s][i];
			if (dcp_ckd_add(&w->shape[0], w->shape[0], len[0]) ||
			    dcp_ckd_mul(&before, before, row))
				return -EINVAL;
			rc = add_box(w, (uint32_t)i, before, lo, len);
		}
	return rc;
}

static int cut_halves(const struct dcp_ds_local *local, size_t n, struct dcp_ds_whole *w)
{
	uint64_t *half[2];

	for (int h = 0; h < 2; h++) {
		half[h] = dcp_arena_calloc(w->arena, n, sizeof(**half));
		if (!half[h])
			return -ENOMEM;
		/* torch.chunk gives the first half the odd one */
		for (size_t i = 0; i < n; i++)
			half[h][i] = h ? local[i].shape[0] / 2 : (local[i].shape[0] + 1) / 2;
	}
	return cut_subs((const uint64_t *const *)half, 2, n, local[0].shape, local[0].ndim, w);
}

/* ---- subs ---- */

/* Before version 0.4 nothing was recorded of ranks: each part is cut evenly. */
static const char *even_shards(const struct dcp_ds_sub *sub, const struct dcp_ds_local *local,
			       size_t n, uint64_t **width, struct dcp_arena *arena)
{
	uint64_t total = 0, row = 1, all = 0;
	uint32_t nsub = sub->width ? sub->nwidths : (uint32_t)sub->shape[0];

	if (!sub->width) { /* so many equal parts */
		for (size_t i = 0; i < n; i++)
			all += local[i].shape[0];
		total = nsub && all % nsub == 0 ? all / nsub : 0;
		if (!total)
			return "its rows are no multiple of its parts";
	}
	(void)row;
	for (uint32_t s = 0; s < nsub; s++) {
		uint64_t size = sub->width ? sub->width[s] : total;

		if (size % n)
			return "its parts cannot be shared evenly, and no widths are recorded";
		width[s] = dcp_arena_calloc(arena, n, sizeof(**width));
		if (!width[s])
			return "out of memory";
		for (size_t i = 0; i < n; i++)
			width[s][i] = size / n;
	}
	return NULL;
}

/* The recorded shape of one rank; an open dimension is what is left over. */
static const char *sub_shape(const struct dcp_ds_sub *sub, const struct dcp_ds_local *local,
			     uint64_t rows, uint64_t *shape)
{
	uint64_t known = rows, numel;
	uint32_t open = DCP_MAX_NDIM;

	if (!dcp_shape_volume(local->shape, local->ndim, &numel))
		return "its shape makes no sense";
	shape[0] = rows;
	for (uint32_t d = 1; d < sub->ndim; d++) {
		shape[d] = sub->shape[d];
		if (shape[d] == DCP_DS_OPEN && open != DCP_MAX_NDIM)
			return "its recorded shape has two open dimensions";
		if (shape[d] == DCP_DS_OPEN)
			open = d;
		else if (dcp_ckd_mul(&known, known, shape[d]))
			return "its recorded shape makes no sense";
	}
	if (open != DCP_MAX_NDIM)
		shape[open] = known ? numel / known : 0;
	if (open != DCP_MAX_NDIM && dcp_ckd_mul(&known, known, shape[open]))
		known = 0;
	return known == numel ? NULL : "a rank's shape does not fit the recorded widths";
}

static const char *join_subs(const struct dcp_ds_sub *sub, const struct dcp_ds_local *local,
			     size_t n, struct dcp_ds_whole *w, int *rc)
{
	uint32_t nsub = sub->width ? sub->nwidths : (uint32_t)DCP_MIN(sub->shape[0], 4096u);
	uint64_t shape[DCP_MAX_NDIM], **width;
	const char *why = NULL;

	if (sub->dim != 0)
		return "it is made of parts along another dimension than the first, which is "
		       "not supported";
	if (nsub == 0 || nsub >= 4096 || local[0].ndim == 0)
		return "its recorded parts make no sense";
	width = sub->shard;
	if (!width) {
		width = dcp_arena_calloc(w->arena, nsub, sizeof(*width));
		if (!width)
			return "out of memory";
		why = even_shards(sub, local, n, width, w->arena);
	} else if (sub->nshards != n) {
		why = "its recorded widths are of another number of ranks";
	}
	for (size_t i = 0; !why && i < n; i++) {
		uint64_t rows = 0;

		for (uint32_t s = 0; s < nsub; s++)
			if (dcp_ckd_add(&rows, rows, width[s][i]))
				return "its recorded widths make no sense";
		why = sub_shape(sub, &local[i], rows, shape);
	}
	if (!why)
		*rc = cut_subs((const uint64_t *const *)width, nsub, n, shape, sub->ndim, w);
	return why;
}

/* ---- padding ---- */

static void cut_rows(struct dcp_ds_whole *w, uint64_t rows)
{
	if (w->ndim == 0 || w->shape[0] <= rows)
		return;
	w->shape[0] = rows;
	for (size_t i = 0; i < w->nbox; i++) {
		struct dcp_ds_box *b = &w->box[i];
		uint64_t *len = (uint64_t *)(uintptr_t)b->len;
		uint64_t keep = b->lo[0] >= rows ? 0 : DCP_MIN(len[0], rows - b->lo[0]);

		if (keep != len[0]) {
			b->n = b->n / len[0] * keep;
			len[0] = keep;
		}
	}
}

const char *dcp_ds_join(const struct dcp_ds_rule *rule, const struct dcp_ds_local *local,
			size_t n, struct dcp_arena *arena, struct dcp_ds_whole *w)
{
	uint32_t dim = rule->cut == DCP_DS_CUT_COLUMNS ? 1 : 0;
	const char *why = NULL;
	int rc = 0;

	*w = (struct dcp_ds_whole){ .arena = arena };
	switch (rule->cut) {
	case DCP_DS_CUT_REPLICATED:
		if (!alike(local, n, DCP_MAX_NDIM))
			return "its copies have different shapes";
		rc = take_one(local, w);
		break;
	case DCP_DS_CUT_AVERAGED:
		return "it is the mean of what the ranks hold (parameter_to_average_patterns): "
		       "no "
		       "file has it";
	case DCP_DS_CUT_HALVES:
		if (!alike(local, n, 0))
			return "its pieces do not fit together";
		rc = cut_halves(local, n, w);
		break;
	case DCP_DS_CUT_SUBS:
		why = join_subs(rule->sub, local, n, w, &rc);
		break;
	case DCP_DS_CUT_ROWS:
	case DCP_DS_CUT_COLUMNS:
		if (!alike(local, n, dim))
			return "its pieces do not fit together";
		rc = cut_along(local, n, dim, w);
		break;
	}
	if (rc < 0)
		return rc == -ENOMEM ? "out of memory" : "its pieces have too many elements";
	if (!why && rule->rows)
		cut_rows(w, rule->rows);
	return why;
}
