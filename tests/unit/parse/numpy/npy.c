/* SPDX-License-Identifier: Apache-2.0 */
/* covers: numpy */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/numpy/numpy.h"

/* Lengths and texts as numpy 1.24.2 writes them. */
/* clang-format off */
static const struct {
	const char *what;
	enum dcp_dtype dtype;
	uint32_t ndim;
	uint64_t shape[17];
	size_t n; /* of the whole header */
	const char *dict;
} headers[] = {
	{ "no dimension", DCP_DTYPE_F32, 0, { 0 }, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }" },
	{ "one dimension has a comma", DCP_DTYPE_F32, 1, { 3 }, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }" },
	{ "two dimensions", DCP_DTYPE_F16, 2, { 2, 3 }, 128, "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }" },
	{ "no rows", DCP_DTYPE_F64, 2, { 0, 5 }, 128, "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 5), }" },
	{ "truth values", DCP_DTYPE_BOOL, 1, { 1 }, 128, "{'descr': '|b1', 'fortran_order': False, 'shape': (1,), }" },
	{ "signed bytes", DCP_DTYPE_I8, 1, { 7 }, 128, "{'descr': '|i1', 'fortran_order': False, 'shape': (7,), }" },
	{ "unsigned bytes", DCP_DTYPE_U8, 1, { 7 }, 128, "{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }" },
	{ "long numbers", DCP_DTYPE_I64, 2, { 123456789012, 2 }, 128, "{'descr': '<i8', 'fortran_order': False, 'shape': (123456789012, 2), }" },
	{ "longest number", DCP_DTYPE_F32, 2, { INT64_MAX, 1 }, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 1), }" },
	{ "complex", DCP_DTYPE_C64, 1, { 2 }, 128, "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }" },
	{ "complex of doubles", DCP_DTYPE_C128, 3, { 2, 3, 4 }, 128, "{'descr': '<c16', 'fortran_order': False, 'shape': (2, 3, 4), }" },
	{ "complex of halves is widened", DCP_DTYPE_C32, 1, { 2 }, 128, "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }" },
	{ "bfloat16 is widened", DCP_DTYPE_BF16, 2, { 19, 6 }, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (19, 6), }" },
	{ "16 dimensions need 64 bytes more", DCP_DTYPE_U32, 16, { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 192,
	  "{'descr': '<u4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), }" },
	{ "nothing to pad gets 64 bytes", DCP_DTYPE_F32, 14, { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 100 }, 192,
	  "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 100), }" },
	{ "one character less does not", DCP_DTYPE_F32, 14, { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10 }, 128,
	  "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10), }" },
	{ "F4 has two numbers a byte", DCP_DTYPE_F4, 2, { 3, 4 }, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 8), }" },
	{ "F4, first dimension is the last", DCP_DTYPE_F4, 1, { 5 }, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (10,), }" },
	{ "F4 without dimensions is a pair", DCP_DTYPE_F4, 0, { 0 }, 128, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }" },
};
/* clang-format on */

/* Magic, version, length, dict, spaces, newline: every byte is told by these. */
static void check_header(const struct dcp_buf *b, size_t n, const char *dict)
{
	size_t len = strlen(dict);

	assert_int_equal(b->n, n);
	assert_memory_equal(b->p, "\x93NUMPY\x01\x00", 8);
	assert_int_equal(dcp_load_le16(b->p + 8), n - 10);
	assert_memory_equal(b->p + 10, dict, len);
	assert_int_equal(strspn(b->p + 10 + len, " "), n - 10 - len - 1);
	assert_int_equal(b->p[n - 1], '\n');
}

static void headers_are_numpys(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(headers); i++) {
		t_case(headers[i].what);
		dcp_buf_reset(&b);
		assert_int_equal(
			dcp_npy_header(&b, headers[i].dtype, headers[i].ndim, headers[i].shape),
			0);
		check_header(&b, headers[i].n, headers[i].dict);
		assert_int_equal(dcp_npy_header_size(headers[i].dtype, headers[i].ndim,
						     headers[i].shape),
				 b.n);
	}
}

static void headers_are_appended(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint64_t shape[] = { 4 };

	(void)state;
	dcp_buf_str(&b, "abc");
	assert_int_equal(dcp_npy_header(&b, DCP_DTYPE_F32, 1, shape), 0);
	assert_int_equal(b.n, 3 + 128);
	assert_memory_equal(b.p, "abc\x93NUMPY", 9);
}

