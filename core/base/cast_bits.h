/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast_bits: converts the bits of a number to another type, as dcp_dtype_cast() says.
 *
 * Plain arithmetic, so that the processor (core/model/dtype.c) and a GPU
 * (tools/load/memory/scatter.cu), which sets DCP_CAST_FN, round with the same code.
 */
#pragma once
#include <stdint.h>
#include <string.h>

#ifndef DCP_CAST_FN
#define DCP_CAST_FN static inline
#endif

/*
 * The float32 bits of a small float without its sign: mantissa @m of @mb bits (at most 3),
 * exponent field @e, the given bias. A subnormal is m * 2^(1 - bias - mb): its highest set
 * bit becomes the implicit bit.
 */
#define DCP_BITS_TOP(m) ((m) >= 4 ? 2u : (m) >= 2 ? 1u : 0u)
#define DCP_BITS_SUBNORMAL(m, mb, bias)                                                        \
	((m) == 0 ? 0u                                                                         \
		  : (128u - (bias) - (mb) + DCP_BITS_TOP(m)) << 23 |                           \
			    ((m) ^ 1u << DCP_BITS_TOP(m)) << (23 - DCP_BITS_TOP(m)))
#define DCP_BITS_NORMAL(e, m, mb, bias) ((127u - (bias) + (e)) << 23 | (m) << (23 - (mb)))
#define DCP_BITS_FINITE(e, m, mb, bias)                                                        \
	((e) == 0 ? DCP_BITS_SUBNORMAL(m, mb, bias) : DCP_BITS_NORMAL(e, m, mb, bias))
#define DCP_BITS_SIGN8(x) (((x)&0x80u) << 24)
#define DCP_BITS_INF_NAN(m, mb) (0x7f800000u | (m) << (23 - (mb)))

#define DCP_BITS_E4M3(x)                                                                       \
	(DCP_BITS_SIGN8(x) |                                                                   \
	 (((x)&0x7fu) == 0x7fu ? DCP_BITS_INF_NAN(7u, 3)                                       \
			       : DCP_BITS_FINITE((x) >> 3 & 15u, (x)&7u, 3u, 7u)))
#define DCP_BITS_E5M2(x)                                                                       \
	(DCP_BITS_SIGN8(x) |                                                                   \
	 (((x)&0x7cu) == 0x7cu ? DCP_BITS_INF_NAN((x)&3u, 2)                                   \
			       : DCP_BITS_FINITE((x) >> 2 & 31u, (x)&3u, 2u, 15u)))
/* The only NaN of the FNUZ types has the bits of negative zero. */
#define DCP_BITS_E4M3FNUZ(x)                                                                   \
	((x) == 0x80u ? 0xffc00000u                                                            \
		      : DCP_BITS_SIGN8(x) | DCP_BITS_FINITE((x) >> 3 & 15u, (x)&7u, 3u, 8u))
#define DCP_BITS_E5M2FNUZ(x)                                                                   \
	((x) == 0x80u ? 0xffc00000u                                                            \
		      : DCP_BITS_SIGN8(x) | DCP_BITS_FINITE((x) >> 2 & 31u, (x)&3u, 2u, 16u))
/* 2^(x - 127): only 2^-127 is a float32 subnormal. */
#define DCP_BITS_E8M0(x) ((x) == 0xffu ? 0x7fc00000u : (x) == 0 ? 0x00400000u : (x) << 23)
#define DCP_BITS_E2M1(x) (((x)&8u) << 28 | DCP_BITS_FINITE((x) >> 1 & 3u, (x)&1u, 1u, 1u))

DCP_CAST_FN float dcp_bits_as_float(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

DCP_CAST_FN uint32_t dcp_bits_as_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

DCP_CAST_FN uint32_t dcp_bits_widen_bf16(uint16_t h)
{
	return (uint32_t)h << 16;
}

/* A subnormal is mant * 2^-24, which float32 holds exactly as a normal number. */
DCP_CAST_FN uint32_t dcp_bits_widen_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fffu;
	uint32_t bits = dcp_bits_as_bits((float)(int32_t)rest * 0x1p-24f);

	if (rest >= 0x400)
		bits = (rest << 13) + (rest >= 0x7c00 ? 224u << 23 : 112u << 23);
	return sign | bits;
}

#define DCP_BITS_SIGN 0x80000000u
#define DCP_BITS_INF 0x7f800000u

DCP_CAST_FN uint16_t dcp_bits_narrow_bf16(uint32_t x)
{
	if ((x & ~DCP_BITS_SIGN) > DCP_BITS_INF)
		return (uint16_t)(x >> 16 | 0x40);
	return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

/*
 * Round @x, its sign taken off, to a format of @mb mantissa bits; numbers beyond its range come out
 * larger than any it has. Numbers below the smallest normal number, 2^(1 - bias), are rounded by
 * adding a power of two whose last bit has the value of the smallest subnormal.
 */
DCP_CAST_FN uint32_t dcp_bits_narrow(uint32_t x, unsigned mb, unsigned bias)
{
	uint32_t cut = 23 - mb, power = (151 - bias - mb) << 23;

	if (x < (128 - bias) << 23)
		return dcp_bits_as_bits(dcp_bits_as_float(x) + dcp_bits_as_float(power)) -
		       power;
	return ((x + (1u << (cut - 1)) - 1 + (x >> cut & 1)) >> cut) - ((127 - bias) << mb);
}

DCP_CAST_FN uint16_t dcp_bits_narrow_f16(uint32_t x)
{
	uint32_t sign = x >> 16 & 0x8000, a = x & ~DCP_BITS_SIGN,
		 to = dcp_bits_narrow(a, 10, 15);

	if (a > DCP_BITS_INF)
		to = 0x7e00 | (a >> 13 & 0x3ff);
	return (uint16_t)(sign | (to > 0x7c00 && a <= DCP_BITS_INF ? 0x7c00 : to));
}

DCP_CAST_FN uint8_t dcp_bits_narrow_f8_e4m3(uint32_t x)
{
	uint32_t a = x & ~DCP_BITS_SIGN, to = dcp_bits_narrow(a, 3, 7);

	return (uint8_t)((x >> 24 & 0x80) | (a > DCP_BITS_INF ? 0x7f : to > 0x7e ? 0x7e : to));
}

DCP_CAST_FN uint8_t dcp_bits_narrow_f8_e5m2(uint32_t x)
{
	uint32_t a = x & ~DCP_BITS_SIGN, to = dcp_bits_narrow(a, 2, 15);

	return (uint8_t)((x >> 24 & 0x80) | (a > DCP_BITS_INF ? 0x7f : to > 0x7c ? 0x7c : to));
}

DCP_CAST_FN uint32_t dcp_bits_narrow_f32(uint64_t x)
{
	double d;

	memcpy(&d, &x, sizeof(d));
	return dcp_bits_as_bits((float)d);
}
