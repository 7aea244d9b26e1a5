/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include <errno.h>

#include "core/model/tensor.h"

/* clang-format off */
static const struct {
	const char *what;
	uint32_t itemsize, ndim;
	uint64_t shape[4];
	bool fits;      /* the volume does */
	uint64_t volume;
	bool bytes_fit;
	uint64_t nbytes;
} cases[] = {
	{ "no dimension is one element", 4, 0, { 0 }, true, 1, true, 4 },
	{ "plain matrix", 2, 2, { 3, 5 }, true, 15, true, 30 },
	{ "zero first, huge behind", 8, 3, { 0, UINT64_MAX, UINT64_MAX }, true, 0, true, 0 },
	{ "huge first, zero last", 8, 3, { UINT64_MAX, UINT64_MAX, 0 }, true, 0, true, 0 },
	{ "largest volume, of bytes", 1, 1, { UINT64_MAX }, true, UINT64_MAX, true, UINT64_MAX },
	{ "largest volume, of halves", 2, 1, { UINT64_MAX }, true, UINT64_MAX, false, 0 },
	{ "product is 2^64", 1, 2, { 1ull << 32, 1ull << 32 }, false, 0, false, 0 },
	{ "product is 2^64 - 2^32", 1, 2, { 1ull << 32, UINT32_MAX }, true,
	  UINT64_MAX - UINT32_MAX, true, UINT64_MAX - UINT32_MAX },
	{ "wraps to a small number", 1, 2, { 1ull << 63, 6 }, false, 0, false, 0 },
	{ "no bytes in an element", 0, 2, { 3, 5 }, true, 15, true, 0 },
};
/* clang-format on */

static void volumes_and_bytes_are_counted(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_tensor t = { .itemsize = cases[i].itemsize,
					.ndim = cases[i].ndim,
					.shape = cases[i].shape };
		uint64_t got = 0;

		t_case(cases[i].what);
		assert_int_equal(dcp_shape_volume(cases[i].shape, cases[i].ndim, &got),
				 cases[i].fits);
		assert_int_equal(got, cases[i].volume);
		got = 0;
		assert_int_equal(dcp_tensor_nbytes(&t, &got), cases[i].bytes_fit);
		assert_int_equal(got, cases[i].nbytes);
	}
}

