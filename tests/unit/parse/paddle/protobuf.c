/* SPDX-License-Identifier: Apache-2.0 */
/* covers: paddle */
#include "tests/unit/t.h"

#include "core/origin/origin.h"
#include "core/parse/paddle/paddle.h"
#include "tests/unit/t/format/pdplain.h"

/* clang-format off */
static const struct {
	const char *what;
	const char *bytes;
	size_t n;
	int want;
	struct dcp_pb_field f;
} cases[] = {
	{ "nothing",                   "",                              0,  0, { 0 } },
	{ "a small number",            "\x08\x01",                      2,  1, { 1, DCP_PB_VARINT, 1, 2, 0 } },
	{ "the largest number",        "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, 1, { 1, DCP_PB_VARINT, UINT64_MAX, 11, 0 } },
	{ "a field of two tag bytes",  "\x80\x02\x07",                  3,  1, { 32, DCP_PB_VARINT, 7, 3, 0 } },
	{ "bytes",                     "\x12\x03""abc",                 5,  1, { 2, DCP_PB_LEN, 0, 2, 3 } },
	{ "no bytes",                  "\x12\x00",                      2,  1, { 2, DCP_PB_LEN, 0, 2, 0 } },
	{ "eight bytes",               "\x09\x01\0\0\0\0\0\0\x80",      9,  1, { 1, DCP_PB_FIXED64, 0x8000000000000001, 9, 0 } },
	{ "four bytes",                "\x0d\x02\0\0\0",                5,  1, { 1, DCP_PB_FIXED32, 2, 5, 0 } },
	{ "a tag alone",               "\x08",                          1,  -EBADMSG, { 0 } },
	{ "a number without an end",   "\x08\xff",                      2,  -EBADMSG, { 0 } },
	{ "a number over 64 bits",     "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11, -EBADMSG, { 0 } },
	{ "bytes past the end",        "\x12\x04""abc",                 5,  -EBADMSG, { 0 } },
	{ "a length that wraps",       "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, -EBADMSG, { 0 } },
	{ "seven of eight bytes",      "\x09\x01\0\0\0\0\0\0",          8,  -EBADMSG, { 0 } },
	{ "a group",                   "\x0b\x0c",                      2,  -EBADMSG, { 0 } },
	{ "an unknown wire type",    "\x0f",                          1,  -EBADMSG, { 0 } },
	{ "field 0",                   "\x00\x01",                      2,  -EBADMSG, { 0 } },
	{ "a field number too large",  "\x80\x80\x80\x80\x10\x01",      6,  -EBADMSG, { 0 } },
};
/* clang-format on */

static void fields_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_source src = dcp_source_mem(cases[i].bytes, cases[i].n);
		struct dcp_pb pb = dcp_pb_message(&src, 0, src.size);
		struct dcp_err err = { 0 };
		struct dcp_pb_field f = { 0 };

		t_case(cases[i].what);
		assert_int_equal(dcp_pb_next(&pb, &f, &err), cases[i].want);
		if (cases[i].want < 0)
			t_assert_says(&err, "protobuf");
		if (cases[i].want != 1)
			continue;
		assert_int_equal(f.number, cases[i].f.number);
		assert_int_equal(f.wire, cases[i].f.wire);
		assert_true(f.value == cases[i].f.value);
		assert_int_equal(f.off, cases[i].f.off);
		assert_int_equal(f.n, cases[i].f.n);
		assert_int_equal(dcp_pb_next(&pb, &f, &err), 0);
	}
}

static void messages_inside_are_read(void **state)
{
	dcp_auto_buf struct dcp_buf in = DCP_BUF_INIT, out = DCP_BUF_INIT;
	struct dcp_source src;
	struct dcp_pb pb, sub;
	struct dcp_pb_field f;

	(void)state;
	t_pb_varint(&in, 5, 300);
	t_pb_bytes(&out, 1, "xy", 2);
	t_pb_bytes(&out, 9, in.p, in.n);
	t_pb_varint(&out, 2, 1);
	src = dcp_source_mem(out.p, out.n);
	pb = dcp_pb_message(&src, 0, src.size);
	assert_int_equal(dcp_pb_next(&pb, &f, NULL), 1);
	assert_int_equal(dcp_pb_next(&pb, &f, NULL), 1);
	assert_int_equal(f.number, 9);
	sub = dcp_pb_message(&src, f.off, f.n);
	assert_int_equal(dcp_pb_next(&sub, &f, NULL), 1);
	assert_int_equal(f.value, 300);
	assert_int_equal(dcp_pb_next(&sub, &f, NULL), 0);
	assert_int_equal(dcp_pb_next(&pb, &f, NULL), 1);
	assert_int_equal(f.value, 1);
	assert_int_equal(dcp_pb_next(&pb, &f, NULL), 0);

	t_case("a message that the source cuts is as long as the source");
	pb = dcp_pb_message(&src, out.n - 1, 100);
	assert_int_equal(dcp_pb_next(&pb, &f, NULL), -EBADMSG);
	pb = dcp_pb_message(&src, 1000, 100);
	assert_int_equal(dcp_pb_next(&pb, &f, NULL), 0);
}

static void packed_fields_are_read(void **state)
{
	static const char bytes[] = "\x01\xac\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x80";
	const uint64_t want[] = { 1, 300, UINT64_MAX };
	struct dcp_source src = dcp_source_mem(bytes, sizeof(bytes) - 1);
	struct dcp_pb pb = dcp_pb_message(&src, 0, src.size);
	uint64_t v;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(want); i++) {
		assert_int_equal(dcp_pb_packed(&pb, &v, NULL), 1);
		assert_true(v == want[i]);
	}
	assert_int_equal(dcp_pb_packed(&pb, &v, NULL), -EBADMSG);
	pb = dcp_pb_message(&src, 0, 0);
	assert_int_equal(dcp_pb_packed(&pb, &v, NULL), 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_are_read),
		cmocka_unit_test(messages_inside_are_read),
		cmocka_unit_test(packed_fields_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
