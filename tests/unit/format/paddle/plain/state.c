/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file of paddle.save: which values are tensors, of which dtype, and where they lie.
 * covers: state
 */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/format/formats.h"
#include "tests/unit/t/format/group.h"
#include "tests/unit/t/format/pdplain.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"

/* A dict being written, and then loaded. */
struct file {
	struct dcp_buf b;
	struct t_dir tree;
	struct t_group g;
};

static void begin(struct file *f)
{
	*f = (struct file){ 0 };
	t_pk_start(&f->b);
	t_pk_dict(&f->b);
	t_pk_mark(&f->b);
}

static void load(struct file *f)
{
	t_dir_make(&f->tree, "paddle_state");
	t_dir_put(&f->tree, "m.pdparams", f->b.p, f->b.n);
	t_group_load(&f->g, f->tree.root, &dcp_format_paddle_plain, NULL, 0);
	if (f->g.rc < 0)
		fail_msg("%s", f->g.err.msg);
}

static void end(struct file *f)
{
	t_pk_setitems(&f->b);
	t_pk_stop(&f->b);
	load(f);
}

static void finish(struct file *f)
{
	t_group_finish(&f->g);
	t_dir_remove(&f->tree);
	dcp_buf_finish(&f->b);
}

static const struct dcp_tensor *check(const struct file *f, const char *key, const char *dtype,
				      const void *want, size_t nbytes)
{
	const struct dcp_tensor *t = t_sink_tensor(&f->g.s, key);
	struct dcp_err err = { 0 };
	char *got;
	size_t n;

	if (!t)
		fail_msg("%s was not told", key);
	assert_string_equal(t->dtype_name, dtype);
	got = t_sink_read(&f->g.s, t, &n, &err);
	if (!got)
		fail_msg("%s: %s", key, err.msg);
	assert_int_equal(n, nbytes);
	assert_memory_equal(got, want, n);
	free(got);
	return t;
}

static const char *json(const struct file *f, const char *key)
{
	const struct dcp_object *o = t_sink_object(&f->g.s, key);

	if (!o)
		fail_msg("%s was not told", key);
	return o->json;
}

/* ---- wrapping ---- */

static void every_wrap_is_read_in_every_protocol(void **state)
{
	static const uint8_t data[] = { 0, 1, 127, 128, 191, 192, 255, 7 };

	(void)state;
	for (int protocol = 2; protocol <= 5; protocol++) {
		static const char *const keys[] = { "bare", "pair", "tuple", "eval", "dense" };
		struct file f;

		begin(&f);
		for (int wrap = T_PD_BARE; wrap <= T_PD_DENSE; wrap++) {
			t_pk_str(&f.b, keys[wrap]);
			t_pd_open(&f.b, wrap, "eager_tmp_0");
			t_pd_row(&f.b, protocol, "f4", data, 2, 4);
			t_pd_close(&f.b, wrap);
		}
		end(&f);
		assert_int_equal(f.g.s.ntensors, 5);
		assert_int_equal(f.g.s.nobjects, 0);
		for (size_t i = 0; i < DCP_LEN(keys); i++) {
			const struct dcp_tensor *t = check(&f, keys[i], "F32", data, 8);

			assert_int_equal(t->npath, 1);
			assert_string_equal(t->path[0], keys[i]);
			assert_int_equal(t->pieces[0].filter,
					 protocol == 2 ? DCP_FILTER_LATIN1 : DCP_FILTER_NONE);
		}
		finish(&f);
	}
}

static void values_without_a_key_are_read(void **state)
{
	struct file f = { 0 };

	(void)state;
	t_pk_start(&f.b);
	t_pd_open(&f.b, T_PD_PAIR, "eager_tmp_5");
	t_pd_row(&f.b, 3, "u2", "ab", 1, 2);
	t_pd_close(&f.b, T_PD_PAIR);
	t_pk_stop(&f.b);
	load(&f);
	assert_int_equal(check(&f, "value", "BF16", "ab", 2)->npath, 0);
	finish(&f);

	memset(&f, 0, sizeof(f));
	t_pk_start(&f.b);
	t_pk_int(&f.b, 17);
	t_pk_stop(&f.b);
	load(&f);
	assert_string_equal(json(&f, "value"), "17");
	finish(&f);
}

