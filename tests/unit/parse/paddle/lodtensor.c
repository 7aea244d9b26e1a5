/* SPDX-License-Identifier: Apache-2.0 */
/* covers: paddle */
#include "tests/unit/t.h"

#include "core/base/bytes.h"
#include "core/origin/origin.h"
#include "core/parse/paddle/paddle.h"
#include "tests/unit/t/format/pdplain.h"

/* clang-format off */
static const struct {
	uint32_t type;
	const char *name; /* NULL: nothing with numbers */
} types[] = {
	{ 0, "BOOL" }, { 1, "I16" }, { 2, "I32" }, { 3, "I64" }, { 4, "F16" }, { 5, "F32" },
	{ 6, "F64" }, { 20, "U8" }, { 21, "I8" }, { 22, "BF16" }, { 23, "C64" }, { 24, "C128" },
	{ 32, "F8_E4M3" }, { 33, "F8_E5M2" }, { 37, "U32" }, { 38, "U64" },
	{ 7, NULL }, { 25, NULL }, { 300, NULL },
};
/* clang-format on */

static void every_type_is_read(void **state)
{
	static const char data[96];
	const int64_t dims[] = { 2, 3 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(types); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_lodtensor x;
		struct dcp_source src;
		struct dcp_err err = { 0 };

		t_lod(&b, types[i].type, dims, 2, data, sizeof(data));
		src = dcp_source_mem(b.p, b.n);
		if (!types[i].name) {
			assert_int_equal(dcp_lodtensor_read(&src, 0, &x, &err), -ENOTSUP);
			t_assert_says(&err, "has no numbers");
			continue;
		}
		t_case(types[i].name);
		assert_int_equal(dcp_lodtensor_read(&src, 0, &x, &err), 0);
		assert_string_equal(x.dtype_name, types[i].name);
		assert_int_equal(x.dtype, dcp_dtype_from_name(types[i].name));
		assert_int_equal(x.itemsize, dcp_dtype_info(x.dtype)->size);
		assert_int_equal(x.nbytes, 6 * x.itemsize);
		assert_int_equal(x.off, b.n - sizeof(data));
		assert_int_equal(x.ndim, 2);
		assert_int_equal(x.shape[1], 3);
	}
}

/* The example of Paddle's own documentation: f4 (2, 3). */
static void the_documented_example_is_read(void **state)
{
	static const uint8_t bytes[50] = { [16] = 6, [20] = 8, 5, 16, 2, 16, 3, [30] = 0 };
	struct dcp_source src = dcp_source_mem(bytes, sizeof(bytes));
	struct dcp_lodtensor x;

	(void)state;
	assert_int_equal(dcp_lodtensor_read(&src, 0, &x, NULL), 0);
	assert_int_equal(x.off, 26);
	assert_int_equal(x.nbytes, 24);
}

