/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sums: macros for functions that sum numbers and their squares in double precision, or find the
 * ends of their bits. Each is made twice, for any processor and for AVX2 (core/base/simd.h); both
 * add in the same order.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/simd.h"

/* Distance from the elements being summed to the elements being fetched: one block, so that the
 * next block is in the cache when it is first read. */
#define DCP_SUM_AHEAD 2048

/* Add the distances of the lanes of @v from the mean, and their squares. */
#define DCP_SUM_LANES(v, at)                                                                   \
	do {                                                                                   \
		dcp_v4d d_ = (v);                                                              \
		d_ -= from;                                                                    \
		s[at] += d_;                                                                   \
		q[at] += d_ * d_;                                                              \
	} while (0)

/* Beginning and end of a function that sums; less than 16 numbers from @i on are left for the
 * end. */
#define DCP_SUM_BEGIN(about)                                                                   \
	const dcp_v4d from = { about, about, about, about };                                   \
	dcp_v4d s[4] = { 0 }, q[4] = { 0 };                                                    \
	double s1 = 0, q1 = 0, d;                                                              \
	size_t i = 0

#define DCP_SUM_END(one, about)                                                                \
	do {                                                                                   \
		for (; i < n; i++) {                                                           \
			d = (one) - (about);                                                   \
			s1 += d;                                                               \
			q1 += d * d;                                                           \
		}                                                                              \
		s[0] = (s[0] + s[1]) + (s[2] + s[3]);                                          \
		q[0] = (q[0] + q[1]) + (q[2] + q[3]);                                          \
		*sum = s1 + s[0][0] + s[0][1] + s[0][2] + s[0][3];                             \
		*square = q1 + q[0][0] + q[0][1] + q[0][2] + q[0][3];                          \
	} while (0)

/*
 * Define @name(), which sums the distances of @n numbers of @type from @about, and their squares.
 * @lanes(x) adds the 16 numbers at x + i, @one is number i as a double; @convert converts floats to
 * doubles.
 */
#define DCP_DEFINE_SUM_IN(way, convert, name, type, lanes, one, about)                         \
	static way void name(const type *x, size_t n, double mean, double *sum,                \
			     double *square)                                                   \
	{                                                                                      \
		DCP_SUM_BEGIN(about);                                                          \
                                                                                               \
		for (; i + 16 <= n; i += 16) {                                                 \
			__builtin_prefetch(x + i + DCP_SUM_AHEAD);                             \
			lanes(x, convert);                                                     \
		}                                                                              \
		DCP_SUM_END(one, about);                                                       \
	}

/* If a double holds the square exactly, as of numbers with up to 26 bits, multiplying and adding in
 * one step gives the same sum as in two. So sums about zero use one step. */
