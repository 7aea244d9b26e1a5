/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/parse/json.h"

/* clang-format off */
static const struct {
	const char *what, *text;
	size_t n; /* 0: up to the NUL */
	uint64_t off;
	const char *says;
} bad[] = {
	{ "nothing", "", 0, 0, "not JSON" },
	{ "spaces only", "  ", 0, 2, "not JSON" },
	{ "half an object", "{\"a\":1", 0, 6, "'}' expected" },
	{ "comma at the end", "[1,]", 0, 4, "unexpected token" },
	{ "two roots", "{} {}", 0, 4, "end of file expected" },
	{ "single quotes", "{'a':1}", 0, 2, "" },
	{ "a name twice", "{\"a\":1,\"a\":2}", 0, 10, "duplicate object key" },
	{ "a name twice, once escaped", "{\"a\":1,\"\\u0061\":2}", 0, 15, "duplicate object key" },
	{ "not UTF-8", "[\"\xff\"]", 0, 2, "unable to decode byte 0xff" },
	{ "lone surrogate", "[\"\\ud800\"]", 0, 9, "invalid Unicode" },
	{ "NUL in a string", "[\"a\\u0000\"]", 0, 10, "\\u0000 is not allowed" },
	{ "NUL in a name", "{\"a\\u0000\":1}", 0, 10, "NUL byte in object key" },
	{ "NUL between values", "[1,\0 2]", 7, 4, "" },
	{ "newline in a string", "[\"a\nb\"]", 0, 3, "unexpected newline" },
	{ "comment", "[1 // one\n]", 0, 4, "" },
	{ "NaN", "[NaN]", 0, 4, "invalid token near 'NaN'" },
	{ "Infinity", "[Infinity]", 0, 9, "invalid token" },
	{ "leading zero", "[01]", 0, 2, "invalid token" },
	{ "leading plus", "[+1]", 0, 2, "invalid token" },
	{ "over 64 bits signed", "[9223372036854775808]", 0, 20, "too big integer" },
	{ "over a double", "[1e999]", 0, 6, "real number overflow" },
	{ "word", "[nul]", 0, 4, "invalid token" },
	{ "escape at the end", "[\"\\", 0, 3, "" },
	{ "mismatched brackets", "[}", 0, 2, "" },
};
/* clang-format on */

static void bad_text_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		size_t n = bad[i].n ? bad[i].n : strlen(bad[i].text);
		char *exact = malloc(n ? n : 1);
		struct dcp_json *root = NULL;
		struct dcp_err err = { 0 };

		t_case(bad[i].what);
		memcpy(exact, bad[i].text, n);
		assert_int_equal(dcp_json_parse(exact, n, &root, &err), -EBADMSG);
		t_assert_says(&err, bad[i].says);
		assert_int_equal(err.off, bad[i].off);
		assert_null(root);
		assert_int_equal(dcp_json_parse(exact, n, &root, NULL), -EBADMSG);
		free(exact);
	}
}

static void nest(struct dcp_buf *b, const char *open, const char *close, unsigned n)
{
	dcp_buf_reset(b);
	for (unsigned i = 0; i < n; i++)
		dcp_buf_str(b, open);
	dcp_buf_str(b, "1");
	for (unsigned i = 0; i < n; i++)
		dcp_buf_str(b, close);
}

static void nesting_has_a_limit(void **state)
{
	static const char *const open[] = { "[", "{\"a\":", " [ 1 , " };
	static const char *const close[] = { "]", "}", " ]" };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_json *root;
	struct dcp_err err = { 0 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(open); i++) {
		nest(&b, open[i], close[i], 64);
		assert_int_equal(dcp_json_parse(b.p, b.n, &root, &err), 0);
		dcp_json_free(root);
		nest(&b, open[i], close[i], 65);
		assert_int_equal(dcp_json_parse(b.p, b.n, &root, &err), -EBADMSG);
		t_assert_says(&err, "nested more than 64 levels deep");
		assert_int_equal(err.off, 64 * strlen(open[i]) + strspn(open[i], " "));
	}
	nest(&b, "[", "", 1000000);
	assert_int_equal(dcp_json_parse(b.p, b.n, &root, NULL), -EBADMSG);
}

