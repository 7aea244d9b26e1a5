/* SPDX-License-Identifier: Apache-2.0 */
/* How arrays differ, in blocks and parts; tests/cli/trust.py has numpy's numbers. */
#include "tests/unit/t.h"

#include <math.h>

#include "core/model/measure/stats.h"

enum { N = 2500 };

static const struct dcp_tolerance exact = { 0, 0 };

static void compare(struct dcp_difference *d, enum dcp_dtype t, const void *a, const void *b,
		    uint32_t itemsize, size_t n)
{
	dcp_difference_init(d);
	dcp_difference_add(d, &exact, t, a, t, b, itemsize, 0, n);
}

static void first_change_is_found_in_any_block(void **state)
{
	static const size_t places[] = { 0, 1, 1023, 1024, 2047, N - 1 };
	static uint16_t a[N], b[N];
	struct dcp_difference d;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(places); i++) {
		memcpy(b, a, sizeof(a));
		b[places[i]] = 0x3f80; /* 1 */
		compare(&d, DCP_DTYPE_BF16, a, b, 2, N);
		assert_int_equal(d.n, N);
		assert_int_equal(d.changed, 1);
		assert_int_equal(d.first, places[i]);
		assert_true(d.max_abs == 1 && d.sum_abs == 1 && d.max_rel == 1 && d.dd == 1);
		assert_int_equal(d.ulps[14], 1); /* 0x3f80 places from 0 */
		assert_int_equal(d.ulps[0], N - 1);
	}
}

static void nans_are_equal_by_their_bits(void **state)
{
	static const uint32_t a[] = { 0x7fc00000, 0x7fc00000, 0x7f800000, 0x3f800000 };
	static const uint32_t b[] = { 0x7fc00000, 0x7fc00001, 0xff800000, 0x3f800001 };
	struct dcp_difference d;

	(void)state;
	compare(&d, DCP_DTYPE_F32, a, b, 4, 4);
	assert_int_equal(d.changed, 3);
	assert_int_equal(d.first, 1);
	assert_int_equal(d.nans, 2);
	assert_int_equal(d.pairs, 1);
	assert_int_equal(d.far, 2); /* of the NaNs none */
}

static void unknown_types_are_compared_by_bits(void **state)
{
	static const char a[] = "abcdefghi", b[] = "abcdefgxi";
	struct dcp_difference d;

	(void)state;
	compare(&d, DCP_DTYPE_OTHER, a, b, 3, 3);
	assert_int_equal(d.changed, 1);
	assert_int_equal(d.first, 2);
	assert_int_equal(d.pairs, 0);
}

static void two_types_are_compared_as_numbers(void **state)
{
	static const float a[] = { 1, 2, NAN, -0.0f };
	static const int32_t whole[] = { 1, 3, 0, 0 };
	static const double b[] = { 1, 2.5, NAN, 0 };
	struct dcp_difference d;

	(void)state;
	dcp_difference_init(&d);
	dcp_difference_add(&d, &exact, DCP_DTYPE_F32, a, DCP_DTYPE_F64, b, 4, 0, 4);
	assert_int_equal(d.changed, 1);
	assert_int_equal(d.first, 1);
	assert_true(d.max_abs == 0.5);
	dcp_difference_init(&d);
	dcp_difference_add(&d, &exact, DCP_DTYPE_F32, a, DCP_DTYPE_I32, whole, 4, 100, 4);
	assert_int_equal(d.changed, 2);
	assert_int_equal(d.first, 101);
	assert_int_equal(d.nans, 1);
	assert_true(dcp_can_differ(DCP_DTYPE_F32, DCP_DTYPE_BF16));
	assert_true(dcp_can_differ(DCP_DTYPE_F4, DCP_DTYPE_F4));
	assert_false(dcp_can_differ(DCP_DTYPE_F4, DCP_DTYPE_F32));
	assert_false(dcp_can_differ(DCP_DTYPE_C64, DCP_DTYPE_F32));
	assert_false(dcp_can_differ(DCP_DTYPE_OTHER, DCP_DTYPE_F32));
}

/* As doubles both would be the same number. */
static void neighbours_among_long_integers_are_apart(void **state)
{
	const int64_t a[] = { INT64_MIN, INT64_MAX, 5, INT64_MIN };
	const int64_t b[] = { INT64_MIN + 1, INT64_MAX, 2, INT64_MAX };
	const uint64_t c[] = { UINT64_MAX, 7 }, e[] = { UINT64_MAX - 3, 7 };
	struct dcp_difference d;

	(void)state;
	compare(&d, DCP_DTYPE_I64, a, b, 8, 3);
	assert_int_equal(d.changed, 2);
	assert_true(d.max_abs == 3 && d.sum_abs == 4 && d.dd == 10);
	compare(&d, DCP_DTYPE_I64, a, b, 8, 4);
	assert_true(d.max_abs == (double)UINT64_MAX && d.pairs == 4);
	compare(&d, DCP_DTYPE_U64, c, e, 8, 2);
	assert_true(d.max_abs == 3 && d.sum_abs == 3 && d.far == 1 && d.ulps[2] == 1);
}

static void differences_of_parts_are_joined(void **state)
{
	static int64_t a[N], b[N];
	struct dcp_difference all, part, sum;

	(void)state;
	for (size_t i = 0; i < N; i++) {
		a[i] = (int64_t)(i % 100);
		b[i] = a[i] + (i % 7 == 3);
	}
	b[9] = INT64_MIN;
	a[9] = INT64_MAX;
	compare(&all, DCP_DTYPE_I64, a, b, 8, N);
	dcp_difference_init(&sum);
	for (size_t i = 0; i < N; i += 600) {
		size_t n = DCP_MIN(N - i, (size_t)600);

		dcp_difference_init(&part);
		dcp_difference_add(&part, &exact, DCP_DTYPE_I64, a + i, DCP_DTYPE_I64, b + i, 8,
				   i, n);
		dcp_difference_join(&sum, &part);
	}
	assert_int_equal(sum.changed, all.changed);
	assert_int_equal(sum.first, 3);
	assert_memory_equal(sum.ulps, all.ulps, sizeof(all.ulps));
	assert_int_equal(all.ulps[64], 1);
	assert_true(sum.max_abs == all.max_abs);
	assert_true(fabs(dcp_difference_cosine(&sum) - dcp_difference_cosine(&all)) < 1e-12);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_change_is_found_in_any_block),
		cmocka_unit_test(nans_are_equal_by_their_bits),
		cmocka_unit_test(unknown_types_are_compared_by_bits),
		cmocka_unit_test(two_types_are_compared_as_numbers),
		cmocka_unit_test(neighbours_among_long_integers_are_apart),
		cmocka_unit_test(differences_of_parts_are_joined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
