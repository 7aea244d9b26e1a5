/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/dtype.h"

#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/cast_bits.h"

/* clang-format off */
static const struct dcp_dtype_info infos[DCP_DTYPE_COUNT] = {
	/* name torch safetensors npy size, npy, swap, widened, values */
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

/* ---- casts: arrays of numbers of one type as those of another ----
 *
 * To a wider type bits are moved, never numbers: a float operation would quieten signalling NaNs.
 * Types of one byte go through tables that the compiler computes from their definition.
 */

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
	static void cast_##type##_to_f32(void *dst, const void *src, size_t n)                 \
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

static void cast_f4_e2m1_to_f32(void *dst, const void *src, size_t n)
{
	uint8_t *to = dst;
	const uint8_t *from = src;

	for (size_t i = 0; i < n / 2; i++)
		memcpy(to + 8 * i, f4_e2m1_bits[from[i]], 8);
}

/* Blocks of a fixed length on aligned copies: at -O2 compilers turn only such loops into vector
 * code. */
#define BLOCK 32
#define DEFINE_CAST(from, from_bits, to, to_bits, one)                                         \
	static void cast_##from##_to_##to(void *dst, const void *src, size_t n)                \
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

typedef void (*cast_fn)(void *dst, const void *src, size_t n);

/* clang-format off */
static const cast_fn to_f32[DCP_DTYPE_COUNT] = {
	[DCP_DTYPE_F64]         = cast_f64_to_f32,
	[DCP_DTYPE_F16]         = cast_f16_to_f32,
	[DCP_DTYPE_BF16]        = cast_bf16_to_f32,
	[DCP_DTYPE_F8_E4M3]     = cast_f8_e4m3_to_f32,
	[DCP_DTYPE_F8_E5M2]     = cast_f8_e5m2_to_f32,
	[DCP_DTYPE_F8_E4M3FNUZ] = cast_f8_e4m3fnuz_to_f32,
	[DCP_DTYPE_F8_E5M2FNUZ] = cast_f8_e5m2fnuz_to_f32,
	[DCP_DTYPE_F8_E8M0]     = cast_f8_e8m0_to_f32,
};
static const cast_fn from_f32[DCP_DTYPE_COUNT] = {
	[DCP_DTYPE_F16]         = cast_f32_to_f16,
	[DCP_DTYPE_BF16]        = cast_f32_to_bf16,
	[DCP_DTYPE_F8_E4M3]     = cast_f32_to_f8_e4m3,
	[DCP_DTYPE_F8_E5M2]     = cast_f32_to_f8_e5m2,
};
/* clang-format on */

void dcp_dtype_widen(enum dcp_dtype t, void *dst, const void *src, size_t n)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(t);

	if (t == DCP_DTYPE_F4)
		cast_f4_e2m1_to_f32(dst, src, 2 * n);
	else if (t == DCP_DTYPE_C32)
		cast_f16_to_f32(dst, src, 2 * n);
	else if (info->widened)
		to_f32[t](dst, src, n);
	else if (n)
		memcpy(dst, src, n * info->npy_size);
}

bool dcp_dtype_can_cast(enum dcp_dtype from, enum dcp_dtype to)
{
	return from != to && (from == DCP_DTYPE_F32 || to_f32[from]) &&
	       (to == DCP_DTYPE_F32 || from_f32[to]);
}

bool dcp_dtype_is_float(enum dcp_dtype t)
{
	return t == DCP_DTYPE_F32 || to_f32[t];
}

void dcp_dtype_cast(enum dcp_dtype from, enum dcp_dtype to, void *dst, const void *src,
		    size_t n)
{
	size_t size = infos[from].size, to_size = infos[to].size;
	float part[1024];

	if (to == DCP_DTYPE_F32 || from == DCP_DTYPE_F32) {
		(to == DCP_DTYPE_F32 ? to_f32[from] : from_f32[to])(dst, src, n);
		return;
	}
	for (size_t i = 0; i < n; i += DCP_LEN(part)) {
		size_t k = DCP_MIN(n - i, DCP_LEN(part));

		to_f32[from](part, (const char *)src + i * size, k);
		from_f32[to]((char *)dst + i * to_size, part, k);
	}
}

bool dcp_dtype_can_add(enum dcp_dtype t)
{
	return t == DCP_DTYPE_F64 || t == DCP_DTYPE_F32 || t == DCP_DTYPE_F16 ||
	       t == DCP_DTYPE_BF16;
}

/* a + b of one number, or a / by. */
static void calculate_number(enum dcp_dtype t, void *a, const void *b, uint32_t by)
{
	float x, y = (float)by;

	if (t == DCP_DTYPE_F64) {
		*(double *)a = b ? *(double *)a + *(const double *)b : *(double *)a / by;
		return;
	}
	if (t == DCP_DTYPE_F32) {
		*(float *)a = b ? *(float *)a + *(const float *)b : *(float *)a / y;
		return;
	}
	dcp_dtype_cast(t, DCP_DTYPE_F32, &x, a, 1);
	if (b)
		dcp_dtype_cast(t, DCP_DTYPE_F32, &y, b, 1);
	x = b ? x + y : x / y;
	dcp_dtype_cast(DCP_DTYPE_F32, t, a, &x, 1);
}

void dcp_dtype_add(enum dcp_dtype t, void *sum, const void *term, size_t n)
{
	uint32_t size = dcp_dtype_info(t)->size;

	for (size_t i = 0; i < n; i++)
		calculate_number(t, (char *)sum + i * size, (const char *)term + i * size, 0);
}

void dcp_dtype_divide(enum dcp_dtype t, void *sum, uint32_t by, size_t n)
{
	for (size_t i = 0; i < n; i++)
		calculate_number(t, (char *)sum + i * dcp_dtype_info(t)->size, NULL, by);
}

bool dcp_dtype_can_negate(enum dcp_dtype t)
{
	return dcp_dtype_can_add(t) || t == DCP_DTYPE_C32 || t == DCP_DTYPE_C64 ||
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
