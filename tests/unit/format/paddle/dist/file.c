/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/format/paddle/dist/dist_int.h"
#include "core/origin/origin.h"
#include "tests/unit/t/format/paddle.h"
#include "tests/unit/t/format/torch.h"

static const float values[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };

static const struct dcp_paddle_array *find(const struct dcp_paddle_file *f, const char *key)
{
	return dcp_paddle_file_find(f, key, strlen(key));
}

static int read_file(struct dcp_paddle_file *f, const struct dcp_buf *b, struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(b->p, b->n);

	*err = (struct dcp_err){ 0 };
	*f = (struct dcp_paddle_file){ 0 };
	return dcp_paddle_file_read(f, &src, err);
}

/* {"UnpackBigParamInfor@@": {"w": {"OriginShape": shape, "slices": names}}} */
static void cut(struct dcp_buf *b, const int64_t *shape, size_t ndim, const char *const *names)
{
	t_pk_str(b, "UnpackBigParamInfor@@");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "w");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "OriginShape");
	t_pk_dims(b, shape, ndim);
	t_pk_str(b, "slices");
	t_pk_list(b);
	t_pk_mark(b);
	for (; *names; names++)
		t_pk_str(b, *names);
	t_pk_appends(b);
	t_pk_setitems(b);
	t_pk_setitems(b);
}

/* An array cut into slices is whole again; they may hold it in any sizes. */
static void slices_of_a_file_are_read(void **state)
{
	static const struct {
		const char *what, *names[4], *says;
		int64_t shape[2];
		const char *code; /* of the last */
	} rows[] = {
		{ "as Paddle cuts", { "w@@.0", "w@@.1", "w@@.2" }, NULL, { 4, 3 }, "f4" },
		{ "another shape", { "w@@.0", "w@@.1", "w@@.2" }, NULL, { 2, 6 }, "f4" },
		{ "one missing", { "w@@.0", "w@@.1", "w@@.9" }, "is missing", { 4, 3 }, "f4" },
		{ "one too few", { "w@@.0", "w@@.1" }, "differ in number", { 4, 3 }, "f4" },
		{ "one twice", { "w@@.0", "w@@.0", "w@@.2" }, "differ in", { 4, 3 }, "f4" },
		{ "one of objects", { "w@@.0", "w@@.1", "w@@.2" }, "dtype O8", { 4, 3 }, "O8" },
		{ "two dtypes",
		  { "w@@.0", "w@@.1", "w@@.2" },
		  "different dtypes",
		  { 4, 3 },
		  "i4" },
		{ "a shape that overflows",
		  { "w@@.0" },
		  "differ in number of elements",
		  { INT64_MAX, 4 },
		  "f4" },
	};
	static const int64_t n[] = { 5, 1, 6 };

	(void)state;
	for (size_t i = 0; i < 2 * DCP_LEN(rows); i++) {
		size_t row = i / 2;
		struct dcp_buf b = DCP_BUF_INIT;
		const struct dcp_paddle_array *a;
		struct dcp_paddle_file f;
		struct dcp_err err;
		const float *at = values;

		t_case(rows[row].what);
		t_paddle_open(&b, 2 + (int)(i & 1));
		for (int k = 0; k < 3; at += n[k++]) {
			char key[16];

			snprintf(key, sizeof(key), "w@@.%d", k);
			t_paddle_array(&b, key, k == 2 ? rows[row].code : "f4", 1, &n[k], at,
				       (size_t)n[k] * 4);
		}
		cut(&b, rows[row].shape, 2, rows[row].names);
		t_paddle_close(&b);
		if (read_file(&f, &b, &err) < 0)
			fail_msg("%s", err.msg);
		a = find(&f, "w");
		assert_non_null(a);
		if (rows[row].says) {
			assert_non_null(a->error);
			assert_non_null(strstr(a->error, rows[row].says));
		} else {
			assert_null(a->error);
			assert_int_equal(a->ndim, 2);
			assert_int_equal(a->shape[1], rows[row].shape[1]);
			assert_int_equal(a->nparts, 3);
			assert_int_equal(a->part[2].n, 6);
			assert_true(find(&f, "w@@.1")->slice);
			assert_false(a->slice);
		}
		dcp_paddle_file_finish(&f);
		dcp_buf_finish(&b);
	}
}

/* The last of two equal keys counts; a pair of name and array is the array. */
static void keys_of_a_file_are_read(void **state)
{
	const int64_t two = 2, three = 3;
	struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_paddle_file f;
	struct dcp_err err;

	(void)state;
	t_paddle_open(&b, 4);
	t_paddle_array(&b, "a", "f4", 1, &two, values, 8);
	t_paddle_array(&b, "a", "u2", 1, &three, values, 6);
	t_pk_str(&b, "pair");
	t_pk_global(&b, "builtins", "tuple");
	t_pk_mark(&b);
	t_pk_mark(&b);
	t_paddle_array(&b, "linear_0.w_0", "f4", 1, &two, values, 8); /* the key is a name */
	t_pk_tuple(&b);
	t_pk_tuple(&b);
	t_pk_reduce(&b);
	t_paddle_close(&b);
	if (read_file(&f, &b, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(f.names.n, 2);
	assert_int_equal(find(&f, "a")->dtype, DCP_DTYPE_U16);
	assert_int_equal(find(&f, "a")->shape[0], 3);
	assert_int_equal(find(&f, "pair")->dtype, DCP_DTYPE_F32);
	assert_int_equal(find(&f, "pair")->part[0].n, 2);
	assert_null(find(&f, "linear_0.w_0"));
	dcp_paddle_file_finish(&f);
	dcp_buf_finish(&b);
}

/* Content decides: safetensors that begins as a pickle does. */
static void contents_tell_formats_apart(void **state)
{
	static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],"
				     "\"data_offsets\":[0,2]}}";
	struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_paddle_file f;
	struct dcp_err err;
	uint64_t n = 0x480; /* 80 04: protocol 4 */

	(void)state;
	dcp_buf_add(&b, &n, 8);
	dcp_buf_str(&b, header);
	while (b.n < 8 + n)
		dcp_buf_add(&b, " ", 1);
	dcp_buf_add(&b, "xy", 2);
	if (read_file(&f, &b, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(find(&f, "a")->part[0].off, 8 + n);
	dcp_paddle_file_finish(&f);
	b.p[8 + n - 1] = '}'; /* no header any more */
	assert_true(read_file(&f, &b, &err) < 0);
	assert_true(err.msg[0]);
	dcp_paddle_file_finish(&f);
	dcp_buf_finish(&b);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slices_of_a_file_are_read),
		cmocka_unit_test(keys_of_a_file_are_read),
		cmocka_unit_test(contents_tell_formats_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
