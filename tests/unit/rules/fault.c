/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that operations cannot make: the reason, and nothing else is touched.
 *
 * covers: map
 */
#include "core/base/arena.h"
#include "core/rules/rules.h"
#include "tests/unit/t.h"
#include "tests/unit/t/sink.h"

/* clang-format off */
static const struct {
	const char *rules, *says;
	uint32_t ndim;
	uint64_t shape[2];
	size_t keys;
	uint64_t run_lo; /* of its piece */
	const char *qkv_order;
} failing[] = {
	{ "a -> b : T", "line 1: T: a tensor of 1 dimension cannot be transposed", 1, { 4 }, 1 },
	{ "a -> b : permute(0)", "line 1: permute: 1 numbers for 2 dimensions", 2, { 4, 4 }, 1 },
	{ "a -> b : permute(0, 0)", "line 1: permute: dimension 0 twice", 2, { 4, 4 }, 1 },
	{ "a -> b : permute(0, 2)", "line 1: permute: dimension 2 of a tensor that has 2", 2, { 4, 4 }, 1 },
	{ "a -> b : reshape(3, -1)", "line 1: reshape: 16 elements do not fit a shape of 3", 2, { 4, 4 }, 1 },
	{ "a -> b : reshape(-1, -1)", "line 1: reshape: -1 stands once in a shape", 2, { 4, 4 }, 1 },
	{ "a -> b : reshape(layers, -1)", "line 1: reshape: it needs layers, which no config.json has", 2, { 4, 4 }, 1 },
	{ "a -> b : reshape(vocab/heads)", "line 1: reshape: 7 is not a multiple of 4", 2, { 4, 4 }, 1 },
	{ "a -> b : reshape(4294967296*4294967296, -1)", "line 1: reshape: its numbers do not fit in 64 bits", 2, { 4, 4 }, 1 },
	{ "a -> b : T", "its pieces are invalid", 2, { 4, 4 }, 1, 1 },
	{ "a -> b : narrow(0, 2, 3)", "line 1: narrow: elements 2 to 5 of dimension 0, which has 4", 2, { 4, 4 }, 1 },
	{ "a -> b : narrow(0, 18446744073709551615, 3)", "of dimension 0, which has 4", 2, { 4, 4 }, 1 },
	{ "a -> b : unpad(vocab)", "line 1: unpad: dimension 0 has 4 elements, fewer than 7", 2, { 4, 4 }, 1 },
	{ "a -> b : pad(vocab)", "line 1: pad: dimension 0 has 8 elements, more than 7", 2, { 8, 4 }, 1 },
	{ "a -> b : rope(heads)", "line 1: rope: 12 rows are not 4 heads of an even size", 2, { 12, 4 }, 1 },
	{ "a -> q, k, v : qkv(4, 3)", "line 1: qkv: 4 heads in 3 groups", 2, { 12, 4 }, 3 },
	{ "a -> q, k, v : qkv(4, 2)", "line 1: qkv: 12 rows are not 2 groups of 2 heads and a key and a value", 2, { 12, 4 }, 3 },
	{ "a -> q, k, v : qkv(4, 4, parts_last)", "line 1: qkv: 14 rows are not 4 groups of 1 heads and a key and a value", 2, { 14, 4 }, 3 },
	{ "a -> q, k, v : qkv(4, 2, stored)", "line 1: qkv: rows with parts first or last have a key and a value for each head, not for each of 2 groups",
	  2, { 24, 4 }, 3, .qkv_order = "parts_first" },
	{ "a -> q, k, v : qkv(4, 4, stored)", "line 1: qkv: the source says that its rows are in the order \"unknown\", which is not known",
	  2, { 12, 4 }, 3, .qkv_order = "unknown" },
	{ "a -> x, y : split(0, 2)", "line 1: split: 5 elements cannot be split: the parts add up to 2", 2, { 5, 4 }, 2 },
	{ "a -> x, y : pairs", "line 1: pairs: it has 2 dimensions and 5 rows: expected rows of both in turn, or two of [rows, columns]", 2, { 5, 4 }, 2 },
	{ "a -> x, y : pairs(1)", "line 1: pairs: it has 2 dimensions and 6 rows: expected three, one of which has two elements", 2, { 6, 4 }, 2 },
	{ "a -> x, y : reshape(3, 4, 2) pairs", "line 1: pairs: dimension 0 has 3 elements: expected 2", 2, { 6, 4 }, 2 },
	{ "a -> x.{e} : unstack(2, {e})", "line 1: unstack: dimension 2 of a tensor that has 2", 2, { 5, 4 }, 1 },
	{ "a -> x.{i}.{e} : unstack(0, {i}) unstack(0, {e})", "line 1: unstack: 300 elements cannot become one tensor each", 2, { 300, 300 }, 300 },
	{ "a -> b : narrow(0, 4294967296*4294967296, 1)", "line 1: narrow: its numbers do not fit in 64 bits", 2, { 4, 4 }, 1 },
	{ "a -> b : reshape(9223372036854775808, 2)", "line 1: reshape: its numbers do not fit in 64 bits", 2, { 4, 4 }, 1 },
	{ "a -> b : reshape(18446744073709551615, 0, 3)", "line 1: reshape: ", 2, { 4, 4 }, 1 },
	{ "a -> b : cast(bf16)", "line 1: cast: U32 cannot become BF16", 1, { 4 }, 1 },
	{ "a, b -> c : concat(0)", "line 1: there is a, but no b", 2, { 5, 4 }, 1 },
	{ "a -> x.{i}.{e} : unstack(0, {i}) unstack(0, {e})", "line 1: unstack: 300 elements cannot become one tensor each", 2, { 300, 300 }, 300 },
	{ "a -> x.{e} : unstack(0, {e}) T", "line 1: T: a tensor of 1 dimension cannot be transposed", 2, { 3, 4 }, 3 },
};
/* clang-format on */

