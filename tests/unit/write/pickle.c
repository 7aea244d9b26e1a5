/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same bytes as CPython 3.11's pickle.dumps(), told by their length and CRC-32.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/write/pickle.h"

static void ints_of(struct dcp_pickler *p, size_t from, size_t n)
{
	for (size_t i = from; i < from + n; i++)
		dcp_pickler_u64(p, i);
}

static void nothing(struct dcp_pickler *p, size_t n)
{
	(void)n;
	dcp_pickler_none(p);
}

static void scalars(struct dcp_pickler *p, size_t n)
{
	static const int64_t v[] = { 0,  255,       256,       65535,     65536,
				     -1, INT32_MAX, INT32_MIN, 1ll << 31, -(1ll << 31) - 1 };
	const uint8_t big[] = { 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0 };

	(void)n;
	dcp_pickler_open(p, DCP_PICKLE_LIST, 16);
	dcp_pickler_none(p);
	dcp_pickler_bool(p, true);
	dcp_pickler_bool(p, false);
	for (size_t i = 0; i < DCP_LEN(v); i++)
		dcp_pickler_int(p, v[i]);
	dcp_pickler_bigint(p, big, sizeof(big));
	dcp_pickler_int(p, INT64_MIN);
	dcp_pickler_float(p, 0.1);
}

static void tuples(struct dcp_pickler *p, size_t n)
{
	(void)n;
	dcp_pickler_open(p, DCP_PICKLE_LIST, 5);
	for (size_t i = 0; i < 5; i++) {
		dcp_pickler_open(p, DCP_PICKLE_TUPLE, i);
		ints_of(p, 1, i);
	}
}

static const char *same(char c, size_t n)
{
	static char text[70001];

	memset(text, c, n);
	text[n] = '\0';
	return text;
}

static void strings(struct dcp_pickler *p, size_t n)
{
	(void)n;
	dcp_pickler_open(p, DCP_PICKLE_LIST, 4);
	dcp_pickler_str(p, "");
	dcp_pickler_str(p, same('a', 255));
	dcp_pickler_str(p, same('b', 256));
	dcp_pickler_str(p, "\xc3\xa9\xed\xb2\x80\xc0\x80");
}

static void bytes(struct dcp_pickler *p, size_t n)
{
	(void)n;
	dcp_pickler_open(p, DCP_PICKLE_LIST, 3);
	dcp_pickler_bytes(p, NULL, 0);
	dcp_pickler_bytes(p, "\0\x7f\x80\xff", 4);
	dcp_pickler_bytes(p, same('x', 256), 256);
}

static void empties(struct dcp_pickler *p, size_t n)
{
	(void)n;
	dcp_pickler_open(p, DCP_PICKLE_LIST, 4);
	dcp_pickler_open(p, DCP_PICKLE_LIST, 0);
	dcp_pickler_open(p, DCP_PICKLE_DICT, 0);
	dcp_pickler_open(p, DCP_PICKLE_TUPLE, 0);
	dcp_pickler_open(p, DCP_PICKLE_SET, 0);
}

static void one_each(struct dcp_pickler *p, size_t n)
{
	(void)n;
	dcp_pickler_open(p, DCP_PICKLE_LIST, 3);
	dcp_pickler_open(p, DCP_PICKLE_LIST, 1);
	dcp_pickler_int(p, 1);
	dcp_pickler_open(p, DCP_PICKLE_DICT, 1);
	ints_of(p, 2, 2);
	dcp_pickler_open(p, DCP_PICKLE_SET, 1);
	dcp_pickler_int(p, 4);
}

static void ints(struct dcp_pickler *p, size_t n)
{
	dcp_pickler_open(p, DCP_PICKLE_LIST, n);
	ints_of(p, 0, n);
}

static void pairs(struct dcp_pickler *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		dcp_pickler_u64(p, i);
		dcp_pickler_u64(p, i);
	}
}

static void dict(struct dcp_pickler *p, size_t n)
{
	dcp_pickler_open(p, DCP_PICKLE_DICT, n);
	pairs(p, n);
}

static void ordered(struct dcp_pickler *p, size_t n)
{
	dcp_pickler_open(p, DCP_PICKLE_ITEMS, n);
	dcp_pickler_open(p, DCP_PICKLE_REDUCE, 0);
	dcp_pickler_global(p, "collections", "OrderedDict");
	dcp_pickler_open(p, DCP_PICKLE_TUPLE, 0);
	if (n == 1)
		ints_of(p, 1, 2);
	else if (n == 2)
		ints_of(p, 1, 4);
	else
		pairs(p, n);
}

