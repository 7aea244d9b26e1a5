/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every opcode: a row with what it makes, whatever the window; and all cut versions of it.
 * covers: mem, node, window
 */
#include "tests/unit/t/parse/pickle.h"

#include "core/parse/pickle/pickle_int.h"

struct row {
	uint8_t op;
	const char *bytes;
	size_t n;
	const char *want;
};

#define ROW(op, bytes, want)                                                                   \
	{                                                                                      \
		op, bytes, sizeof(bytes) - 1, want                                             \
	}

/* clang-format off */
static const struct row rows[] = {
	ROW('(',    "(I1\nI2\nt.",                    "(1,2,)"),
	ROW('.',    "N.",                             "None"),
	ROW('0',    "I1\nI2\n0.",                     "1"),
	ROW('0',    "I1\n(0.",                        "1"), /* takes the mark */
	ROW('1',    "I1\n(I2\nI3\n1.",                "1"),
	ROW('2',    "I7\n2\x86.",                     "(7,7,)"),
	ROW('2',    "]2\x86.",                        "([],[],)"),
	ROW('F',    "F1.5\n.",                        "f3ff8000000000000"),
	ROW('F',    "F-1e+22\n.",                     "fc480f0cf064dd592"),
	ROW('F',    "Finf\n.",                        "f7ff0000000000000"),
	ROW('F',    "F-inf\n.",                       "ffff0000000000000"),
	ROW('I',    "I-12\n.",                        "-12"),
	ROW('I',    "I00\n.",                         "False"),
	ROW('I',    "I01\n.",                         "True"),
	ROW('I',    "I9223372036854775807\n.",        "9223372036854775807"),
	ROW('I',    "I-9223372036854775808\n.",       "-9223372036854775808"),
	ROW('I',    "I9223372036854775808\n.",        "L000000000000008000"),
	ROW('I',    "I-9223372036854775809\n.",       "Lffffffffffffff7fff"),
	ROW('L',    "L0L\n.",                         "0"),
	ROW('L',    "L-5L\n.",                        "-5"),
	ROW('L',    "L18446744073709551616L\n.",      "L000000000000000001"),
	ROW('L',    "L-18446744073709551616L\n.",     "L0000000000000000ff"),
	ROW('L',    "L340282366920938463463374607431768211456\n.", "L0000000000000000000000000000000001"),
	ROW('N',    "N.",                             "None"),
	ROW('P',    "P7\n.",                          "id('7')"),
	ROW('R',    "cm\nf\n(I1\ntR.",                "call(<m f>,(1,))"),
	ROW('S',    "S'a'\n.",                        "'a'"),
	ROW('S',    "S\"it's\"\n.",                   "'it\\x27s'"),
	ROW('S',    "S'\\n\\x41\\101\\\\\\q\\''\n.",  "'\\x0aAA\\x5c\\x5cq\\x27'"),
	ROW('S',    "S'\\xc3\\xa9'\n.",               "'\\xc3\\xa9'"),
	ROW('S',    "S'\\xff'\n.",                    "b'\\xff'"),
	ROW('S',    "S''\n.",                         "''"),
	ROW('V',    "Vab\n.",                         "'ab'"),
	ROW('V',    "V\xe9\\u20ac\\U0001f600\n.",     "'\\xc3\\xa9\\xe2\\x82\\xac\\xf0\\x9f\\x98\\x80'"),
	ROW('V',    "V\\ud800\n.",                    "'\\xed\\xa0\\x80'"),
	ROW('V',    "V\\\\u0041\\\n.",                "'\\x5c\\x5cu0041\\x5c'"),
	ROW('V',    "V\n.",                           "''"),
	ROW('a',    "]I1\na.",                        "[1,]"),
	ROW('a',    "cm\nC\n)RI1\na.",                "call(<m C>,(),list=[1,])"),
	ROW('b',    "cm\nC\n)\x81}b.",                "new(<m C>,(),state={})"),
	ROW('b',    "cm\nC\n)\x81NbI2\nb.",           "new(<m C>,(),state=2)"), /* the last one */
	ROW('c',    "ctorch._utils\n_rebuild\n.",     "<torch._utils _rebuild>"),
	ROW('d',    "(I1\nI2\nd.",                    "{1:2,}"),
	ROW('d',    "(d.",                            "{}"),
	ROW('e',    "](I1\nI2\ne.",                   "[1,2,]"),
	ROW('e',    "](e.",                           "[]"),
	ROW('g',    "]p5\ng5\n\x86.",                 "([],[],)"),
	ROW('h',    "]q\x05h\x05\x86.",               "([],[],)"),
	ROW('i',    "(I1\nI2\nim\nC\n.",              "new(<m C>,(1,2,))"),
	ROW('i',    "(im\nC\n.",                      "new(<m C>,())"),
	ROW('j',    "]r\x05\0\0\0j\x05\0\0\0\x86.",   "([],[],)"),
	ROW('l',    "(I1\nl.",                        "[1,]"),
	ROW('o',    "(cm\nC\nI1\no.",                 "new(<m C>,(1,))"),
	ROW('p',    "I3\np0\n0g0\n.",                 "3"), /* a plain value in the memo */
	ROW('q',    "Nq\x00" "0h\x00.",               "None"),
	ROW('r',    "]r\xff\xff\xff\xff" "0]r\xff\xff\xff\xff\x85" "0j\xff\xff\xff\xff.", "[]"),
	ROW('s',    "}I1\nI2\ns.",                    "{1:2,}"),
	ROW('s',    "cm\nC\n)RI1\nI2\ns.",            "call(<m C>,(),dict={1:2,})"),
	ROW('t',    "(t.",                            "()"),
	ROW('t',    "(I1\nt.",                        "(1,)"),
	ROW('u',    "}(I1\nI2\nI1\nI3\nu.",           "{1:2,1:3,}"),
	ROW('u',    "}(u.",                           "{}"),
	ROW(')',    ").",                             "()"),
	ROW('G',    "G\x3f\xf8\0\0\0\0\0\0.",         "f3ff8000000000000"),
	ROW('J',    "J\xff\xff\xff\xff.",             "-1"),
	ROW('K',    "K\xff.",                         "255"),
	ROW('M',    "M\xff\xff.",                     "65535"),
	ROW('Q',    "K\x01\x85Q.",                    "id((1,))"),
	ROW('T',    "T\x02\0\0\0hi.",                 "'hi'"),
	ROW('T',    "T\x01\0\0\0\xff.",               "b'\\xff'"),
	ROW('U',    "U\x02hi.",                       "'hi'"),
	ROW('U',    "U\x03\xed\xa0\x80.",             "b'\\xed\\xa0\\x80'"),
	ROW('X',    "X\x02\0\0\0hi.",                 "'hi'"),
	ROW('X',    "X\x03\0\0\0\xed\xa0\x80.",       "'\\xed\\xa0\\x80'"),
	ROW('X',    "X\x11\0\0\0" "0123456789abcde\xc3\xa9.", "'0123456789abcde\\xc3\\xa9'"),
	ROW(']',    "].",                             "[]"),
	ROW('}',    "}.",                             "{}"),
	ROW(0x80,   "\x80\x05N.",                     "None"),
	ROW(0x81,   "cm\nC\nK\x01\x85\x81.",          "new(<m C>,(1,))"),
	ROW(0x85,   "K\x01\x85.",                     "(1,)"),
	ROW(0x86,   "K\x01K\x02\x86.",                "(1,2,)"),
	ROW(0x87,   "K\x01K\x02K\x03\x87.",           "(1,2,3,)"),
	ROW(0x88,   "\x88.",                          "True"),
	ROW(0x89,   "\x89.",                          "False"),
	ROW(0x8a,   "\x8a\x00.",                      "0"),
	ROW(0x8a,   "\x8a\x01\xff.",                  "-1"),
	ROW(0x8a,   "\x8a\x08\0\0\0\0\0\0\0\x80.",    "-9223372036854775808"),
	ROW(0x8a,   "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0.", "9223372036854775807"),
	ROW(0x8a,   "\x8a\x09\0\0\0\0\0\0\0\x80\0.",  "L000000000000008000"),
	ROW(0x8a,   "\x8a\x0a\0\0\0\0\0\0\0\x80\xff\xff.", "-9223372036854775808"),
	ROW(0x8b,   "\x8b\x02\0\0\0\x01\x02.",        "513"),
	ROW(0x8b,   "\x8b\0\0\0\0.",                  "0"),
	ROW('B',    "B\x02\0\0\0\0\xff.",             "b'\\x00\\xff'"),
	ROW('C',    "C\x02\0\xff.",                   "b'\\x00\\xff'"),
	ROW(0x8c,   "\x8c\x02hi.",                    "'hi'"),
	ROW(0x8c,   "\x8c\x00.",                      "''"),
	ROW(0x8c,   "\x8c\x03" "a\0b.",               "'a\\x00b'"),
	ROW(0x8d,   "\x8d\x02\0\0\0\0\0\0\0hi.",      "'hi'"),
	ROW(0x8e,   "\x8e\x02\0\0\0\0\0\0\0hi.",      "b'hi'"),
	ROW(0x8f,   "\x8f.",                          "set()"),
	ROW(0x90,   "\x8f(K\x01K\x02\x90.",           "set(1,2,)"),
	ROW(0x90,   "cm\nS\n)R(K\x01\x90.",           "call(<m S>,(),list=[1,])"),
	ROW(0x91,   "(K\x01\x91.",                    "frozen(1,)"),
	ROW(0x92,   "cm\nC\n)}\x92.",                 "new(<m C>,(),kw={})"),
	ROW(0x93,   "\x8c\x01m\x8c\x01" "f\x93.",     "<m f>"),
	ROW(0x94,   "]\x94h\x00\x86.",                "([],[],)"),
	ROW(0x94,   "]\x94q\x01" "]\x94" "0h\x02\x86.", "([],[],)"), /* numbers continue behind PUT */
	ROW(0x95,   "\x95\x02\0\0\0\0\0\0\0N.",       "None"),
	ROW(0x96,   "\x96\x02\0\0\0\0\0\0\0hi.",      "a'hi'"),
};
/* clang-format on */

