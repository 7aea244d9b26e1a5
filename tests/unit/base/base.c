/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ground floor.
 * covers: arena, buf, bytes, err, jsonw, system, text
 */
#include "tests/unit/t.h"

#include <errno.h>
#include <math.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/jsonw.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "tests/unit/t/fault.h"

static void arena_stops_at_its_limit(void **state)
{
	struct dcp_arena a;

	(void)state;
	dcp_arena_init(&a, 100);
	assert_non_null(dcp_arena_alloc(&a, 64));
	assert_null(dcp_arena_alloc(&a, 64));
	assert_null(dcp_arena_calloc(&a, SIZE_MAX / 4, 8));
	assert_string_equal(dcp_arena_strndup(&a, "abc", 2), "ab");
	dcp_arena_finish(&a);
	assert_non_null(dcp_arena_alloc(&a, 100 - 100 % 16));
	dcp_arena_finish(&a);
}

static void arena_reset_hands_out_the_same_block(void **state)
{
	struct dcp_arena a;
	void *first, *huge;

	(void)state;
	dcp_arena_init(&a, 8u << 20);
	dcp_arena_reset(&a); /* of an empty one */
	first = dcp_arena_alloc(&a, 64);
	dcp_arena_reset(&a);
	assert_int_equal(a.used, 0);
	assert_ptr_equal(dcp_arena_alloc(&a, 64), first);
	huge = dcp_arena_alloc(&a, 4u << 20);
	assert_non_null(huge);
	memset(huge, 1, 4u << 20);
	dcp_arena_reset(&a);
	assert_null(a.head); /* too large to keep */
	assert_non_null(dcp_arena_alloc(&a, 8u << 20));
	dcp_arena_finish(&a);
}

static void endings_of_names_are_found(void **state)
{
	static const struct {
		const char *name, *end;
		bool ends, extends;
	} rows[] = {
		{ "a.tar", ".tar", true, true },  { ".tar", ".tar", true, false },
		{ "tar", ".tar", false, false },  { "a.tar.gz", ".tar", false, false },
		{ "a.ta", ".tar", false, false }, { "", ".tar", false, false },
		{ "a", "", true, true },          { "", "", true, false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].name);
		assert_int_equal(dcp_ends_with(rows[i].name, strlen(rows[i].name), rows[i].end),
				 rows[i].ends);
		assert_int_equal(dcp_has_extension(rows[i].name, rows[i].end), rows[i].extends);
	}
	assert_true(dcp_ends_with("rank_7", 5, "rank_"));
	assert_false(dcp_ends_with("rank_7", 6, "rank_"));
}

static void range_never_wraps(void **state)
{
	(void)state;
	assert_true(dcp_range_ok(0, 0, 0));
	assert_true(dcp_range_ok(3, 7, 10));
	assert_false(dcp_range_ok(3, 8, 10));
	assert_false(dcp_range_ok(UINT64_MAX, 2, 10));
	assert_false(dcp_range_ok(2, UINT64_MAX, 10));
}

/* A length whose sum with what is there wraps is no small one; without memory the text stays. */
static void wrapping_lengths_are_refused(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	dcp_buf_str(&b, "abc");
	assert_null(dcp_buf_grow(&b, SIZE_MAX - 3));
	assert_int_equal(dcp_buf_error(&b), -ENOMEM);
	dcp_buf_reset(&b);
	dcp_buf_str(&b, "d");
	assert_string_equal(b.p, "d");
	t_fault_memory = 1;
	assert_null(dcp_buf_grow(&b, 100));
	assert_int_equal(dcp_buf_error(&b), -ENOMEM);
	assert_string_equal(b.p, "d");
}

