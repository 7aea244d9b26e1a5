/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regular expressions as Python's re.match takes them.
 */
#include "tests/unit/t.h"

#include <time.h>

#include "core/base/arena.h"
#include "core/parse/parse.h"

/* clang-format off */
static const struct {
	const char *pattern;
	const char *yes[4], *no[4];
} cases[] = {
	{ "", { "", "x" }, { NULL } },
	{ "abc", { "abc", "abcd" }, { "ab", "xabc", "" } },
	{ "a.c", { "abc", "a\xc3\xa4" "c" }, { "ac", "a\nc" } },
	{ "^a$", { "a", "a\n" }, { "ab", "ba" } },
	{ "a\\Z", { "a" }, { "a\n", "ab" } },
	{ "a*b", { "b", "aaab" }, { "aac" } },
	{ "a+?b", { "ab", "aab" }, { "b" } },
	{ "ab?c", { "ac", "abc" }, { "abbc" } },
	{ "a{2,3}b", { "aab", "aaab" }, { "ab", "aaaab" } },
	{ "a{2}", { "aa", "aaa" }, { "a" } },
	{ "a{,2}b", { "b", "aab" }, { "aaab" } },
	{ "a{2,}b", { "aab", "aaaaab" }, { "ab" } },
	{ "a{,x", { "a{,x" }, { "a" } },
	{ "a{x}", { "a{x}" }, { "a" } },
	{ "(ab|cd)*e", { "e", "abcde" }, { "abce", "a" } },
	{ "(?:a|b|c|d)x", { "ax", "dx" }, { "ex" } },
	{ "(?P<name>a(b|c))d", { "abd", "acd" }, { "ad" } },
	{ "a|b", { "a", "b" }, { "c" } },
	{ "(a|)b", { "ab", "b" }, { "c" } },
	{ "(a*)*b", { "aaab", "b" }, { "aaa" } },
	{ "(a|b){2}c", { "abc", "bac" }, { "ac", "abac" } },
	{ "[a-c_]+\\.", { "ab_." }, { ".", "d." } },
	{ "[^a-c]", { "d", "\xe2\x82\xac" }, { "b", "" } },
	{ "[]x]", { "]", "x" }, { "a" } },
	{ "[[:alpha:]]", { "[]", ":]", "a]" }, { "b]", "a" } },
	{ "[a\\-z]", { "-", "z" }, { "b" } },
	{ "[\\d.]+x", { "1.2x" }, { "x" } },
	{ "[^\\W]", { "a", "_" }, { "-" } },
	{ "\\d+\\.\\w+\\s\\D\\W\\S", { "12.ab c-d" }, { "x.ab c-d", "12.ab 3-d" } },
	{ "\\bword\\b", { "word", "word." }, { "words" } },
	{ "x\\By", { "xy" }, { "x y" } },
	{ "tied_modules.embed.word_embeddings.weight", { "tied_modules.embed.word_embeddings.weight" }, { "2.weight" } },
	{ "\\d+.self_attention.dense.weight", { "12.self_attention.dense.weight" }, { "self_attention.dense.weight" } },
	{ "^layers\\.0\\.qkv_proj\\.weight$", { "layers.0.qkv_proj.weight" }, { "layers_0.qkv_proj.weight", "layers.0.qkv_proj.weight2" } },
	{ ".*(norm|ln_f)\\.(weight|bias)", { "a.norm.bias", "ln_f.weight" }, { "norm.w", "a.normweight" } },
};

