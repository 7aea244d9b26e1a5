/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a .metadata says, read from memory: every fault of tests/bad/dcp, and pickles written
 * here.
 * covers: format/torch/field
 */
#include "tests/unit/t.h"

#include "core/format/dcp/dcp_int.h"
#include "core/origin/origin.h"
#include "tests/unit/t/format/dcp.h"
#include "tests/unit/t/parse/source.h"
#include "tests/unit/t/sink.h"

static int tell_all(struct dcp_dcp *d, struct t_sink *s, const void *p, size_t n,
		    struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(p, n);
	struct dcp_load in = { .sink = &s->sink };
	int rc;

	d->in = &in;
	assert_int_equal(dcp_dcp_meta_init(&d->meta), 0);
	rc = dcp_dcp_meta_read(&d->meta, &src, err);
	if (rc == 0)
		rc = dcp_dcp_emit(d, err);
	dcp_dcp_meta_finish(&d->meta);
	return rc;
}

/* tests/bad/dcp/EXPECT: "<name> <code> <part of the message>"; with code OK the part is the
 * error of the key "bad", and the key "good" must be there without one. */
static void bad_metadata(const char *name, const char *p, size_t n, int code, const char *says)
{
	struct dcp_dcp d = { 0 };
	struct dcp_err err = { 0 };
	struct t_sink s;
	const struct dcp_tensor *t;
	int rc;

	(void)name;
	t_sink_init(&s, NULL);
	rc = tell_all(&d, &s, p, n, &err);
	if (rc != code)
		fail_msg("%d (%s), expected %d", rc, err.msg, code);
	if (code < 0) {
		t_assert_says(&err, says ? says : "");
	} else {
		t = t_sink_tensor(&s, "good");
		assert_non_null(t);
		assert_null(t->error);
		t = t_sink_tensor(&s, "bad");
		if (t)
			snprintf(err.msg, sizeof(err.msg), "%s", t->error ? t->error : "");
		else if (t_sink_object(&s, "bad"))
			snprintf(err.msg, sizeof(err.msg), "%s",
				 t_sink_object(&s, "bad")->error);
		else
			fail_msg("the key was not told");
		t_assert_says(&err, says ? says : "");
	}
	t_sink_finish(&s);
}

static void malformed_metadata_is_refused(void **state)
{
	(void)state;
	t_bad_each("tests/bad/dcp", bad_metadata);
}

static void put_section(struct dcp_buf *b, char which)
{
	static const int64_t shape[] = { 4, 6 };
	static const int64_t chunks[] = { 0, 0, 2, 6, 2, 0, 2, 6 };
	static const char *const path[] = { "model", "layers.0", "w", NULL };
	static const char *const odd[] = { "other", "names", NULL };

	if (which == 'm') {
		t_dcp_section(b, "state_dict_metadata");
		t_dcp_tensor(b, "model.layers.0.w", "bfloat16", 2, shape, 2, chunks);
		t_dcp_tensor(b, "scalar", "int64", 0, NULL, 1, chunks);
	} else if (which == 's') {
		t_dcp_section(b, "storage_data");
		t_dcp_stored(b, "model.layers.0.w", 2, chunks + 4, "__1_0.distcp", 77, 700);
		t_dcp_stored(b, "scalar", 0, chunks, "__1_0.distcp", 7, 70);
		t_dcp_stored(b, "model.layers.0.w", 2, chunks, "__0_0.distcp", 1LL << 40, 900);
	} else {
		t_dcp_section(b, "planner_data");
		t_dcp_path(b, "model.layers.0.w", path);
		t_dcp_path(b, "scalar", odd);
	}
	t_dcp_end_section(b);
}

