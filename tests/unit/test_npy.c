/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/endian.h"
#include "core/parse/npy.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(headers_are_numpys),
		cmocka_unit_test(headers_are_appended),
		cmocka_unit_test(long_headers_are_version_two),
		cmocka_unit_test(other_types_have_no_npy),
	};
	return cmocka_run_group_tests_name("npy", tests, NULL, NULL);
}
