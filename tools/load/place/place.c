/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from a stretch of a file to the destination. Elements that are stored in the wanted form
 * are copied; the others are processed a few kilobytes at a time: bytes are reversed, dtypes
 * converted, and rows placed by the strides of the destination.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "core/store/io/queue.h"
#include "tools/load/load.h"

enum {
	SCRATCH = 1024,  /* elements */
	LONG_RUN = 4096, /* bytes: longer copies bypass the caches */
	LINE = 64,       /* bytes of a cache line */
};

/* As memcpy(), for bytes that are not read again soon: long copies bypass the caches if the
 * processor can do that, because fetching @dst into the caches would cost as much as the copy. */
static void copy_run(char *dst, const uint8_t *src, uint64_t n)
{
#ifdef __SSE2__
	uint64_t head = -(uintptr_t)dst % LINE;

	if (n >= LONG_RUN) {
		memcpy(dst, src, head);
		for (dst += head, src += head, n -= head; n >= 16; n -= 16) {
			_mm_stream_si128((void *)dst, _mm_loadu_si128((const void *)src));
			dst += 16;
			src += 16;
		}
		_mm_sfence(); /* before another thread learns that the bytes are there */
	}
#endif
	memcpy(dst, src, n);
}

/* ---- elements ---- */

static void reverse_bytes(uint8_t *dst, const uint8_t *src, uint64_t n, uint32_t unit)
{
	for (uint64_t i = 0; i < n; i += unit)
		for (uint32_t k = 0; k < unit; k++)
			dst[i + k] = src[i + unit - 1 - k];
}

/* Convert @n elements, at most SCRATCH, to contiguous elements at @dst. */
static void put_elements(const struct load_target *t, char *dst, const uint8_t *src, uint64_t n)
{
	uint8_t swapped[SCRATCH * 16];

	if (t->swap) {
		reverse_bytes(swapped, src, n * t->from, t->swap);
		src = swapped;
	}
	if (t->dtype != t->shown) {
		dcp_dtype_cast(t->dtype, t->shown, dst, src, n);
	} else {
		memcpy(dst, src, n * t->from);
	}
}

/* ---- destinations ---- */

char *load_address(const struct load_target *t, uint64_t e)
{
	int64_t at = 0;

	if (!t->stride)
		return t->base + e * t->to;
	for (uint32_t d = t->ndim; d-- > 0; e /= t->shape[d])
		at += (int64_t)(e % t->shape[d]) * t->stride[d];
	return t->base + at * (int64_t)t->to;
}

void load_place_run(const struct load_target *t, uint64_t at, const uint8_t *src, uint64_t n)
{
	uint64_t e = at / t->from;

	if (t->plain) {
		copy_run(t->base + at, src, n);
		return;
	}
	for (n /= t->from; n;) {
		uint64_t now = DCP_MIN(n, (uint64_t)SCRATCH);

		if (t->stride)
			now = DCP_MIN(now, t->inner - e % t->inner);
		put_elements(t, load_address(t, e), src, now);
		e += now;
		src += now * t->from;
		n -= now;
	}
}

static void place_dims(const struct load_target *t, const struct dcp_strided *s, uint32_t k,
		       uint64_t dst, const uint8_t *src)
{
	if (k == s->ndim) {
		load_place_run(t, dst, src, s->run);
		return;
	}
	for (uint64_t i = 0; i < s->count[k]; i++)
		place_dims(t, s, k + 1, dst + i * s->dst_stride[k],
			   src + i * s->file_stride[k]);
}

void load_place(const struct load_target *t, const struct dcp_strided *s, const uint8_t *src)
{
	if (t->plain && s->ndim && s->run < LONG_RUN)
		dcp_gather_copy(t->base, src, s);
	else
		place_dims(t, s, 0, s->dst, src);
}