/* Only numpy's own arrays can be u2, and which those are shows in whether there are pairs. */
static void u2_is_bf16_in_paddles_arrays(void **state)
{
	struct file f;

	(void)state;
	t_case("no pair: all are tensors");
	begin(&f);
	t_pk_str(&f.b, "w");
	t_pd_row(&f.b, 4, "u2", "\x80\x3f", 1, 2);
	end(&f);
	check(&f, "w", "BF16", "\x80\x3f", 2);
	finish(&f);

	t_case("a pair somewhere deep: bare ones are numpy's");
	begin(&f);
	t_pk_str(&f.b, "w");
	t_pd_row(&f.b, 4, "u2", "\x80\x3f", 1, 2);
	t_pk_str(&f.b, "lod");
	t_pd_open(&f.b, T_PD_EVAL, "");
	t_pd_row(&f.b, 4, "u2", "\x80\x3f", 1, 2);
	t_pd_close(&f.b, T_PD_EVAL);
	t_pk_str(&f.b, "deep");
	t_pk_mark(&f.b);
	t_pk_mark(&f.b);
	t_pd_open(&f.b, T_PD_PAIR, "n");
	t_pd_row(&f.b, 4, "u2", "\x80\x3f", 1, 2);
	t_pd_close(&f.b, T_PD_PAIR);
	t_pk_tuple(&f.b);
	t_pk_tuple(&f.b);
	end(&f);
	check(&f, "w", "U16", "\x80\x3f", 2);
	check(&f, "lod", "BF16", "\x80\x3f", 2);
	check(&f, "deep.0.0", "BF16", "\x80\x3f", 2);
	assert_string_equal(json(&f, "deep"), "[[{\"$tensor\":\"deep.0.0\"}]]");
	finish(&f);
}

/* What only looks like Paddle's is an object, and nothing of it is ever done. */
static void look_alikes_are_objects(void **state)
{
	struct file f;

	(void)state;
	begin(&f);
	t_pk_str(&f.b, "eval of text");
	t_pk_global(&f.b, "builtins", "eval");
	t_pk_mark(&f.b);
	t_pk_str(&f.b, "__import__('os').system('touch PWNED')");
	t_pk_tuple(&f.b);
	t_pk_reduce(&f.b);
	t_pk_str(&f.b, "eval of more");
	t_pk_global(&f.b, "builtins", "eval");
	t_pk_mark(&f.b);
	t_pk_str(&f.b, "data");
	t_pk_dict(&f.b);
	t_pk_mark(&f.b);
	t_pk_str(&f.b, "data");
	t_pd_row(&f.b, 3, "u1", "x", 1, 1);
	t_pk_str(&f.b, "__builtins__");
	t_pk_none(&f.b);
	t_pk_setitems(&f.b);
	t_pk_tuple(&f.b);
	t_pk_reduce(&f.b);
	t_pk_str(&f.b, "system");
	t_pk_global(&f.b, "os", "system");
	t_pk_mark(&f.b);
	t_pd_row(&f.b, 3, "u1", "y", 1, 1);
	t_pk_tuple(&f.b);
	t_pk_reduce(&f.b);
	t_pk_str(&f.b, "no pair");
	t_pk_mark(&f.b);
	t_pk_int(&f.b, 1);
	t_pd_row(&f.b, 3, "u1", "z", 1, 1);
	t_pk_tuple(&f.b);
	end(&f);
	assert_non_null(strstr(json(&f, "eval of text"), "{\"$class\":\"eval\",\"args\":["));
	assert_non_null(strstr(json(&f, "eval of more"), "\"$class\":\"eval\""));
	assert_non_null(strstr(json(&f, "system"), "\"$class\":\"os.system\""));
	assert_string_equal(json(&f, "no pair"), "[1,{\"$tensor\":\"no pair.1\"}]");
	assert_null(t_sink_tensor(&f.g.s, "eval of more"));
	assert_null(t_sink_tensor(&f.g.s, "system"));
	/* Arrays that lie inside are tensors all the same. */
	check(&f, "eval of more.args.1.data", "U8", "x", 1);
	check(&f, "system.args.0", "U8", "y", 1);
	finish(&f);
}

/* ---- arrays ---- */

