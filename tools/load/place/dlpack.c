/* SPDX-License-Identifier: Apache-2.0 */
/* Parts as tensors of DLPack, whose structs are declared here as its dlpack.h has them. */
#include <errno.h>
#include <stdlib.h>

#include "tools/load/load.h"
#include "tools/load/memory/memory.h"

static const uint8_t device_types[] = {
	[DCPLOAD_MEMORY_HOST] = 1,
	[DCPLOAD_MEMORY_PINNED] = 3,
	[DCPLOAD_MEMORY_DEVICE] = 2,
	[DCPLOAD_MEMORY_MANAGED] = 13,
};

struct DLManagedTensor {
	void *data;
	int32_t device_type, device;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides; /* elements; NULL: row-major */
	uint64_t byte_offset;
	void *manager;
	void (*deleter)(struct DLManagedTensor *self);
};

struct given {
	struct DLManagedTensor tensor;
	struct load_block *block;
	int64_t shape[DCPLOAD_MAX_NDIM];
};

/* clang-format off */
static const uint8_t types[DCP_DTYPE_COUNT][3] = { /* code, bits (0: it has no such dtype), lanes */
	[DCP_DTYPE_I64]         = { 0, 64, 1 },
	[DCP_DTYPE_I32]         = { 0, 32, 1 },
	[DCP_DTYPE_I16]         = { 0, 16, 1 },
	[DCP_DTYPE_I8]          = { 0, 8, 1 },
	[DCP_DTYPE_U64]         = { 1, 64, 1 },
	[DCP_DTYPE_U32]         = { 1, 32, 1 },
	[DCP_DTYPE_U16]         = { 1, 16, 1 },
	[DCP_DTYPE_U8]          = { 1, 8, 1 },
	[DCP_DTYPE_F64]         = { 2, 64, 1 },
	[DCP_DTYPE_F32]         = { 2, 32, 1 },
	[DCP_DTYPE_F16]         = { 2, 16, 1 },
	[DCP_DTYPE_BF16]        = { 4, 16, 1 },
	[DCP_DTYPE_C32]         = { 5, 32, 1 },
	[DCP_DTYPE_C64]         = { 5, 64, 1 },
	[DCP_DTYPE_C128]        = { 5, 128, 1 },
	[DCP_DTYPE_BOOL]        = { 6, 8, 1 },
	[DCP_DTYPE_F8_E4M3]     = { 10, 8, 1 },
	[DCP_DTYPE_F8_E4M3FNUZ] = { 11, 8, 1 },
	[DCP_DTYPE_F8_E5M2]     = { 12, 8, 1 },
	[DCP_DTYPE_F8_E5M2FNUZ] = { 13, 8, 1 },
	[DCP_DTYPE_F8_E8M0]     = { 14, 8, 1 },
	[DCP_DTYPE_F4]          = { 17, 4, 2 },
};
/* clang-format on */

static void take_back(struct DLManagedTensor *self)
{
	struct given *g = (struct given *)self;

	load_block_drop(g->block);
	free(g);
}

int dcpload_part_dlpack(const struct dcpload_plan *p, uint64_t i, struct DLManagedTensor **out,
			struct dcpload_error *err)
{
	const struct load_want *w = i < p->nwant ? &p->want[i] : NULL;
	const uint8_t *type = w ? types[w->target.shown] : NULL;
	struct given *g;

	if (!w || !w->nbytes || !load_block_has(p->memory, w->target.base))
		return load_fail(err, -EINVAL, "part %llu is not in memory of the library",
				 (unsigned long long)i);
	if (!type[1])
		return load_fail(err, -ENOTSUP, "%s: DLPack has no dtype for %s", w->key,
				 w->to_name);
	g = calloc(1, sizeof(*g));
	if (!g)
		return load_fail(err, -ENOMEM, "out of memory");
	for (uint32_t d = 0; d < w->ndim; d++)
		g->shape[d] = (int64_t)w->shape[d];
	g->block = load_block_share(p->memory);
	g->tensor =
		(struct DLManagedTensor){ .data = w->target.base,
					  .device_type = device_types[p->memory->kind],
					  .device = p->device ? (int32_t)p->device->number : 0,
					  .ndim = (int32_t)w->ndim,
					  .code = type[0],
					  .bits = type[1],
					  .lanes = type[2],
					  .shape = g->shape,
					  .manager = g,
					  .deleter = take_back };
	*out = &g->tensor;
	return 0;
}
