/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include <math.h>

#include "core/model/dtype.h"

/* A floating format as its definition has it, independent of the tables under test. */
struct fmt {
	const char *what;
	enum dcp_dtype dtype;
	int bits, mant, bias;
	enum { IEEE, FN, FNUZ, FINITE } kind;
};

/* clang-format off */
static const struct fmt fmts[] = {
	{ "bfloat16",    DCP_DTYPE_BF16,        16, 7, 127,  IEEE },
	{ "e4m3fn",      DCP_DTYPE_F8_E4M3,      8, 3, 7,    FN },
	{ "e5m2",        DCP_DTYPE_F8_E5M2,      8, 2, 15,   IEEE },
	{ "e4m3fnuz",    DCP_DTYPE_F8_E4M3FNUZ,  8, 3, 8,    FNUZ },
	{ "e5m2fnuz",    DCP_DTYPE_F8_E5M2FNUZ,  8, 2, 16,   FNUZ },
};
static const struct fmt half = { "float16",  DCP_DTYPE_C32, 16, 10, 15, IEEE };
static const struct fmt e2m1 = { "e2m1",     DCP_DTYPE_F4,   4,  1,  1, FINITE };
/* clang-format on */

static uint32_t bits_of(float f)
{
	uint32_t b;

	memcpy(&b, &f, sizeof(b));
	return b;
}

/* What @x means, as float32 bits: by ldexp for numbers, by moving the payload for NaNs. */
static uint32_t reference(const struct fmt *f, unsigned x)
{
	unsigned nexp = (unsigned)(f->bits - 1 - f->mant);
	unsigned sign = x >> (f->bits - 1), e = x >> f->mant & ((1u << nexp) - 1);
	unsigned m = x & ((1u << f->mant) - 1);
	bool last = e == (1u << nexp) - 1;
	double v;

	if (f->kind == FNUZ && sign && !e && !m)
		return 0xffc00000;
	if ((f->kind == IEEE && last && m) || (f->kind == FN && last && m + 1 == 1u << f->mant))
		return sign << 31 | 0x7f800000u | m << (23 - f->mant);
	if (f->kind == IEEE && last)
		return bits_of(sign ? -INFINITY : INFINITY);
	v = e ? ldexp(1 + ldexp(m, -f->mant), (int)e - f->bias)
	      : ldexp(m, 1 - f->bias - f->mant);
	return bits_of((float)(sign ? -v : v));
}

/* Every input at once, one byte off alignment, so that block and tail code both run. */
static void every_value_widens(void **state)
{
	uint8_t *src = malloc(65537 * 2 + 1), *dst = malloc(65537 * 4 + 1);

	(void)state;
	for (size_t i = 0; i < DCP_LEN(fmts); i++) {
		size_t n = 1u << fmts[i].bits;

		t_case(fmts[i].what);
		for (size_t x = 0; x < n; x++)
			memcpy(src + 1 + x * (size_t)fmts[i].bits / 8, &x,
			       (size_t)fmts[i].bits / 8);
		dst[1 + 4 * (n - 1)] = 0xa5;
		dcp_dtype_widen(fmts[i].dtype, dst + 1, src + 1, n - 1);
		assert_int_equal(dst[1 + 4 * (n - 1)], 0xa5);
		dcp_dtype_widen(fmts[i].dtype, dst + 1, src + 1, n);
		for (size_t x = 0; x < n; x++) {
			uint32_t got;

			memcpy(&got, dst + 1 + 4 * x, 4);
			if (got != reference(&fmts[i], (unsigned)x))
				fail_msg("%s 0x%zx: 0x%08x, not 0x%08x", fmts[i].what, x, got,
					 reference(&fmts[i], (unsigned)x));
		}
	}
	free(src);
	free(dst);
}

