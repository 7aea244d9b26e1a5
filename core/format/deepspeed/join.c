/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what each rank holds of a tensor to the whole of it: for every rank boxes of the whole,
 * each a stretch of that rank's elements in row-major order.
 *
 *	rows         rank 0 over rank 1 over ...
 *	columns      beside each other
 *	replicated   rank 0's
 *	halves       all first halves, then all second halves (dimension 0)
 *	subs         all first parts, then all second ones, ... along one dimension
 *	map          blocks as recorded
 *	averaged     the mean of all, number by number
 *	summed       the sum of all
 *
 * Whatever was padded to a number of rows is cut to it.
 */
#include <errno.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/format/deepspeed/deepspeed_int.h"

enum { MAX_SUBS = 4096 }; /* parts that a tensor may be made of */

/* ---- along one dimension ---- */

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

static int take_one(const struct dcp_ds_local *local, struct dcp_ds_whole *w)
{
	struct dcp_ds_block all = { .from = dcp_origin, .at = dcp_origin, .len = local->shape };

	w->ndim = local->ndim;
	memcpy(w->shape, local->shape, w->ndim * sizeof(*w->shape));
	return dcp_ds_add_block(w, 0, local->shape, &all);
}

/*
 * Each rank's tensor is @nsub stretches of @width[sub][rank] along @dim; the whole has all of
 * the first stretch, then all of the second, ... @shape is one rank's, but for @dim.
 */
static int cut_subs(const uint64_t *const *width, uint32_t nsub, size_t n, uint32_t dim,
		    const uint64_t *shape, uint32_t ndim, struct dcp_ds_whole *w)
{
	uint64_t mine[DCP_MAX_NDIM], *at = dcp_arena_calloc(w->arena, nsub, sizeof(*at));
	uint64_t all = 0;
	int rc = 0;

	if (!at)
		return -ENOMEM;
	for (uint32_t s = 0; s < nsub; s++) {
		at[s] = all;
		for (size_t i = 0; i < n; i++)
			if (dcp_ckd_add(&all, all, width[s][i]))
				return -EINVAL;
	}
	w->ndim = ndim;
	memcpy(w->shape, shape, ndim * sizeof(*shape));
	memcpy(mine, shape, ndim * sizeof(*shape));
	w->shape[dim] = all;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		uint64_t from = 0;

		mine[dim] = 0;
		for (uint32_t s = 0; s < nsub; s++)
			mine[dim] += width[s][i];
		for (uint32_t s = 0; rc == 0 && s < nsub; s++) {
			rc = dcp_ds_add_stretch(w, (uint32_t)i, mine, dim, from, at[s],
						width[s][i]);
			from += width[s][i];
			at[s] += width[s][i];
		}
	}
	return rc;
}

static int cut_along(const struct dcp_ds_local *local, size_t n, uint32_t dim,
		     struct dcp_ds_whole *w)
{
	uint64_t *width = dcp_arena_calloc(w->arena, n, sizeof(*width));

	if (!width)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		width[i] = local[i].shape[dim];
	return cut_subs((const uint64_t *const *)&width, 1, n, dim, local->shape, local->ndim,
			w);
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
	return cut_subs((const uint64_t *const *)half, 2, n, 0, local->shape, local->ndim, w);
}

/* ---- subs ---- */

/* Before version 0.4 nothing was recorded of ranks: each part is cut evenly. */
static const char *even_shards(const struct dcp_ds_sub *sub, const struct dcp_ds_local *local,
			       size_t n, uint32_t nsub, uint64_t **width,
			       struct dcp_arena *arena)
{
	uint64_t all = 0;