static int list_one(void *ctx, int (*fn)(void *, uint64_t, const char *), void *fn_ctx,
		    struct dcp_err *err)
{
	(void)ctx;
	(void)err;
	return fn(fn_ctx, 0, "a");
}

/* @ctx: its row above. */
static int one_tensor(void *ctx, uint64_t number, struct dcp_arena *arena,
		      struct dcp_tensor *out, struct dcp_err *err)
{
	size_t c = *(const size_t *)ctx;
	struct dcp_piece *p = dcp_arena_calloc(arena, 1, sizeof(*p));
	uint64_t *lo = dcp_arena_calloc(arena, 2, sizeof(*lo));

	(void)number;
	(void)err;
	assert_true(p && lo);
	*p = (struct dcp_piece){ .lo = lo,
				 .len = failing[c].shape,
				 .run_lo = failing[c].run_lo };
	assert_true(dcp_shape_volume(failing[c].shape, failing[c].ndim, &p->run_n));
	p->nbytes = 4 * p->run_n;
	*out = (struct dcp_tensor){ .key = "a",
				    .dtype = DCP_DTYPE_U32,
				    .dtype_name = "U32",
				    .itemsize = 4,
				    .ndim = failing[c].ndim,
				    .shape = failing[c].shape,
				    .pieces = p,
				    .npieces = 1 };
	return 0;
}

static void failing_operations_break_their_keys(void **state)
{
	static const struct dcp_rules_config config = { .heads = 4, .kv_heads = 2, .vocab = 7 };
	static const struct dcp_file_id file = { .name = "f" };

	(void)state;
	for (size_t c = 0; c < DCP_LEN(failing); c++) {
		struct dcp_rules_source from = { .list = list_one,
						 .tensor = one_tensor,
						 .ctx = &c,
						 .files = &file,
						 .nfiles = 1,
						 .config = &config,
						 .qkv_order = failing[c].qkv_order };
		struct dcp_err err = { 0 };
		struct dcp_rules *r;
		struct t_sink told;

		t_case(failing[c].rules);
		t_sink_init(&told, NULL);
		assert_int_equal(dcp_rules_parse(failing[c].rules, strlen(failing[c].rules),
						 "x", &r, &err),
				 0);
		assert_int_equal(dcp_rules_map(r, &from, &told.sink, NULL, &err), 0);
		assert_int_equal(told.ntensors, failing[c].keys);
		for (size_t i = 0; i < told.ntensors; i++)
			if (!told.tensor[i].error ||
			    !strstr(told.tensor[i].error, failing[c].says))
				fail_msg("%s", told.tensor[i].error);
		t_sink_finish(&told);
		dcp_rules_free(r);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(
		failing_operations_break_their_keys) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