static const struct {
	const char *pattern;
	int code;
	const char *says;
} refused[] = {
	{ "(a", -EINVAL, "missing closing parenthesis" },
	{ "a)", -EINVAL, "unmatched closing parenthesis" },
	{ "[a", -EINVAL, "missing terminating ]" },
	{ "*a", -EINVAL, "quantifier does not follow a repeatable item" },
	{ "[z-a]", -EINVAL, "range out of order" },
	{ "a{3,2}", -EINVAL, "numbers out of order" },
	{ "a\\", -EINVAL, "ends with a backslash" },
	{ "(?P<n", -EINVAL, "syntax error in subpattern name" },
	{ "a\xff", -EINVAL, "UTF-8 error" },
	{ "(?=a)", -ENOTSUP, "expected (?:...)" },
	{ "(?i)a", -ENOTSUP, "expected (?:...)" },
	{ "(*ACCEPT)a", -ENOTSUP, "expected (?:...)" },
	{ "(a)\\1", -ENOTSUP, "an escape that is not supported" },
	{ "\\Qa.b\\E", -ENOTSUP, "an escape that is not supported" },
	{ "a**", -EINVAL, "quantifier does not follow a repeatable item" },
	{ "((((a{100}){100}){100}){100}){100}", -E2BIG, "too large" },
	{ "((((((((((((((((((((((((((((((((((a))))))))))))))))))))))))))))))))))", -E2BIG, "too deeply nested" },
};
/* clang-format on */

static void patterns_match_text(void **state)
{
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_err err = { 0 };
		struct dcp_regex *re;

		t_case(cases[i].pattern);
		if (dcp_regex_compile(cases[i].pattern, &arena, &re, &err) < 0)
			fail_msg("%s", err.msg);
		for (size_t k = 0; k < 4 && cases[i].yes[k]; k++)
			if (dcp_regex_match(re, cases[i].yes[k]) != 1)
				fail_msg("\"%s\" does not match", cases[i].yes[k]);
		for (size_t k = 0; k < 4 && cases[i].no[k]; k++)
			if (dcp_regex_match(re, cases[i].no[k]) != 0)
				fail_msg("\"%s\" matches", cases[i].no[k]);
	}
	dcp_arena_finish(&arena);
}

static void bad_patterns_are_refused(void **state)
{
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	for (size_t i = 0; i < DCP_LEN(refused); i++) {
		struct dcp_err err = { 0 };
		struct dcp_regex *re;

		t_case(refused[i].pattern);
		assert_int_equal(dcp_regex_compile(refused[i].pattern, &arena, &re, &err),
				 refused[i].code);
		t_assert_says(&err, refused[i].says);
	}
	dcp_arena_finish(&arena);
	t_case("no memory");
	for (size_t limit = 0; limit < 4096; limit += 16) {
		struct dcp_err err = { 0 };
		struct dcp_regex *re;
		int rc;

		dcp_arena_init(&arena, limit);
		rc = dcp_regex_compile("(a|[b-d])*e{2,3}", &arena, &re, &err);
		assert_true(rc == -ENOMEM || (rc == 0 && dcp_regex_match(re, "abcdee") == 1));
		dcp_arena_finish(&arena);
	}
}

/* Patterns that take other matchers longer than the world has stood. */
static void evil_patterns_take_no_time(void **state)
{
	static const char *const evil[] = { "(a*)*$x", "(a|a)*b", "(a|aa)+$x", "(.*a){20}x",
					    "(x+x+)+y" };
	struct dcp_arena arena;
	char text[4001];
	clock_t start = clock();

	(void)state;
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	dcp_arena_init(&arena, 1 << 20);
	for (size_t i = 0; i < DCP_LEN(evil); i++) {
		struct dcp_regex *re;

		t_case(evil[i]);
		assert_int_equal(dcp_regex_compile(evil[i], &arena, &re, NULL), 0);
		assert_int_equal(dcp_regex_match(re, text), 0);
	}
	t_case("in more places at once than there is room for");
	{
		struct dcp_regex *re;

		assert_int_equal(dcp_regex_compile(".*a.{300}[xy]", &arena, &re, NULL), 0);
		assert_int_equal(dcp_regex_match(re, text), -E2BIG);
		t_case("no UTF-8");
		assert_int_equal(dcp_regex_match(re, "a\xff"), -EINVAL);
	}
	dcp_arena_finish(&arena);
	assert_true((clock() - start) / CLOCKS_PER_SEC < 20);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(patterns_match_text),
		cmocka_unit_test(bad_patterns_are_refused),
		cmocka_unit_test(evil_patterns_take_no_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