	if (sub->unequal)
		return "no sub_param_shard_widths say how its ranks share its parts";
	for (size_t i = 0; !sub->width && i < n; i++) {
		if (sub->dim >= local[i].ndim ||
		    dcp_ckd_add(&all, all, local[i].shape[sub->dim]))
			return "its shape does not fit its recorded parts";
	}
	if (all % nsub)
		return "it is not a multiple of its parts";
	for (uint32_t s = 0; s < nsub; s++) {
		uint64_t size = sub->width ? sub->width[s] : all / nsub;

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

/* How much of @dim a rank has, by the widths of its parts. */
static bool extents(uint64_t *const *width, uint32_t nsub, size_t n, uint64_t *out,
		    uint64_t *all)
{
	*all = 0;
	for (size_t i = 0; i < n; i++) {
		out[i] = 0;
		for (uint32_t s = 0; s < nsub; s++)
			if (dcp_ckd_add(&out[i], out[i], width[s][i]))
				return false;
		if (dcp_ckd_add(all, *all, out[i]))
			return false;
	}
	return true;
}

/* The recorded shape of the whole; an open dimension is what is left over. */
static bool recorded_shape(const struct dcp_ds_sub *sub, uint64_t extent, uint64_t numel,
			   uint64_t *shape)
{
	uint32_t open = DCP_MAX_NDIM;
	uint64_t known = 1;

	for (uint32_t d = 0; d < sub->ndim; d++) {
		shape[d] = d == sub->dim ? extent : sub->shape[d];
		if (shape[d] == DCP_DS_OPEN && open != DCP_MAX_NDIM)
			return false;
		if (shape[d] == DCP_DS_OPEN)
			open = d;
		else if (dcp_ckd_mul(&known, known, shape[d]))
			return false;
	}
	if (open != DCP_MAX_NDIM && (known == 0 || numel % known))
		return false;
	if (open != DCP_MAX_NDIM)
		shape[open] = numel / known;
	return open != DCP_MAX_NDIM || known == numel;
}

/*
 * The shape of the whole: that of the ranks, if their parts are along a dimension they have, or
 * else the recorded one, which is a view of them.
 */
static bool shape_of(const struct dcp_ds_sub *sub, const struct dcp_ds_local *local, size_t n,
		     const uint64_t *extent, uint64_t all, uint64_t *shape, uint32_t *ndim)
{
	uint64_t numel = 0, one, row = 1;
	bool own = alike(local, n, sub->dim);

	for (size_t i = 0; own && i < n; i++)
		own = local[i].shape[sub->dim] == extent[i];
	if (own) {
		*ndim = local->ndim;
		memcpy(shape, local->shape, *ndim * sizeof(*shape));
		return true;
	}
	for (size_t i = 0; i < n; i++)
		if (!dcp_shape_volume(local[i].shape, local[i].ndim, &one) ||
		    dcp_ckd_add(&numel, numel, one))
			return false;
	*ndim = sub->ndim;
	if (!recorded_shape(sub, all, numel, shape))
		return false;
	for (uint32_t d = 0; d < sub->ndim; d++)
		row *= d == sub->dim ? 1 : shape[d];
	for (size_t i = 0; i < n; i++)
		if (!dcp_shape_volume(local[i].shape, local[i].ndim, &one) ||
		    one != extent[i] * row)
			return false;
	return true;
}

static const char *join_subs(const struct dcp_ds_sub *sub, const struct dcp_ds_local *local,
			     size_t n, struct dcp_ds_whole *w, int *rc)
{
	uint64_t nsub = sub->width ? sub->nwidths : sub->shape[sub->dim];
	uint64_t shape[DCP_MAX_NDIM], **width = sub->shard, *extent, all;
	const char *why = NULL;
	uint32_t ndim;

	if (nsub == 0 || nsub >= MAX_SUBS)
		return "its recorded parts are invalid";
	extent = dcp_arena_calloc(w->arena, n, sizeof(*extent));
	if (!width)
		width = dcp_arena_calloc(w->arena, nsub, sizeof(*width));
	if (!width || !extent)
		return "out of memory";
	if (!sub->shard)
		why = even_shards(sub, local, n, (uint32_t)nsub, width, w->arena);
	else if (sub->nshards != n)
		why = "its recorded widths are of another number of ranks";
	if (why)
		return why;
	if (!extents(width, (uint32_t)nsub, n, extent, &all))
		return "its recorded widths are invalid";
	if (!shape_of(sub, local, n, extent, all, shape, &ndim))
		return "a rank's shape does not fit the recorded widths";
	*rc = cut_subs((const uint64_t *const *)width, (uint32_t)nsub, n, sub->dim, shape, ndim,
		       w);
	return NULL;
}

/* ---- blocks as recorded ---- */

static const char *join_map(const struct dcp_ds_map *map, const struct dcp_ds_local *local,
			    size_t n, struct dcp_ds_whole *w, int *rc)
{
	uint64_t has, should;

	if (map->n != n)
		return "its affine_map is of another number of ranks";
	w->ndim = map->ndim;
	memcpy(w->shape, map->shape, w->ndim * sizeof(*w->shape));
	for (size_t i = 0; *rc == 0 && i < n; i++) {
		const struct dcp_ds_shard *s = &map->shard[i];

		if (!dcp_shape_volume(local[i].shape, local[i].ndim, &has) ||
		    !dcp_shape_volume(s->shape, map->ndim, &should) || has != should)
			return "a rank's shape is not the one in its affine_map";
		for (size_t k = 0; *rc == 0 && k < s->n; k++)
			*rc = dcp_ds_add_block(w, (uint32_t)i, s->shape, &s->block[k]);
	}
	return NULL;
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
	case DCP_DS_CUT_SUMMED:
		if (!alike(local, n, DCP_MAX_NDIM))
			return "its terms have different shapes";
		w->sum = true;
		w->mean = rule->cut == DCP_DS_CUT_AVERAGED;
		rc = take_one(local, w);
		break;
	case DCP_DS_CUT_SUBS:
		why = join_subs(rule->sub, local, n, w, &rc);
		break;
	case DCP_DS_CUT_MAP:
		why = join_map(rule->map, local, n, w, &rc);
		break;
	case DCP_DS_CUT_HALVES:
	case DCP_DS_CUT_ROWS:
	case DCP_DS_CUT_COLUMNS:
		if (!alike(local, n, dim))
			return "its pieces do not fit together";
		rc = rule->cut == DCP_DS_CUT_HALVES ? cut_halves(local, n, w)
						    : cut_along(local, n, dim, w);
		break;
	}
	if (rc == -E2BIG)
		return "its pieces are too many";
	if (rc < 0)
		return rc == -ENOMEM ? "out of memory" : "its pieces have too many elements";
	if (!why && rule->height && (w->ndim == 0 || w->shape[0] != rule->height))
		why = "its ranks do not have together the rows that the known order is of";
	if (!why && rule->rows)
		cut_rows(w, rule->rows);
	return why;
}