static void numbered(struct dcp_pickler *p, int width, size_t n)
{
	char text[16];

	dcp_pickler_open(p, DCP_PICKLE_LIST, n);
	for (size_t i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "s%0*d", width, (int)i);
		dcp_pickler_str(p, text);
	}
}

static void strings_300(struct dcp_pickler *p, size_t n)
{
	(void)n;
	numbered(p, 1, 300);
}

static void frames(struct dcp_pickler *p, size_t n)
{
	(void)n;
	numbered(p, 6, 20000);
}

static void around(struct dcp_pickler *p, size_t n, bool is_str)
{
	dcp_pickler_open(p, DCP_PICKLE_LIST, 3);
	dcp_pickler_int(p, 1);
	if (is_str)
		dcp_pickler_str(p, same('c', n));
	else
		dcp_pickler_bytes(p, same('c', n), n);
	dcp_pickler_int(p, 2);
}

static void long_string(struct dcp_pickler *p, size_t n)
{
	(void)n;
	around(p, 70000, true);
}

static void frame_string(struct dcp_pickler *p, size_t n)
{
	(void)n;
	around(p, 65536, true);
}

static void long_bytes(struct dcp_pickler *p, size_t n)
{
	(void)n;
	around(p, 70000, false);
}

static void globals(struct dcp_pickler *p, size_t n)
{
	(void)n;
	dcp_pickler_open(p, DCP_PICKLE_LIST, 5);
	dcp_pickler_global(p, "collections", "OrderedDict");
	dcp_pickler_global(p, "collections", "OrderedDict");
	dcp_pickler_global(p, "collections", "Counter");
	dcp_pickler_global(p, "builtins", "complex");
	dcp_pickler_global(p, "builtins", "dict");
}

/* clang-format off */
static const struct {
	const char *what;
	void (*build)(struct dcp_pickler *p, size_t n);
	size_t n;
	struct { size_t n; uint32_t crc; } want[3]; /* protocols 2, 3, 4 */
} cases[] = {
	{ "nothing", nothing, 0, { { 4, 0x7db5d20d }, { 4, 0x7c77b83a }, { 4, 0x7938aebf } } },
	{ "scalars", scalars, 0, { { 85, 0xddb42ab3 }, { 85, 0x87b78a7c }, { 93, 0xf82c6561 } } },
	{ "tuples", tuples, 0, { { 42, 0xbff2d7a9 }, { 42, 0x57e54708 }, { 46, 0x8e36808b } } },
	{ "strings", strings, 0, { { 553, 0xbf7e5fcd }, { 553, 0x9af88cf9 }, { 548, 0x13ae5606 } } },
	{ "bytes", bytes, 0, { { 356, 0x93c76e3a }, { 283, 0x7fc254b6 }, { 288, 0x55c5b4bc } } },
	{ "empty containers", empties, 0, { { 43, 0x31b32042 }, { 40, 0x714d56aa }, { 23, 0xf175ba38 } } },
	{ "one each", one_each, 0, { { 53, 0x80fcf2a3 }, { 50, 0x84bd4cf9 }, { 34, 0x9a02e933 } } },
	{ "list of 1000", ints, 1000, { { 2752, 0xe43c8d40 }, { 2752, 0x9050baad }, { 2760, 0x2c75d3dc } } },
	{ "list of 1001", ints, 1001, { { 2757, 0x356ad1e8 }, { 2757, 0x824c9c28 }, { 2765, 0x23156d71 } } },
	{ "list of 2000", ints, 2000, { { 5754, 0x075b65cf }, { 5754, 0x6347712b }, { 5762, 0xe13720e3 } } },
	{ "dict of 999", dict, 999, { { 5490, 0xccd859f9 }, { 5490, 0x92c8016c }, { 5498, 0x8a3058a7 } } },
	{ "dict of 1000", dict, 1000, { { 5498, 0x8d101511 }, { 5498, 0x7ebf7b65 }, { 5506, 0x7f70fe0e } } },
	{ "dict of 1001", dict, 1001, { { 5504, 0x28bdecfe }, { 5504, 0x3c86aedf }, { 5512, 0x5623fd1b } } },
	{ "dict of 2000", dict, 2000, { { 11500, 0x5a963144 }, { 11500, 0x1c2f16ab }, { 11508, 0x285d8fd5 } } },
	{ "OrderedDict of 0", ordered, 0, { { 34, 0xcd4e5d56 }, { 34, 0xfbbccda5 }, { 45, 0xe2628b67 } } },
	{ "OrderedDict of 1", ordered, 1, { { 39, 0xbe4a8831 }, { 39, 0x33c275d3 }, { 50, 0x1593581b } } },
	{ "OrderedDict of 2", ordered, 2, { { 44, 0xd8018cea }, { 44, 0x9f127a11 }, { 55, 0xf85f81b6 } } },
	{ "OrderedDict of 1000", ordered, 1000, { { 5524, 0x6acce98c }, { 5524, 0xc68041ec }, { 5535, 0xb4671e58 } } },
	{ "OrderedDict of 1001", ordered, 1001, { { 5531, 0x1a7a5605 }, { 5531, 0xfe3d9a96 }, { 5542, 0xfb6262f9 } } },
	{ "OrderedDict of 1002", ordered, 1002, { { 5538, 0xc4c5cb99 }, { 5538, 0xcf012bc1 }, { 5549, 0xe08ab666 } } },
	{ "300 strings", strings_300, 0, { { 3333, 0xc17c1412 }, { 3333, 0x84cb199f }, { 2006, 0x7b340a09 } } },
	{ "frames", frames, 0, { { 339281, 0xe17c697b }, { 339281, 0x8dcc0a3d }, { 200081, 0x37c9f669 } } },
	{ "a long string", long_string, 0, { { 70019, 0xc1c306fb }, { 70019, 0x5e520a70 }, { 70035, 0x5e296ed7 } } },
	{ "a string of a frame", frame_string, 0, { { 65555, 0x3b13b871 }, { 65555, 0x35d8c44a }, { 65571, 0x4cb53bbc } } },
	{ "long bytes", long_bytes, 0, { { 70056, 0x3b2df186 }, { 70019, 0xf2e1d474 }, { 70035, 0x08160b79 } } },
	{ "globals", globals, 0, { { 103, 0x286b22e5 }, { 97, 0xe5d6c59c }, { 96, 0x97286df9 } } },
};
/* clang-format on */

