/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of a tensor, in blocks and parts, beside plain loops; tests/cli/trust.py has numpy's.
 *
 * covers: fields
 */
#include "tests/unit/t.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/model/measure/stats.h"

enum { N = 3001 };

static void measure(struct dcp_stats *s, enum dcp_dtype t, const void *p, size_t n)
{
	dcp_stats_init(s);
	dcp_stats_add(s, NULL, t, 0, p, n);
}

static void statistics_of_parts_are_joined(void **state)
{
	static float x[N];
	struct dcp_stats all, part, sum;

	(void)state;
	for (size_t i = 0; i < N; i++)
		x[i] = 1000.0f + (float)(i * 7919 % 1000) / 500.0f;
	x[1500] = NAN;
	x[2000] = -INFINITY;
	measure(&all, DCP_DTYPE_F32, x, N);
	dcp_stats_init(&sum);
	for (size_t i = 0; i < N; i += 700) {
		dcp_stats_init(&part);
		dcp_stats_add(&part, NULL, DCP_DTYPE_F32, i, x + i,
			      DCP_MIN(N - i, (size_t)700));
		dcp_stats_join(&sum, &part);
	}
	assert_int_equal(all.n, N);
	assert_int_equal(all.finite, N - 2);
	assert_int_equal(sum.finite, N - 2);
	assert_int_equal(all.first_nan, 1500);
	assert_int_equal(sum.first_nan, 1500);
	assert_int_equal(sum.first_inf, 2000);
	assert_true(fabs(sum.mean - all.mean) < 1e-9);
	assert_true(fabs(dcp_stats_std(&sum) - dcp_stats_std(&all)) < 1e-9);
	assert_true(sum.min == all.min && sum.max == all.max);
}

static const struct dcp_stats_field *field(const struct dcp_stats_fields *f, const char *name)
{
	for (size_t i = 0; i < f->n; i++)
		if (strcmp(f->field[i].name, name) == 0)
			return &f->field[i];
	fail_msg("no field %s", name);
	return NULL;
}

static void fields_are_named_in_their_order(void **state)
{
	static const uint64_t shape[] = { 2, 2 };
	const int64_t x[] = { INT64_MAX - 1, 0, 5, INT64_MIN };
	const float y[] = { 1, 2, 3, NAN };
	struct dcp_stats_fields f;
	struct dcp_stats s;
	struct dcp_stats_of of = { .s = &s, .dtype = DCP_DTYPE_I64, .ndim = 2, .shape = shape };
	char names[256] = "";

	(void)state;
	measure(&s, DCP_DTYPE_I64, x, 4);
	dcp_stats_fields(&of, &f);
	for (size_t i = 0; i < f.n; i++) {
		strcat(names, i ? " " : "");
		strcat(names, f.field[i].name);
	}
	assert_string_equal(names, DCP_STATS_FIELD_NAMES);
	assert_string_equal(field(&f, "max")->text, "9223372036854775806");
	assert_string_equal(field(&f, "min")->text, "-9223372036854775808");
	assert_null(field(&f, "first_nan")->text);
	measure(&s, DCP_DTYPE_F32, y, 4);
	of.dtype = DCP_DTYPE_F32;
	dcp_stats_fields(&of, &f);
	assert_true(field(&f, "max")->number == 3);
	assert_string_equal(field(&f, "first_nan")->text, "[1, 1]");
	assert_string_equal(field(&f, "note")->text, "");
	of.several = true;
	dcp_stats_fields(&of, &f);
	assert_null(field(&f, "first_nan")->text);
	of.unwritten = true;
	assert_string_equal(dcp_stats_note(&of), "never written");
}

/* The variance is 10^-12 of the mean's square: sums of squares alone would lose it. */
static void small_deviations_are_kept(void **state)
{
	static double x[N];
	struct dcp_stats s;

	(void)state;
	for (size_t i = 0; i < N; i++)
		x[i] = 1e6 + (i % 2 ? 1.0 : -1.0);
	measure(&s, DCP_DTYPE_F64, x, N - 1);
	assert_true(fabs(s.mean - 1e6) < 1e-6);
	assert_true(fabs(dcp_stats_std(&s) - 1.0) < 1e-6);
}

/* Sums of doubles that are close to the greatest are more than any double; their mean is not. */
static void means_of_greatest_doubles_are_finite(void **state)
{
	static double x[N], low[N];
	struct dcp_stats s, t;

	(void)state;
	for (size_t i = 0; i < N; i++) {
		x[i] = DBL_MAX / 2 + (i % 2 ? DBL_MAX / 4 : -DBL_MAX / 4);
		low[i] = -DBL_MAX;
	}
	measure(&s, DCP_DTYPE_F64, x, N);
	assert_true(fabs(s.mean / (DBL_MAX / 2) - 1) < 1e-3);
	assert_true(isinf(dcp_stats_std(&s)));
	measure(&t, DCP_DTYPE_F64, low, N);
	dcp_stats_join(&s, &t);
	assert_true(fabs(s.mean / (-DBL_MAX / 4) - 1) < 1e-3);
	assert_true(s.min == -DBL_MAX && s.max == DBL_MAX / 4 * 3);
}