static void sections_come_in_any_order(void **state)
{
	static const char *const orders[] = { "msp", "mps", "smp", "spm", "pms", "psm" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(orders); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_dcp d = { 0 };
		struct dcp_err err = { 0 };
		const struct dcp_tensor *t;
		struct t_sink s;

		t_case(orders[i]);
		t_dcp_begin(&b);
		for (const char *p = orders[i]; *p; p++)
			put_section(&b, *p);
		t_dcp_end(&b);
		t_sink_init(&s, NULL);
		if (tell_all(&d, &s, b.p, b.n, &err) < 0)
			fail_msg("%s", err.msg);
		t = t_sink_tensor(&s, "model.layers.0.w");
		assert_null(t->error);
		assert_int_equal(t->npath, 3);
		assert_string_equal(t->path[1], "layers.0");
		assert_int_equal(t->dtype, DCP_DTYPE_BF16);
		assert_int_equal(t->npieces, 2);
		assert_true(t->pieces[0].off == 1ULL << 40 && t->pieces[0].nbytes == 900);
		assert_string_equal(s.file[t->pieces[0].file], "__0_0.distcp");
		assert_string_equal(s.file[t->pieces[1].file], "__1_0.distcp");
		assert_int_equal(t->pieces[1].off, 77);
		t = t_sink_tensor(&s, "scalar");
		assert_null(t->error);
		assert_int_equal(t->npieces, 1);
		assert_int_equal(t->pieces[0].off, 7);
		assert_string_equal(t->path[0], "other");
		t_sink_finish(&s);
	}
}

/* One key in 128 x 128 chunks, stored in no particular order. */
static void chunks_out_of_order_are_read(void **state)
{
	enum { SIDE = 128, N = SIDE * SIDE };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	static int64_t chunks[N * 4];
	static const int64_t shape[] = { SIDE * 2, SIDE * 3 };
	struct dcp_dcp d = { 0 };
	const struct dcp_tensor *t;
	struct dcp_err err = { 0 };
	struct t_sink s;

	(void)state;
	for (int64_t i = 0; i < N; i++) {
		int64_t *c = chunks + 4 * i;

		c[0] = i % SIDE * 2;
		c[1] = i / SIDE * 3;
		c[2] = 2;
		c[3] = 3;
	}
	t_dcp_begin(&b);
	t_dcp_section(&b, "state_dict_metadata");
	t_dcp_tensor(&b, "w", "float32", 2, shape, N, chunks);
	t_dcp_end_section(&b);
	t_dcp_section(&b, "storage_data");
	for (int64_t i = 0; i < N; i++) {
		int64_t j = i * 7919 % N; /* a prime: every chunk once */

		t_dcp_stored(&b, "w", 2, chunks + 4 * j, "__0_0.distcp", j * 100, 100);
	}
	t_dcp_end_section(&b);
	t_dcp_end(&b);
	t_sink_init(&s, NULL);
	if (tell_all(&d, &s, b.p, b.n, &err) < 0)
		fail_msg("%s", err.msg);
	t = t_sink_tensor(&s, "w");
	assert_null(t->error);
	assert_int_equal(t->npieces, N);
	for (size_t k = 0; k < N; k++) {
		size_t i = k % SIDE * SIDE + k / SIDE; /* pieces are in order of their place */

		assert_true(t->pieces[k].off == i * 100 &&
			    t->pieces[k].lo[0] == (uint64_t)chunks[4 * i]);
	}
	t_sink_finish(&s);
}

