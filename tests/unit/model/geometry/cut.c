/* SPDX-License-Identifier: Apache-2.0 */
/* cut: whole tensors, boxes, flat runs and what shape they have. */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/model/geometry/cut.h"
#include "core/model/tensor.h"

static void a_whole_cut_has_the_tensors_shape(void **state)
{
	const uint64_t shape[] = { 3, 1, 5 };
	uint64_t got[DCP_MAX_NDIM], n;
	struct dcp_arena arena;
	struct dcp_cut cut;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_cut_whole(&cut, 3, shape, &arena), 0);
	assert_true(dcp_cut_is_whole(&cut, shape));
	assert_int_equal(dcp_cut_shape(&cut, got), 3);
	assert_memory_equal(got, shape, sizeof(shape));
	assert_true(dcp_cut_volume(&cut, &n));
	assert_int_equal(n, 15);
	dcp_arena_finish(&arena);
}

static void a_box_is_not_whole(void **state)
{
	const uint64_t shape[] = { 3, 5 }, lo[] = { 1, 0 }, len[] = { 2, 5 };
	struct dcp_arena arena;
	struct dcp_cut cut;
	uint64_t n;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_cut_box(&cut, 2, lo, len, &arena), 0);
	assert_false(dcp_cut_is_whole(&cut, shape));
	assert_int_equal(cut.axis[0].span[0].lo, 1);
	assert_true(dcp_cut_volume(&cut, &n));
	assert_int_equal(n, 10);
	dcp_arena_finish(&arena);
}

static void zeros_behind_the_spans_are_padding(void **state)
{
	const uint64_t shape[] = { 5 };
	const struct dcp_span span = { 0, 0, 3 };
	const struct dcp_axis padded = { &span, 1, 5 }, zeros = { NULL, 0, 5 };
	struct dcp_cut cut = { .ndim = 1, .axis = &padded };
	uint64_t n;

	(void)state;
	assert_int_equal(dcp_axis_filled(&padded), 3);
	assert_int_equal(dcp_axis_filled(&zeros), 0);
	assert_true(dcp_cut_is_padded(&cut));
	assert_false(dcp_cut_is_whole(&cut, shape));
	assert_true(dcp_cut_volume(&cut, &n));
	assert_int_equal(n, 5);
	cut.axis = &zeros;
	assert_true(dcp_cut_is_padded(&cut));
}

static void an_empty_box_has_no_spans(void **state)
{
	const uint64_t lo[] = { 3, 0 }, len[] = { 0, UINT64_MAX };
	struct dcp_arena arena;
	struct dcp_cut cut;
	uint64_t n = 1;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_cut_box(&cut, 2, lo, len, &arena), 0);
	assert_int_equal(cut.axis[0].n, 0);
	assert_true(dcp_cut_volume(&cut, &n));
	assert_int_equal(n, 0);
	dcp_arena_finish(&arena);
}

static void a_flat_cut_has_one_dimension(void **state)
{
	const uint64_t shape[] = { 3, 5 };
	uint64_t got[DCP_MAX_NDIM], n;
	struct dcp_arena arena;
	struct dcp_cut cut;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_cut_whole(&cut, 2, shape, &arena), 0);
	cut.flat = true;
	cut.flat_lo = 12;
	cut.flat_n = 3;
	cut.pad = 1;
	assert_int_equal(dcp_cut_shape(&cut, got), 1);
	assert_int_equal(got[0], 4);
	assert_true(dcp_cut_volume(&cut, &n));
	assert_int_equal(n, 4);
	assert_false(dcp_cut_is_whole(&cut, shape));
	dcp_arena_finish(&arena);
}

static void volume_overflow_is_reported(void **state)
{
	const uint64_t len[] = { 1ull << 33, 1ull << 33 };
	struct dcp_arena arena;
	struct dcp_cut cut;
	uint64_t n;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_cut_whole(&cut, 2, len, &arena), 0);
	assert_false(dcp_cut_volume(&cut, &n));
	dcp_arena_finish(&arena);
}

static void invalid_cuts_are_rejected(void **state)
{
	const uint64_t shape[] = { 10 };
	const struct dcp_span good[] = { { 0, 8, 2 }, { 2, 0, 3 } },
			      gap[] = { { 0, 0, 2 }, { 3, 4, 2 } }, empty[] = { { 0, 0, 0 } },
			      outside[] = { { 0, 9, 2 } };
	const struct {
		const char *what;
		struct dcp_axis axis;
		uint64_t flat_lo, flat_n, pad;
		bool flat, fits;
	} rows[] = {
		{ "two spans", { good, 2, 5 }, 0, 0, 0, false, true },
		{ "nothing", { NULL, 0, 0 }, 0, 0, 0, false, true },
		{ "a run and padding", { good, 2, 5 }, 3, 2, 9, true, true },
		{ "a run that leaves the array", { good, 2, 5 }, 3, 3, 0, true, false },
		{ "a padding that wraps", { good, 2, 5 }, 3, 2, UINT64_MAX, true, false },
		{ "zeros behind the spans", { good, 2, 6 }, 0, 0, 0, false, true },
		{ "shorter than its spans", { good, 2, 4 }, 0, 0, 0, false, false },
		{ "a gap between spans", { gap, 2, 5 }, 0, 0, 0, false, false },
		{ "an empty span", { empty, 1, 0 }, 0, 0, 0, false, false },
		{ "outside the tensor", { outside, 1, 2 }, 0, 0, 0, false, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct dcp_cut cut = { .ndim = 1,
					     .axis = &rows[i].axis,
					     .flat = rows[i].flat,
					     .flat_lo = rows[i].flat_lo,
					     .flat_n = rows[i].flat_n,
					     .pad = rows[i].pad };

		t_case(rows[i].what);
		assert_int_equal(dcp_cut_fits(&cut, 1, shape), rows[i].fits);
		assert_false(dcp_cut_fits(&cut, 2, shape));
	}
}

static void a_copy_owns_its_spans(void **state)
{
	struct dcp_span span[] = { { 0, 8, 2 }, { 2, 0, 3 } };
	struct dcp_axis axis = { span, 2, 5 };
	const struct dcp_cut cut = { .ndim = 1, .axis = &axis, .flat = true, .flat_n = 5 };
	struct dcp_arena arena;
	struct dcp_cut copy;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_cut_copy(&copy, &cut, &arena), 0);
	memset(span, 0, sizeof(span));
	memset(&axis, 0, sizeof(axis));
	assert_true(copy.flat && copy.flat_n == 5);
	assert_int_equal(copy.axis[0].len, 5);
	assert_int_equal(copy.axis[0].span[0].lo, 8);
	assert_ptr_equal(dcp_axis_find(&copy.axis[0], 4, copy.axis[0].span),
			 &copy.axis[0].span[1]);
	dcp_arena_finish(&arena);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_cut_has_the_tensors_shape),
		cmocka_unit_test(a_box_is_not_whole),
		cmocka_unit_test(zeros_behind_the_spans_are_padding),
		cmocka_unit_test(an_empty_box_has_no_spans),
		cmocka_unit_test(a_flat_cut_has_one_dimension),
		cmocka_unit_test(volume_overflow_is_reported),
		cmocka_unit_test(invalid_cuts_are_rejected),
		cmocka_unit_test(a_copy_owns_its_spans),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