static const size_t windows[] = { 16, 17, 23, 64, 0 };

static int parse(const char *bytes, size_t n, uint64_t off, size_t window,
		 struct dcp_pickle **out, struct dcp_err *err)
{
	/* Exactly as large as it says, so that reading past it is seen. */
	char *copy = calloc(1, n + off ? n + off : 1);
	struct dcp_source src = dcp_source_mem(copy, n + off);
	struct dcp_pickle_opts opts = { .off = off };
	uint64_t end = 0;
	int r;

	memset(copy, 0xfe, off);
	memcpy(copy + off, bytes, n);
	*err = (struct dcp_err){ 0 };
	r = dcp_pickle_read_windowed(&src, &opts, window, out, &end, err);
	if (r == 0)
		assert_int_equal(end, n + off);
	else
		assert_int_equal(r, err->code);
	free(copy);
	return r;
}

static void every_opcode_works_in_any_window(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].want);
		for (size_t w = 0; w < DCP_LEN(windows); w++)
			for (uint64_t off = 0; off < 18; off++) {
				struct dcp_pickle *p;
				struct dcp_err err;
				char *got;

				if (parse(rows[i].bytes, rows[i].n, off, windows[w], &p, &err) <
				    0)
					fail_msg("%s", err.msg);
				got = t_pickle_text(dcp_pickle_root(p));
				assert_string_equal(got, rows[i].want);
				free(got);
				dcp_pickle_free(p);
			}
	}
}