static void every_complex_half_widens(void **state)
{
	uint8_t src[5], dst[9];

	(void)state;
	for (unsigned x = 0; x < 65536; x++) {
		uint16_t re = (uint16_t)x, im = (uint16_t)(x * 7919u + 1);
		uint32_t got[2];

		memcpy(src + 1, &re, 2);
		memcpy(src + 3, &im, 2);
		dcp_dtype_widen(DCP_DTYPE_C32, dst + 1, src + 1, 1);
		memcpy(got, dst + 1, 8);
		assert_int_equal(got[0], reference(&half, re));
		assert_int_equal(got[1], reference(&half, im));
	}
}

static void complex_half_blocks_agree_with_singles(void **state)
{
	uint16_t *src = malloc(2 * 65536);
	uint32_t *dst = malloc(4 * 65536);

	(void)state;
	for (unsigned x = 0; x < 65536; x++)
		src[x] = (uint16_t)x;
	dcp_dtype_widen(DCP_DTYPE_C32, dst, src, 32768);
	for (unsigned x = 0; x < 65536; x++)
		assert_int_equal(dst[x], reference(&half, x));
	free(src);
	free(dst);
}

static void every_scale_byte_widens(void **state)
{
	(void)state;
	for (unsigned x = 0; x < 256; x++) {
		uint8_t in = (uint8_t)x;
		uint32_t got;

		dcp_dtype_widen(DCP_DTYPE_F8_E8M0, &got, &in, 1);
		assert_int_equal(got, x == 255 ? 0x7fc00000
					       : bits_of((float)ldexp(1, (int)x - 127)));
	}
}

static void every_nibble_pair_widens(void **state)
{
	static const float e2m1_values[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

	(void)state;
	for (unsigned x = 0; x < 8; x++)
		assert_int_equal(reference(&e2m1, x), bits_of(e2m1_values[x]));
	for (unsigned x = 0; x < 256; x++) {
		uint8_t in = (uint8_t)x;
		uint32_t got[2];

		dcp_dtype_widen(DCP_DTYPE_F4, got, &in, 1);
		assert_int_equal(got[0], reference(&e2m1, x & 15));
		assert_int_equal(got[1], reference(&e2m1, x >> 4));
	}
}

/* The formula above could be wrong in the same way as the code: fixed points from the
 * specifications. */
static const struct {
	const char *what;
	enum dcp_dtype dtype;
	uint16_t in;
	uint32_t want;
} points[] = {
	{ "bf16 one", DCP_DTYPE_BF16, 0x3f80, 0x3f800000 },
	{ "bf16 signalling NaN stays one", DCP_DTYPE_BF16, 0xff81, 0xff810000 },
	{ "bf16 least subnormal", DCP_DTYPE_BF16, 0x0001, 0x00010000 },
	{ "e4m3 greatest, 448", DCP_DTYPE_F8_E4M3, 0x7e, 0x43e00000 },
	{ "e4m3 least, 2^-9", DCP_DTYPE_F8_E4M3, 0x01, 0x3b000000 },
	{ "e4m3 negative NaN", DCP_DTYPE_F8_E4M3, 0xff, 0xfff00000 },
	{ "e4m3 negative zero", DCP_DTYPE_F8_E4M3, 0x80, 0x80000000 },
	{ "e5m2 greatest, 57344", DCP_DTYPE_F8_E5M2, 0x7b, 0x47600000 },
	{ "e5m2 least, 2^-16", DCP_DTYPE_F8_E5M2, 0x01, 0x37800000 },
	{ "e5m2 negative infinity", DCP_DTYPE_F8_E5M2, 0xfc, 0xff800000 },
	{ "e4m3fnuz greatest, 240", DCP_DTYPE_F8_E4M3FNUZ, 0x7f, 0x43700000 },
	{ "e4m3fnuz least, 2^-10", DCP_DTYPE_F8_E4M3FNUZ, 0x01, 0x3a800000 },
	{ "e5m2fnuz greatest, 57344", DCP_DTYPE_F8_E5M2FNUZ, 0x7f, 0x47600000 },
	{ "e5m2fnuz least, 2^-17", DCP_DTYPE_F8_E5M2FNUZ, 0x01, 0x37000000 },
	{ "e8m0 least, 2^-127", DCP_DTYPE_F8_E8M0, 0x00, 0x00400000 },
	{ "e8m0 greatest, 2^127", DCP_DTYPE_F8_E8M0, 0xfe, 0x7f000000 },
};

static void known_values_widen(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(points); i++) {
		uint32_t got;

		t_case(points[i].what);
		dcp_dtype_widen(points[i].dtype, &got, &points[i].in, 1);
		assert_int_equal(got, points[i].want);
	}
}