static void brackets_in_strings_do_not_nest(void **state)
{
	static const char text[] = "[\"[[[\\\"[[[\\\\\",\"{{\"]";
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_json *root;

	(void)state;
	dcp_buf_str(&b, "[\"");
	for (int i = 0; i < 100; i++)
		dcp_buf_str(&b, "[{\\\"");
	dcp_buf_str(&b, "\"]");
	assert_int_equal(dcp_json_parse(b.p, b.n, &root, NULL), 0);
	dcp_json_free(root);
	assert_int_equal(dcp_json_parse(text, sizeof(text) - 1, &root, NULL), 0);
	assert_string_equal(dcp_json_str(dcp_json_at(root, 0)), "[[[\"[[[\\");
	dcp_json_free(root);
}

static void values_have_a_limit(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_json *root;
	struct dcp_err err = { 0 };
	size_t n = DCP_JSON_MAX_VALUES + 1;
	char *p = dcp_buf_grow(&b, 2 * n);

	(void)state;
	for (size_t i = 0; i < n; i++)
		memcpy(p + 2 * i, "1,", 2);
	p[0] = '[';
	assert_int_equal(dcp_json_parse(b.p, b.n, &root, &err), -E2BIG);
	t_assert_says(&err, "more than 4000000 values");
}

static void values_answer_questions(void **state)
{
	static const char text[] =
		"{\"z\": [1, -1, 1.0, \"s\", true, null, 9223372036854775807],"
		" \"a\": {\"deep\": \"\\u00e9\"}, \"e\": {}}";
	struct dcp_json *root;
	const struct dcp_json *z, *v;
	const void *iter = NULL;
	const char *key, *want[] = { "z", "a", "e" };
	uint64_t u = 5;
	size_t n = 0;

	(void)state;
	assert_int_equal(dcp_json_parse(text, sizeof(text) - 1, &root, NULL), 0);
	assert_true(dcp_json_is_object(root));
	assert_false(dcp_json_is_array(root));
	assert_int_equal(dcp_json_len(root), 3);
	z = dcp_json_get(root, "z");
	assert_true(dcp_json_is_array(z));
	assert_int_equal(dcp_json_len(z), 7);
	assert_true(dcp_json_u64(dcp_json_at(z, 0), &u));
	assert_int_equal(u, 1);
	assert_false(dcp_json_u64(dcp_json_at(z, 1), &u));
	assert_false(dcp_json_u64(dcp_json_at(z, 2), &u));
	assert_false(dcp_json_u64(dcp_json_at(z, 3), &u));
	assert_int_equal(u, 1);
	assert_true(dcp_json_u64(dcp_json_at(z, 6), &u));
	assert_int_equal(u, INT64_MAX);
	assert_string_equal(dcp_json_str(dcp_json_at(z, 3)), "s");
	assert_string_equal(dcp_json_str(dcp_json_get(dcp_json_get(root, "a"), "deep")),
			    "\xc3\xa9");
	while ((iter = dcp_json_next(root, iter, &key, &v)) != NULL) {
		assert_string_equal(key, want[n++]);
		assert_ptr_equal(v, dcp_json_get(root, key));
	}
	assert_int_equal(n, 3);
	dcp_json_free(root);
}

/* Every accessor, on everything it is not for. */
static void wrong_questions_get_nothing(void **state)
{
	static const char text[] = "[{}, [], \"s\", 1, 1.5, true, null]";
	struct dcp_json *root;
	const struct dcp_json *v = NULL, *value;
	const char *key;
	uint64_t u;

	(void)state;
	assert_int_equal(dcp_json_parse(text, sizeof(text) - 1, &root, NULL), 0);
	for (size_t i = 0; i <= dcp_json_len(root); i++) {
		v = dcp_json_at(root, i); /* NULL in the last turn */
		assert_null(dcp_json_get(v, "a"));
		assert_null(dcp_json_at(v, 0));
		assert_int_equal(dcp_json_len(v), 0);
		assert_null(dcp_json_next(v, NULL, &key, &value));
		assert_int_equal(dcp_json_is_object(v), i == 0);
		assert_int_equal(dcp_json_is_array(v), i == 1);
		assert_int_equal(dcp_json_str(v) != NULL, i == 2);
		assert_int_equal(dcp_json_u64(v, &u), i == 3);
	}
	assert_null(v);
	dcp_json_free(root);
	dcp_json_free(NULL);
}