/* The stack grows at 64 values: each opcode with that many and a few less below it. */
static void every_opcode_works_on_full_stacks(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].want);
		for (size_t below = 56; below < 68; below++) {
			dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
			const struct dcp_pv *items;
			struct dcp_pickle *p;
			struct dcp_err err;
			size_t n;
			char *got;

			dcp_buf_str(&b, "(");
			memset(dcp_buf_grow(&b, below), 'N', below);
			dcp_buf_add(&b, rows[i].bytes, rows[i].n - 1);
			dcp_buf_str(&b, "t.");
			if (parse(b.p, b.n, 0, 0, &p, &err) < 0)
				fail_msg("%s", err.msg);
			items = dcp_pv_items(dcp_pickle_root(p), &n);
			assert_int_equal(n, below + 1);
			got = t_pickle_text(items[below]);
			assert_string_equal(got, rows[i].want);
			free(got);
			dcp_pickle_free(p);
		}
	}
}

static void every_cut_is_noticed(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].want);
		for (size_t n = 0; n < rows[i].n; n++)
			for (size_t w = 0; w < DCP_LEN(windows); w++) {
				struct dcp_pickle *p = NULL;
				struct dcp_err err;

				assert_int_equal(
					parse(rows[i].bytes, n, w, windows[w], &p, &err),
					-EBADMSG);
				assert_null(p);
				assert_true(err.off <= n + w);
				assert_int_not_equal(err.msg[0], 0);
			}
	}
}

