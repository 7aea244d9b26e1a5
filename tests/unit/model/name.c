/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/model/name.h"

/* clang-format off */
static const struct {
	const char *what, *key, *name;
} reversible[] = {
	{ "plain",                      "model.layers.0.weight", "model.layers.0.weight" },
	{ "separator",                  "a/b",                   "a%2Fb" },
	{ "the escape itself",          "100%2F",                "100%252F" },
	{ "here",                       ".",                     "%2E" },
	{ "above",                      "..",                    "%2E%2E" },
	{ "climbing",                   "../up",                 "..%2Fup" },
	{ "dots inside stay",           "...",                   "..." },
	{ "nothing",                    "",                      "%" },
	{ "control characters",         "a\tb\nc\x1f\x7f",       "a%09b%0Ac%1F%7F" },
	{ "UTF-8 stays",                "\xc3\xbc\xe6\x97\xa5",  "\xc3\xbc\xe6\x97\xa5" },
	{ "a C1 control",               "a\xc2\x9b" "b",         "a%C2%9Bb" },
	{ "the other direction",        "a\xe2\x80\xae" "b",     "a%E2%80%AEb" },
	{ "no width",                   "a\xe2\x80\x8b" "b",     "a%E2%80%8Bb" },
	{ "a tag, of four bytes",       "\xf3\xa0\x81\x81",      "%F3%A0%81%81" },
	{ "a byte that is not UTF-8",   "a\xff" "b",             "a%FFb" },
	{ "a sequence cut short",       "\xe6\x97",              "%E6%97" },
	{ "NUL, in two bytes",          "a\xc0\x80" "b",         "a%C0%80b" },
	{ "blanks, quotes, tilde, dash", "-r f \"~\"",           "-r f \"~\"" },
};

static const struct {
	const char *what, *a, *b;
	int want;
} orders[] = {
	{ "the same",                      "step-7",   "step-7",    0 },
	{ "numbers, not strings",          "step-9",   "step-10",  -1 },
	{ "leading zeros do not count",    "step-010", "step-9",    1 },
	{ "but two spellings are two",     "step-07",  "step-7",   -1 },
	{ "longer than 64 bits",           "s99999999999999999999999", "s100000000000000000000000", -1 },
	{ "the second number decides",     "ep1-ba10", "ep1-ba9",   1 },
	{ "a prefix comes first",          "step",     "step-1",   -1 },
	{ "zero and nothing",              "s0",       "s",         1 },
	{ "letters bytewise",              "Step-1",   "step-1",   -1 },
};
/* clang-format on */

static void escaped_names_are_undone(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(reversible); i++) {
		char name[DCP_NAME_MAX + 1], key[64];

		t_case(reversible[i].what);
		dcp_name_from_key(reversible[i].key, false, name);
		assert_string_equal(name, reversible[i].name);
		assert_null(strchr(name, '/'));
		dcp_name_to_key(name, strlen(name), key);
		assert_string_equal(key, reversible[i].key);
	}
}

static void names_of_others_are_keys(void **state)
{
	static const char *const names[] = { "100%", "a%2", "a%2f", "a%41", "%%",
					     "%00",  "a%",  ".",    "a/b" };
	char key[64];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		t_case(names[i]);
		dcp_name_to_key(names[i], strlen(names[i]), key);
		assert_string_equal(key, names[i]);
	}
	dcp_name_to_key("a%2Fb.npy", 5, key);
	assert_string_equal(key, "a/b");
}

static void long_keys_are_cut_between_characters(void **state)
{
	static const char *const units[] = { "x", "\xc3\xbc", "/", "\xf0\x9f\xa7\xa0" };
	char key[2000], twin[2002], a[DCP_NAME_MAX + 1], b[DCP_NAME_MAX + 1];

	(void)state;
	for (size_t u = 0; u < DCP_LEN(units); u++) {
		for (unsigned lead = 0; lead < 5; lead++) {
			const char *tilde;

			memset(key, 'y', lead);
			key[lead] = '\0';
			while (strlen(key) < 1000)
				strcat(key, units[u]);
			snprintf(twin, sizeof(twin), "%sz", key);
			dcp_name_from_key(key, false, a);
			dcp_name_from_key(twin, false, b);
			assert_true(strlen(a) <= DCP_NAME_MAX);
			assert_true(strlen(a) > DCP_NAME_MAX - 4);
			tilde = strrchr(a, '~');
			assert_non_null(tilde);
			assert_int_equal(strlen(tilde), 17);
			t_case("keys that differ behind the cut have names that differ");
			assert_memory_equal(a, b, (size_t)(tilde - a));
			assert_string_not_equal(a, b);
			t_case("the head is whole characters or whole escapes");
			assert_int_equal(((size_t)(tilde - a) - lead) %
						 (units[u][0] == '/' ? 3 : strlen(units[u])),
					 0);
		}
	}
}

static void names_up_to_the_limit_stay(void **state)
{
	static const struct {
		const char *key, *head;
	} never_plain[] = { { "", "%~" }, { ".", "%2E~" }, { "..", "%2E%2E~" } };
	char key[DCP_NAME_MAX + 2], name[DCP_NAME_MAX + 1];

	(void)state;
	memset(key, 'k', sizeof(key));
	key[DCP_NAME_MAX] = '\0';
	dcp_name_from_key(key, false, name);
	assert_string_equal(name, key);
	key[DCP_NAME_MAX] = 'k';
	key[DCP_NAME_MAX + 1] = '\0';
	dcp_name_from_key(key, false, name);
	assert_non_null(strchr(name, '~'));

	t_case("hashed on request, however short");
	dcp_name_from_key("w", true, name);
	assert_int_equal(strlen(name), 1 + 17);
	assert_memory_equal(name, "w~", 2);
	for (size_t i = 0; i < DCP_LEN(never_plain); i++) {
		dcp_name_from_key(never_plain[i].key, true, name);
		assert_int_equal(strlen(name), strlen(never_plain[i].head) + 16);
		assert_memory_equal(name, never_plain[i].head, strlen(never_plain[i].head));
	}
}

static int sign(int v)
{
	return (v > 0) - (v < 0);
}

static void versions_sort_by_number(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(orders); i++) {
		t_case(orders[i].what);
		assert_int_equal(sign(dcp_name_compare(orders[i].a, orders[i].b)),
				 orders[i].want);
		assert_int_equal(sign(dcp_name_compare(orders[i].b, orders[i].a)),
				 -orders[i].want);
	}
}

static void words_select_keys(void **state)
{
	static const struct {
		const char *word, *key;
		bool listed;
	} cases[] = {
		{ "a.b", "a.b", true },    { "a.b", "a.b.c", true },   { "a.b", "a.b/c", true },
		{ "a.b.", "a.b.c", true }, { "a/", "a/b", true },      { "a.b", "a.bc", false },
		{ "", "a", false },        { "*.c", "a.b/x.c", true }, { "*.c", "a.cd", false },
		{ "a.b.c", "a.b", false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const char *list[] = { "other", cases[i].word };

		t_case(cases[i].word);
		assert_int_equal(dcp_name_listed(list, 2, cases[i].key), cases[i].listed);
		assert_false(dcp_name_listed(list, 1, cases[i].key));
	}
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(escaped_names_are_undone),
		cmocka_unit_test(names_of_others_are_keys),
		cmocka_unit_test(long_keys_are_cut_between_characters),
		cmocka_unit_test(names_up_to_the_limit_stay),
		cmocka_unit_test(words_select_keys),
		cmocka_unit_test(versions_sort_by_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