/* A dict has a key once: what is set later is what it holds. */
static void the_last_value_of_a_key_counts(void **state)
{
	static const int64_t shape[] = { 6 }, before[] = { 4 };
	static const int64_t all[] = { 0, 6 }, less[] = { 0, 4 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_dcp d = { 0 };
	const struct dcp_tensor *t;
	struct dcp_err err = { 0 };
	struct t_sink s;

	(void)state;
	t_dcp_begin(&b);
	t_dcp_section(&b, "state_dict_metadata");
	t_dcp_tensor(&b, "w", "float32", 1, before, 1, less);
	t_dcp_tensor(&b, "other", "float32", 1, shape, 1, all);
	t_dcp_bytes(&b, "w");
	t_dcp_tensor(&b, "w", "int64", 1, shape, 1, all);
	t_dcp_end_section(&b);
	t_dcp_section(&b, "storage_data");
	t_dcp_stored(&b, "w", 1, all, "__0_0.distcp", 7, 70);
	t_dcp_stored(&b, "other", 1, all, "__0_0.distcp", 100, 70);
	t_dcp_end_section(&b);
	t_dcp_end(&b);
	t_sink_init(&s, NULL);
	if (tell_all(&d, &s, b.p, b.n, &err) < 0)
		fail_msg("%s", err.msg);
	t = t_sink_tensor(&s, "w");
	assert_null(t->error);
	assert_int_equal(t->dtype, DCP_DTYPE_I64);
	assert_int_equal(t->shape[0], 6);
	assert_int_equal(t->npieces, 1);
	assert_int_equal(t->pieces[0].off, 7);
	assert_null(t_sink_tensor(&s, "other")->error);
	t_sink_finish(&s);
}

/* Ranks that read in one after another: equal boxes are one, what is missing is said. */
static void metadata_of_ranks_is_joined(void **state)
{
	static const int64_t shape[] = { 6 };
	static const int64_t part[3][2] = { { 0, 2 }, { 2, 2 }, { 4, 2 } };
	static const int64_t all[] = { 0, 6 }, none[] = { 6, 0 };
	static const char *const names[] = { "rank0", "rank2" };
	struct t_sink s;
	struct dcp_load in = { .sink = &s.sink };
	struct dcp_dcp d = { .in = &in,
			     .missing = "there is metadata of ranks 0, 2 only",
			     .rank = names };
	dcp_auto_buf struct dcp_buf path = DCP_BUF_INIT, ptrs = DCP_BUF_INIT;
	const char *const *parts;
	const struct dcp_tensor *t;

	(void)state;
	t_sink_init(&s, NULL);
	assert_int_equal(dcp_dcp_meta_init(&d.meta), 0);
	for (int r = 0; r < 3; r += 2) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		char file[32];
		struct dcp_source src;

		snprintf(file, sizeof(file), "__%d_0.distcp", r);
		t_dcp_begin(&b);
		t_dcp_section(&b, "state_dict_metadata");
		t_dcp_tensor(&b, "hole", "float32", 1, shape, 1, part[r]);
		t_dcp_tensor(&b, "replicated", "float32", 1, shape, 1, all);
		t_dcp_tensor(&b, "uneven", "float32", 1, shape, 1, r ? none : all);
		t_dcp_tensor(&b, "quarrel", r ? "int32" : "float32", 1, shape, 1, all);
		t_dcp_end_section(&b);
		t_dcp_section(&b, "storage_data");
		t_dcp_stored(&b, "uneven", 1, r ? none : all, file, 3 + r, 10);
		t_dcp_stored(&b, "hole", 1, part[r], file, 5 + r, 10);
		t_dcp_stored(&b, "replicated", 1, all, file, 7 + r, 10);
		t_dcp_end_section(&b);
		t_dcp_end(&b);
		src = dcp_source_mem(b.p, b.n);
		assert_int_equal(dcp_dcp_meta_read(&d.meta, &src, NULL), 0);
	}
	assert_int_equal(dcp_dcp_emit(&d, NULL), 0);
	for (uint32_t i = 0; i < 4; i++) { /* each path takes the place of the last */
		assert_int_equal(dcp_dcp_meta_path(&d.meta, i, &path, &ptrs, &parts), 1);
		assert_ptr_equal(parts[0], path.p);
	}
	t = t_sink_tensor(&s, "hole");
	assert_string_equal(t->error, "2 of 6 elements are missing: there is metadata of "
				      "ranks 0, 2 only");
	t = t_sink_tensor(&s, "replicated");
	assert_null(t->error);
	assert_int_equal(t->npieces, 1);
	assert_int_equal(t->pieces[0].off, 7);
	t = t_sink_tensor(&s, "uneven");
	assert_null(t->error);
	assert_int_equal(t->pieces[0].off, 3);
	assert_string_equal(t_sink_tensor(&s, "quarrel")->error,
			    "ranks disagree about its dtype or shape");
	dcp_dcp_meta_finish(&d.meta);
	t_sink_finish(&s);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(malformed_metadata_is_refused),
		cmocka_unit_test(sections_come_in_any_order),
		cmocka_unit_test(chunks_out_of_order_are_read),
		cmocka_unit_test(the_last_value_of_a_key_counts),
		cmocka_unit_test(metadata_of_ranks_is_joined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