/* What lies before an element that is asked for, and was not there, is zeros. */
static void new_elements_are_zero(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint32_t *at;

	(void)state;
	for (uint32_t i = 5; i < 5000; i += 7) {
		at = dcp_buf_at(&b, i, sizeof(*at));
		assert_non_null(at);
		assert_int_equal(*at, 0);
		*at = i;
	}
	assert_int_equal(*(uint32_t *)dcp_buf_at(&b, 12, sizeof(*at)), 12);
	for (size_t i = 0; i < DCP_NITEMS(b, uint32_t); i++)
		assert_int_equal(DCP_ITEMS(b, uint32_t)[i], i >= 5 && i % 7 == 5 ? i : 0);
}

static void array_has_room_for_one_more(void **state)
{
	uint32_t *v = NULL;
	size_t cap = 0;

	(void)state;
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(DCP_GROW(v, cap, i), 0);
		assert_in_range(cap, i + 1, 2 * i + 16);
		v[i] = i;
	}
	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(v[i], i);
	free(v);
}

static void varints_are_read_back(void **state)
{
	static const uint64_t values[] = { 0,        1,          127,        128,       300,
					   1u << 21, UINT32_MAX, 1ull << 62, UINT64_MAX };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_cur c;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(values); i++)
		dcp_buf_varint(&b, values[i]);
	c = dcp_cur(b.p, b.n);
	for (size_t i = 0; i < DCP_LEN(values); i++)
		assert_int_equal(dcp_cur_varint(&c), values[i]);
	assert_true(dcp_cur_ok(&c));
	assert_int_equal(dcp_cur_u8(&c), 0);
	assert_false(dcp_cur_ok(&c));
	c = dcp_cur("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 10);
	dcp_cur_varint(&c);
	assert_false(dcp_cur_ok(&c));
}

static void err_is_printable_and_prefixed(void **state)
{
	struct dcp_err e = { 0 };

	(void)state;
	assert_int_equal(dcp_fail_at(&e, -EBADMSG, 5,
				     "key \"a\nb\xc2\x9b\" is \xc3\xb6"
				     "dd"),
			 -EBADMSG);
	assert_int_equal(dcp_err_where(&e, -EBADMSG, "%s", ".metadata"), -EBADMSG);
	dcp_err_where(&e, -EBADMSG, "%s", ".metadata"); /* the same place is told once */
	assert_string_equal(e.msg, ".metadata: key \"a\\x0ab\\xc2\\x9b\" is \xc3\xb6"
				   "dd");
	assert_int_equal(e.off, 5);
	dcp_err_where(&e, -EBADMSG, "%s", ".meta"); /* one whose name only begins so */
	assert_string_equal(e.msg, ".meta: .metadata: key \"a\\x0ab\\xc2\\x9b\" is \xc3\xb6"
				   "dd");
	assert_int_equal(dcp_fail_at(NULL, -EIO, 0, "not recorded"), -EIO);
	t_case("what is spelled takes no more room than there is");
	{
		char text[12];

		snprintf(text, sizeof(text),
			 "abcd\xe2\x80\xae"
			 "efg");
		dcp_printable(text, sizeof(text));
		assert_string_equal(text, "abcd\\xe2");
		snprintf(text, sizeof(text), "\x01%s", "bcdefghijk");
		dcp_printable(text, sizeof(text));
		assert_string_equal(text, "\\x01bcdefgh");
	}
	t_case("there is always something to say");
	e = (struct dcp_err){ 0 };
	assert_int_equal(dcp_err_where(&e, -ENOMEM, "%s", "step-5"), -ENOMEM);
	assert_string_equal(e.msg, "step-5: Cannot allocate memory");
	assert_int_equal(e.code, -ENOMEM);
	assert_int_equal(dcp_err_say(&e, -EIO), -EIO); /* said already */
	assert_string_equal(e.msg, "step-5: Cannot allocate memory");
	e = (struct dcp_err){ 0 };
	assert_int_equal(dcp_err_say(&e, 0), 0);
	assert_string_equal(e.msg, "");
	assert_int_equal(dcp_err_say(&e, -EIO), -EIO);
	assert_string_equal(e.msg, "Input/output error");
	assert_int_equal(dcp_err_say(NULL, -EIO), -EIO);
}