static void native_types_are_copied(void **state)
{
	uint8_t src[48], dst[49];

	(void)state;
	for (size_t i = 0; i < sizeof(src); i++)
		src[i] = (uint8_t)(i * 37 + 1);
	for (int t = 0; t < DCP_DTYPE_COUNT; t++) {
		const struct dcp_dtype_info *d = dcp_dtype_info((enum dcp_dtype)t);

		if (d->widened || (!d->npy && d->size))
			continue;
		assert_int_equal(d->size, d->npy_size);
		memset(dst, 0xee, sizeof(dst));
		dcp_dtype_widen((enum dcp_dtype)t, dst + 1, src, 3);
		assert_memory_equal(dst + 1, src, 3 * d->size);
		for (size_t i = 1 + 3 * d->size; i < sizeof(dst); i++)
			assert_int_equal(dst[i], 0xee);
	}
}

static void swap_reverses_each_unit(void **state)
{
	(void)state;
	for (int t = 0; t < DCP_DTYPE_COUNT; t++) {
		const struct dcp_dtype_info *d = dcp_dtype_info((enum dcp_dtype)t);
		size_t n = 3 * d->size, unit = dcp_dtype_swap_unit((enum dcp_dtype)t, 0);
		uint8_t p[50];

		for (size_t i = 0; i < sizeof(p); i++)
			p[i] = (uint8_t)i;
		dcp_swap((unsigned)unit, p + 1, n);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(p[1 + i], 1 + i / unit * unit + unit - 1 - i % unit);
		assert_int_equal(p[0], 0);
		for (size_t i = 1 + n; i < sizeof(p); i++)
			assert_int_equal(p[i], i);
	}
	t_case("of a dtype that the table does not know: the whole element, if it is a number");
	for (uint32_t size = 0; size <= 16; size++)
		assert_int_equal(dcp_dtype_swap_unit(DCP_DTYPE_OTHER, size),
				 size == 2 || size == 4 || size == 8 ? size : 1);
}

/* clang-format off */
static const struct {
	const char *what, *torch;
	enum dcp_dtype want;
} names[] = {
	{ "alias half", "half", DCP_DTYPE_F16 },
	{ "alias float", "float", DCP_DTYPE_F32 },
	{ "alias double", "double", DCP_DTYPE_F64 },
	{ "alias long", "long", DCP_DTYPE_I64 },
	{ "alias int", "int", DCP_DTYPE_I32 },
	{ "alias short", "short", DCP_DTYPE_I16 },
	{ "alias chalf", "chalf", DCP_DTYPE_C32 },
	{ "alias cfloat", "cfloat", DCP_DTYPE_C64 },
	{ "alias cdouble", "cdouble", DCP_DTYPE_C128 },
	{ "a packed quantized type", "quint4x2", DCP_DTYPE_OTHER },
	{ "the start of a name", "float", DCP_DTYPE_F32 },
	{ "case matters", "Float32", DCP_DTYPE_OTHER },
	{ "nothing", "", DCP_DTYPE_OTHER },
};
/* clang-format on */

