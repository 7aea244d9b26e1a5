/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from a stretch of a file to the destination. What is stored as it is wanted is copied as it
 * is; the rest is done by elements, a few kilobytes at a time: bytes are reversed, dtypes converted
 * and rows put where the strides of the destination say.
 */
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "core/store/io/gather.h"
#include "tools/load/load.h"

enum {
	SCRATCH = 1024,  /* elements */
	LONG_RUN = 4096, /* bytes: from here on copies go past the caches */
	LINE = 64,       /* bytes of a cache line */
};

/* As memcpy(), for what is not read again soon: much of it past the caches, where the processor can. Fetching @dst into
 * them would cost as much as the copy. */
static void copy(char *dst, const uint8_t *src, uint64_t n)
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
		_mm_sfence(); /* before another thread learns that it is there */
	}
#endif
	memcpy(dst, src, n);
}

/* ---- elements ---- */

static void reverse(uint8_t *dst, const uint8_t *src, uint64_t n, uint32_t unit)
{
	for (uint64_t i = 0; i < n; i += unit)
		for (uint32_t k = 0; k < unit; k++)
			dst[i + k] = src[i + unit - 1 - k];
}

/* Convert @n elements, at most SCRATCH, to contiguous ones at @dst. */
static void put(const struct load_target *t, char *dst, const uint8_t *src, uint64_t n)
{
	uint8_t swapped[SCRATCH * 16];

	if (t->swap) {
		reverse(swapped, src, n * t->from, t->swap);
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
		copy(t->base + at, src, n);
		return;
	}
	for (n /= t->from; n;) {
		uint64_t now = DCP_MIN(n, (uint64_t)SCRATCH);

		if (t->stride)
			now = DCP_MIN(now, t->inner - e % t->inner);
		put(t, load_address(t, e), src, now);
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