static void scalars_may_be_roots(void **state)
{
	struct dcp_json *root;

	(void)state;
	assert_int_equal(dcp_json_parse(" \"x\" ", 5, &root, NULL), 0);
	assert_string_equal(dcp_json_str(root), "x");
	dcp_json_free(root);
}

/* clang-format off */
static const struct {
	const char *what, *text;
	const char *told; /* name=value; of every member, before the end or the error */
	int code;
	uint64_t off;
	const char *says;
} walks[] = {
	{ "empty object", "{}", "", 0, 0, "" },
	{ "spaces everywhere", " { \"a\" : 1 ,\n\"b\" : [ 2 ] } ", "\"a\"=1;\"b\"=[ 2 ];", 0, 0, "" },
	{ "nested values are one piece", "{\"a\":{\"b\":[1,{\"}\":2}]},\"c\":\"},\"}", "\"a\"={\"b\":[1,{\"}\":2}]};\"c\"=\"},\";", 0, 0, "" },
	{ "words and numbers", "{\"a\":true,\"b\":-1e5}", "\"a\"=true;\"b\"=-1e5;", 0, 0, "" },
	{ "values are not judged", "{\"a\":[}],\"b\":xyz}", "\"a\"=[};", -EBADMSG, 7, "byte 0x5d at 7, expected ',' or '}'" },
	{ "names may repeat", "{\"a\":1,\"a\":2}", "\"a\"=1;\"a\"=2;", 0, 0, "" },
	{ "no object", "[1]", "", -EBADMSG, 0, "expected '{'" },
	{ "nothing", "", "", -EBADMSG, 0, "JSON ends at byte 0, expected '{'" },
	{ "name without quotes", "{a:1}", "", -EBADMSG, 1, "expected a name in quotes" },
	{ "no colon", "{\"a\" 1}", "", -EBADMSG, 5, "expected ':'" },
	{ "no value", "{\"a\":,}", "", -EBADMSG, 5, "expected a value" },
	{ "no comma", "{\"a\":1 \"b\":2}", "\"a\"=1;", -EBADMSG, 7, "expected ',' or '}'" },
	{ "comma at the end", "{\"a\":1,}", "\"a\"=1;", -EBADMSG, 7, "expected a name in quotes" },
	{ "comma only", "{,}", "", -EBADMSG, 1, "expected a name in quotes" },
	{ "open object", "{\"a\":1", "\"a\"=1;", -EBADMSG, 6, "JSON ends at byte 6, expected ',' or '}'" },
	{ "open value", "{\"a\":[1", "\"a\"=[1;", -EBADMSG, 7, "JSON ends" },
	{ "something behind", "{} {}", "", -EBADMSG, 3, "expected nothing after the object" },
};
/* clang-format on */

static void walks_visit_members(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(walks); i++) {
		dcp_auto_buf struct dcp_buf told = DCP_BUF_INIT;
		struct dcp_json_walk w = { .text = walks[i].text, .n = strlen(walks[i].text) };
		struct dcp_bytes name, value;
		struct dcp_err err = { 0 };
		int code;

		t_case(walks[i].what);
		dcp_buf_str(&told, "");
		while ((code = dcp_json_walk(&w, &name, &value, &err)) == 1)
			dcp_buf_printf(&told, "%.*s=%.*s;", (int)name.n, (const char *)name.p,
				       (int)value.n, (const char *)value.p);
		assert_string_equal(told.p, walks[i].told);
		assert_int_equal(code, walks[i].code);
		assert_int_equal(err.off, walks[i].off);
		t_assert_says(&err, walks[i].says);
	}
}

static void space_between_tokens_is_removed(void **state)
{
	char text[] = " { \"a \\\" b\" :\n[ 1,\t\"\\\\\" , 2 ] } ";
	size_t n = dcp_json_squeeze(text, strlen(text));

	(void)state;
	text[n] = '\0';
	assert_string_equal(text, "{\"a \\\" b\":[1,\"\\\\\",2]}");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(space_between_tokens_is_removed),
		cmocka_unit_test(bad_text_is_refused),
		cmocka_unit_test(nesting_has_a_limit),
		cmocka_unit_test(brackets_in_strings_do_not_nest),
		cmocka_unit_test(values_have_a_limit),
		cmocka_unit_test(values_answer_questions),
		cmocka_unit_test(wrong_questions_get_nothing),
		cmocka_unit_test(scalars_may_be_roots),
		cmocka_unit_test(walks_visit_members),
	};
	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
