/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/format/paddle/dist/dist_int.h"
#include "core/origin/origin.h"
#include "tests/unit/t/format/paddle.h"
#include "tests/unit/t/parse/pickle.h"

static int read_meta(struct dcp_paddle_meta *m, const void *p, size_t n, struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(p, n);

	*err = (struct dcp_err){ 0 };
	return dcp_paddle_meta_read(m, &src, err);
}

#define MODULE "cpaddle.distributed.checkpoint.metadata\n"
#define META MODULE "Metadata\n)\x81}(X\x13\0\0\0state_dict_metadata"
#define BYTES(s) s, sizeof(s) - 1

static void bad_metadata_is_refused(void **state)
{
	static const struct {
		const char *what, *bytes;
		size_t n;
		const char *says;
	} rows[] = {
		{ "no pickle", BYTES("hello"), "" },
		{ "cut", BYTES("\x80\x02" META "}"), "" },
		{ "another object", BYTES("\x80\x02}."), "the pickle holds dict, expected" },
		{ "a call", BYTES("cos\nsystem\n(S'touch PWNED'\ntR."), "holds os.system" },
		{ "torch's", BYTES("ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81."),
		  "expected Metadata of paddle.distributed" },
		{ "no storage_metadata", BYTES("\x80\x02" META "}ub."),
		  "storage_metadata is missing, expected a dict" },
		{ "state_dict_metadata a list", BYTES("\x80\x02" META "]ub."),
		  "state_dict_metadata is list" },
		{ "a key that is no text", BYTES("\x80\x02" META "}K\x01Nsub."),
		  "a key is int, expected str" },
		{ "an index that is none",
		  BYTES("\x80\x02" META "}X\x10\0\0\0storage_metadata}K\x01K\x02sub."),
		  "storage_metadata has int for a key, expected LocalTensorIndex" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_paddle_meta m = { 0 };
		struct dcp_err err;
		int rc = read_meta(&m, rows[i].bytes, rows[i].n, &err);

		t_case(rows[i].what);
		assert_true(rc < 0);
		assert_int_equal(err.code, rc);
		assert_true(err.msg[0]);
		t_assert_says(&err, rows[i].says);
		assert_int_equal(access("PWNED", F_OK), -1);
		dcp_paddle_meta_finish(&m);
	}
}

/* Each generation says what it has, and nothing else. */
static void every_generation_of_metadata_is_read(void **state)
{
	static const struct t_pd_piece p = { .key = "w",
					     .dtype = "paddle.float32",
					     .ndim = 2,
					     .lo = { 2, 0 },
					     .len = { 3, 4 },
					     .shape = { 5, 4 },
					     .flat = true,
					     .run = { 1, 7 },
					     .file = "0_0.distcp",
					     .replica = 3 };

	(void)state;
	for (char g = 'A'; g <= 'C'; g++) {
		struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_paddle_meta m = { 0 };
		const struct dcp_paddle_meta_entry *e;
		const struct dcp_paddle_meta_record *r;
		struct dcp_err err;

		t_paddle_meta(&b, g, &p, 1);
		if (read_meta(&m, b.p, b.n, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(m.generation, g);
		assert_int_equal(m.names.n, 1);
		e = dcp_paddle_meta_entry(&m, dcp_paddle_meta_key(&m, 0)->entry);
		r = dcp_paddle_meta_record(&m, dcp_paddle_meta_key(&m, 0)->record);
		assert_int_equal(e->next, DCP_PADDLE_META_NONE);
		assert_int_equal(r->next, DCP_PADDLE_META_NONE);
		assert_int_equal(dcp_paddle_meta_head(&m, 0), 0);
		assert_memory_equal(dcp_paddle_meta_dims(&m, e->box.lo), ((uint64_t[]){ 2, 0 }),
				    16);
		assert_memory_equal(dcp_paddle_meta_dims(&m, e->box.len),
				    ((uint64_t[]){ 3, 4 }), 16);
		assert_int_equal(e->dtype == DCP_PADDLE_META_NONE, g == 'A');
		if (g > 'A')
			assert_string_equal(dcp_intern_text(&m.dtypes, e->dtype), "float32");
		assert_int_equal(dcp_paddle_meta_key(&m, 0)->npath, g > 'A' ? 2 : 0);
		assert_int_equal(e->box.flat, g == 'C');
		assert_int_equal(r->replica, g == 'C' ? 3 : 0);
		assert_int_equal(r->box.len == DCP_PADDLE_META_NO_DIMS, g != 'C');
		if (g == 'C') {
			assert_int_equal(e->box.run_lo, 1);
			assert_int_equal(r->box.run_hi, 7);
			assert_memory_equal(dcp_paddle_meta_dims(&m, e->shape),
					    ((uint64_t[]){ 5, 4 }), 16);
		}
		dcp_paddle_meta_finish(&m);
		dcp_buf_finish(&b);
	}
}

/* A list of some thousand pieces that every key shares: two bytes that would mean 300 KB. */
static void shared_lists_are_bounded(void **state)
{
	enum { ITEMS = 4000, KEYS = 4000 };
	struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_paddle_meta m = { 0 };
	struct dcp_err err;

	(void)state;
	dcp_buf_add(&b, BYTES("\x80\x02" META "}("));
	dcp_buf_add(&b, BYTES("X\1\0\0\0a](" MODULE "LocalTensorMetadata\n)\x81}("));
	dcp_buf_add(&b, BYTES("X\x0d\0\0\0global_offset(K\0K\0K\0K\0t"));
	dcp_buf_add(&b, BYTES("X\x0b\0\0\0local_shape(K\1K\1K\1K\1tubq\1"));
	for (int i = 1; i < ITEMS; i++)
		dcp_buf_add(&b, BYTES("h\1"));
	dcp_buf_add(&b, BYTES("eq\2"));
	for (int i = 0; i < KEYS; i++)
		dcp_buf_printf(&b, "X%c%c%c%c%06dh\2", 6, 0, 0, 0, i);
	dcp_buf_add(&b, BYTES("uub."));
	assert_int_equal(read_meta(&m, b.p, b.n, &err), -E2BIG);
	t_assert_says(&err, "metadata takes more than");
	dcp_paddle_meta_finish(&m);
	dcp_buf_finish(&b);
}

/* What Paddle leaves beside a Hugging Face model: no paths. */
static void golden_metadata_is_read(void **state)
{
	size_t n;
	char *p = t_slurp(
		"tests/golden/paddle-hf/ckpt/merged/flex-ckpt.auto_generated.metadata", &n);
	struct dcp_paddle_meta m = { 0 };
	struct dcp_err err;

	(void)state;
	if (read_meta(&m, p, n, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(m.names.n, 12);
	assert_int_equal(m.files.n, 2);
	for (uint32_t k = 0; k < m.names.n; k++) {
		assert_true(dcp_paddle_meta_key(&m, k)->named);
		assert_int_equal(dcp_paddle_meta_key(&m, k)->npath, 0);
	}
	dcp_paddle_meta_finish(&m);
	free(p);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_metadata_is_refused),
		cmocka_unit_test(every_generation_of_metadata_is_read),
		cmocka_unit_test(shared_lists_are_bounded),
		cmocka_unit_test(golden_metadata_is_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
