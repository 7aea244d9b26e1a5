/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container of torch 0.1, written here as its torch/serialization.py did.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/origin/origin.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/golden.h"
#include "tests/unit/t/parse/tar.h"

static void put_i64(struct dcp_buf *b, int64_t v)
{
	uint8_t raw[8];

	dcp_store_le64(raw, (uint64_t)v);
	dcp_buf_add(b, raw, sizeof(raw));
}

static void put_count(struct dcp_buf *b, int64_t n)
{
	t_pk_start(b);
	t_pk_int(b, n);
	t_pk_stop(b);
}

/* (a, b, torch class) */
static void put_triple(struct dcp_buf *b, int64_t a, int64_t second, const char *location,
		       const char *class)
{
	t_pk_start(b);
	t_pk_mark(b);
	t_pk_int(b, a);
	if (location)
		t_pk_str(b, location);
	else
		t_pk_int(b, second);
	t_pk_global(b, "torch", class);
	t_pk_tuple(b);
	t_pk_stop(b);
}

static void put_tensor(struct dcp_buf *b, int64_t id, int64_t storage, const int64_t *shape,
		       const int64_t *stride, uint32_t ndim, int64_t first)
{
	put_triple(b, id, storage, NULL, "FloatTensor");
	put_i64(b, (int64_t)(ndim | 0xdeadull << 32)); /* the upper half was never set */
	for (uint32_t d = 0; d < ndim; d++)
		put_i64(b, shape[d]);
	for (uint32_t d = 0; d < ndim; d++)
		put_i64(b, stride[d]);
	put_i64(b, first);
}

/* Storage 7 of floats 0 .. 11, storage 9 of longs 0 .. 5, storage 8 a view of 7 from 4 on. */
static void put_storages(struct dcp_buf *b)
{
	put_count(b, 2);
	put_triple(b, 7, 0, "cpu", "FloatStorage");
	put_i64(b, 12);
	for (int i = 0; i < 12; i++) {
		float f = (float)i;

		dcp_buf_add(b, &f, sizeof(f));
	}
	put_triple(b, 9, 0, "cpu", "LongStorage");
	put_i64(b, 6);
	for (int i = 0; i < 6; i++)
		put_i64(b, i);
	t_pk_start(b);
	t_pk_list(b);
	t_pk_mark(b);
	t_pk_mark(b);
	for (int i = 0; i < 4; i++)
		t_pk_int(b, (const int[]){ 8, 7, 4, 8 }[i]);
	t_pk_tuple(b);
	t_pk_appends(b);
	t_pk_stop(b);
}

static void put_tensors(struct dcp_buf *b)
{
	put_count(b, 4);
	put_tensor(b, 40, 9, NULL, NULL, 0, 5);
	put_tensor(b, 30, 8, (const int64_t[]){ 2, 3 }, (const int64_t[]){ 1, 2 }, 2, 1);
	put_tensor(b, 10, 7, (const int64_t[]){ 3, 4 }, (const int64_t[]){ 4, 1 }, 2, 0);
	put_tensor(b, 20, 9, (const int64_t[]){ 2 }, (const int64_t[]){ 3 }, 1, 1);
}

static void put_object(struct dcp_buf *b)
{
	static const char *const ids[] = { "10", "20", "30", "40", "10x" };
	static const char *const names[] = { "w", "l", "v", "z", "none" };

	t_pk_start(b);
	t_pk_dict(b);
	t_pk_mark(b);
	for (int i = 0; i < 5; i++) {
		t_pk_str(b, names[i]);
		t_pk_str(b, ids[i]);
		t_pk_persid(b);
	}
	t_pk_str(b, "epoch");
	t_pk_int(b, 3);
	t_pk_setitems(b);
	t_pk_stop(b);
}

/* Returns where the end mark is. */
static size_t put_all(struct t_tar *tar)
{
	static const struct {
		const char *name;
		void (*put)(struct dcp_buf *b);
	} members[] = { { "pickle", put_object },
			{ "tensors", put_tensors },
			{ "storages", put_storages } };
	size_t end;

	for (size_t i = 0; i < DCP_LEN(members); i++) {
		dcp_auto_buf struct dcp_buf data = DCP_BUF_INIT;

		members[i].put(&data);
		t_tar_add(tar, members[i].name, data.p, data.n);
	}
	end = tar->b.n;
	t_tar_end(tar);
	return end;
}

