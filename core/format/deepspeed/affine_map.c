/* SPDX-License-Identifier: Apache-2.0 */
/*
 * affine_map of universal_checkpoint_info (since 0.19): for every rank the blocks of the whole
 * that it holds, as offsets and strides of both.
 *
 *	{"logical_shape": [6, 4], "ranks": {0: {"shard_shape": [3, 4], "pieces": [
 *		{"shape": [3, 4], "source": [0, [4, 1]], "dest": [0, [4, 1]],
 *		 "locations": [0], "scale": 1.0}]}, ...}}
 *
 * Whoever wrote one spoke of boxes in row-major order, source being the whole and dest the
 * rank's own. Nothing else is read. What ranks hold scaled is in no file as it is.
 */
#include <string.h>

#include "core/format/deepspeed/deepspeed_int.h"

static const char senseless[] = "its affine_map is invalid";

struct reading {
	struct dcp_ds *ds;
	struct dcp_ds_map *map;
	const char *why;
};

static int refuse(struct reading *r, const char *why)
{
	r->why = why;
	return 0;
}

/* Numbers of @v into the arena, as many as the whole has dimensions (any number: @ndim NULL).
 */
static int take_dims(struct reading *r, struct dcp_pv v, const uint64_t **out, uint32_t *ndim)
{
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t n;

	if (!dcp_torch_dims(v, dims, &n) || (!ndim && n != r->map->ndim))
		return refuse(r, senseless);
	*out = dcp_arena_dup(&r->ds->arena, dims, n, sizeof(*dims));
	if (ndim)
		*ndim = n;
	return *out ? 0 : -ENOMEM;
}

/* [offset, strides] of @len elements in @shape, as the place of the first one. */
static int take_corner(struct reading *r, struct dcp_pv v, const uint64_t *shape,
		       const uint64_t *len, const uint64_t **out)
{
	size_t n;
	const struct dcp_pv *pair = dcp_pv_items(v, &n);
	const uint64_t *stride = NULL;
	uint64_t *at, step = 1, off;
	int rc;

	if (n != 2 || !dcp_pv_u64(pair[0], &off))
		return refuse(r, senseless);
	rc = take_dims(r, pair[1], &stride, NULL);
	if (rc < 0 || r->why)
		return rc;
	at = dcp_arena_calloc(&r->ds->arena, (size_t)r->map->ndim + 1, sizeof(*at));
	if (!at)
		return -ENOMEM;
	*out = at;
	for (uint32_t d = r->map->ndim; d-- > 0; step *= shape[d]) {
		if (shape[d] == 0)
			return refuse(r, senseless);
		at[d] = off / step % shape[d];
		if (len[d] > 1 && stride[d] != step)
			return refuse(r, "its affine_map is of another order than row-major, "
					 "which is not supported");
		if (len[d] > shape[d] - at[d])
			return refuse(r, senseless);
	}
	return off < step ? 0 : refuse(r, senseless);
}

/* Of ranks that hold the same, the first one counts. */
static bool is_first(struct dcp_pv locations, uint64_t rank)
{
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(locations, &n);
	uint64_t other;

	for (size_t i = 0; i < n; i++)
		if (dcp_pv_u64(item[i], &other) && other < rank)
			return false;
	return true;
}

static int take_piece(struct reading *r, struct dcp_pv v, const uint64_t *shard, uint64_t rank,
		      struct dcp_ds_block *out, size_t *n)
{
	const struct dcp_pv *scale = dcp_pv_get(v, "scale");
	const uint64_t *len = NULL;
	uint64_t volume;
	int rc = take_dims(r, dcp_pv_at(v, "shape"), &len, NULL);

	if (rc < 0 || r->why)
		return rc;
	if (scale && (scale->type != DCP_PV_FLOAT || scale->f < 1 || scale->f > 1))
		return refuse(r, "its ranks hold it scaled (affine_map): no file has it");
	if (!dcp_shape_volume(len, r->map->ndim, &volume))
		return refuse(r, senseless);
	if (volume == 0 || !is_first(dcp_pv_at(v, "locations"), rank))
		return 0;
	out[*n].len = len;
	rc = take_corner(r, dcp_pv_at(v, "source"), r->map->shape, len, &out[*n].at);
	if (rc == 0 && !r->why)
		rc = take_corner(r, dcp_pv_at(v, "dest"), shard, len, &out[*n].from);
	*n += rc == 0 && !r->why;
	return rc;
}

static int take_rank(struct reading *r, uint64_t rank, struct dcp_pv v,
		     struct dcp_ds_shard *out)
{
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(v, "pieces"), &n);
	struct dcp_ds_block *block;
	uint64_t volume;
	int rc = take_dims(r, dcp_pv_at(v, "shard_shape"), &out->shape, NULL);

	if (rc < 0 || r->why)
		return rc;
	if (!dcp_shape_volume(out->shape, r->map->ndim, &volume))
		return refuse(r, senseless);
	block = dcp_arena_calloc(&r->ds->arena, n + 1, sizeof(*block));
	if (!block)
		return -ENOMEM;
	out->block = block;
	for (size_t i = 0; rc == 0 && !r->why && i < n; i++)
		rc = take_piece(r, item[i], out->shape, rank, block, &out->n);
	return rc;
}

int dcp_ds_read_map(struct dcp_ds *ds, struct dcp_pv v, struct dcp_ds_map *out,
		    const char **why)
{
	struct reading r = { .ds = ds, .map = out };
	size_t n;
	const struct dcp_pv *kv = dcp_pv_pairs(dcp_pv_at(v, "ranks"), &n);
	struct dcp_ds_shard *shard;
	uint64_t volume, rank;
	int rc = take_dims(&r, dcp_pv_at(v, "logical_shape"), &out->shape, &out->ndim);

	if (rc == 0 && !r.why && (!kv || !dcp_shape_volume(out->shape, out->ndim, &volume)))
		r.why = senseless;
	shard = dcp_arena_calloc(&ds->arena, n + 1, sizeof(*shard));
	if (!shard)
		return -ENOMEM;
	out->shard = shard;
	out->n = n;
	for (size_t i = 0; rc == 0 && !r.why && i < n; i++) {
		if (!dcp_pv_u64(kv[2 * i], &rank) || rank >= n || shard[rank].shape)
			r.why = senseless;
		else
			rc = take_rank(&r, rank, kv[2 * i + 1], &shard[rank]);
	}
	*why = r.why;
	return rc;
}