static void names_find_their_type(void **state)
{
	(void)state;
	for (int t = 1; t < DCP_DTYPE_COUNT; t++) {
		const struct dcp_dtype_info *d = dcp_dtype_info((enum dcp_dtype)t);

		assert_int_equal(dcp_dtype_from_name(d->name), t);
		if (d->torch)
			assert_int_equal(dcp_dtype_from_torch(d->torch, strlen(d->torch)), t);
		assert_true(d->torch || d->safetensors);
		if (d->safetensors)
			assert_int_equal(dcp_dtype_from_safetensors(d->safetensors,
								    strlen(d->safetensors)),
					 t);
	}
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		t_case(names[i].what);
		assert_int_equal(dcp_dtype_from_torch(names[i].torch, strlen(names[i].torch)),
				 names[i].want);
	}
	assert_int_equal(dcp_dtype_from_torch("float32x", 7), DCP_DTYPE_F32);
	assert_int_equal(dcp_dtype_from_name(""), DCP_DTYPE_OTHER);
	assert_int_equal(dcp_dtype_from_name("F5_E2M2"), DCP_DTYPE_OTHER);
	assert_int_equal(dcp_dtype_from_safetensors("C128", 4), DCP_DTYPE_OTHER);
	assert_int_equal(dcp_dtype_info(DCP_DTYPE_OTHER)->size, 0);
	assert_string_equal(dcp_dtype_info((enum dcp_dtype)999)->name, "");
}

static void negating_flips_signs(void **state)
{
	static const double real[2] = { 1.5, -0.0 }, complex[4] = { 1, 2, -3, -4 };
	double d[4];
	uint16_t h[4] = { 0x3c00, 0x8000, 0x7e01, 0 }; /* C32: 1 - 0i, a NaN and 0 */
	int32_t whole = 7;

	(void)state;
	memcpy(d, real, sizeof(real));
	dcp_dtype_negate(DCP_DTYPE_F64, d, 2, false);
	assert_true(d[0] == -1.5 && d[1] == 0 && !signbit(d[1]));
	memcpy(d, complex, sizeof(complex));
	dcp_dtype_negate(DCP_DTYPE_C128, d, 2, false);
	assert_true(d[0] == -1 && d[1] == -2 && d[2] == 3 && d[3] == 4);
	memcpy(d, complex, sizeof(complex));
	dcp_dtype_negate(DCP_DTYPE_C128, d, 2, true);
	assert_true(d[0] == 1 && d[1] == -2 && d[2] == -3 && d[3] == 4);
	dcp_dtype_negate(DCP_DTYPE_C32, h, 2, true);
	assert_true(h[0] == 0x3c00 && h[1] == 0 && h[2] == 0x7e01 && h[3] == 0x8000);
	dcp_dtype_negate(DCP_DTYPE_BF16, h, 1, false);
	assert_true(h[0] == 0xbc00 && h[1] == 0);
	assert_false(dcp_dtype_can_negate(DCP_DTYPE_I32));
	dcp_dtype_negate(DCP_DTYPE_I32, &whole, 1, false);
	assert_int_equal(whole, 7);
}