static void no_opcode_is_forgotten(void **state)
{
#define NAME_AND_CODE(name, code, arg) { #name, code, PICKLE_ARG_##arg == PICKLE_ARG_REFUSED },
	static const struct {
		const char *name;
		uint8_t code;
		bool refused;
	} ops[] = { PICKLE_OPS(NAME_AND_CODE) };
	bool known[256] = { false };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(ops); i++) {
		bool seen = ops[i].refused;

		known[ops[i].code] = true;
		for (size_t k = 0; k < DCP_LEN(rows); k++)
			seen |= rows[k].op == ops[i].code &&
				memchr(rows[k].bytes, ops[i].code, rows[k].n);
		if (!seen)
			fail_msg("no row for %s", ops[i].name);
	}
	for (unsigned op = 0; op < 256; op++) {
		char bytes[] = { 'N', (char)op, 0, 0, 0, 0, '.' };
		struct dcp_pickle *p;
		struct dcp_err err;
		bool refused = !known[op];

		for (size_t i = 0; i < DCP_LEN(ops); i++)
			refused |= ops[i].refused && ops[i].code == op;
		if (!refused)
			continue;
		assert_int_equal(parse(bytes, sizeof(bytes), 3, 0, &p, &err), -ENOTSUP);
		assert_int_equal(err.off, 4);
		t_assert_says(&err, "at byte 4 is ");
	}
}

/* Text lies where src_off says, unless escapes changed it. */
static void text_knows_its_place(void **state)
{
	static const struct {
		const char *what, *bytes;
		size_t n;
		uint64_t off;
	} places[] = {
		{ "short str", "\x8c\x02hi.", 5, 2 },
		{ "long str", "X\x02\0\0\0hi.", 8, 5 },
		{ "bytes", "C\x02hi.", 5, 2 },
		{ "bytearray", "\x96\x02\0\0\0\0\0\0\0hi.", 12, 9 },
		{ "quoted", "S'hi'\n.", 7, 2 },
		{ "quoted with escapes", "S'\\x68i'\n.", 10, DCP_PICKLE_NO_SRC },
		{ "text", "Vhi\n.", 5, 1 },
		{ "text with escapes", "V\\u0068i\n.", 10, DCP_PICKLE_NO_SRC },
		{ "same length by accident", "V\\u0068\xe9\xe9\xe9\xe9\xe9\n.", 14,
		  DCP_PICKLE_NO_SRC },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(places); i++) {
		struct dcp_pickle *p;
		struct dcp_err err;

		t_case(places[i].what);
		assert_int_equal(parse(places[i].bytes, places[i].n, 0, 16, &p, &err), 0);
		assert_int_equal(dcp_pickle_root(p).node->src_off, places[i].off);
		dcp_pickle_free(p);
	}
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_opcode_works_in_any_window),
		cmocka_unit_test(every_opcode_works_on_full_stacks),
		cmocka_unit_test(every_cut_is_noticed),
		cmocka_unit_test(no_opcode_is_forgotten),
		cmocka_unit_test(text_knows_its_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
