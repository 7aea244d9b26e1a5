/* SPDX-License-Identifier: Apache-2.0 */
/* near: edit distances with and without a limit. */
#include "tests/unit/t.h"

#include "core/base/text.h"

static const struct {
	const char *what, *a, *b;
	size_t limit, want;
} distances[] = {
	{ "equal", "weight", "weight", 5, 0 },
	{ "both empty", "", "", 5, 0 },
	{ "one empty", "", "abc", 5, 3 },
	{ "a letter replaced", "weight", "weighd", 5, 1 },
	{ "a letter more", "layer", "layers", 5, 1 },
	{ "a letter less", "layers", "layer", 5, 1 },
	{ "neighbours swapped", "wieght", "weight", 5, 1 },
	{ "swapped and replaced", "wieghd", "weight", 5, 2 },
	{ "kitten and sitting", "kitten", "sitting", 5, 3 },
	{ "at the limit", "kitten", "sitting", 3, 3 },
	{ "past the limit", "kitten", "sitting", 2, 3 },
	{ "lengths say it", "a", "abcdefg", 2, 3 },
};

static void distances_are_counted(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(distances); i++) {
		t_case(distances[i].what);
		assert_int_equal(
			dcp_near_distance(distances[i].a, distances[i].b, distances[i].limit),
			distances[i].want);
		assert_int_equal(
			dcp_near_distance(distances[i].b, distances[i].a, distances[i].limit),
			distances[i].want);
	}
}

static void long_names_are_clipped(void **state)
{
	char a[2 * DCP_NEAR_MAX + 1], b[2 * DCP_NEAR_MAX + 1];

	(void)state;
	memset(a, 'a', sizeof(a) - 1);
	a[sizeof(a) - 1] = '\0';
	memcpy(b, a, sizeof(b));
	b[DCP_NEAR_MAX + 1] = 'b';
	assert_int_equal(dcp_near_distance(a, b, 3), 0);
	b[DCP_NEAR_MAX - 1] = 'b';
	assert_int_equal(dcp_near_distance(a, b, 3), 1);
}

static void the_first_of_the_nearest_is_taken(void **state)
{
	static const char *const names[] = { "safetensor5", "pickle", "safetensors",
					     "safetensorz" };
	struct dcp_near near = dcp_near_to("safetensors_"), far = dcp_near_to("zip");
	size_t last = DCP_LEN(names);

	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		last = dcp_near_take(&near, names[i]) ? i : last;
		assert_false(dcp_near_take(&far, names[i]));
	}
	assert_int_equal(last, 2);
	assert_int_equal(near.best, 1);
	assert_false(dcp_near_take(&near, "safetensorsx"));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(distances_are_counted),
		cmocka_unit_test(long_names_are_clipped),
		cmocka_unit_test(the_first_of_the_nearest_is_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
