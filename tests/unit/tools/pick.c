/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which version a person means by a word.
 * covers: store/version/names
 */
#include "tests/unit/t.h"

#include "tools/pick.h"

#define MAX 6

/* clang-format off */
static const struct {
	const char *what;
	const char *names[MAX];
	const char *word;
	int rc;
	size_t at;
} rows[] = {
	{ "an exact name",                    { "step-1", "step-2" },        "step-2",  0, 1 },
	{ "the number in a name",             { "step-1", "step-2500" },     "2500",    0, 1 },
	{ "a number is not a part of one",    { "step-12500", "step-25001" }, "2500",   -ENOENT, 0 },
	{ "leading zeros do not count",       { "step-0010", "step-2" },     "10",      0, 0 },
	{ "nor those of the word",            { "step-10", "step-2" },       "0010",    0, 0 },
	{ "zero",                             { "epoch_0", "epoch_1" },      "0",       0, 0 },
	{ "zero written long",                { "epoch_000", "epoch_1" },    "0",       0, 0 },
	{ "an exact name beats a number",     { "10", "step-10" },           "10",      0, 0 },
	{ "any of several numbers",           { "ep2-ba500", "ep1-ba400" },  "500",     0, 0 },
	{ "two versions with the number",     { "ep1-ba10", "ep10-ba2" },    "10",      -ENOTUNIQ, 0 },
	{ "a number twice in one name",       { "5-of-5", "6-of-6" },        "5",       0, 0 },
	{ "a part of a name is not a name",      { "step-10", "step-20" },      "step",    -ENOENT, 0 },
	{ "a name with a number is not one",  { "step-10", "step-20" },      "step10",  -ENOENT, 0 },
	{ "the empty word",                   { "step-10", "step-20" },      "",        -ENOENT, 0 },
	{ "a number beyond 64 bits",          { "step-1", "step-2" },        "18446744073709551617", -ENOENT, 0 },
	{ "a name's number beyond 64 bits",   { "s-18446744073709551617", "s-1" }, "1", 0, 1 },
	{ "a very long number",               { "s-000000000000000000000000000000000000007", "s-1" }, "7", 0, 0 },
	{ "nothing to choose from",           { NULL },                      "1",       -ENOENT, 0 },
};
/* clang-format on */

static void words_match_versions(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_found found[MAX] = { 0 };
		size_t n = 0, at = 0;

		t_case(rows[i].what);
		for (; n < MAX && rows[i].names[n]; n++)
			found[n].name = rows[i].names[n];
		assert_int_equal(dcp_found_match(found, n, rows[i].word, &at), rows[i].rc);
		if (rows[i].rc == 0)
			assert_int_equal(at, rows[i].at);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(words_match_versions) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
