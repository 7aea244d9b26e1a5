/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pickle may cost: memory, depth, sparse memos, long texts; cycles; sources that fail
 * or change.
 * covers: pickle
 */
#include "core/base/bytes.h"
#include "tests/unit/t/parse/pickle.h"

#include "core/parse/pickle/pickle_int.h"

static int parse(const void *bytes, size_t n, size_t memory, struct dcp_pickle **out,
		 struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(bytes, n);
	struct dcp_pickle_opts opts = { .memory = memory };

	*err = (struct dcp_err){ 0 };
	return dcp_pickle_read(&src, &opts, out, NULL, err);
}

static struct dcp_pickle *must_parse(const void *bytes, size_t n)
{
	struct dcp_pickle *p;
	struct dcp_err err;

	if (parse(bytes, n, 0, &p, &err) < 0)
		fail_msg("%s", err.msg);
	return p;
}

/* Bytes and their number, for a table row. */
#define B(literal) literal, sizeof(literal) - 1

#define ADD(b, literal) dcp_buf_add(b, literal, sizeof(literal) - 1)

#define MUST_PARSE(literal) must_parse(literal, sizeof(literal) - 1)

static void add(struct dcp_buf *b, const char *bytes, size_t n, unsigned times)
{
	while (times--)
		dcp_buf_add(b, bytes, n);
}

static void add_op(struct dcp_buf *b, uint8_t op, uint32_t arg)
{
	uint8_t bytes[5] = { op };

	dcp_store_le32(bytes + 1, arg);
	dcp_buf_add(b, bytes, sizeof(bytes));
}

/* ---- memory ---- */

static void memory_limit_is_kept_everywhere(void **state)
{
	size_t n, limit = 4096;
	char *bytes = t_slurp("tests/golden/pickle/classes-2.pkl", &n);
	struct dcp_pickle *p;
	struct dcp_err err;
	unsigned refused = 0;

	(void)state;
	for (; parse(bytes, n, limit, &p, &err) < 0; limit += 64) {
		assert_int_equal(err.code, -E2BIG);
		t_assert_says(&err, "than the limit of ");
		refused++;
	}
	assert_true(refused > 10);
	assert_true(limit < 256 << 10);
	dcp_pickle_free(p);
	free(bytes);
}

static void million_lists_are_refused_quickly(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;
	struct dcp_err err;

	(void)state;
	add(&b, "]", 1, 1000000);
	add(&b, "a", 1, 999999);
	add(&b, ".", 1, 1);
	assert_int_equal(parse(b.p, b.n, 0, &p, &err), -E2BIG);
	t_assert_says(&err, "nests deeper than 500 levels");
	dcp_buf_reset(&b);
	add(&b, "(", 1, 1000000);
	add(&b, "t", 1, 1000000);
	add(&b, ".", 1, 1);
	assert_int_equal(parse(b.p, b.n, 0, &p, &err), -E2BIG);
	assert_int_equal(parse(b.p, b.n, 1 << 20, &p, &err), -E2BIG);
	t_assert_says(&err, "MARK at byte ");
}

/* 60 doublings: 2^60 items for who writes it out, 60 tuples here. */
static void doubling_tuples_cost_nothing(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;
	struct dcp_err err;

	(void)state;
	add(&b, ")", 1, 1);
	add(&b, "2\x86", 2, 60);
	add(&b, ".", 1, 1);
	assert_int_equal(parse(b.p, b.n, 16 << 10, &p, &err), 0);
	assert_int_equal(dcp_pickle_root(p).node->depth, 61);
	dcp_pickle_free(p);
}

