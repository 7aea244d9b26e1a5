/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simd: compiles a loop twice, for the baseline processor and for processors with AVX2.
 *
 * The body is a DCP_SIMD_BODY function in plain C or with vector types of the compiler.
 * DCP_SIMD_WIDE functions call the body, and may be called only if dcp_simd_is_wide(). Both
 * versions give the same results, because neither fuses multiplications and additions.
 */
#pragma once
#include <stdbool.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define DCP_SIMD_LOOPS
#else
#define DCP_SIMD_LOOPS __attribute__((optimize("O3")))
#endif

#define DCP_SIMD_BODY static inline __attribute__((always_inline)) DCP_SIMD_LOOPS

#if defined(__x86_64__)
#define DCP_SIMD_WIDE __attribute__((target("avx2"))) DCP_SIMD_LOOPS
static inline bool dcp_simd_is_wide(void)
{
	return __builtin_cpu_supports("avx2");
}
/* A version that also multiplies and adds in one step, for loops whose results are the same either
 * way. */
#define DCP_SIMD_FUSED __attribute__((target("avx2,fma"))) DCP_SIMD_LOOPS
static inline bool dcp_simd_is_fused(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define DCP_SIMD_WIDE DCP_SIMD_LOOPS
#define DCP_SIMD_FUSED DCP_SIMD_LOOPS
static inline bool dcp_simd_is_wide(void)
{
	return false;
}
static inline bool dcp_simd_is_fused(void)
{
	return false;
}
#endif

/* Define @name (@params), which calls the version of @body (@args) that fits the processor; the
 * body returns nothing. */
#define DCP_SIMD_BOTH(name, body, params, args)                                                \
	static DCP_SIMD_WIDE void name##_wide params                                           \
	{                                                                                      \
		body args;                                                                     \
	}                                                                                      \
	static DCP_SIMD_LOOPS void name##_least params                                         \
	{                                                                                      \
		body args;                                                                     \
	}                                                                                      \
	static void name params                                                                \
	{                                                                                      \
		if (dcp_simd_is_wide())                                                        \
			name##_wide args;                                                      \
		else                                                                           \
			name##_least args;                                                     \
	}

#define DCP_LANES 4
typedef double dcp_v4d __attribute__((vector_size(32)));
typedef float dcp_v4f __attribute__((vector_size(16)));
typedef int dcp_v4i __attribute__((vector_size(16)));
typedef long long dcp_v4l __attribute__((vector_size(32)));

/* Macros, because functions with vector parameters have different calling conventions in the two
 * versions. */
#define DCP_V4D_ABS(x) ((dcp_v4d)((dcp_v4l)(x)&0x7fffffffffffffffLL))
#define DCP_V4D_PICK(mask, x, y) ((dcp_v4d)(((mask) & (dcp_v4l)(x)) | (~(mask) & (dcp_v4l)(y))))
#define DCP_V4D_MAX(x, y) DCP_V4D_PICK((x) > (y), x, y)
#define DCP_V4D_SUM(x) (((x)[0] + (x)[1]) + ((x)[2] + (x)[3]))
/* Four floats as doubles. The AVX2 version has a definition of its own, because GCC 12 would use
 * four instructions instead of one. */
#define DCP_V4D_LEAST(f) __builtin_convertvector(f, dcp_v4d)
#if defined(__x86_64__)
#define DCP_V4D_WIDE(f) ((dcp_v4d)_mm256_cvtps_pd((__m128)(f)))
#else
#define DCP_V4D_WIDE(f) DCP_V4D_LEAST(f)
#endif