static void long_headers_are_version_two(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint64_t *shape = malloc(30000 * sizeof(*shape));

	(void)state;
	for (size_t i = 0; i < 30000; i++)
		shape[i] = 3;
	assert_int_equal(dcp_npy_header(&b, DCP_DTYPE_F32, 30000, shape), 0);
	assert_memory_equal(b.p, "\x93NUMPY\x02\x00", 8);
	assert_int_equal(b.n, 90112);
	assert_int_equal(dcp_npy_header_size(DCP_DTYPE_F32, 30000, shape), b.n);
	assert_int_equal(dcp_load_le32(b.p + 8), b.n - 12);
	assert_int_equal(b.p[b.n - 1], '\n');
	free(shape);
}

static void other_types_have_no_npy(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint64_t shape[] = { 4 };

	(void)state;
	assert_int_equal(dcp_npy_header(&b, DCP_DTYPE_OTHER, 1, shape), -ENOTSUP);
	assert_int_equal(b.n, 0);
	assert_int_equal(dcp_npy_header_size(DCP_DTYPE_OTHER, 1, shape), 0);
}

/* ---- read ---- */

static int read_text(const char *dict, struct dcp_npy *a, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint8_t len[2];
	struct dcp_source src;

	dcp_store_le16(len, (uint16_t)strlen(dict));
	dcp_buf_add(&b, "\x93NUMPY\x01\x00", 8);
	dcp_buf_add(&b, len, 2);
	dcp_buf_str(&b, dict);
	dcp_buf_add(&b, "data", 4);
	src = dcp_source_mem(b.p, b.n);
	return dcp_npy_read(&src, a, err);
}

static void written_headers_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(headers); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		const struct dcp_dtype_info *info = dcp_dtype_info(headers[i].dtype);
		struct dcp_source src;
		struct dcp_err err = { 0 };
		struct dcp_npy a;
		uint64_t nbytes;

		t_case(headers[i].what);
		dcp_npy_header(&b, headers[i].dtype, headers[i].ndim, headers[i].shape);
		src = dcp_source_mem(b.p, b.n);
		if (headers[i].shape[0] == INT64_MAX) {
			assert_int_equal(dcp_npy_read(&src, &a, &err), -EBADMSG);
			t_assert_says(&err, "overflows");
			continue;
		}
		if (dcp_npy_read(&src, &a, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(a.off, b.n);
		assert_int_equal(a.itemsize * info->values, info->npy_size);
		assert_true(a.row_major && !a.swap && a.kind == DCP_NPY_NUMBERS);
		assert_true(dcp_shape_volume(a.shape, a.ndim, &nbytes));
		assert_int_equal(a.nbytes, nbytes * a.itemsize);
		if (!info->widened)
			assert_string_equal(a.dtype_name, info->name);
	}
}