/* Numbers of either sign, and of both, in each width: least of bits is not least of numbers. */
static void ends_are_found_for_any_sign(void **state)
{
	const uint16_t both[] = { 0xc000, 0x3f80, 0xbf80, 0x0000 }; /* -2, 1, -1, 0 */
	const uint16_t negative[] = { 0x8001, 0xc000, 0xbf80 };
	const float positive[] = { 3, 0.5f, 7 };
	const double zeros[] = { -0.0, 0.0 };
	struct dcp_stats s;

	(void)state;
	measure(&s, DCP_DTYPE_BF16, both, 4);
	assert_true(s.min == -2 && s.max == 1 && s.zeros == 1 && s.subnormals == 0);
	measure(&s, DCP_DTYPE_BF16, negative, 3);
	assert_true(s.min == -2 && s.max < 0 && s.max > -1e-40 && s.subnormals == 1);
	assert_int_equal(s.zeros, 0);
	measure(&s, DCP_DTYPE_F32, positive, 3);
	assert_true(s.min == 0.5 && s.max == 7);
	measure(&s, DCP_DTYPE_F64, zeros, 2);
	assert_false(dcp_stats_is_constant(&s));
	assert_int_equal(s.zeros, 2);
}

static void constants_are_of_equal_bits(void **state)
{
	static const float same[] = { -1.5f, -1.5f }, zeros[] = { 0.0f, -0.0f };
	static const int64_t whole[] = { INT64_MIN, INT64_MIN, INT64_MAX };
	struct dcp_stats s;

	(void)state;
	measure(&s, DCP_DTYPE_F32, same, 2);
	assert_true(dcp_stats_is_constant(&s));
	measure(&s, DCP_DTYPE_F32, zeros, 2);
	assert_false(dcp_stats_is_constant(&s));
	assert_int_equal(s.zeros, 2);
	measure(&s, DCP_DTYPE_I64, whole, 2);
	assert_true(dcp_stats_is_constant(&s));
	measure(&s, DCP_DTYPE_I64, whole, 3);
	assert_int_equal(s.low, INT64_MIN);
	assert_int_equal(s.high, INT64_MAX);
	measure(&s, DCP_DTYPE_F32, same, 0);
	assert_false(dcp_stats_is_constant(&s));
	assert_int_equal(s.finite, 0);
}

static void bytes_of_f4_have_two_values(void **state)
{
	static const uint8_t x[] = { 0x72, 0xf0 }; /* 1, 6; 0, -6 */
	struct dcp_stats s;

	(void)state;
	measure(&s, DCP_DTYPE_F4, x, 2);
	assert_int_equal(s.n, 4);
	assert_int_equal(s.zeros, 1);
	assert_true(s.min == -6 && s.max == 6 && s.mean == 0.25);
	assert_true(dcp_stats_number(DCP_DTYPE_F4, x, 1) == 6);
}

static void numbers_fall_between_powers_of_two(void **state)
{
	static const float x[] = { 1.0f, 1.99f, 2.0f, -0.5f, 0.0f, 1e-45f };
	static struct dcp_stats_bins bins;
	struct dcp_stats s;

	(void)state;
	dcp_stats_init(&s);
	dcp_stats_add(&s, &bins, DCP_DTYPE_F32, 0, x, 6);
	assert_int_equal(bins.n[0][-DCP_STATS_BIN_LEAST], 2);
	assert_int_equal(bins.n[0][1 - DCP_STATS_BIN_LEAST], 1);
	assert_int_equal(bins.n[1][-1 - DCP_STATS_BIN_LEAST], 1);
	assert_int_equal(bins.n[0][-149 - DCP_STATS_BIN_LEAST], 1);
	assert_int_equal(s.subnormals, 1);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(statistics_of_parts_are_joined),
		cmocka_unit_test(fields_are_named_in_their_order),
		cmocka_unit_test(small_deviations_are_kept),
		cmocka_unit_test(means_of_greatest_doubles_are_finite),
		cmocka_unit_test(ends_are_found_for_any_sign),
		cmocka_unit_test(constants_are_of_equal_bits),
		cmocka_unit_test(bytes_of_f4_have_two_values),
		cmocka_unit_test(numbers_fall_between_powers_of_two),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