#define DCP_DEFINE_SUM(name, type, lanes, one, exact)                                          \
	DCP_DEFINE_SUM_IN(DCP_SIMD_FUSED, DCP_V4D_WIDE, name##_fused, type, lanes, one, 0)     \
	DCP_DEFINE_SUM_IN(DCP_SIMD_WIDE, DCP_V4D_WIDE, name##_wide, type, lanes, one, mean)    \
	DCP_DEFINE_SUM_IN(DCP_SIMD_LOOPS, DCP_V4D_LEAST, name##_least, type, lanes, one, mean) \
	static void name(const type *x, size_t n, double mean, double *sum, double *square)    \
	{                                                                                      \
		if ((exact) && mean == 0 && dcp_simd_is_fused())                               \
			name##_fused(x, n, 0, sum, square);                                    \
		else if (dcp_simd_is_wide())                                                   \
			name##_wide(x, n, mean, sum, square);                                  \
		else                                                                           \
			name##_least(x, n, mean, sum, square);                                 \
	}

#define DCP_LANES_OF_F64(x, convert)                                                           \
	for (size_t k = 0; k < 4; k++) {                                                       \
		dcp_v4d f;                                                                     \
                                                                                               \
		memcpy(&f, (x) + i + 4 * k, sizeof(f));                                        \
		DCP_SUM_LANES(f, k);                                                           \
	}

#define DCP_LANES_OF_F32(x, convert)                                                           \
	for (size_t k = 0; k < 4; k++) {                                                       \
		dcp_v4f f;                                                                     \
                                                                                               \
		memcpy(&f, (x) + i + 4 * k, sizeof(f));                                        \
		DCP_SUM_LANES(convert(f), k);                                                  \
	}

/* A word holds two BF16, each of which is the upper half of a float. */
#define DCP_LANES_OF_BF16(x, convert)                                                          \
	for (size_t k = 0; k < 2; k++) {                                                       \
		dcp_v4i w;                                                                     \
                                                                                               \
		memcpy(&w, (x) + i + 8 * k, sizeof(w));                                        \
		DCP_SUM_LANES(convert((dcp_v4f)(w << 16)), 2 * k);                             \
		DCP_SUM_LANES(convert((dcp_v4f)(w & (int)0xffff0000)), 2 * k + 1);             \
	}

/* The ends of the bits of a block, as signed and as unsigned integers. */
struct dcp_range {
	int64_t low, high;
	uint64_t least, most;
};

/* Define find_@bits(), and count_below_@bits(), which counts the magnitudes below @edge. */
#define DCP_DEFINE_RANGE(bits, top)                                                            \
	DCP_SIMD_BODY void range_##bits(const void *p, size_t n, struct dcp_range *out)        \
	{                                                                                      \
		const int##bits##_t *b = p;                                                    \
		const uint##bits##_t *u = p;                                                   \
		int##bits##_t low = top, high = -top - 1;                                      \
		uint##bits##_t least = UINT##bits##_MAX, most = 0;                             \
                                                                                               \
		for (size_t i = 0; i < n; i++) {                                               \
			low = b[i] < low ? b[i] : low;                                         \
			high = b[i] > high ? b[i] : high;                                      \
			least = u[i] < least ? u[i] : least;                                   \
			most = u[i] > most ? u[i] : most;                                      \
		}                                                                              \
		*out = (struct dcp_range){ low, high, least, most };                           \
	}                                                                                      \
	DCP_SIMD_BOTH(find_##bits, range_##bits,                                               \
		      (const void *p, size_t n, struct dcp_range *out), (p, n, out))           \
	DCP_SIMD_BODY void below_##bits(const void *p, size_t n, uint64_t edge, uint64_t *out) \
	{                                                                                      \
		const uint##bits##_t *b = p;                                                   \
		uint32_t count = 0;                                                            \
                                                                                               \
		for (size_t i = 0; i < n; i++)                                                 \
			count += (b[i] & (uint##bits##_t)top) < (uint##bits##_t)edge;          \
		*out = count;                                                                  \
	}                                                                                      \
	DCP_SIMD_BOTH(count_below_##bits, below_##bits,                                        \
		      (const void *p, size_t n, uint64_t edge, uint64_t *out),                 \
		      (p, n, edge, out))

/*
 * Sums about 0 of @n BF16, a multiple of 16, and their range, in one pass, because neither keeps
 * the processor busy alone. Four ends would not stay in registers, and three suffice if both signs
 * occur. Returns false if all have one sign: then the range is not found.
 */
#if defined(__x86_64__)
static DCP_SIMD_FUSED bool dcp_survey_bf16(const uint16_t *x, size_t n, struct dcp_range *r,
					   double *sum, double *square)
{
	__m256i high = _mm256_set1_epi16(INT16_MIN), most = _mm256_setzero_si256();
	__m256i least = _mm256_set1_epi16(-1); /* twice the magnitude */
	int16_t h[16];
	uint16_t m[16], l[16];
	DCP_SUM_BEGIN(0);

	for (; i + 16 <= n; i += 16) {
		__m256i v = _mm256_loadu_si256((const void *)(x + i));

		__builtin_prefetch(x + i + DCP_SUM_AHEAD);
		high = _mm256_max_epi16(high, v);
		most = _mm256_max_epu16(most, v);
		least = _mm256_min_epu16(least, _mm256_add_epi16(v, v));
		DCP_LANES_OF_BF16(x, DCP_V4D_WIDE);
	}
	DCP_SUM_END(0, 0);
	_mm256_storeu_si256((void *)h, high);
	_mm256_storeu_si256((void *)m, most);
	_mm256_storeu_si256((void *)l, least);
	*r = (struct dcp_range){ .high = INT16_MIN, .least = UINT16_MAX };
	for (size_t k = 0; k < 16; k++) {
		r->high = DCP_MAX(r->high, (int64_t)h[k]);
		r->most = DCP_MAX(r->most, (uint64_t)m[k]);
		r->least = DCP_MIN(r->least, (uint64_t)l[k] / 2);
	}
	r->low = INT16_MIN + (int64_t)r->least;
	return r->high >= 0 && r->most > INT16_MAX;
}
#else
static bool dcp_survey_bf16(const uint16_t *x, size_t n, struct dcp_range *r, double *sum,
			    double *square)
{
	return false; /* never called: no other processor is fused */
}
#endif