static const struct {
	const char *what;
	double value;
	const char *want;
} floats[] = {
	{ "whole number stays a float", 3.0, "3.0" },
	{ "negative zero", -0.0, "-0.0" },
	{ "shortest form", 0.1, "0.1" },
	{ "all 17 digits", 0.1 + 0.2, "0.30000000000000004" },
	{ "subnormal", 1e-320, "9.99988867182683e-321" },
	{ "nan", NAN, "{\"$float\":\"nan\"}" },
	{ "minus infinity", -INFINITY, "{\"$float\":\"-inf\"}" },
};

static void json_floats_are_written(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(floats); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_jsonw w;

		t_case(floats[i].what);
		dcp_jsonw_init(&w, &b, false);
		dcp_jsonw_f64(&w, floats[i].value);
		assert_string_equal(b.p, floats[i].want);
	}
}

static const struct {
	const char *what;
	const char *text;
	size_t n;
	const char *want;
} strings[] = {
	{ "plain", "abc", 3, "\"abc\"" },
	{ "NUL and controls", "a\0\x01\n", 4, "\"a\\u0000\\u0001\\n\"" },
	{ "quotes and backslash", "\"\\", 2, "\"\\\"\\\\\"" },
	{ "UTF-8 untouched", "\xc3\xa9\xf0\x9f\xa7\xa0", 6, "\"\xc3\xa9\xf0\x9f\xa7\xa0\"" },
	{ "lone surrogate", "\xed\xa0\x80", 3, "\"\\ud800\"" },
	{ "C1 controls and what follows them", "\xc2\x80\xc2\x9f\xc2\xa0", 6,
	  "\"\\u0080\\u009f\xc2\xa0\"" },
	{ "marks of direction and of no width", "\xe2\x80\xae\xe2\x80\x8b\xf3\xa0\x80\xa0", 10,
	  "\"\\u202e\\u200b\\udb40\\udc20\"" },
	{ "stray byte", "a\xff", 2, "\"a\\udcff\"" },
	{ "overlong form is not UTF-8", "\xc0\x81", 2, "\"\\udcc0\\udc81\"" },
	{ "nor are those of three and four bytes", "\xe0\x82\x80\xf0\x80\x80\x80", 7,
	  "\"\\udce0\\udc82\\udc80\\udcf0\\udc80\\udc80\\udc80\"" },
	{ "NUL of a key", "a\xc0\x80z", 4, "\"a\\u0000z\"" },
};

static void json_strings_are_written(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(strings); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_jsonw w;

		t_case(strings[i].what);
		dcp_jsonw_init(&w, &b, false);
		dcp_jsonw_str_n(&w, strings[i].text, strings[i].n);
		assert_string_equal(b.p, strings[i].want);
	}
}

static const struct {
	const char *what;
	const char *le;
	size_t n;
	const char *want;
} bigints[] = {
	{ "zero", "", 0, "0" },
	{ "one byte", "\x2a", 1, "42" },
	{ "minus one", "\xff", 1, "-1" },
	{ "2^64", "\0\0\0\0\0\0\0\0\x01", 9, "18446744073709551616" },
	{ "-2^63", "\0\0\0\0\0\0\0\x80", 8, "-9223372036854775808" },
	{ "inner zeros", "\0\xca\x9a\x3b\0", 5, "1000000000" },
	{ "-2^64", "\0\0\0\0\0\0\0\0\xff", 9, "-18446744073709551616" },
};

static void json_bigints_are_written(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(bigints); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_jsonw w;

		t_case(bigints[i].what);
		dcp_jsonw_init(&w, &b, false);
		dcp_jsonw_bigint(&w, (const uint8_t *)bigints[i].le, bigints[i].n);
		assert_string_equal(b.p, bigints[i].want);
	}
}