static void tensors_in_a_row_are_read(void **state)
{
	static const char data[64];
	const int64_t dims[] = { 0, 7 }, one[] = { 5 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_lodtensor x;
	struct dcp_source src;
	uint64_t at;

	(void)state;
	t_lod(&b, 6, NULL, 0, data, 8);
	t_lod(&b, 5, dims, 2, data, 0);
	t_lod(&b, 20, one, 1, data, 5);
	src = dcp_source_mem(b.p, b.n);
	assert_int_equal(dcp_lodtensor_read(&src, 0, &x, NULL), 0);
	assert_int_equal(x.ndim, 0);
	assert_int_equal(x.nbytes, 8);
	at = x.off + x.nbytes;
	assert_int_equal(dcp_lodtensor_read(&src, at, &x, NULL), 0);
	assert_int_equal(x.nbytes, 0);
	assert_int_equal(x.shape[1], 7);
	at = x.off + x.nbytes;
	assert_int_equal(dcp_lodtensor_read(&src, at, &x, NULL), 0);
	assert_int_equal(x.off + x.nbytes, src.size);
}

/* Two levels, and dimensions as one packed field. */
static void levels_and_packed_dimensions_are_read(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, desc = DCP_BUF_INIT;
	struct dcp_lodtensor x;
	struct dcp_source src;
	uint8_t head[4 + 8 + 8 + 16 + 8 + 8 + 4 + 4] = { 0 };

	(void)state;
	t_pb_varint(&desc, 1, 21);
	t_pb_bytes(&desc, 2, "\x03\x02", 2);
	t_pb_bytes(&desc, 7, "later", 5); /* a field to come */
	head[4] = 2;
	head[12] = 16;
	head[36] = 8;
	head[56] = (uint8_t)desc.n;
	dcp_buf_add(&b, head, sizeof(head));
	dcp_buf_add(&b, desc.p, desc.n);
	dcp_buf_add(&b, "abcdef", 6);
	src = dcp_source_mem(b.p, b.n);
	assert_int_equal(dcp_lodtensor_read(&src, 0, &x, NULL), 0);
	assert_int_equal(x.shape[0], 3);
	assert_int_equal(x.shape[1], 2);
	assert_int_equal(x.off, b.n - 6);
}

/* Cut anywhere, it is refused; only its elements cut, the rest is still told. */
static void cut_files_are_refused(void **state)
{
	const int64_t dims[] = { 4 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	t_lod(&b, 5, dims, 1, "0123456789abcdef", 16);
	for (size_t n = 0; n < b.n; n++) {
		struct dcp_source src = dcp_source_mem(b.p, n);
		struct dcp_err err = { 0 };
		struct dcp_lodtensor x;

		assert_int_equal(dcp_lodtensor_read(&src, 0, &x, &err), -EBADMSG);
		assert_true(err.msg[0]);
		if (n < b.n - 16)
			continue;
		t_assert_says(&err, "needs 16 bytes");
		assert_string_equal(x.dtype_name, "F32");
		assert_int_equal(x.shape[0], 4);
	}
}

/* One byte of a good stream made wrong. */
/* clang-format off */
static const struct {
	const char *what;
	size_t at;
	uint8_t byte;
	const char *says;
} faults[] = {
	{ "another version",             0,  1,    "does not begin with version 0" },
	{ "too many levels",             5,  1,    "does not begin with version 0" },
	{ "a level past the end",        4,  1,    "a level is longer than the file" },
	{ "another tensor version",      12, 7,    "of version 7, expected 0" },
	{ "no description",              16, 0,    "an invalid length" },
	{ "a description past the end",  17, 8,    "an invalid length" },
	{ "a description of 16 MiB",     19, 1,    "an invalid length" },
	{ "no dtype in it",              20, 0x18, "without a dtype" },
	{ "a group in it",               20, 0x0b, "wire type" },
};
/* clang-format on */

static void damaged_files_are_refused(void **state)
{
	const int64_t dims[] = { 4 };
	struct dcp_lodtensor x;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(faults); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_err err = { 0 };
		struct dcp_source src;

		t_case(faults[i].what);
		t_lod(&b, 5, dims, 1,
		      "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16);
		b.p[faults[i].at] = (char)faults[i].byte;
		src = dcp_source_mem(b.p, b.n);
		assert_int_equal(dcp_lodtensor_read(&src, 0, &x, &err), -EBADMSG);
		t_assert_says(&err, faults[i].says);
	}
}

static void impossible_sizes_are_refused(void **state)
{
	const int64_t negative[] = { 2, -1 }, huge[] = { INT64_MAX, 4, 4 };
	int64_t many[DCP_MAX_NDIM + 1];
	struct dcp_lodtensor x;
	struct dcp_err err = { 0 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(many); i++)
		many[i] = 1;
	for (int which = 0; which < 3; which++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_source src;

		t_lod(&b, 5,
		      which == 0   ? negative
		      : which == 1 ? huge
				   : many,
		      which == 0   ? 2
		      : which == 1 ? 3
				   : DCP_LEN(many),
		      "0123456789abcdef", 16);
		src = dcp_source_mem(b.p, b.n);
		assert_int_equal(dcp_lodtensor_read(&src, 0, &x, &err), -EBADMSG);
		t_assert_says(&err, which == 0   ? "dimension 1 of a tensor is -1"
				    : which == 1 ? "64 bits"
						 : "more than 64 dimensions");
	}
}

static void selected_rows_are_read(void **state)
{
	const int64_t dims[] = { 2, 3 };
	struct dcp_selected_rows s;
	struct dcp_err err = { 0 };
	struct dcp_source src;
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint8_t head[12 + 16 + 8] = { [4] = 2, [12] = 9, [20] = 4, [28] = 100 };

	(void)state;
	dcp_buf_add(&b, head, sizeof(head));
	t_lod_tensor(&b, 20, dims, 2, "abcdef", 6);
	src = dcp_source_mem(b.p, b.n);
	assert_int_equal(dcp_selected_rows_read(&src, &s, &err), 0);
	assert_int_equal(s.nrows, 2);
	assert_int_equal(s.height, 100);
	assert_int_equal(dcp_load_le64((uint8_t *)b.p + s.rows_off), 9);
	assert_int_equal(s.value.off, b.n - 6);
	for (size_t n = 0; n < b.n; n++) {
		src = dcp_source_mem(b.p, n);
		assert_int_equal(dcp_selected_rows_read(&src, &s, &err), -EBADMSG);
	}
	src = dcp_source_mem(b.p, b.n);
	b.p[35] = (char)0x80;
	assert_int_equal(dcp_selected_rows_read(&src, &s, &err), -EBADMSG);
	t_assert_says(&err, "its rows are not those of its tensor");
	b.p[11] = (char)0x80;
	assert_int_equal(dcp_selected_rows_read(&src, &s, &err), -EBADMSG);
	t_assert_says(&err, "an invalid number of rows");
	for (int64_t rows = 1; rows <= 3; rows++) {
		const int64_t shape[] = { rows, 1 };

		dcp_buf_reset(&b);
		dcp_buf_add(&b, head, sizeof(head));
		t_lod_tensor(&b, 20, shape, 2, "abc", (size_t)rows);
		src = dcp_source_mem(b.p, b.n);
		assert_int_equal(dcp_selected_rows_read(&src, &s, &err),
				 rows == 2 ? 0 : -EBADMSG);
		if (rows != 2)
			t_assert_says(&err, "its rows are not those of its tensor");
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_type_is_read),
		cmocka_unit_test(the_documented_example_is_read),
		cmocka_unit_test(tensors_in_a_row_are_read),
		cmocka_unit_test(levels_and_packed_dimensions_are_read),
		cmocka_unit_test(cut_files_are_refused),
		cmocka_unit_test(damaged_files_are_refused),
		cmocka_unit_test(impossible_sizes_are_refused),
		cmocka_unit_test(selected_rows_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
