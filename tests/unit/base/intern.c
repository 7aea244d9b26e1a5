/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/intern.h"

static void equal_strings_get_one_number(void **state)
{
	static const struct {
		const char *what, *s;
		size_t n;
		uint32_t guess, number;
		int rc;
	} cases[] = {
		{ "first is 0", "layers.0", 8, 7, 0, 1 },
		{ "second is 1", "layers.1", 8, 0, 1, 1 },
		{ "known, guess out of range", "layers.0", 8, 1000, 0, 0 },
		{ "known, guess right", "layers.1", 8, 1, 1, 0 },
		{ "known, guess wrong", "layers.1", 8, 0, 1, 0 },
		{ "a prefix is another", "layers.", 7, 0, 2, 1 },
		{ "the empty string is one too", "", 0, 0, 3, 1 },
		{ "and stays it", "", 0, 3, 3, 0 },
		{ "bytes behind a NUL count", "a\0b", 3, 0, 4, 1 },
		{ "so this one is another", "a\0c", 3, 4, 5, 1 },
	};
	struct dcp_intern in = DCP_INTERN_INIT;

	(void)state;
	assert_int_equal(dcp_intern_find(&in, "x", 1), DCP_INTERN_NONE);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		uint32_t number = 99;

		t_case(cases[i].what);
		assert_int_equal(
			dcp_intern_add(&in, cases[i].s, cases[i].n, cases[i].guess, &number),
			cases[i].rc);
		assert_int_equal(number, cases[i].number);
		assert_int_equal(dcp_intern_find(&in, cases[i].s, cases[i].n), number);
		assert_memory_equal(dcp_intern_text(&in, number), cases[i].s, cases[i].n + 1);
	}
	assert_int_equal(dcp_intern_find(&in, "layers", 6), DCP_INTERN_NONE);
	dcp_intern_finish(&in);
	dcp_intern_finish(&in);
}

/* Growth keeps every number and text. */
static void many_texts_are_interned(void **state)
{
	struct dcp_intern in = DCP_INTERN_INIT;
	enum { N = 20000 };
	char s[32];

	(void)state;
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < N; i++) {
			uint32_t number;
			int n = snprintf(s, sizeof(s), "model.layers.%u.w", i);

			assert_int_equal(dcp_intern_add(&in, s, (size_t)n, i % 7, &number),
					 round == 0);
			assert_int_equal(number, i);
		}
	for (uint32_t i = 0; i < N; i++) {
		snprintf(s, sizeof(s), "model.layers.%u.w", i);
		assert_string_equal(dcp_intern_text(&in, i), s);
	}
	assert_int_equal(in.n, N);
	dcp_intern_finish(&in);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_strings_get_one_number),
		cmocka_unit_test(many_texts_are_interned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
