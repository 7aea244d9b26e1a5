/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that places bytes: runs that are too short for copies of their own, and elements that
 * are converted, reversed or go to a strided destination. scatter.ptx is made from it by
 *
 *	tests/lint/ptx.py --write
 *
 * It is plain C apart from the names below, so that a test can compile it for the processor.
 */
#ifdef __CUDACC__
#define KERNEL extern "C" __global__
#define DEVICE static __device__ inline
#define BLOCK blockIdx.x
#define THREAD threadIdx.x
#endif
#define DCP_CAST_FN DEVICE
#include "core/base/cast_bits.h"
#include "tools/load/memory/scatter.h"

struct __attribute__((aligned(16))) load_sixteen {
	uint64_t half[2];
};

/* The float32 bits of one stored number. */
DEVICE uint32_t widen(uint32_t was, uint64_t x)
{
	uint32_t b = (uint32_t)x;

	switch (was) {
	case LOAD_NUMBER_F64:
		/* A GPU makes all NaNs equal; a processor keeps the sign and the payload. */
		if ((x & ~(1ull << 63)) > 0x7ffull << 52)
			return (uint32_t)(x >> 32 & 0x80000000u) | 0x7fc00000u |
			       (uint32_t)(x >> 29 & 0x3fffffu);
		return dcp_bits_narrow_f32(x);
	case LOAD_NUMBER_F16:
		return dcp_bits_widen_f16((uint16_t)b);
	case LOAD_NUMBER_BF16:
		return dcp_bits_widen_bf16((uint16_t)b);
	case LOAD_NUMBER_F8_E4M3:
		return DCP_BITS_E4M3(b);
	case LOAD_NUMBER_F8_E5M2:
		return DCP_BITS_E5M2(b);
	case LOAD_NUMBER_F8_E4M3FNUZ:
		return DCP_BITS_E4M3FNUZ(b);
	case LOAD_NUMBER_F8_E5M2FNUZ:
		return DCP_BITS_E5M2FNUZ(b);
	case LOAD_NUMBER_F8_E8M0:
		return DCP_BITS_E8M0(b);
	default:
		return b;
	}
}

DEVICE uint32_t narrow(uint32_t is, uint32_t bits)
{
	switch (is) {
	case LOAD_NUMBER_F16:
		return dcp_bits_narrow_f16(bits);
	case LOAD_NUMBER_BF16:
		return dcp_bits_narrow_bf16(bits);
	case LOAD_NUMBER_F8_E4M3:
		return dcp_bits_narrow_f8_e4m3(bits);
	case LOAD_NUMBER_F8_E5M2:
		return dcp_bits_narrow_f8_e5m2(bits);
	default:
		return bits;
	}
}

/* One element of job @j, stored at @src, to @dst; neither need be aligned. */
DEVICE void put(const struct load_job *j, uint8_t *dst, const uint8_t *src)
{
	uint64_t x = 0;

	if (j->was == LOAD_NUMBER_SAME) {
		for (uint32_t k = 0; k < j->from; k++)
			dst[k] = src[j->swap ? k / j->swap * j->swap + j->swap - 1 - k % j->swap
					     : k];
		return;
	}
	for (uint32_t k = 0; k < j->from; k++)
		x |= (uint64_t)src[j->swap ? j->from - 1 - k : k] << 8 * k;
	x = narrow(j->is, widen(j->was, x));
	for (uint32_t k = 0; k < j->to; k++)
		dst[k] = (uint8_t)(x >> 8 * k);
}

/* The place of element @e of the array. */
DEVICE uint8_t *place_of(const struct load_job *j, uint64_t e)
{
	int64_t at = 0;

	if (!j->target_ndim)
		return (uint8_t *)(uintptr_t)j->dst + e * j->to;
	for (uint32_t d = j->target_ndim; d-- > 0; e /= j->shape[d])
		at += (int64_t)(e % j->shape[d]) * j->stride[d];
	return (uint8_t *)(uintptr_t)j->dst + at * (int64_t)j->to;
}

DEVICE void copy_unit(uint8_t *dst, const uint8_t *src, uint32_t unit)
{
	switch (unit) {
	case 16:
		*(struct load_sixteen *)dst = *(const struct load_sixteen *)src;
		break;
	case 8:
		*(uint64_t *)dst = *(const uint64_t *)src;
		break;
	case 4:
		*(uint32_t *)dst = *(const uint32_t *)src;
		break;
	case 2:
		*(uint16_t *)dst = *(const uint16_t *)src;
		break;
	default:
		*dst = *src;
	}
}

DEVICE void place_unit(const struct load_job *j, uint64_t i)
{
	uint64_t run = i / j->per_run, off = i % j->per_run * j->unit, src = j->src + off,
		 at = j->at + off;

	for (uint32_t k = j->ndim; k-- > 0; run /= j->count[k]) {
		src += run % j->count[k] * j->src_stride[k];
		at += run % j->count[k] * j->dst_stride[k];
	}
	if (j->elements)
		put(j, place_of(j, at / j->from), (const uint8_t *)(uintptr_t)src);
	else
		copy_unit((uint8_t *)(uintptr_t)j->dst + at, (const uint8_t *)(uintptr_t)src,
			  j->unit);
}

KERNEL void dcpload_scatter(const struct load_job *jobs, uint32_t n)
{
	uint32_t lo = 0, hi = n;
	const struct load_job *j;
	uint64_t first, last;

	while (hi - lo > 1) { /* the job of this block */
		uint32_t mid = lo + (hi - lo) / 2;

		if (jobs[mid].first <= BLOCK)
			lo = mid;
		else
			hi = mid;
	}
	j = &jobs[lo];
	first = (BLOCK - j->first) * LOAD_SCATTER_UNITS + THREAD;
	last = (BLOCK - j->first + 1) * LOAD_SCATTER_UNITS;
	if (last > j->units)
		last = j->units;
	for (uint64_t i = first; i < last; i += LOAD_SCATTER_THREADS)
		place_unit(j, i);
}
