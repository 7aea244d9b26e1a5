/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Widening moves bits, never numbers: a float operation would quieten signalling NaNs.
 * One-byte types go through tables that the compiler computes from their definition.
 */
#include "core/base/cast.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/base/endian.h"

/*
 * float32 bits of a small float with @mb mantissa bits (at most 3) and the given bias, its
 * sign taken off (@m mantissa, @e exponent field). A subnormal is m * 2^(1 - bias - mb):
 * its highest set bit becomes the implicit one.
 */
#define TOP(m) ((m) >= 4 ? 2u : (m) >= 2 ? 1u : 0u)
#define SUBNORMAL(m, mb, bias)                                                                 \
	((m) == 0 ? 0u                                                                         \
		  : (128u - (bias) - (mb) + TOP(m)) << 23 | ((m) ^ 1u << TOP(m))               \
								    << (23 - TOP(m)))
#define NORMAL(e, m, mb, bias) ((127u - (bias) + (e)) << 23 | (m) << (23 - (mb)))
#define FINITE(e, m, mb, bias) ((e) == 0 ? SUBNORMAL(m, mb, bias) : NORMAL(e, m, mb, bias))
#define SIGN8(x) (((x)&0x80u) << 24)
#define INF_NAN(m, mb) (0x7f800000u | (m) << (23 - (mb)))

#define E4M3(x)                                                                                \
	(SIGN8(x) |                                                                            \
	 (((x)&0x7fu) == 0x7fu ? INF_NAN(7u, 3) : FINITE((x) >> 3 & 15u, (x)&7u, 3u, 7u)))
#define E5M2(x)                                                                                \
	(SIGN8(x) | (((x)&0x7cu) == 0x7cu ? INF_NAN((x)&3u, 2)                                 \
					  : FINITE((x) >> 2 & 31u, (x)&3u, 2u, 15u)))
/* The one NaN of the FNUZ types is what would have been negative zero. */
#define E4M3FNUZ(x)                                                                            \
	((x) == 0x80u ? 0xffc00000u : SIGN8(x) | FINITE((x) >> 3 & 15u, (x)&7u, 3u, 8u))
#define E5M2FNUZ(x)                                                                            \
	((x) == 0x80u ? 0xffc00000u : SIGN8(x) | FINITE((x) >> 2 & 31u, (x)&3u, 2u, 16u))
/* 2^(x - 127): only 2^-127 is a float32 subnormal. */
#define E8M0(x) ((x) == 0xffu ? 0x7fc00000u : (x) == 0 ? 0x00400000u : (x) << 23)
#define E2M1(x) (((x)&8u) << 28 | FINITE((x) >> 1 & 3u, (x)&1u, 1u, 1u))
#define E2M1_PAIR(x)                                                                           \
	{                                                                                      \
		E2M1((x)&15u), E2M1((x) >> 4)                                                  \
	}

#define ROW4(f, x) f((x)), f((x) + 1u), f((x) + 2u), f((x) + 3u)
#define ROW16(f, x) ROW4(f, x), ROW4(f, (x) + 4u), ROW4(f, (x) + 8u), ROW4(f, (x) + 12u)
#define ROW64(f, x) ROW16(f, x), ROW16(f, (x) + 16u), ROW16(f, (x) + 32u), ROW16(f, (x) + 48u)
#define ROW256(f) ROW64(f, 0u), ROW64(f, 64u), ROW64(f, 128u), ROW64(f, 192u)

static const uint32_t f8_e4m3_bits[256] = { ROW256(E4M3) };
static const uint32_t f8_e5m2_bits[256] = { ROW256(E5M2) };
static const uint32_t f8_e4m3fnuz_bits[256] = { ROW256(E4M3FNUZ) };
static const uint32_t f8_e5m2fnuz_bits[256] = { ROW256(E5M2FNUZ) };
static const uint32_t f8_e8m0_bits[256] = { ROW256(E8M0) };
static const uint32_t f4_e2m1_bits[256][2] = { ROW256(E2M1_PAIR) };

