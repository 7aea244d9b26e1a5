/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/t/format/torch.h"

#define DT "torch.distributed.tensor"
#define ST "torch.distributed._shard"

static int64_t count_elements(const int64_t *shape, size_t n)
{
	int64_t v = 1;

	for (size_t i = 0; i < n; i++)
		v *= shape[i];
	return v;
}

static void put_dense(struct dcp_buf *b, const char *storage, const int64_t *shape, size_t n)
{
	int64_t stride[8], step = 1;

	for (size_t k = n; k-- > 0; step *= shape[k])
		stride[k] = step;
	t_pk_tensor(b, "FloatStorage", storage, count_elements(shape, n), 0, shape, stride, n);
}

/* An instance without state yet. */
static void put_instance(struct dcp_buf *b, const char *module, const char *name)
{
	t_pk_global(b, module, name);
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_newobj(b);
}

static void begin_state(struct dcp_buf *b)
{
	t_pk_dict(b);
	t_pk_mark(b);
}

static void end_state(struct dcp_buf *b)
{
	t_pk_setitems(b);
	t_pk_build(b);
}

static void put_size(struct dcp_buf *b, const int64_t *shape, size_t n)
{
	t_pk_global(b, "torch", "Size");
	t_pk_mark(b);
	t_pk_dims(b, shape, n);
	t_pk_tuple(b);
	t_pk_reduce(b);
}

/* (type, dtype, size, stride, ...) of _rebuild_wrapper_subclass; the rest is of no use. */
static void put_wrapper(struct dcp_buf *b, const char *module, const char *name,
			const int64_t *shape, size_t n)
{
	t_pk_mark(b);
	t_pk_global(b, module, name);
	t_pk_global(b, "torch", "float32");
	t_pk_dims(b, shape, n);
	t_pk_dims(b, shape, n);
	t_pk_tuple(b);
}

static void put_layout(struct dcp_buf *b, const struct t_dtensor *d)
{
	t_pk_str(b, "_layout");
	put_instance(b, "torch.distributed._mesh_layout", "_MeshLayout");
	begin_state(b);
	t_pk_str(b, "axes");
	t_pk_mark(b);
	for (size_t i = 0; i < d->nmesh; i++) {
		put_instance(b, "torch.distributed._mesh_layout", "_FlatLayout");
		begin_state(b);
		t_pk_str(b, "shape");
		t_pk_dims(b, &d->mesh[i], d->mesh[i] != 1); /* torch drops sizes of 1 */
		end_state(b);
	}
	t_pk_tuple(b);
	end_state(b);
}

static void put_mesh(struct dcp_buf *b, const struct t_dtensor *d)
{
	put_instance(b, "torch.distributed.device_mesh", "DeviceMesh");
	begin_state(b);
	if (d->old) {
		t_pk_str(b, "mesh");
		put_dense(b, "mesh", d->mesh, d->nmesh);
	} else {
		put_layout(b, d);
	}
	t_pk_str(b, "_coordinate_on_dim");
	if (d->no_place)
		t_pk_none(b);
	else
		t_pk_dims(b, d->at, d->nmesh);
	end_state(b);
}

static void put_placement(struct dcp_buf *b, const char *p)
{
	static const char *const names[][2] = { { "S", "Shard" },
						{ "T", "_StridedShard" },
						{ "R", "Replicate" },
						{ "P", "_Partial" },
						{ "X", "MaskedShard" } };
	const char *slash = strchr(p, '/');

	for (size_t i = 0; i < 5; i++)
		if (*p == *names[i][0])
			put_instance(b, DT ".placement_types", names[i][1]);
	begin_state(b);
	if (p[1]) {
		t_pk_str(b, "dim");
		t_pk_int(b, strtol(p + 1, NULL, 10));
	}
	if (slash) {
		t_pk_str(b, "split_factor");
		t_pk_int(b, strtol(slash + 1, NULL, 10));
	}
	end_state(b);
}

/* ((0, (1, 0)),) */
static void put_order(struct dcp_buf *b, const char *digits)
{
	t_pk_mark(b);
	t_pk_mark(b);
	t_pk_int(b, 0);
	t_pk_mark(b);
	for (; *digits; digits++)
		t_pk_int(b, *digits - '0');
	t_pk_tuple(b);
	t_pk_tuple(b);
	t_pk_tuple(b);
}

