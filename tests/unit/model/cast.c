/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts to narrower types against the list of all numbers that the type has; widening of every
 * value is in dtype.c.
 */
#include "tests/unit/t.h"

#include <math.h>

#include "core/model/dtype.h"

struct fmt {
	const char *what;
	int bits, mant, bias;
	bool inf; /* the last exponent is infinity and NaNs; otherwise only its last value is NaN */
	enum dcp_dtype type;
};

/* clang-format off */
static const struct fmt fmts[] = {
	{ "bfloat16", 16, 7, 127, true,  DCP_DTYPE_BF16 },
	{ "float16",  16, 10, 15, true,  DCP_DTYPE_F16 },
	{ "e4m3fn",    8, 3, 7,   false, DCP_DTYPE_F8_E4M3 },
	{ "e5m2",      8, 2, 15,  true,  DCP_DTYPE_F8_E5M2 },
};
/* clang-format on */

static uint32_t bits_of(float f)
{
	uint32_t b;

	memcpy(&b, &f, sizeof(b));
	return b;
}

static float float_of(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* The code after that of the largest finite number: infinity, or the NaN of e4m3fn, which
 * nothing but NaN becomes. */
static unsigned beyond(const struct fmt *f)
{
	unsigned top = (1u << (f->bits - 1)) - 1;

	return f->inf ? top - (1u << f->mant) + 1 : top;
}

/* What the code @x >= 0 is worth; one beyond the largest goes on as if there were more. */
static double worth(const struct fmt *f, unsigned x)
{
	unsigned e = x >> f->mant, m = x & ((1u << f->mant) - 1);

	return e ? ldexp(1 + ldexp(m, -f->mant), (int)e - f->bias)
		 : ldexp(m, 1 - f->bias - f->mant);
}

/* The code whose number is nearest to @v >= 0, of two the even one. */
static unsigned nearest(const struct fmt *f, double v)
{
	unsigned lo = 0, hi = beyond(f);

	if (v >= worth(f, hi))
		return hi;
	while (hi - lo > 1) {
		unsigned mid = (lo + hi) / 2;

		if (worth(f, mid) <= v)
			lo = mid;
		else
			hi = mid;
	}
	v = (v - worth(f, lo)) / (worth(f, hi) - worth(f, lo));
	return v < 0.5 || (v == 0.5 && lo % 2 == 0) ? lo : hi;
}

static bool is_nan(const struct fmt *f, unsigned x)
{
	x &= (1u << (f->bits - 1)) - 1;
	return f->inf ? x > beyond(f) : x == beyond(f);
}

static unsigned narrow_one(const struct fmt *f, uint32_t bits)
{
	unsigned got = 0;

	dcp_dtype_cast(DCP_DTYPE_F32, f->type, &got, &bits, 1);
	return got;
}

static void check_one(const struct fmt *f, uint32_t bits)
{
	unsigned sign = bits >> 31 << (f->bits - 1), got = narrow_one(f, bits), want;

	if (isnan(float_of(bits))) {
		if (!is_nan(f, got) || (got ^ sign) >> (f->bits - 1))
			fail_msg("%s of NaN 0x%08x: 0x%x", f->what, bits, got);
		return;
	}
	want = nearest(f, fabs((double)float_of(bits)));
	want = sign | (!f->inf && want == beyond(f) ? want - 1 : want);
	if (got != want)
		fail_msg("%s of 0x%08x: 0x%x, not 0x%x", f->what, bits, got, want);
}

/* Around every number of the narrow type and every middle between two of them. */
static void casts_round_to_the_nearest(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(fmts); i++) {
		t_case(fmts[i].what);
		for (unsigned x = 0; x < beyond(&fmts[i]); x++) {
			double v = worth(&fmts[i], x), next = worth(&fmts[i], x + 1);
			uint32_t points[] = { bits_of((float)v),
					      bits_of((float)((v + next) / 2)) };

			for (int k = 0; k < 6; k++) {
				uint32_t bits = points[k / 3] + (uint32_t)(k % 3) - 1;

				check_one(&fmts[i], bits);
				check_one(&fmts[i], bits ^ 0x80000000u);
			}
		}
	}
}

static void casts_round_random_values(void **state)
{
	uint32_t x = 12345;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(fmts); i++)
		for (int k = 0; k < 300000; k++, x = x * 1664525u + 1013904223u)
			check_one(&fmts[i], x);
}