static void every_form_of_array_is_read(void **state)
{
	static const uint64_t dims[] = { 2, 3 }, none[] = { 0, 3 };
	static const char columns[] = "adbecf", swapped[] = "badcfe";
	const struct t_pd_array fortran = { "u1", '|', true, dims, 2, columns, 6 };
	const struct t_pd_array big_endian = { "i2", '>', false, dims + 1, 1, swapped, 6 };
	const struct t_pd_array empty = { "f8", '<', false, none, 2, "", 0 };
	const struct t_pd_array scalar = { "f4", '<', false, NULL, 0, "1234", 4 };

	(void)state;
	for (int protocol = 2; protocol <= 5; protocol++) {
		const struct dcp_tensor *t;
		struct file f;

		begin(&f);
		t_pk_str(&f.b, "fortran");
		t_pd_array(&f.b, protocol, &fortran);
		t_pk_str(&f.b, "big-endian");
		t_pd_array(&f.b, protocol, &big_endian);
		t_pk_str(&f.b, "empty");
		t_pd_array(&f.b, protocol, &empty);
		t_pk_str(&f.b, "scalar");
		t_pd_array(&f.b, protocol, &scalar);
		end(&f);
		t = check(&f, "fortran", "U8", "abcdef", 6);
		assert_int_equal(t->shape[0], 2);
		assert_int_equal(t->shape[1], 3);
		check(&f, "big-endian", "I16", "abcdef", 6);
		t = check(&f, "empty", "F64", "", 0);
		assert_int_equal(t->npieces, 0);
		assert_int_equal(t->shape[1], 3);
		assert_int_equal(check(&f, "scalar", "F32", "1234", 4)->ndim, 0);
		finish(&f);
	}
}

static void every_dtype_is_read(void **state)
{
	static const struct {
		const char *code, *name;
		size_t size;
	} rows[] = {
		{ "f8", "F64", 8 }, { "f4", "F32", 4 },    { "f2", "F16", 2 },
		{ "i8", "I64", 8 }, { "i4", "I32", 4 },    { "i2", "I16", 2 },
		{ "i1", "I8", 1 },  { "u1", "U8", 1 },     { "b1", "BOOL", 1 },
		{ "c8", "C64", 8 }, { "c16", "C128", 16 }, { "u2", "BF16", 2 },
		{ "u4", "U32", 4 }, { "u8", "U64", 8 },
	};
	static const char data[33] = "\x01 the bytes of two elements \xff\x80";
	struct file f;

	(void)state;
	begin(&f);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_pk_str(&f.b, rows[i].code);
		t_pd_row(&f.b, 4, rows[i].code, data, 2, rows[i].size);
	}
	end(&f);
	for (size_t i = 0; i < DCP_LEN(rows); i++)
		check(&f, rows[i].code, rows[i].name, data, 2 * rows[i].size);
	finish(&f);
}

static void arrays_without_numbers_are_reported(void **state)
{
	static const uint64_t three = 3;
	const struct t_pd_array text = { "U4", '<', false, &three, 1, "", 0 };
	const struct t_pd_array torn = { "f4", '<', false, &three, 1, "12345678", 8 };
	struct file f;

	(void)state;
	begin(&f);
	t_pk_str(&f.b, "text");
	t_pd_array(&f.b, 4, &text);
	t_pk_str(&f.b, "torn");
	t_pd_array(&f.b, 4, &torn);
	t_pk_str(&f.b, "lr");
	t_pk_global(&f.b, "numpy.core.multiarray", "scalar");
	t_pk_mark(&f.b);
	t_pk_global(&f.b, "numpy", "dtype");
	t_pk_mark(&f.b);
	t_pk_str(&f.b, "f4");
	t_pk_tuple(&f.b);
	t_pk_reduce(&f.b);
	t_pk_bytes(&f.b, "\0\0\x80\x3f", 4);
	t_pk_tuple(&f.b);
	t_pk_reduce(&f.b);
	t_pk_str(&f.b, "ok");
	t_pd_row(&f.b, 4, "u1", "k", 1, 1);
	end(&f);
	assert_string_equal(t_sink_object(&f.g.s, "text")->type, "numpy.ndarray");
	assert_non_null(json(&f, "text"));
	assert_string_equal(json(&f, "lr"), "1.0");
	assert_non_null(strstr(t_sink_tensor(&f.g.s, "torn")->error,
			       "m.pdparams: array needs 12 bytes, its payload has 8"));
	check(&f, "ok", "U8", "k", 1);
	finish(&f);
}

/* ---- the rest of the object ---- */