static void put_spec(struct dcp_buf *b, const struct t_dtensor *d)
{
	put_instance(b, DT "._dtensor_spec", "DTensorSpec");
	begin_state(b);
	t_pk_str(b, "mesh");
	put_mesh(b, d);
	t_pk_str(b, "placements");
	t_pk_mark(b);
	for (size_t i = 0; i < d->nmesh; i++)
		put_placement(b, d->placed[i]);
	t_pk_tuple(b);
	if (d->order) {
		t_pk_str(b, "shard_order");
		put_order(b, d->order);
	}
	end_state(b);
}

void t_pk_dtensor(struct dcp_buf *b, const struct t_dtensor *d)
{
	if (d->parameter) {
		t_pk_global(b, "torch._utils", "_rebuild_parameter");
		t_pk_mark(b);
	}
	t_pk_global(b, "torch._tensor", "_rebuild_from_type_v2");
	t_pk_mark(b);
	t_pk_global(b, "torch._utils", "_rebuild_wrapper_subclass");
	t_pk_global(b, DT, "DTensor");
	put_wrapper(b, DT, "DTensor", d->shape, d->ndim);
	t_pk_mark(b);
	t_pk_none(b);
	begin_state(b);
	t_pk_str(b, "_local_tensor");
	put_dense(b, d->storage, d->local, d->nlocal);
	t_pk_str(b, "_spec");
	put_spec(b, d);
	t_pk_setitems(b);
	t_pk_tuple(b);
	t_pk_tuple(b);
	t_pk_reduce(b);
	if (d->parameter) {
		t_pk_bool(b, true);
		t_pk_dict(b);
		t_pk_tuple(b);
		t_pk_reduce(b);
	}
}

static void put_list(struct dcp_buf *b, const int64_t *v, size_t n)
{
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		t_pk_int(b, v[i]);
	t_pk_appends(b);
}

static void put_shard(struct dcp_buf *b, size_t i, const int64_t *box, size_t ndim)
{
	char storage[24];

	snprintf(storage, sizeof(storage), "%zu", i);
	put_instance(b, ST ".sharded_tensor.shard", "Shard");
	t_pk_mark(b);
	t_pk_none(b);
	begin_state(b);
	t_pk_str(b, "tensor");
	put_dense(b, storage, box + ndim, ndim);
	t_pk_str(b, "metadata");
	put_instance(b, ST ".metadata", "ShardMetadata");
	t_pk_mark(b);
	t_pk_none(b);
	begin_state(b);
	t_pk_str(b, "shard_offsets");
	put_list(b, box, ndim);
	t_pk_str(b, "shard_sizes");
	put_list(b, box + ndim, ndim);
	t_pk_setitems(b);
	t_pk_tuple(b);
	t_pk_build(b);
	t_pk_setitems(b);
	t_pk_tuple(b);
	t_pk_build(b);
}

static void put_metadata(struct dcp_buf *b, const int64_t *shape, size_t ndim)
{
	put_instance(b, ST ".sharded_tensor.metadata", "ShardedTensorMetadata");
	begin_state(b);
	t_pk_str(b, "size");
	put_size(b, shape, ndim);
	t_pk_str(b, "tensor_properties");
	put_instance(b, ST ".sharded_tensor.metadata", "TensorProperties");
	t_pk_mark(b);
	t_pk_global(b, "torch", "float32");
	t_pk_none(b);
	t_pk_bool(b, false);
	t_pk_none(b);
	t_pk_bool(b, false);
	t_pk_tuple(b);
	t_pk_build(b);
	end_state(b);
}

void t_pk_sharded(struct dcp_buf *b, const int64_t *shape, size_t ndim, size_t n,
		  const int64_t *boxes, bool before)
{
	if (before) {
		put_instance(b, ST ".sharded_tensor.api", "ShardedTensor");
	} else {
		t_pk_global(b, "torch._tensor", "_rebuild_from_type_v2");
		t_pk_mark(b);
		t_pk_global(b, "torch._utils", "_rebuild_wrapper_subclass");
		t_pk_global(b, ST ".sharded_tensor.api", "ShardedTensor");
		put_wrapper(b, ST ".sharded_tensor.api", "ShardedTensor", shape, ndim);
	}
	t_pk_mark(b);
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		put_shard(b, i, boxes + 2 * ndim * i, ndim);
	t_pk_appends(b);
	put_metadata(b, shape, ndim);
	t_pk_none(b);
	t_pk_none(b);
	t_pk_bool(b, false);
	t_pk_tuple(b);
	if (before) {
		t_pk_build(b);
	} else {
		t_pk_tuple(b);
		t_pk_reduce(b);
	}
}