/* clang-format off */
static const struct {
	const char *key;
	enum dcp_dtype dtype;
	uint32_t ndim;
	uint64_t shape[2];
	bool row_major;
	double want[12];
} wants[] = {
	{ "w", DCP_DTYPE_F32, 2, { 3, 4 }, true,  { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 } },
	{ "l", DCP_DTYPE_I64, 1, { 2 },    false, { 1, 4 } },
	{ "v", DCP_DTYPE_F32, 2, { 2, 3 }, false, { 5, 7, 9, 6, 8, 10 } }, /* of a view */
	{ "z", DCP_DTYPE_I64, 0, { 0 },    true,  { 5 } },
};
/* clang-format on */

static double element(const struct dcp_source *src, const struct dcp_torch_tensor *x,
		      uint64_t i)
{
	uint64_t off = x->off;
	int64_t whole;
	float f;

	for (uint32_t d = x->ndim; d-- > 0; i /= x->shape[d])
		off += i % x->shape[d] * x->stride[d] * x->itemsize;
	if (x->dtype == DCP_DTYPE_F32) {
		assert_int_equal(dcp_source_read(src, off, &f, sizeof(f)), 0);
		return (double)f;
	}
	assert_int_equal(dcp_source_read(src, off, &whole, sizeof(whole)), 0);
	return (double)whole;
}

static void every_tensor_is_read(void **state)
{
	struct t_tar tar = { 0 };
	struct dcp_torch_tensor x[DCP_LEN(wants)];
	struct dcp_torch *t;
	struct dcp_err err = { 0 };
	struct dcp_source src;
	struct t_leaves leaves;

	(void)state;
	put_all(&tar);
	src = dcp_source_mem(tar.b.p, tar.b.n);
	if (dcp_torch_open(&src, 0, &t, &err) < 0)
		fail_msg("%s", err.msg);
	t_leaves_collect(&leaves, t, DCP_WALK_INSIDE);
	assert_int_equal(leaves.n, DCP_LEN(wants) + 2);
	assert_string_equal(t_leaves_find(&leaves, "epoch")->json, "3");
	for (size_t i = 0; i < DCP_LEN(wants); i++) {
		uint64_t volume;

		t_case(wants[i].key);
		if (dcp_torch_tensor(t, t_leaves_find(&leaves, wants[i].key)->value, &x[i],
				     &err) != 1)
			fail_msg("%s", err.msg);
		assert_int_equal(x[i].dtype, wants[i].dtype);
		assert_int_equal(x[i].ndim, wants[i].ndim);
		assert_memory_equal(x[i].shape, wants[i].shape, 8 * x[i].ndim);
		assert_int_equal(x[i].row_major, wants[i].row_major);
		assert_true(dcp_shape_volume(x[i].shape, x[i].ndim, &volume));
		for (uint64_t k = 0; k < volume; k++)
			assert_true(element(&src, &x[i], k) == wants[i].want[k]);
	}
	t_case("a name that only begins as one of a tensor");
	assert_int_equal(
		dcp_torch_tensor(t, t_leaves_find(&leaves, "none")->value, &x[0], &err),
		-EBADMSG);
	assert_string_equal(err.msg, "the stream has no tensor 10x");
	t_leaves_free(&leaves);
	dcp_torch_close(t);
	dcp_buf_finish(&tar.b);
}

/* Cut anywhere in front of its end, or in the end mark, it is refused. */
static void every_cut_is_refused(void **state)
{
	struct t_tar tar = { 0 };
	size_t end = put_all(&tar) + 512;

	(void)state;
	for (size_t n = 0; n < end; n += 7) {
		char *exact = malloc(n ? n : 1);
		struct dcp_source src = dcp_source_mem(exact, n);
		struct dcp_err err = { 0 };
		struct dcp_torch *t;

		memcpy(exact, tar.b.p, n);
		assert_true(dcp_torch_open(&src, 0, &t, &err) < 0);
		assert_true(err.msg[0]);
		free(exact);
	}
	dcp_buf_finish(&tar.b);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_tensor_is_read),
		cmocka_unit_test(every_cut_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