static void objects_and_tables_are_read(void **state)
{
	dcp_auto_free char *text = malloc(5001);
	struct file f;

	(void)state;
	memset(text, 't', 5000);
	text[5000] = '\0';
	begin(&f);
	t_pk_str(&f.b, "LR_Scheduler");
	t_pk_dict(&f.b);
	t_pk_mark(&f.b);
	t_pk_str(&f.b, "last_epoch");
	t_pk_int(&f.b, 3);
	t_pk_str(&f.b, "last_lr");
	t_pk_float(&f.b, 0.25);
	t_pk_setitems(&f.b);
	t_pk_str(&f.b, "text");
	t_pk_str(&f.b, text);
	t_pk_str(&f.b, "list");
	t_pk_list(&f.b);
	t_pk_mark(&f.b);
	t_pk_int(&f.b, 1);
	t_pk_none(&f.b);
	t_pk_appends(&f.b);
	t_pk_str(&f.b, "w");
	t_pd_row(&f.b, 4, "u1", "w", 1, 1);
	t_pk_put(&f.b, 9);
	t_pk_str(&f.b, "tied");
	t_pk_get(&f.b, 9);
	t_pk_str(&f.b, "StructuredToParameterName@@");
	t_pk_dict(&f.b);
	t_pk_mark(&f.b);
	t_pk_str(&f.b, "w");
	t_pk_str(&f.b, "linear_0.w_0");
	t_pk_setitems(&f.b);
	end(&f);
	assert_string_equal(json(&f, "LR_Scheduler.last_epoch"), "3");
	assert_string_equal(json(&f, "LR_Scheduler.last_lr"), "0.25");
	assert_int_equal(strlen(json(&f, "text")), 5002);
	assert_string_equal(json(&f, "list"), "[1,null]");
	assert_null(check(&f, "w", "U8", "w", 1)->alias_of);
	assert_string_equal(check(&f, "tied", "U8", "w", 1)->alias_of, "w");
	assert_int_equal(f.g.s.nobjects, 4);
	assert_int_equal(f.g.s.ntensors, 2);
	finish(&f);
}

static void deep_nesting_breaks_its_key_only(void **state)
{
	struct file f;

	(void)state;
	begin(&f);
	t_pk_str(&f.b, "w");
	t_pd_row(&f.b, 4, "u1", "w", 1, 1);
	t_pk_str(&f.b, "deep");
	for (int i = 0; i < 300; i++) {
		t_pk_dict(&f.b);
		t_pk_mark(&f.b);
		t_pk_str(&f.b, "d");
	}
	t_pk_none(&f.b);
	for (int i = 0; i < 300; i++)
		t_pk_setitems(&f.b);
	end(&f);
	check(&f, "w", "U8", "w", 1);
	assert_string_equal(t_sink_object(&f.g.s, "pdparams")->error,
			    "nested too deep to be walked");
	finish(&f);
}

/* ---- arrays in parts ---- */

/* The table's entry for @key in parts "@key@@.0" up to @n. */
static void push_info(struct dcp_buf *b, const char *key, const int64_t *shape, size_t ndim,
		      size_t n)
{
	char name[64];

	t_pk_str(b, key);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "OriginShape");
	t_pk_mark(b);
	for (size_t i = 0; i < ndim; i++)
		t_pk_int(b, shape[i]);
	t_pk_tuple(b);
	t_pk_str(b, "slices");
	t_pk_list(b);
	t_pk_mark(b);
	for (size_t i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s@@.%zu", key, i);
		t_pk_str(b, name);
	}
	t_pk_appends(b);
	t_pk_setitems(b);
}

