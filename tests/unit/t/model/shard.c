/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/t/format/torch.h"

#define DT "torch.distributed.tensor"
#define ST "torch.distributed._shard"

static int64_t volume(const int64_t *shape, size_t n)
{
	int64_t v = 1;

	for (size_t i = 0; i < n; i++)
		v *= shape[i];
	return v;
}

static void dense(struct dcp_buf *b, const char *storage, const int64_t *shape, size_t n)
{
	int64_t stride[8], step = 1;

	for (size_t k = n; k-- > 0; step *= shape[k])
		stride[k] = step;
	t_pk_tensor(b, "FloatStorage", storage, volume(shape, n), 0, shape, stride, n);
}

/* An instance without state yet. */
static void instance(struct dcp_buf *b, const char *module, const char *name)
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

static void size(struct dcp_buf *b, const int64_t *shape, size_t n)
{
	t_pk_global(b, "torch", "Size");
	t_pk_mark(b);
	t_pk_dims(b, shape, n);
	t_pk_tuple(b);
	t_pk_reduce(b);
}

/* (type, dtype, size, stride, ...) of _rebuild_wrapper_subclass; the rest is of no use. */
static void wrapper(struct dcp_buf *b, const char *module, const char *name,
		    const int64_t *shape, size_t n)
{
	t_pk_mark(b);
	t_pk_global(b, module, name);
	t_pk_global(b, "torch", "float32");
	t_pk_dims(b, shape, n);
	t_pk_dims(b, shape, n);
	t_pk_tuple(b);
}

static void layout(struct dcp_buf *b, const struct t_dtensor *d)
{
	t_pk_str(b, "_layout");
	instance(b, "torch.distributed._mesh_layout", "_MeshLayout");
	begin_state(b);
	t_pk_str(b, "axes");
	t_pk_mark(b);
	for (size_t i = 0; i < d->nmesh; i++) {
		instance(b, "torch.distributed._mesh_layout", "_FlatLayout");
		begin_state(b);
		t_pk_str(b, "shape");
		t_pk_dims(b, &d->mesh[i], d->mesh[i] != 1); /* torch drops sizes of 1 */
		end_state(b);
	}
	t_pk_tuple(b);
	end_state(b);
}

static void mesh(struct dcp_buf *b, const struct t_dtensor *d)
{
	instance(b, "torch.distributed.device_mesh", "DeviceMesh");
	begin_state(b);
	if (d->old) {
		t_pk_str(b, "mesh");
		dense(b, "mesh", d->mesh, d->nmesh);
	} else {
		layout(b, d);
	}
	t_pk_str(b, "_coordinate_on_dim");
	if (d->no_place)
		t_pk_none(b);
	else
		t_pk_dims(b, d->at, d->nmesh);
	end_state(b);
}

static void placement(struct dcp_buf *b, const char *p)
{
	static const char *const names[][2] = { { "S", "Shard" },
						{ "T", "_StridedShard" },
						{ "R", "Replicate" },
						{ "P", "_Partial" },
						{ "X", "MaskedShard" } };
	const char *slash = strchr(p, '/');

	for (size_t i = 0; i < 5; i++)
		if (*p == *names[i][0])
			instance(b, DT ".placement_types", names[i][1]);
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
static void order(struct dcp_buf *b, const char *digits)
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

static void spec(struct dcp_buf *b, const struct t_dtensor *d)
{
	instance(b, DT "._dtensor_spec", "DTensorSpec");
	begin_state(b);
	t_pk_str(b, "mesh");
	mesh(b, d);
	t_pk_str(b, "placements");
	t_pk_mark(b);
	for (size_t i = 0; i < d->nmesh; i++)
		placement(b, d->placed[i]);
	t_pk_tuple(b);
	if (d->order) {
		t_pk_str(b, "shard_order");
		order(b, d->order);
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
	wrapper(b, DT, "DTensor", d->shape, d->ndim);
	t_pk_mark(b);
	t_pk_none(b);
	begin_state(b);
	t_pk_str(b, "_local_tensor");
	dense(b, d->storage, d->local, d->nlocal);
	t_pk_str(b, "_spec");
	spec(b, d);
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

static void list(struct dcp_buf *b, const int64_t *v, size_t n)
{
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		t_pk_int(b, v[i]);
	t_pk_appends(b);
}

static void shard(struct dcp_buf *b, size_t i, const int64_t *box, size_t ndim)
{
	char storage[24];

	snprintf(storage, sizeof(storage), "%zu", i);
	instance(b, ST ".sharded_tensor.shard", "Shard");
	t_pk_mark(b);
	t_pk_none(b);
	begin_state(b);
	t_pk_str(b, "tensor");
	dense(b, storage, box + ndim, ndim);
	t_pk_str(b, "metadata");
	instance(b, ST ".metadata", "ShardMetadata");
	t_pk_mark(b);
	t_pk_none(b);
	begin_state(b);
	t_pk_str(b, "shard_offsets");
	list(b, box, ndim);
	t_pk_str(b, "shard_sizes");
	list(b, box + ndim, ndim);
	t_pk_setitems(b);
	t_pk_tuple(b);
	t_pk_build(b);
	t_pk_setitems(b);
	t_pk_tuple(b);
	t_pk_build(b);
}

static void metadata(struct dcp_buf *b, const int64_t *shape, size_t ndim)
{
	instance(b, ST ".sharded_tensor.metadata", "ShardedTensorMetadata");
	begin_state(b);
	t_pk_str(b, "size");
	size(b, shape, ndim);
	t_pk_str(b, "tensor_properties");
	instance(b, ST ".sharded_tensor.metadata", "TensorProperties");
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
		instance(b, ST ".sharded_tensor.api", "ShardedTensor");
	} else {
		t_pk_global(b, "torch._tensor", "_rebuild_from_type_v2");
		t_pk_mark(b);
		t_pk_global(b, "torch._utils", "_rebuild_wrapper_subclass");
		t_pk_global(b, ST ".sharded_tensor.api", "ShardedTensor");
		wrapper(b, ST ".sharded_tensor.api", "ShardedTensor", shape, ndim);
	}
	t_pk_mark(b);
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++)
		shard(b, i, boxes + 2 * ndim * i, ndim);
	t_pk_appends(b);
	metadata(b, shape, ndim);
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