#define DEFINE_WIDEN_BYTES(type)                                                               \
	void dcp_cast_##type##_to_f32(void *dst, const void *src, size_t n)                    \
	{                                                                                      \
		uint8_t *to = dst;                                                             \
		const uint8_t *from = src;                                                     \
                                                                                               \
		for (size_t i = 0; i < n; i++)                                                 \
			dcp_store_le32(to + 4 * i, type##_bits[from[i]]);                      \
	}

DEFINE_WIDEN_BYTES(f8_e4m3)
DEFINE_WIDEN_BYTES(f8_e5m2)
DEFINE_WIDEN_BYTES(f8_e4m3fnuz)
DEFINE_WIDEN_BYTES(f8_e5m2fnuz)
DEFINE_WIDEN_BYTES(f8_e8m0)

void dcp_cast_f4_e2m1_to_f32(void *dst, const void *src, size_t n)
{
	uint8_t *to = dst;
	const uint8_t *from = src;

	for (size_t i = 0; i < n / 2; i++)
		memcpy(to + 8 * i, f4_e2m1_bits[from[i]], 8);
}

static inline float as_float(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint32_t as_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static inline uint32_t widen_bf16(uint16_t h)
{
	return (uint32_t)h << 16;
}

/* A subnormal is mant * 2^-24, which float32 holds exactly as a normal number. */
static inline uint32_t widen_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fffu;
	uint32_t bits = as_bits((float)(int32_t)rest * 0x1p-24f);

	if (rest >= 0x400)
		bits = (rest << 13) + (rest >= 0x7c00 ? 224u << 23 : 112u << 23);
	return sign | bits;
}

#define SIGN32 0x80000000u
#define INF32 0x7f800000u

static inline uint16_t narrow_bf16(uint32_t x)
{
	if ((x & ~SIGN32) > INF32)
		return (uint16_t)(x >> 16 | 0x40);
	return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

/*
 * Round @x, its sign taken off, to a format of @mb mantissa bits; numbers beyond its range
 * come out larger than any it has. Below the smallest normal number, 2^(1 - bias), the
 * addition of a power of two whose last bit is worth the smallest subnormal does the rounding.
 */
static inline uint32_t narrow(uint32_t x, unsigned mb, unsigned bias)
{
	uint32_t cut = 23 - mb, power = (151 - bias - mb) << 23;

	if (x < (128 - bias) << 23)
		return as_bits(as_float(x) + as_float(power)) - power;
	return ((x + (1u << (cut - 1)) - 1 + (x >> cut & 1)) >> cut) - ((127 - bias) << mb);
}

static inline uint16_t narrow_f16(uint32_t x)
{
	uint32_t sign = x >> 16 & 0x8000, a = x & ~SIGN32, to = narrow(a, 10, 15);

	if (a > INF32)
		to = 0x7e00 | (a >> 13 & 0x3ff);
	return (uint16_t)(sign | (to > 0x7c00 && a <= INF32 ? 0x7c00 : to));
}

static inline uint8_t narrow_f8_e4m3(uint32_t x)
{
	uint32_t a = x & ~SIGN32, to = narrow(a, 3, 7);

	return (uint8_t)((x >> 24 & 0x80) | (a > INF32 ? 0x7f : to > 0x7e ? 0x7e : to));
}

static inline uint8_t narrow_f8_e5m2(uint32_t x)
{
	uint32_t a = x & ~SIGN32, to = narrow(a, 2, 15);

	return (uint8_t)((x >> 24 & 0x80) | (a > INF32 ? 0x7f : to > 0x7c ? 0x7c : to));
}

static inline uint32_t narrow_f32(uint64_t x)
{
	double d;

	memcpy(&d, &x, sizeof(d));
	return as_bits((float)d);
}

/*
 * Blocks of a fixed length on aligned copies: at -O2 compilers turn only such loops into
 * vector code.
 */
#define BLOCK 32
#define DEFINE_CAST(from, from_bits, to, to_bits, one)                                         \
	void dcp_cast_##from##_to_##to(void *dst, const void *src, size_t n)                   \
	{                                                                                      \
		const uint8_t *s = src;                                                        \
		uint8_t *d = dst;                                                              \
		uint##from_bits##_t in[BLOCK];                                                 \
		uint##to_bits##_t out[BLOCK];                                                  \
                                                                                               \
		for (; n >= BLOCK; n -= BLOCK, s += sizeof(in), d += sizeof(out)) {            \
			memcpy(in, s, sizeof(in));                                             \
			for (int k = 0; k < BLOCK; k++)                                        \
				out[k] = one(in[k]);                                           \
			memcpy(d, out, sizeof(out));                                           \
		}                                                                              \
		for (; n; n--, s += sizeof(*in), d += sizeof(*out)) {                          \
			memcpy(in, s, sizeof(*in));                                            \
			out[0] = one(in[0]);                                                   \
			memcpy(d, out, sizeof(*out));                                          \
		}                                                                              \
	}

DEFINE_CAST(bf16, 16, f32, 32, widen_bf16)
DEFINE_CAST(f16, 16, f32, 32, widen_f16)
DEFINE_CAST(f64, 64, f32, 32, narrow_f32)
DEFINE_CAST(f32, 32, bf16, 16, narrow_bf16)
DEFINE_CAST(f32, 32, f16, 16, narrow_f16)
DEFINE_CAST(f32, 32, f8_e4m3, 8, narrow_f8_e4m3)
DEFINE_CAST(f32, 32, f8_e5m2, 8, narrow_f8_e5m2)