static void parts_are_joined(void **state)
{
	static const uint8_t data[24] = {
		1,  0x80, 3,  4,  0xff, 6,  7,  8,  9,  10, 0xc0, 12,
		13, 14,   15, 16, 17,   18, 19, 20, 21, 22, 23,   24
	};
	const int64_t shape[] = { 3, 2, 2 };

	(void)state;
	for (int protocol = 2; protocol <= 3; protocol++) {
		const struct dcp_tensor *t;
		struct file f;

		begin(&f);
		t_pk_str(&f.b, "w@@.0");
		t_pd_row(&f.b, protocol, "u2", data, 5, 2);
		t_pk_str(&f.b, "w@@.1");
		t_pd_row(&f.b, protocol, "u2", data + 10, 5, 2);
		t_pk_str(&f.b, "w@@.2");
		t_pd_row(&f.b, protocol, "u2", data + 20, 2, 2);
		t_pk_str(&f.b, "small");
		t_pd_row(&f.b, protocol, "u1", data, 24, 1);
		t_pk_str(&f.b, "UnpackBigParamInfor@@");
		t_pk_dict(&f.b);
		t_pk_mark(&f.b);
		push_info(&f.b, "w", shape, 3, 3);
		t_pk_setitems(&f.b);
		end(&f);
		t = check(&f, "w", "BF16", data, 24);
		assert_int_equal(t->npieces, 3);
		assert_int_equal(t->ndim, 3);
		check(&f, "small", "U8", data, 24);
		assert_int_equal(f.g.s.ntensors, 2);
		assert_int_equal(f.g.s.nobjects, 0);
		finish(&f);
	}
}

static void misfitting_parts_are_reported(void **state)
{
	static const char data[16] = "0123456789abcde";
	static const uint64_t two[] = { 2, 2 };
	const struct t_pd_array square = { "u1", '|', false, two, 2, data, 4 };
	const int64_t four[] = { 4 };
	static const struct {
		const char *key, *says;
	} rows[] = {
		{ "gone", "m.pdparams: its part gone@@.1 is missing" },
		{ "short", "its parts have 3 elements, its shape another number" },
		{ "mixed", "its part mixed@@.1 is not one row of U8" },
		{ "square", "its part square@@.0 is not one row of U8" },
		{ "text", "its part text@@.0 is not an array" },
		{ "many", "UnpackBigParamInfor@@ names more than 1024 parts" },
		{ "nothing", "UnpackBigParamInfor@@ does not say how it was cut" },
	};
	struct file f;

	(void)state;
	begin(&f);
	t_pk_str(&f.b, "gone@@.0");
	t_pd_row(&f.b, 3, "u1", data, 2, 1);
	t_pk_str(&f.b, "short@@.0");
	t_pd_row(&f.b, 3, "u1", data, 3, 1);
	t_pk_str(&f.b, "mixed@@.0");
	t_pd_row(&f.b, 3, "u1", data, 2, 1);
	t_pk_str(&f.b, "mixed@@.1");
	t_pd_row(&f.b, 3, "i2", data, 2, 2);
	t_pk_str(&f.b, "square@@.0");
	t_pd_array(&f.b, 3, &square);
	t_pk_str(&f.b, "text@@.0");
	t_pk_str(&f.b, "what");
	t_pk_str(&f.b, "ok");
	t_pd_row(&f.b, 3, "u1", "ok", 2, 1);
	t_pk_str(&f.b, "UnpackBigParamInfor@@");
	t_pk_dict(&f.b);
	t_pk_mark(&f.b);
	push_info(&f.b, "gone", four, 1, 2);
	push_info(&f.b, "short", four, 1, 1);
	push_info(&f.b, "mixed", four, 1, 2);
	push_info(&f.b, "square", four, 1, 1);
	push_info(&f.b, "text", four, 1, 1);
	push_info(&f.b, "many", four, 1, 1100);
	t_pk_str(&f.b, "nothing");
	t_pk_none(&f.b);
	t_pk_setitems(&f.b);
	end(&f);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		const struct dcp_tensor *t = t_sink_tensor(&f.g.s, rows[i].key);

		t_case(rows[i].key);
		if (!t || !t->error || !strstr(t->error, rows[i].says))
			fail_msg("\"%s\" does not say \"%s\"",
				 t && t->error ? t->error : "nothing", rows[i].says);
	}
	check(&f, "ok", "U8", "ok", 2);
	assert_int_equal(f.g.s.nobjects, 0);
	finish(&f);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_wrap_is_read_in_every_protocol),
		cmocka_unit_test(values_without_a_key_are_read),
		cmocka_unit_test(u2_is_bf16_in_paddles_arrays),
		cmocka_unit_test(look_alikes_are_objects),
		cmocka_unit_test(every_form_of_array_is_read),
		cmocka_unit_test(every_dtype_is_read),
		cmocka_unit_test(arrays_without_numbers_are_reported),
		cmocka_unit_test(objects_and_tables_are_read),
		cmocka_unit_test(deep_nesting_breaks_its_key_only),
		cmocka_unit_test(parts_are_joined),
		cmocka_unit_test(misfitting_parts_are_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