/* Each result is rounded to the type, as a sum of tensors is. */
static void adding_rounds_as_torch_does(void **state)
{
	double d[] = { 1, 0x1p53 }, dmore[] = { 2, 1 };
	float f[] = { 0.1f, 0x1p24f }, fmore[] = { 0.2f, 1 };
	/*
	 * 256 + 1 + 1 in bfloat16, which has 8 bits: 256 each time; 2048 + 1 + 1 in float16, 11
	 * bits
	 */
	uint16_t brain[] = { 0x4380, 0x3f80 }, one[] = { 0x3f80, 0x4040 };
	uint16_t h[] = { 0x6800, 0x3c00 }, hmore[] = { 0x3c00, 0x4000 };

	(void)state;
	dcp_dtype_add(DCP_DTYPE_F64, d, dmore, 2);
	assert_true(d[0] == 3 && d[1] == 0x1p53);
	dcp_dtype_divide(DCP_DTYPE_F64, d, 3, 1);
	assert_true(d[0] == 1 && d[1] == 0x1p53);
	dcp_dtype_add(DCP_DTYPE_F32, f, fmore, 2);
	assert_true(f[0] == 0.1f + 0.2f && f[1] == 0x1p24f);
	dcp_dtype_divide(DCP_DTYPE_F32, f, 3, 2);
	assert_true(f[0] == (0.1f + 0.2f) / 3 && f[1] == 0x1p24f / 3);
	dcp_dtype_add(DCP_DTYPE_BF16, brain, one, 2);
	dcp_dtype_add(DCP_DTYPE_BF16, brain, one, 1);
	assert_true(brain[0] == 0x4380 && brain[1] == 0x4080);
	dcp_dtype_divide(DCP_DTYPE_BF16, brain, 3, 2);
	assert_true(brain[0] == 0x42ab && brain[1] == 0x3fab);
	dcp_dtype_add(DCP_DTYPE_F16, h, hmore, 2);
	dcp_dtype_add(DCP_DTYPE_F16, h, hmore, 1);
	assert_true(h[0] == 0x6800 && h[1] == 0x4200);
	dcp_dtype_divide(DCP_DTYPE_F16, h, 2, 2);
	assert_true(h[0] == 0x6400 && h[1] == 0x3e00);
	assert_false(dcp_dtype_can_add(DCP_DTYPE_F8_E4M3));
	assert_false(dcp_dtype_can_add(DCP_DTYPE_C64));
	assert_false(dcp_dtype_can_add(DCP_DTYPE_I32));
}

/* By way of float32, through more than one of the parts it goes by. */
static void casting_rounds_as_torch_does(void **state)
{
	enum { N = 3000 };
	uint16_t f16[N], brain[N], want[N];
	double d[N];
	float f[N];

	(void)state;
	for (int i = 0; i < N; i++) {
		d[i] = (i - 1000) / 7.0;
		f[i] = (float)d[i];
	}
	dcp_dtype_cast(DCP_DTYPE_F64, DCP_DTYPE_F16, f16, d, N);
	dcp_dtype_cast(DCP_DTYPE_F32, DCP_DTYPE_F16, want, f, N);
	assert_memory_equal(f16, want, sizeof(f16));
	dcp_dtype_cast(DCP_DTYPE_F16, DCP_DTYPE_BF16, brain, f16, N);
	dcp_dtype_cast(DCP_DTYPE_F16, DCP_DTYPE_F32, f, f16, N);
	dcp_dtype_cast(DCP_DTYPE_F32, DCP_DTYPE_BF16, want, f, N);
	assert_memory_equal(brain, want, sizeof(brain));
	for (int t = 0; t < DCP_DTYPE_COUNT; t++) {
		bool number = t >= DCP_DTYPE_F64 && t <= DCP_DTYPE_F8_E8M0;

		assert_int_equal(dcp_dtype_can_cast((enum dcp_dtype)t, DCP_DTYPE_F16),
				 number && t != DCP_DTYPE_F16);
		assert_int_equal(dcp_dtype_can_cast(DCP_DTYPE_F16, (enum dcp_dtype)t),
				 t == DCP_DTYPE_F32 || t == DCP_DTYPE_BF16 ||
					 t == DCP_DTYPE_F8_E4M3 || t == DCP_DTYPE_F8_E5M2);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_value_widens),
		cmocka_unit_test(every_complex_half_widens),
		cmocka_unit_test(complex_half_blocks_agree_with_singles),
		cmocka_unit_test(every_scale_byte_widens),
		cmocka_unit_test(every_nibble_pair_widens),
		cmocka_unit_test(known_values_widen),
		cmocka_unit_test(native_types_are_copied),
		cmocka_unit_test(swap_reverses_each_unit),
		cmocka_unit_test(names_find_their_type),
		cmocka_unit_test(negating_flips_signs),
		cmocka_unit_test(adding_rounds_as_torch_does),
		cmocka_unit_test(casting_rounds_as_torch_does),
	};
	return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
