/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Widening moves bits, never numbers: a float operation would quieten signalling NaNs.
 * One-byte types go through tables that the compiler computes from their definition.
 */
#include "core/base/cast.h"

#include <stdint.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/cast_bits.h"

#define E2M1_PAIR(x)                                                                           \
	{                                                                                      \
		DCP_BITS_E2M1((x)&15u), DCP_BITS_E2M1((x) >> 4)                                \
	}

#define ROW4(f, x) f((x)), f((x) + 1u), f((x) + 2u), f((x) + 3u)
#define ROW16(f, x) ROW4(f, x), ROW4(f, (x) + 4u), ROW4(f, (x) + 8u), ROW4(f, (x) + 12u)
#define ROW64(f, x) ROW16(f, x), ROW16(f, (x) + 16u), ROW16(f, (x) + 32u), ROW16(f, (x) + 48u)
#define ROW256(f) ROW64(f, 0u), ROW64(f, 64u), ROW64(f, 128u), ROW64(f, 192u)

static const uint32_t f8_e4m3_bits[256] = { ROW256(DCP_BITS_E4M3) };
static const uint32_t f8_e5m2_bits[256] = { ROW256(DCP_BITS_E5M2) };
static const uint32_t f8_e4m3fnuz_bits[256] = { ROW256(DCP_BITS_E4M3FNUZ) };
static const uint32_t f8_e5m2fnuz_bits[256] = { ROW256(DCP_BITS_E5M2FNUZ) };
static const uint32_t f8_e8m0_bits[256] = { ROW256(DCP_BITS_E8M0) };
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

DEFINE_CAST(bf16, 16, f32, 32, dcp_bits_widen_bf16)
DEFINE_CAST(f16, 16, f32, 32, dcp_bits_widen_f16)
DEFINE_CAST(f64, 64, f32, 32, dcp_bits_narrow_f32)
DEFINE_CAST(f32, 32, bf16, 16, dcp_bits_narrow_bf16)
DEFINE_CAST(f32, 32, f16, 16, dcp_bits_narrow_f16)
DEFINE_CAST(f32, 32, f8_e4m3, 8, dcp_bits_narrow_f8_e4m3)
DEFINE_CAST(f32, 32, f8_e5m2, 8, dcp_bits_narrow_f8_e5m2)
