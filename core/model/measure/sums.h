/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sums: macros that define functions which sum numbers and their squares in double precision,
 * each for the least processor and for one with AVX2 (core/base/simd.h). Both add in the same
 * order.
 */
#pragma once
#include <stddef.h>
#include <string.h>

#include "core/base/simd.h"

/* Add what the lanes of @v have to the mean, and its squares. */
#define DCP_SUM_LANES(v, at)                                                                   \
	do {                                                                                   \
		dcp_v4d d_ = (v);                                                              \
		d_ -= from;                                                                    \
		s[at] += d_;                                                                   \
		q[at] += d_ * d_;                                                              \
	} while (0)

/*
 * Define @name(): sums of the distances from @mean of @n numbers of @type, and of their
 * squares. @lanes(x) adds 16 of them at x + i, @one is number i as a double; @convert makes
 * doubles of floats.
 */
#define DCP_DEFINE_SUM_IN(way, convert, name, type, lanes, one)                                \
	static way void name(const type *x, size_t n, double mean, double *sum,                \
			     double *square)                                                   \
	{                                                                                      \
		const dcp_v4d from = { mean, mean, mean, mean };                               \
		dcp_v4d s[4] = { 0 }, q[4] = { 0 };                                            \
		double s1 = 0, q1 = 0, d;                                                      \
		size_t i = 0;                                                                  \
                                                                                               \
		for (; i + 16 <= n; i += 16)                                                   \
			lanes(x, convert);                                                     \
		for (; i < n; i++) {                                                           \
			d = (one)-mean;                                                        \
			s1 += d;                                                               \
			q1 += d * d;                                                           \
		}                                                                              \
		s[0] = (s[0] + s[1]) + (s[2] + s[3]);                                          \
		q[0] = (q[0] + q[1]) + (q[2] + q[3]);                                          \
		*sum = s1 + s[0][0] + s[0][1] + s[0][2] + s[0][3];                             \
		*square = q1 + q[0][0] + q[0][1] + q[0][2] + q[0][3];                          \
	}

#define DCP_DEFINE_SUM(name, type, lanes, one)                                                 \
	DCP_DEFINE_SUM_IN(DCP_SIMD_WIDE, DCP_V4D_WIDE, name##_wide, type, lanes, one)          \
	DCP_DEFINE_SUM_IN(DCP_SIMD_LOOPS, DCP_V4D_LEAST, name##_least, type, lanes, one)       \
	static void name(const type *x, size_t n, double mean, double *sum, double *square)    \
	{                                                                                      \
		if (dcp_simd_is_wide())                                                        \
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

/* Two BF16 are the halves of a word, and each is the upper half of a float. */
#define DCP_LANES_OF_BF16(x, convert)                                                          \
	for (size_t k = 0; k < 2; k++) {                                                       \
		dcp_v4i w;                                                                     \
                                                                                               \
		memcpy(&w, (x) + i + 8 * k, sizeof(w));                                        \
		DCP_SUM_LANES(convert((dcp_v4f)(w << 16)), 2 * k);                             \
		DCP_SUM_LANES(convert((dcp_v4f)(w & (int)0xffff0000)), 2 * k + 1);             \
	}