/* A chain a hundred thousand deep, tied through the memo so that no depth is noticed. */
static void long_chain_is_released_without_recursion(void **state)
{
	enum { LINKS = 100000 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;

	(void)state;
	for (uint32_t i = 0; i < LINKS; i++) {
		add(&b, "]", 1, 1);
		add_op(&b, PICKLE_LONG_BINPUT, i);
		add(&b, "0", 1, 1);
	}
	for (uint32_t i = 0; i + 1 < LINKS; i++) {
		add_op(&b, PICKLE_LONG_BINGET, i);
		add_op(&b, PICKLE_LONG_BINGET, i + 1);
		add(&b, "a0", 2, 1);
	}
	add(&b, "N.", 2, 1);
	p = must_parse(b.p, b.n);
	assert_int_equal(dcp_pickle_root(p).type, DCP_PV_NONE);
	assert_int_equal(p->mem.large == NULL, 1);
	dcp_pickle_free(p);
}

/* Values that come and go use the same memory again, whatever they are made of. */
static void dropped_values_are_reused(void **state)
{
	static const struct {
		const char *what, *bytes;
		size_t n;
	} rows[] = {
		{ "text", B("X\x04\0\0\0text0") },
		{ "long text", B("X\x00\x04\0\0") }, /* and 1024 bytes more */
		{ "big integer", B("\x8a\x09\0\0\0\0\0\0\0\x80\0"
				   "0") },
		{ "tuples", B("C\x01x)\x86\x85"
			      "0") },
		{ "list that grows",
		  B("](NNNNNNNNe(NNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNNe0") },
		{ "dict", B("}X\x01\0\0\0kX\x01\0\0\0vs0") },
		{ "set and frozenset", B("\x8f(N\x90"
					 "0(N\x91"
					 "0") },
		{ "object with all parts", B("cm\nC\n)}\x92}b(NNu(Ne0") },
		{ "call of shared arguments", B("cm\nf\nK\x01K\x02\x86\x85R}b0") },
		{ "persistent id", B("NQ0") },
		{ "memo entry stored again", B("]q\x00"
					       "0h\x00"
					       "0") },
		{ "plain value in the memo", B("Nq\x00"
					       "0h\x00"
					       "0") },
		{ "above a mark", B("(]}\x8f"
				    "1") },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_pickle *p;
		struct dcp_err err;

		t_case(rows[i].what);
		for (unsigned k = 0; k < 5000; k++) {
			dcp_buf_add(&b, rows[i].bytes, rows[i].n);
			if (i == 1) {
				memset(dcp_buf_grow(&b, 1024), 'x', 1024);
				dcp_buf_str(&b, "0");
			}
		}
		dcp_buf_str(&b, "N.");
		if (parse(b.p, b.n, 80 << 10, &p, &err) < 0)
			fail_msg("%s", err.msg);
		dcp_pickle_free(p);
	}
}

/* ---- memo ---- */

static void claimed_indices_cost_nothing(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;
	struct dcp_err err;
	char *got;

	(void)state;
	/* stored far apart and all fetched: a hundred entries, not 2^32 */
	add(&b, "(", 1, 1);
	for (uint32_t i = 0; i < 100; i++) {
		add_op(&b, PICKLE_BININT, i);
		add(&b, "\x85", 1, 1);
		add_op(&b, PICKLE_LONG_BINPUT, i * 42949672);
	}
	for (uint32_t i = 0; i < 100; i++)
		add_op(&b, PICKLE_LONG_BINGET, (99 - i) * 42949672);
	add(&b, "t.", 2, 1);
	assert_int_equal(parse(b.p, b.n, 64 << 10, &p, &err), 0);
	for (uint32_t i = 0; i < 100; i++)
		assert_int_equal(dcp_pickle_root(p).node->items[100 + i].node->items[0].i,
				 99 - i);
	dcp_pickle_free(p);

	/* fetched again and again: one entry */
	dcp_buf_reset(&b);
	add(&b, "]p1099511627776\n0", 17, 1);
	add(&b, "g1099511627776\n0", 16, 3000);
	add(&b, "g1099511627776\n.", 16, 1);
	assert_int_equal(parse(b.p, b.n, 16 << 10, &p, &err), 0);
	got = t_pickle_text(dcp_pickle_root(p));
	assert_string_equal(got, "[]");
	free(got);
	dcp_pickle_free(p);

	/* an index that is far at first and near later */
	dcp_buf_reset(&b);
	ADD(&b, "]r\xd0\x07\0\0j\xd0\x07\0\0"
		"0");
	add(&b, "N0", 2, 2000);
	ADD(&b, "0]r\xd1\x07\0\0"
		"0j\xd1\x07\0\0j\xd0\x07\0\0\x86.");
	p = must_parse(b.p, b.n);
	got = t_pickle_text(dcp_pickle_root(p));
	assert_string_equal(got, "([],[],)");
	free(got);
	dcp_pickle_free(p);
}

static void only_fetched_entries_are_kept(void **state)
{
	enum { STORED = 200000 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;
	struct dcp_err err;

	(void)state;
	for (unsigned i = 0; i < STORED; i++)
		add(&b,
		    "]\x94"
		    "0",
		    3, 1);
	add_op(&b, PICKLE_LONG_BINGET, STORED - 1);
	add(&b, ".", 1, 1);
	/* an index costs a quarter of a byte, a list would cost 32 */
	assert_int_equal(parse(b.p, b.n, STORED / 4 + (16 << 10), &p, &err), 0);
	dcp_pickle_free(p);
}

static void cycles_live_and_die(void **state)
{
	static const struct {
		const char *what, *bytes;
		size_t n;
	} rows[] = {
		{ "a list in itself", B("]q\x00h\x00"
					"a.") },
		{ "a dict in itself", B("}q\x00Nh\x00s.") },
		{ "a tuple in its list", B("]q\x00(h\x00tq\x01"
					   "ah\x01\x86.") },
		{ "an object in its state", B("cm\nC\n)\x81q\x00h\x00"
					      "b.") },
		{ "an object in its items", B("cm\nC\n)\x81q\x00h\x00"
					      "a.") },
		{ "let go of", B("]q\x00h\x00"
				 "a0N.") },
		{ "built twice", B("cm\nC\n)\x81q\x00h\x00"
				   "bNb.") },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].what);
		dcp_pickle_free(must_parse(rows[i].bytes, rows[i].n));
	}
}