static void pickles_are_cpythons(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++)
		for (unsigned protocol = 2; protocol <= 4; protocol++) {
			dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
			struct dcp_pickler p;

			t_case(cases[i].what);
			dcp_pickler_init(&p, &out, protocol);
			cases[i].build(&p, cases[i].n);
			assert_int_equal(dcp_pickler_end(&p), 0);
			assert_int_equal(out.n, cases[i].want[protocol - 2].n);
			assert_int_equal(dcp_crc32(0, out.p, out.n),
					 cases[i].want[protocol - 2].crc);
		}
}

/* Bytes that the caller writes: the pickle is complete around them. */
static void bytes_of_the_caller_are_framed(void **state)
{
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	struct dcp_pickler p;
	size_t head;

	(void)state;
	dcp_pickler_init(&p, &out, 4);
	dcp_pickler_open(&p, DCP_PICKLE_TUPLE, 2);
	dcp_pickler_str(&p, "a");
	dcp_pickler_bytes_open(&p, 300);
	head = out.n;
	dcp_buf_add(&out, same('y', 300), 300);
	dcp_pickler_bytes_close(&p);
	assert_int_equal(dcp_pickler_end(&p), 0);
	/* a frame of four bytes, the header of the bytes, the bytes, what ends the tuple */
	assert_memory_equal(out.p,
			    "\x80\4\x95\4\0\0\0\0\0\0\0\x8c\1a\x94"
			    "B\x2c\1\0\0",
			    20);
	assert_int_equal(head, 20);
	assert_memory_equal(out.p + head + 300, "\x95\4\0\0\0\0\0\0\0\x94\x86\x94.", 13);
}

static void mistakes_are_refused(void **state)
{
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	struct dcp_pickler p;

	(void)state;
	dcp_pickler_init(&p, &out, 3);
	dcp_pickler_open(&p, DCP_PICKLE_LIST, 2);
	dcp_pickler_none(&p);
	assert_int_equal(dcp_pickler_end(&p), -EINVAL);
	dcp_pickler_init(&p, &out, 3);
	for (int i = 0; i <= DCP_PICKLER_DEPTH; i++)
		dcp_pickler_open(&p, DCP_PICKLE_LIST, 1);
	dcp_pickler_none(&p);
	assert_int_equal(dcp_pickler_end(&p), -E2BIG);
	dcp_pickler_init(&p, &out, 2);
	dcp_pickler_bytes_open(&p, 3);
	assert_int_equal(dcp_pickler_end(&p), -EINVAL);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pickles_are_cpythons),
		cmocka_unit_test(bytes_of_the_caller_are_framed),
		cmocka_unit_test(mistakes_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