/* Bytes of an array are counted as if lengths of 0 were 1, and are at most 2^63 - 1. */
static void bytes_of_arrays_are_bounded(void **state)
{
	static const struct {
		const char *what;
		uint64_t shape[3];
		bool fits;
		uint64_t nbytes;
	} arrays[] = {
		{ "plain", { 3, 5, 2 }, true, 120 },
		{ "empty", { 3, 0, 2 }, true, 0 },
		{ "2^63 - 4 bytes", { (1ull << 61) - 1, 1, 1 }, true, (1ull << 63) - 4 },
		{ "2^63 bytes", { 1ull << 61, 1, 1 }, false, 0 },
		{ "2^63 bytes, but for a length of 0", { 1ull << 61, 0, 1 }, false, 0 },
		{ "2^64 bytes, but for a length of 0",
		  { 1ull << 31, 0, 1ull << 31 },
		  false,
		  0 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(arrays); i++) {
		uint64_t got = 0;

		t_case(arrays[i].what);
		assert_int_equal(dcp_shape_nbytes(arrays[i].shape, 3, 4, &got), arrays[i].fits);
		assert_int_equal(got, arrays[i].nbytes);
	}
}

static void dims_and_boxes_are_printed(void **state)
{
	static const uint64_t lo[] = { 0, 2 }, len[] = { 4, 6 };
	static const uint64_t many[DCP_MAX_NDIM] = { 16, 8, UINT64_MAX };
	char text[40], little[40], large[2048], box[DCP_BOX_TEXT];

	(void)state;
	assert_string_equal(dcp_dims_text(text, sizeof(text), len, 0), "[]");
	assert_string_equal(dcp_dims_text(text, sizeof(text), len, 1), "[4]");
	assert_string_equal(dcp_dims_text(text, sizeof(text), len, 2), "[4, 6]");
	assert_string_equal(dcp_dims_text(large, sizeof(large), many, 3),
			    "[16, 8, 18446744073709551615]");
	dcp_dims_text(text, sizeof(text), many, DCP_MAX_NDIM);
	assert_non_null(strstr(text, ", ...]"));
	dcp_dims_text(large, sizeof(large), many, DCP_MAX_NDIM);
	assert_null(strstr(large, "..."));
	assert_string_equal(dcp_box_text(box, sizeof(box), lo, len, 2), "[0:4, 2:8]");
	assert_string_equal(dcp_box_text(little, sizeof(little), lo, len, 2), "[]");
	assert_int_equal(dcp_dims_compare(lo, len, 0), 0);
	assert_true(dcp_dims_compare(lo, len, 2) < 0 && dcp_dims_compare(len, lo, 2) > 0);
}

static int take_fact(void *ctx, const char *name, const char *value)
{
	int *taken = ctx;

	assert_string_equal(name, "framework");
	assert_string_equal(value, "torch");
	return ++*taken;
}

static int refuse(void *ctx)
{
	return *(const int *)ctx;
}

/* What a sink takes stays there, the rest goes on; a check that fails lets nothing past. */
static void a_sink_in_front_takes_its_part(void **state)
{
	int taken = 0, before = 0, refused = 0;
	uint32_t number = 7;
	const struct dcp_sink last = { .meta = take_fact, .ctx = &taken },
			      checking = { .check = refuse, .ctx = &refused, .next = &last },
			      first = { .meta = take_fact, .ctx = &before };

	(void)state;
	assert_int_equal(dcp_emit_meta(&checking, "framework", "torch"), 1);
	assert_int_equal(dcp_emit_meta(&first, "framework", "torch"), 1);
	assert_int_equal(dcp_emit_file(&checking, "a", &number), 0);
	assert_int_equal(number, 0);
	refused = -ECANCELED;
	assert_int_equal(dcp_emit_meta(&checking, "framework", "torch"), -ECANCELED);
	assert_int_equal(dcp_emit_sidecar(&checking, "a"), -ECANCELED);
	assert_int_equal(taken, 1);
	assert_int_equal(before, 1);
}

static int take_tensor(void *ctx, const struct dcp_tensor *t)
{
	const struct dcp_tensor *want = ctx;

	assert_string_equal(t->key, want->key);
	assert_int_equal(t->npieces, want->npieces);
	assert_int_equal(t->ncopies, want->ncopies);
	return 3;
}

static int take_object(void *ctx, const struct dcp_object *o)
{
	assert_string_equal(o->key, ctx);
	return 4;
}

/* Without a key the path is it; what is broken has no pieces, what is partly so keeps them. */
static void emitted_items_get_key_and_error(void **state)
{
	static const char *const path[] = { "model", "0.w" };
	struct dcp_tensor want = { .key = "model.0.w", .npieces = 2, .ncopies = 1 };
	struct dcp_tensor t = { .path = path, .npath = 2, .npieces = 2, .ncopies = 1 };
	struct dcp_object o = { .path = path };
	const struct dcp_sink sink = { .tensor = take_tensor, .ctx = &want },
			      objects = { .object = take_object, .ctx = (char[1]){ 0 } };

	(void)state;
	assert_int_equal(dcp_emit_tensor(&sink, &t), 3);
	t.error = "a file is missing";
	t.partly = true;
	assert_int_equal(dcp_emit_tensor(&sink, &t), 3);
	t.partly = false;
	want.npieces = want.ncopies = 0;
	assert_int_equal(dcp_emit_tensor(&sink, &t), 3);
	t.key = want.key = "w";
	assert_int_equal(dcp_emit_tensor(&sink, &t), 3);
	assert_int_equal(dcp_emit_object(&objects, &o), 4);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(volumes_and_bytes_are_counted),
		cmocka_unit_test(bytes_of_arrays_are_bounded),
		cmocka_unit_test(dims_and_boxes_are_printed),
		cmocka_unit_test(a_sink_in_front_takes_its_part),
		cmocka_unit_test(emitted_items_get_key_and_error),
	};
	return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