/* ---- text ---- */

static void only_long_text_is_copied(void **state)
{
	static const struct {
		const char *what;
		uint8_t op;
		uint8_t fill;
		enum dcp_pv_type type;
		bool copied;
	} rows[] = {
		{ "bytes", PICKLE_BINBYTES, 0xff, DCP_PV_BYTES, false },
		{ "str", PICKLE_BINUNICODE, 'x', DCP_PV_STR, true },
		{ "string that is text", PICKLE_BINSTRING, 'x', DCP_PV_STR, true },
		{ "string that is not", PICKLE_BINSTRING, 0xff, DCP_PV_BYTES, false },
	};
	enum { N = DCP_PICKLE_INLINE + 1 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++)
		for (uint32_t n = N - 1; n <= N; n++)
			for (size_t window = 0; window < 64; window += 63) {
				dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
				struct dcp_source src;
				struct dcp_pickle *p;
				struct dcp_pv v;

				t_case(rows[i].what);
				dcp_buf_str(&b, "N0");
				add_op(&b, rows[i].op, n);
				memset(dcp_buf_grow(&b, n), rows[i].fill, n);
				dcp_buf_str(&b, ".");
				src = dcp_source_mem(b.p, b.n);
				assert_int_equal(dcp_pickle_read_windowed(&src, NULL, window,
									  &p, NULL, NULL),
						 0);
				v = dcp_pickle_root(p);
				assert_int_equal(v.type, rows[i].type);
				assert_int_equal(v.node->n, n);
				assert_int_equal(v.node->src_off, 7);
				assert_int_equal(v.node->data != NULL, rows[i].copied || n < N);
				if (v.node->data)
					assert_memory_equal(v.node->data, b.p + 7, n);
				dcp_pickle_free(p);
			}
}

static void lines_have_a_limit(void **state)
{
	(void)state;
	for (size_t n = DCP_PICKLE_MAX_LINE; n <= DCP_PICKLE_MAX_LINE + 2; n++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_pickle *p;
		struct dcp_err err;

		dcp_buf_str(&b, "V");
		memset(dcp_buf_grow(&b, n), 'x', n);
		if (n <= DCP_PICKLE_MAX_LINE + 1) /* else it does not end */
			dcp_buf_str(&b, "\n.");
		if (n == DCP_PICKLE_MAX_LINE) {
			p = must_parse(b.p, b.n);
			assert_int_equal(dcp_pickle_root(p).node->n, n);
			dcp_pickle_free(p);
		} else {
			assert_int_equal(parse(b.p, b.n, 0, &p, &err), -E2BIG);
			t_assert_says(&err,
				      "UNICODE at byte 0 has a line of more than 1048576");
		}
	}
}