static void json_containers_nest(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_jsonw w;

	(void)state;
	dcp_jsonw_init(&w, &b, false);
	dcp_jsonw_object(&w);
	dcp_jsonw_key(&w, "a");
	dcp_jsonw_array(&w);
	dcp_jsonw_u64(&w, UINT64_MAX);
	dcp_jsonw_null(&w);
	dcp_jsonw_object(&w);
	dcp_jsonw_end(&w);
	dcp_jsonw_end(&w);
	dcp_jsonw_key(&w, "b");
	dcp_jsonw_base64(&w, "\0\x01\xff\xfe", 4);
	dcp_jsonw_put_str_or_null(&w, "c", "d");
	dcp_jsonw_put_str_or_null(&w, "e", NULL);
	dcp_jsonw_end(&w);
	assert_string_equal(b.p,
			    "{\"a\":[18446744073709551615,null,{}],\"b\":\"AAH//g==\",\"c\":"
			    "\"d\",\"e\":null}");
	for (int i = 0; i <= DCP_JSONW_MAX_DEPTH; i++)
		dcp_jsonw_array(&w);
	assert_int_equal(dcp_jsonw_error(&w), -E2BIG);
}

static const struct {
	const char *text;
	size_t most;
	uint64_t number;
	const char *rest; /* NULL: no number */
} numbers[] = {
	{ "0", 9, 0, "" },
	{ "0012_3", 4, 12, "_3" },
	{ "0012_3", 3, 0, NULL },
	{ "", 9, 0, NULL },
	{ "-1", 9, 0, NULL },
	{ " 1", 9, 0, NULL },
	{ "18446744073709551615", DCP_ANY_DIGITS, UINT64_MAX, "" },
	{ "18446744073709551616", DCP_ANY_DIGITS, 0, NULL },
	{ "000000000000000000000000000001", DCP_ANY_DIGITS, 1, "" },
};

static void numbers_are_digits(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(numbers); i++) {
		const char *p = numbers[i].text, *want = numbers[i].rest;
		uint64_t n = 77;

		t_case(numbers[i].text);
		assert_int_equal(dcp_take_number(&p, NULL, numbers[i].most, &n), want != NULL);
		assert_string_equal(p, want ? want : numbers[i].text);
		assert_int_equal(n, want ? numbers[i].number : 77);
		p = numbers[i].text;
		assert_false(dcp_take_number(&p, p, DCP_ANY_DIGITS, &n));
	}
	{
		static const char name[] = "w12";

		assert_string_equal(dcp_digits_before(name, name + 3), "12");
	}
}

/* A table is filled in the order of its names; what is missing is said by name. */
static void libraries_are_opened_by_names(void **state)
{
	static const char *const names[] = { "strlen", "no_such_function" };
	void *at[2] = { NULL, NULL };
	char why[100] = "";

	(void)state;
	assert_int_equal(dcp_library_open("libc.so.6", names, 1, at, why, sizeof(why)), 0);
	assert_non_null(at[0]);
	assert_int_equal(dcp_library_open("libc.so.6", names, 2, at, why, sizeof(why)),
			 -ELIBBAD);
	assert_null(at[1]);
	assert_string_equal(why, "libc.so.6 has no no_such_function");
	assert_int_equal(dcp_library_open("libnone.so.9", names, 1, at, why, sizeof(why)),
			 -ELIBACC);
	assert_non_null(strstr(why, "libnone.so.9"));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrapping_lengths_are_refused),
		cmocka_unit_test(numbers_are_digits),
		cmocka_unit_test(arena_stops_at_its_limit),
		cmocka_unit_test(arena_reset_hands_out_the_same_block),
		cmocka_unit_test(endings_of_names_are_found),
		cmocka_unit_test(range_never_wraps),
		cmocka_unit_test(new_elements_are_zero),
		cmocka_unit_test(array_has_room_for_one_more),
		cmocka_unit_test(varints_are_read_back),
		cmocka_unit_test(err_is_printable_and_prefixed),
		cmocka_unit_test(json_floats_are_written),
		cmocka_unit_test(json_strings_are_written),
		cmocka_unit_test(json_bigints_are_written),
		cmocka_unit_test(json_containers_nest),
		cmocka_unit_test(libraries_are_opened_by_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