/* Parts as tensors of DLPack, whose structs are declared here as its dlpack.h has them. */

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
/* code, bits (0: DLPack has no such dtype), lanes */
static const uint8_t types[DCP_DTYPE_COUNT][3] = {
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

static enum load_number number_of(enum dcp_dtype t)
{
	/* clang-format off */
	static const uint8_t numbers[DCP_DTYPE_COUNT] = {
		[DCP_DTYPE_F64]         = LOAD_NUMBER_F64,
		[DCP_DTYPE_F32]         = LOAD_NUMBER_F32,
		[DCP_DTYPE_F16]         = LOAD_NUMBER_F16,
		[DCP_DTYPE_BF16]        = LOAD_NUMBER_BF16,
		[DCP_DTYPE_F8_E4M3]     = LOAD_NUMBER_F8_E4M3,
		[DCP_DTYPE_F8_E5M2]     = LOAD_NUMBER_F8_E5M2,
		[DCP_DTYPE_F8_E4M3FNUZ] = LOAD_NUMBER_F8_E4M3FNUZ,
		[DCP_DTYPE_F8_E5M2FNUZ] = LOAD_NUMBER_F8_E5M2FNUZ,
		[DCP_DTYPE_F8_E8M0]     = LOAD_NUMBER_F8_E8M0,
	};
	/* clang-format on */
	return numbers[t];
}

/* Take the dimensions of the destination, and merge neighbours where possible. False: there are too
 * many. */
static bool take_target(struct load_job *j, const struct load_target *t)
{
	uint64_t shape[LOAD_SCATTER_TARGET + 1];
	int64_t stride[LOAD_SCATTER_TARGET + 1];
	uint32_t n = 0;

	for (uint32_t d = 0; t->stride && d < t->ndim; d++) {
		if (t->shape[d] == 1)
			continue;
		if (n && (uint64_t)stride[n - 1] == (uint64_t)t->stride[d] * t->shape[d]) {
			shape[n - 1] *= t->shape[d];
			stride[n - 1] = t->stride[d];
			continue;
		}
		if (n == LOAD_SCATTER_TARGET)
			return false;
		shape[n] = t->shape[d];
		stride[n++] = t->stride[d];
	}
	memcpy(j->shape, shape, n * sizeof(*shape));
	memcpy(j->stride, stride, n * sizeof(*stride));
	j->target_ndim = n;
	return true;
}

/* The largest unit of bytes, up to 16, to which the runs are aligned on both sides. */
static uint32_t unit_of(const struct load_job *j, uint64_t run)
{
	uint64_t all = j->src | (j->dst + j->at) | run | 16;

	for (uint32_t k = 0; k < j->ndim; k++)
		all |= j->src_stride[k] | j->dst_stride[k];
	return (uint32_t)(all & -all);
}

bool load_job_make(struct load_job *j, const struct load_target *t, const struct dcp_strided *r,
		   uint64_t src)
{
	*j = (struct load_job){ .src = src,
				.dst = (uint64_t)(uintptr_t)t->base,
				.at = r->dst,
				.elements = !t->plain,
				.from = t->from,
				.to = t->to,
				.swap = t->swap,
				.ndim = r->ndim };
	for (uint32_t k = 0; k < r->ndim; k++) {
		j->count[k] = r->count[k];
		j->src_stride[k] = r->file_stride[k];
		j->dst_stride[k] = r->dst_stride[k];
	}
	if (!t->plain && t->dtype != t->shown) {
		j->was = number_of(t->dtype);
		j->is = number_of(t->shown);
		if (!j->was || !j->is)
			return false;
	}
	if (!t->plain && !take_target(j, t))
		return false;
	j->unit = t->plain ? unit_of(j, r->run) : t->from;
	j->per_run = r->run / j->unit;
	j->units = dcp_strided_bytes(r) / j->unit;
	return true;
}

bool load_job_extend(struct load_job *j, const struct load_target *t,
		     const struct dcp_strided *r, uint64_t src)
{
	uint64_t n = j->units * j->unit, first = j->first;
	struct dcp_strided both = { .dst = j->at, .run = n + r->run };

	if (j->ndim || r->ndim || j->dst != (uint64_t)(uintptr_t)t->base || src != j->src + n ||
	    r->dst != j->at + n)
		return false;
	load_job_make(j, t, &both, j->src);
	j->first = first;
	return true;
}

bool load_job_can(const struct load_target *t)
{
	struct load_job j;

	return (t->plain || take_target(&j, t)) &&
	       (t->dtype == t->shown || (number_of(t->dtype) && number_of(t->shown)));
}