static void integers_up_to_the_limit_are_read(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;

	(void)state;
	add_op(&b, PICKLE_LONG4, DCP_PICKLE_MAX_INT);
	memset(dcp_buf_grow(&b, DCP_PICKLE_MAX_INT), 0x55, DCP_PICKLE_MAX_INT);
	dcp_buf_str(&b, ".");
	p = must_parse(b.p, b.n);
	assert_int_equal(dcp_pickle_root(p).type, DCP_PV_BIGINT);
	assert_int_equal(dcp_pickle_root(p).node->n, DCP_PICKLE_MAX_INT);
	dcp_pickle_free(p);
}

/* ---- sources ---- */

struct faulty {
	struct dcp_source src;
	const char *first, *second; /* what is read before and after the change */
	unsigned calls, change_after, fail_at;
};

static int read_faulty(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	struct faulty *f = (struct faulty *)(uintptr_t)src;

	if (++f->calls == f->fail_at)
		return -EIO;
	memcpy(buf, (f->calls > f->change_after ? f->second : f->first) + off, n);
	return 0;
}

static void source_may_fail_at_any_read(void **state)
{
	size_t n;
	char *bytes = t_slurp("tests/golden/pickle/classes-0.pkl", &n);
	int r = -EIO;

	(void)state;
	for (unsigned at = 1; r < 0; at++) {
		struct faulty f = { .src = { .read = read_faulty, .size = n },
				    .first = bytes,
				    .change_after = UINT32_MAX,
				    .fail_at = at };
		struct dcp_pickle *p = NULL;
		struct dcp_err err = { 0 };

		r = dcp_pickle_read_windowed(&f.src, NULL, 256, &p, NULL, &err);
		if (r < 0) {
			assert_int_equal(r, -EIO);
			t_assert_says(&err, "reading ");
			assert_null(p);
		} else {
			assert_true(at > 20);
		}
		dcp_pickle_free(p);
	}
	free(bytes);
}

/* What pass one learnt may be wrong for pass two: no crash, and no wrong memo. */
static void source_may_change_between_reads(void **state)
{
	static const char *const names[] = { "classes-0", "classes-2", "classes-5",
					     "random-4" };
	char *bytes[DCP_LEN(names)];
	size_t n[DCP_LEN(names)];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		char path[128];

		snprintf(path, sizeof(path), "tests/golden/pickle/%s.pkl", names[i]);
		bytes[i] = t_slurp(path, &n[i]);
	}
	for (size_t i = 0; i < DCP_LEN(names) * DCP_LEN(names); i++)
		for (unsigned k = 1; k < 12; k++) {
			size_t a = i / DCP_LEN(names), c = i % DCP_LEN(names);
			struct faulty f = { .src = { .read = read_faulty,
						     .size = DCP_MIN(n[a], n[c]) },
					    .first = bytes[a],
					    .second = bytes[c],
					    .change_after = k };
			struct dcp_pickle *p = NULL;
			struct dcp_err err = { 0 };

			if (dcp_pickle_read_windowed(&f.src, NULL, 300, &p, NULL, &err) < 0)
				assert_int_not_equal(err.msg[0], 0);
			dcp_pickle_free(p);
		}
	for (size_t i = 0; i < DCP_LEN(names); i++)
		free(bytes[i]);
}

T_TESTS()
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_limit_is_kept_everywhere),
		cmocka_unit_test(million_lists_are_refused_quickly),
		cmocka_unit_test(doubling_tuples_cost_nothing),
		cmocka_unit_test(long_chain_is_released_without_recursion),
		cmocka_unit_test(dropped_values_are_reused),
		cmocka_unit_test(claimed_indices_cost_nothing),
		cmocka_unit_test(only_fetched_entries_are_kept),
		cmocka_unit_test(cycles_live_and_die),
		cmocka_unit_test(only_long_text_is_copied),
		cmocka_unit_test(lines_have_a_limit),
		cmocka_unit_test(integers_up_to_the_limit_are_read),
		cmocka_unit_test(source_may_fail_at_any_read),
		cmocka_unit_test(source_may_change_between_reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
