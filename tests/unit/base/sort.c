/* SPDX-License-Identifier: Apache-2.0 */
/* sort: order of numbers and texts, empty arrays, the end of a run. */
#include "tests/unit/t.h"

#include "core/base/base.h"

static void numbers_are_compared(void **state)
{
	const uint64_t big = UINT64_MAX;
	const uint32_t one = 1, two = 2;

	(void)state;
	assert_int_equal(DCP_CMP(1, 2), -1);
	assert_int_equal(DCP_CMP(2, 1), 1);
	assert_int_equal(DCP_CMP(big, big), 0);
	assert_int_equal(DCP_CMP(big - 1, big), -1);
	assert_int_equal(dcp_by_u64(&big, &(uint64_t){ 0 }), 1);
	assert_int_equal(dcp_by_u32(&one, &two), -1);
}

static void structs_sort_by_their_first_field(void **state)
{
	struct {
		const char *name;
		int n;
	} v[] = { { "b", 1 }, { "c", 2 }, { "a", 3 } }, *found;
	const char *want = "b", *other = "d";

	(void)state;
	DCP_SORT(v, DCP_LEN(v), dcp_by_text);
	assert_int_equal(v[0].n, 3);
	assert_int_equal(v[2].n, 2);
	found = DCP_FIND(&want, v, DCP_LEN(v), dcp_by_text);
	assert_ptr_equal(found, &v[1]);
	assert_null(DCP_FIND(&other, v, DCP_LEN(v), dcp_by_text));
}

/*
 * qsort() and bsearch() must not be given NULL, not even for no elements: a sanitizer would say so.
 */
static void empty_arrays_are_sorted(void **state)
{
	uint32_t *none = NULL;

	(void)state;
	DCP_SORT(none, 0, dcp_by_u32);
	assert_null(DCP_FIND(&(uint32_t){ 0 }, none, 0, dcp_by_u32));
}

static void bisecting_finds_the_border(void **state)
{
	static const uint32_t v[] = { 1, 3, 3, 5 };
	static const struct {
		const char *what;
		size_t lo, hi;
		uint32_t below;
		size_t want;
	} cases[] = {
		{ "before all", 0, 4, 0, 0 },     { "the first of equals", 0, 4, 3, 1 },
		{ "between", 0, 4, 4, 3 },        { "behind all", 0, 4, 6, 4 },
		{ "a part, behind", 0, 2, 9, 2 }, { "a part, before", 2, 4, 0, 2 },
		{ "nothing", 2, 2, 9, 2 },        { "less than nothing", 1, 0, 9, 1 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		size_t at;

		t_case(cases[i].what);
		DCP_BISECT(at, cases[i].lo, cases[i].hi, v[at] < cases[i].below);
		assert_int_equal(at, cases[i].want);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_are_compared),
		cmocka_unit_test(structs_sort_by_their_first_field),
		cmocka_unit_test(empty_arrays_are_sorted),
		cmocka_unit_test(bisecting_finds_the_border),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
