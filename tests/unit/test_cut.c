/* SPDX-License-Identifier: Apache-2.0 */
/* cut: whole tensors, boxes, flat runs and what shape they have. */
#include "tests/unit/t.h"
#include "core/base/arena.h"
#include "core/model/cut.h"
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

static void a_flat_cut_is_one_dimension_with_its_padding(void **state)
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

static void a_volume_that_does_not_fit_is_told(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_cut_has_the_tensors_shape),
		cmocka_unit_test(a_box_is_not_whole),
		cmocka_unit_test(an_empty_box_has_no_spans),
		cmocka_unit_test(a_flat_cut_is_one_dimension_with_its_padding),
		cmocka_unit_test(a_volume_that_does_not_fit_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