/* What torch 2.15's .to() gives. */
static void casts_agree_with_torch(void **state)
{
	/* clang-format off */
	static const struct {
		float from;
		unsigned bf16, f16, e4m3, e5m2;
	} rows[] = {
		{ 1.0f,         0x3f80, 0x3c00, 0x38, 0x3c },
		{ -0.0f,        0x8000, 0x8000, 0x80, 0x80 },
		{ 3.14159265f,  0x4049, 0x4248, 0x45, 0x42 },
		{ 448.0f,       0x43e0, 0x5f00, 0x7e, 0x5f },
		{ 464.0f,       0x43e8, 0x5f40, 0x7e, 0x5f },
		{ 465.0f,       0x43e8, 0x5f44, 0x7e, 0x5f },
		{ -480.0f,      0xc3f0, 0xdf80, 0xfe, 0xe0 },
		{ 61440.0f,     0x4770, 0x7b80, 0x7e, 0x7c },
		{ 65519.0f,     0x4780, 0x7bff, 0x7e, 0x7c },
		{ 65520.0f,     0x4780, 0x7c00, 0x7e, 0x7c },
		{ -INFINITY,    0xff80, 0xfc00, 0xfe, 0xfc },
		{ 0x1p-24f,     0x3380, 0x0001, 0x00, 0x00 },
		{ 0x1p-25f,     0x3300, 0x0000, 0x00, 0x00 },
		{ 0x1.8p-9f,    0x3b40, 0x1a00, 0x02, 0x1a },
		{ 0x1p-149f,    0x0000, 0x0000, 0x00, 0x00 },
		{ 0x1.fffffep127f, 0x7f80, 0x7c00, 0x7e, 0x7c },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		const unsigned want[] = { rows[i].bf16, rows[i].f16, rows[i].e4m3,
					  rows[i].e5m2 };

		for (size_t k = 0; k < DCP_LEN(fmts); k++)
			if (narrow_one(&fmts[k], bits_of(rows[i].from)) != want[k])
				fail_msg("%s of %a: 0x%x, not 0x%x", fmts[k].what, rows[i].from,
					 narrow_one(&fmts[k], bits_of(rows[i].from)), want[k]);
	}
}

/* Every value there and back, in place, off alignment, through blocks and their rest. */
static void widening_and_narrowing_give_the_same(void **state)
{
	uint8_t *buf = malloc(4 * 65536 + 1), *src = malloc(2 * 65536 + 1);

	(void)state;
	for (size_t i = 0; i < DCP_LEN(fmts); i++) {
		size_t n = 1u << fmts[i].bits, size = (size_t)fmts[i].bits / 8;

		for (size_t x = 0; x < n; x++)
			memcpy(src + 1 + x * size, &x, size);
		buf[1 + 4 * (n - 1)] = 0xa5;
		dcp_dtype_cast(fmts[i].type, DCP_DTYPE_F32, buf + 1, src + 1, n - 1);
		assert_int_equal(buf[1 + 4 * (n - 1)], 0xa5);
		dcp_dtype_cast(DCP_DTYPE_F32, fmts[i].type, buf + 1, buf + 1, n - 1);
		for (unsigned x = 0, got = 0; x < n - 1; x++) {
			memcpy(&got, buf + 1 + x * size, size);
			if (is_nan(&fmts[i], x) ? !is_nan(&fmts[i], got) : got != x)
				fail_msg("%s 0x%x: 0x%x", fmts[i].what, x, got);
		}
	}
	free(buf);
	free(src);
}

static void doubles_round_to_floats(void **state)
{
	static const double in[] = { 1,     -0.0,   1 + 0x1p-24, 1 + 0x1.8p-24,
				     1e300, -1e300, 0x1p-150,    0x1.8p-150 };
	static const float want[] = { 1,        -0.0f,     1, 1 + 0x1p-23f,
				      INFINITY, -INFINITY, 0, 0x1p-149f };
	double many[67];
	float got[67];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(many); i++)
		many[i] = in[i % DCP_LEN(in)];
	dcp_dtype_cast(DCP_DTYPE_F64, DCP_DTYPE_F32, got, many, DCP_LEN(many));
	for (size_t i = 0; i < DCP_LEN(many); i++)
		assert_int_equal(bits_of(got[i]), bits_of(want[i % DCP_LEN(in)]));
	many[0] = -(double)NAN;
	dcp_dtype_cast(DCP_DTYPE_F64, DCP_DTYPE_F32, many, many, 1);
	memcpy(got, many, sizeof(*got));
	assert_true(isnan(got[0]) && signbit(got[0]));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(casts_round_to_the_nearest),
		cmocka_unit_test(casts_round_random_values),
		cmocka_unit_test(casts_agree_with_torch),
		cmocka_unit_test(widening_and_narrowing_give_the_same),
		cmocka_unit_test(doubles_round_to_floats),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