static void headers_of_other_writers_are_read(void **state)
{
	/* clang-format off */
	static const struct {
		const char *what, *dict, *dtype;
		uint32_t itemsize, ndim;
		uint64_t shape[3], stride[3];
		enum dcp_npy_kind kind;
		bool columns, swap;
	} cases[] = {
		{ "MLX: no comma at the end, order of one dimension", "{'descr': '<i4', 'fortran_order': True, 'shape': (5, )}    \n", "I32", 4, 1, { 5 }, { 1 }, 0, false, false },
		{ "columns first", "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3, 4), }\n", "F64", 8, 3, { 2, 3, 4 }, { 1, 2, 6 }, 0, true, false },
		{ "columns of one row", "{'descr': '<f8', 'fortran_order': True, 'shape': (1, 3), }\n", "F64", 8, 2, { 1, 3 }, { 1, 1 }, 0, false, false },
		{ "big-endian", "{'descr': '>c16', 'fortran_order': False, 'shape': (2,), }\n", "C128", 16, 1, { 2 }, { 1 }, 0, false, true },
		{ "big-endian bytes are bytes", "{'descr': '>u1', 'fortran_order': False, 'shape': (2,), }", "U8", 1, 1, { 2 }, { 1 }, 0, false, false },
		{ "any order, other quotes, Python 2's longs", "{ \"shape\":(2L,3L) ,'fortran_order':False,'descr':'=f4'}", "F32", 4, 2, { 2, 3 }, { 3, 1 }, 0, false, false },
		{ "bfloat16", "{'descr': '<V2', 'fortran_order': False, 'shape': (), }\n", "BF16", 2, 0, { 0 }, { 0 }, 0, false, false },
		{ "bytes without a type", "{'descr': '|V1', 'fortran_order': False, 'shape': (3,), }\n", "V1", 1, 1, { 3 }, { 1 }, 0, false, false },
		{ "text", "{'descr': '<U7', 'fortran_order': False, 'shape': (3,), }\n", "U7", 28, 1, { 3 }, { 1 }, 0, false, false },
		{ "dates", "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (3,), }\n", "M8[ns]", 8, 1, { 3 }, { 1 }, 0, false, false },
		{ "long doubles", "{'descr': '<f16', 'fortran_order': False, 'shape': (1,), }\n", "f16", 16, 1, { 1 }, { 1 }, 0, false, false },
		{ "objects", "{'descr': '|O', 'fortran_order': False, 'shape': (), }\n", "O", 0, 0, { 0 }, { 0 }, DCP_NPY_OBJECTS, false, false },
		{ "records", "{'descr': [('a', '<f4', (2, 3)), (('t', 'b]'), [('c', '|S3')])], 'fortran_order': False, 'shape': (4,), }\n", "", 0, 1, { 4 }, { 1 }, DCP_NPY_RECORDS, false, false },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_err err = { 0 };
		struct dcp_npy a;

		t_case(cases[i].what);
		if (read_text(cases[i].dict, &a, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(a.kind, cases[i].kind);
		assert_string_equal(a.dtype_name, cases[i].dtype);
		assert_int_equal(a.itemsize, cases[i].itemsize);
		assert_int_equal(a.ndim, cases[i].ndim);
		for (uint32_t d = 0; d < a.ndim; d++) {
			assert_int_equal(a.shape[d], cases[i].shape[d]);
			assert_int_equal(a.stride[d], cases[i].stride[d]);
		}
		assert_int_equal(a.row_major, !cases[i].columns);
		assert_int_equal(a.swap, cases[i].swap);
		assert_int_equal(a.off, 10 + strlen(cases[i].dict));
	}
}

#define REST ", 'fortran_order': False, 'shape': (2,)}"

static void damaged_headers_are_refused(void **state)
{
	static const char *const dicts[] = {
		"",
		"{",
		"{'descr'",
		"{'descr': '",
		"{'descr': '<f4'}",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2}",
		"{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
		"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} + 1",
		"{'descr': ''" REST,
		"{'descr': '<'" REST,
		"{'descr': '<f'" REST,
		"{'descr': '<f0'" REST,
		"{'descr': '<f4junk'" REST,
		"{'descr': '<q4'" REST,
		"{'descr': '\\x3cf4'" REST,
		"{'descr': [('a', '<f4')" REST,
		"{'descr': [('a', '<f4'])" REST,
		"{'descr': [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
		"]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]" REST,
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(dicts); i++) {
		struct dcp_err err = { 0 };
		struct dcp_npy a;

		t_case(dicts[i]);
		assert_int_equal(read_text(dicts[i], &a, &err), -EBADMSG);
		t_assert_says(&err, "has another form than numpy's");
	}
}

static void other_starts_are_refused(void **state)
{
	static const struct {
		const char *bytes;
		size_t n;
		int code;
		const char *says;
	} cases[] = {
		{ "", 0, -EBADMSG, "not an .npy array" },
		{ "\x93NUMPY\x01\x00\x02\x00{", 11, -EBADMSG, "not an .npy array" },
		{ "\x93NUMPX\x01\x00\x02\x00{}", 12, -EBADMSG, "not an .npy array" },
		{ "\x93NUMPY\x04\x00\x02\x00{}", 12, -ENOTSUP, "version 4.0" },
		{ "\x93NUMPY\x01\x00\x77\x00{}", 12, -EBADMSG, "cut short" },
		{ "\x93NUMPY\x02\x00\xff\xff\xff\xff", 12, -E2BIG, "expected at most 1048576" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_source src = dcp_source_mem(cases[i].bytes, cases[i].n);
		struct dcp_err err = { 0 };
		struct dcp_npy a;

		t_case(cases[i].says);
		assert_int_equal(dcp_npy_read(&src, &a, &err), cases[i].code);
		t_assert_says(&err, cases[i].says);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(headers_are_numpys),
		cmocka_unit_test(headers_are_appended),
		cmocka_unit_test(long_headers_are_version_two),
		cmocka_unit_test(other_types_have_no_npy),
		cmocka_unit_test(written_headers_are_read),
		cmocka_unit_test(headers_of_other_writers_are_read),
		cmocka_unit_test(damaged_headers_are_refused),
		cmocka_unit_test(other_starts_are_refused),
	};
	return cmocka_run_group_tests_name("npy", tests, NULL, NULL);
}
