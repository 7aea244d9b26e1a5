/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Widening moves bits, never numbers: a float operation would quieten signalling NaNs.
 * One-byte types go through tables that the compiler computes from their definition.
 */
#include "core/model/dtype.h"

#include <string.h>

#include "core/base/base.h"
#include "core/base/endian.h"

/* clang-format off */
static const struct dcp_dtype_info infos[DCP_DTYPE_COUNT] = {
	/*                          name           torch                safetensors    npy     size, npy, swap, widened, values */
	[DCP_DTYPE_OTHER]       = { "",            "",                  NULL,          NULL,   0,  0,  0, false, 1 },
	[DCP_DTYPE_F64]         = { "F64",         "float64",           "F64",         "<f8",  8,  8,  8, false, 1 },
	[DCP_DTYPE_F32]         = { "F32",         "float32",           "F32",         "<f4",  4,  4,  4, false, 1 },
	[DCP_DTYPE_F16]         = { "F16",         "float16",           "F16",         "<f2",  2,  2,  2, false, 1 },
	[DCP_DTYPE_BF16]        = { "BF16",        "bfloat16",          "BF16",        "<f4",  2,  4,  2, true, 1 },
	[DCP_DTYPE_F8_E4M3]     = { "F8_E4M3",     "float8_e4m3fn",     "F8_E4M3",     "<f4",  1,  4,  1, true, 1 },
	[DCP_DTYPE_F8_E5M2]     = { "F8_E5M2",     "float8_e5m2",       "F8_E5M2",     "<f4",  1,  4,  1, true, 1 },
	[DCP_DTYPE_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", "float8_e4m3fnuz",   "F8_E4M3FNUZ", "<f4",  1,  4,  1, true, 1 },
	[DCP_DTYPE_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", "float8_e5m2fnuz",   "F8_E5M2FNUZ", "<f4",  1,  4,  1, true, 1 },
	[DCP_DTYPE_F8_E8M0]     = { "F8_E8M0",     "float8_e8m0fnu",    "F8_E8M0",     "<f4",  1,  4,  1, true, 1 },
	[DCP_DTYPE_F4]          = { "F4",          "float4_e2m1fn_x2",  "F4",          "<f4",  1,  8,  1, true, 2 },
	[DCP_DTYPE_F6_E2M3]     = { "F6_E2M3",     NULL,                "F6_E2M3",     NULL,   3,  0,  1, false, 4 },
	[DCP_DTYPE_F6_E3M2]     = { "F6_E3M2",     NULL,                "F6_E3M2",     NULL,   3,  0,  1, false, 4 },
	[DCP_DTYPE_I64]         = { "I64",         "int64",             "I64",         "<i8",  8,  8,  8, false, 1 },
	[DCP_DTYPE_I32]         = { "I32",         "int32",             "I32",         "<i4",  4,  4,  4, false, 1 },
	[DCP_DTYPE_I16]         = { "I16",         "int16",             "I16",         "<i2",  2,  2,  2, false, 1 },
	[DCP_DTYPE_I8]          = { "I8",          "int8",              "I8",          "|i1",  1,  1,  1, false, 1 },
	[DCP_DTYPE_U64]         = { "U64",         "uint64",            "U64",         "<u8",  8,  8,  8, false, 1 },
	[DCP_DTYPE_U32]         = { "U32",         "uint32",            "U32",         "<u4",  4,  4,  4, false, 1 },
	[DCP_DTYPE_U16]         = { "U16",         "uint16",            "U16",         "<u2",  2,  2,  2, false, 1 },
	[DCP_DTYPE_U8]          = { "U8",          "uint8",             "U8",          "|u1",  1,  1,  1, false, 1 },
	[DCP_DTYPE_BOOL]        = { "BOOL",        "bool",              "BOOL",        "|b1",  1,  1,  1, false, 1 },
	[DCP_DTYPE_C32]         = { "C32",         "complex32",         NULL,          "<c8",  4,  8,  2, true, 1 },
	[DCP_DTYPE_C64]         = { "C64",         "complex64",         "C64",         "<c8",  8,  8,  4, false, 1 },
	[DCP_DTYPE_C128]        = { "C128",        "complex128",        NULL,          "<c16", 16, 16, 8, false, 1 },
};
/* clang-format on */

/* torch's second names for the same dtype objects. */
static const struct {
	const char *name;
	enum dcp_dtype dtype;
} torch_aliases[] = {
	{ "double", DCP_DTYPE_F64 }, { "float", DCP_DTYPE_F32 },  { "half", DCP_DTYPE_F16 },
	{ "long", DCP_DTYPE_I64 },   { "int", DCP_DTYPE_I32 },    { "short", DCP_DTYPE_I16 },
	{ "chalf", DCP_DTYPE_C32 },  { "cfloat", DCP_DTYPE_C64 }, { "cdouble", DCP_DTYPE_C128 },
};

const struct dcp_dtype_info *dcp_dtype_info(enum dcp_dtype t)
{
	return &infos[(unsigned)t < DCP_DTYPE_COUNT ? t : DCP_DTYPE_OTHER];
}

static bool same_name(const char *ours, const char *name, size_t n)
{
	return ours && strlen(ours) == n && memcmp(ours, name, n) == 0;
}

enum dcp_dtype dcp_dtype_from_name(const char *name)
{
	for (int t = DCP_DTYPE_OTHER + 1; t < DCP_DTYPE_COUNT; t++)
		if (strcmp(infos[t].name, name) == 0)
			return (enum dcp_dtype)t;
	return DCP_DTYPE_OTHER;
}

enum dcp_dtype dcp_dtype_from_torch(const char *name, size_t n)
{
	for (int t = DCP_DTYPE_OTHER + 1; t < DCP_DTYPE_COUNT; t++)
		if (same_name(infos[t].torch, name, n))
			return (enum dcp_dtype)t;
	for (size_t i = 0; i < DCP_LEN(torch_aliases); i++)
		if (same_name(torch_aliases[i].name, name, n))
			return torch_aliases[i].dtype;
	return DCP_DTYPE_OTHER;
}

enum dcp_dtype dcp_dtype_from_safetensors(const char *name, size_t n)
{
	for (int t = DCP_DTYPE_OTHER + 1; t < DCP_DTYPE_COUNT; t++)
		if (same_name(infos[t].safetensors, name, n))
			return (enum dcp_dtype)t;
	return DCP_DTYPE_OTHER;
}

enum dcp_dtype dcp_dtype_from_numpy(const char *code, size_t n)
{
	for (int t = DCP_DTYPE_OTHER + 1; t < DCP_DTYPE_COUNT; t++)
		if (infos[t].npy && !infos[t].widened && same_name(infos[t].npy + 1, code, n))
			return (enum dcp_dtype)t;
	return DCP_DTYPE_OTHER;
}

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

static const uint32_t e4m3_bits[256] = { ROW256(E4M3) };
static const uint32_t e5m2_bits[256] = { ROW256(E5M2) };
static const uint32_t e4m3fnuz_bits[256] = { ROW256(E4M3FNUZ) };
static const uint32_t e5m2fnuz_bits[256] = { ROW256(E5M2FNUZ) };
static const uint32_t e8m0_bits[256] = { ROW256(E8M0) };
static const uint32_t e2m1_bits[256][2] = { ROW256(E2M1_PAIR) };

static void widen_bytes(const uint32_t table[256], uint8_t *dst, const uint8_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dcp_store_le32(dst + 4 * i, table[src[i]]);
}

static void widen_nibbles(uint8_t *dst, const uint8_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		memcpy(dst + 8 * i, e2m1_bits[src[i]], 8);
}

static inline uint32_t widen_bf16(uint16_t h)
{
	return (uint32_t)h << 16;
}

/* A subnormal is mant * 2^-24, which float32 holds exactly as a normal number. */
static inline uint32_t widen_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fffu, bits;
	float small = (float)(int32_t)rest * 0x1p-24f;

	memcpy(&bits, &small, sizeof(bits));
	if (rest >= 0x400)
		bits = (rest << 13) + (rest >= 0x7c00 ? 224u << 23 : 112u << 23);
	return sign | bits;
}

/*
 * Blocks of a fixed length on aligned copies: at -O2 compilers turn only such loops into
 * vector code.
 */
#define BLOCK 32
#define DEFINE_WIDEN(name, one)                                                                \
	static void name(uint8_t *dst, const uint8_t *src, size_t n)                           \
	{                                                                                      \
		size_t i = 0;                                                                  \
                                                                                               \
		for (; n - i >= BLOCK; i += BLOCK) {                                           \
			uint16_t in[BLOCK];                                                    \
			uint32_t out[BLOCK];                                                   \
                                                                                               \
			memcpy(in, src + 2 * i, sizeof(in));                                   \
			for (int k = 0; k < BLOCK; k++)                                        \
				out[k] = one(in[k]);                                           \
			memcpy(dst + 4 * i, out, sizeof(out));                                 \
		}                                                                              \
		for (; i < n; i++)                                                             \
			dcp_store_le32(dst + 4 * i, one(dcp_load_le16(src + 2 * i)));          \
	}

DEFINE_WIDEN(widen_bf16s, widen_bf16)
DEFINE_WIDEN(widen_f16s, widen_f16)

void dcp_dtype_widen(enum dcp_dtype t, void *dst, const void *src, size_t n)
{
	switch ((int)t) {
	case DCP_DTYPE_BF16:
		widen_bf16s(dst, src, n);
		break;
	case DCP_DTYPE_C32:
		widen_f16s(dst, src, 2 * n);
		break;
	case DCP_DTYPE_F8_E4M3:
		widen_bytes(e4m3_bits, dst, src, n);
		break;
	case DCP_DTYPE_F8_E5M2:
		widen_bytes(e5m2_bits, dst, src, n);
		break;
	case DCP_DTYPE_F8_E4M3FNUZ:
		widen_bytes(e4m3fnuz_bits, dst, src, n);
		break;
	case DCP_DTYPE_F8_E5M2FNUZ:
		widen_bytes(e5m2fnuz_bits, dst, src, n);
		break;
	case DCP_DTYPE_F8_E8M0:
		widen_bytes(e8m0_bits, dst, src, n);
		break;
	case DCP_DTYPE_F4:
		widen_nibbles(dst, src, n);
		break;
	default:
		if (n)
			memcpy(dst, src, n * dcp_dtype_info(t)->npy_size);
		break;
	}
}

bool dcp_dtype_can_negate(enum dcp_dtype t)
{
	return t == DCP_DTYPE_F64 || t == DCP_DTYPE_F32 || t == DCP_DTYPE_F16 ||
	       t == DCP_DTYPE_BF16 || t == DCP_DTYPE_C32 || t == DCP_DTYPE_C64 ||
	       t == DCP_DTYPE_C128;
}

void dcp_dtype_negate(enum dcp_dtype t, void *p, size_t n, bool imaginary)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(t);
	size_t unit = info->swap_unit, step = imaginary ? info->size : unit;
	uint8_t *top = (uint8_t *)p + step - 1;

	if (!dcp_dtype_can_negate(t))
		return;
	for (n *= info->size / step; n--; top += step)
		*top ^= 0x80;
}

unsigned dcp_dtype_swap_unit(enum dcp_dtype t, uint32_t itemsize)
{
	if (t != DCP_DTYPE_OTHER)
		return dcp_dtype_info(t)->swap_unit;
	return itemsize == 2 || itemsize == 4 || itemsize == 8 ? itemsize : 1;
}

void dcp_swap(unsigned unit, void *p, size_t n)
{
	uint8_t *b = p;

	if (unit < 2)
		return;
	for (size_t i = 0; i < n / unit; i++, b += unit) {
		switch (unit) {
		case 2:
			dcp_store_le16(b, dcp_load_be16(b));
			break;
		case 4:
			dcp_store_le32(b, dcp_load_be32(b));
			break;
		default:
			dcp_store_le64(b, dcp_load_be64(b));
			break;
		}
	}
}
