/* SPDX-License-Identifier: Apache-2.0 */
/* copies: those of several files become one tensor, or say why not. */
#include "tests/unit/t.h"

#include "core/format/gather/join.h"
#include "tests/unit/t/sink.h"

/* Rows [lo, lo + n) of @key, of shape [rows, 2], as file @who tells them. */
static void add(struct dcp_copies *g, const char *key, uint64_t rows, uint64_t lo, uint64_t n,
		uint32_t who, const char *error)
{
	static const char *const names[] = { "a.pt", "b.pt", "c.pt" };
	uint64_t at[2] = { lo, 0 }, len[2] = { n, 2 }, shape[2] = { rows, 2 };
	struct dcp_piece p = {
		.lo = at, .len = len, .run_n = 2 * n, .file = who, .nbytes = 8 * n
	};
	struct dcp_tensor t = { .key = key,
				.path = &key,
				.npath = 1,
				.dtype = DCP_DTYPE_F32,
				.dtype_name = "F32",
				.itemsize = 4,
				.ndim = 2,
				.shape = shape,
				.pieces = &p,
				.npieces = n && !error,
				.error = error };

	assert_int_equal(dcp_copies_add(g, &t, who, names[who]), 0);
	memset(at, 0xff, sizeof(at)); /* everything was copied */
	memset(len, 0xff, sizeof(len));
	memset(shape, 0xff, sizeof(shape));
}

static void joining_keeps_one_copy(void **state)
{
	static const char *const keys[] = { "parts",          "replicas",    "hole",   "broken",
					    "broken replica", "other shape", "nothing" };
	const struct dcp_tensor *t;
	struct dcp_copies g;
	struct t_sink s;

	(void)state;
	dcp_copies_init(&g);
	add(&g, "parts", 5, 3, 2, 1, NULL);
	add(&g, "parts", 5, 0, 3, 0, NULL);
	add(&g, "replicas", 4, 0, 4, 2, NULL);
	add(&g, "replicas", 4, 0, 4, 0, NULL);
	add(&g, "hole", 5, 0, 3, 0, NULL);
	add(&g, "broken", 5, 0, 3, 0, NULL);
	add(&g, "broken", 5, 3, 2, 1, "is damaged");
	add(&g, "broken replica", 4, 0, 4, 0, "is damaged");
	add(&g, "broken replica", 4, 0, 4, 1, NULL);
	add(&g, "other shape", 4, 0, 2, 0, NULL);
	add(&g, "other shape", 5, 2, 3, 2, NULL);
	add(&g, "nothing", 0, 0, 0, 0, NULL);
	assert_int_equal(g.names.n, DCP_LEN(keys));
	t_sink_init(&s, NULL);
	for (uint32_t k = 0; k < g.names.n; k++)
		assert_int_equal(dcp_copies_emit(&g, k, &s.sink, NULL), 0);
	for (size_t i = 0; i < DCP_LEN(keys); i++)
		assert_non_null(t_sink_tensor(&s, keys[i]));
	t = t_sink_tensor(&s, "parts");
	assert_null(t->error);
	assert_int_equal(t->npieces, 2);
	assert_int_equal(t->pieces[0].lo[0], 0); /* in order of their place */
	t = t_sink_tensor(&s, "replicas");
	assert_null(t->error);
	assert_int_equal(t->npieces, 1);
	assert_int_equal(t->pieces[0].file, 2); /* the first that was told */
	assert_int_equal(t->ncopies, 1);
	assert_int_equal(t_sink_tensor(&s, "parts")->ncopies, 0);
	assert_string_equal(t_sink_tensor(&s, "hole")->error,
			    "4 of 10 elements are missing: no file holds them");
	assert_string_equal(t_sink_tensor(&s, "broken")->error, "b.pt: is damaged");
	assert_null(t_sink_tensor(&s, "broken replica")->error);
	assert_string_equal(t_sink_tensor(&s, "other shape")->error,
			    "a.pt and c.pt disagree about its dtype or shape");
	assert_null(t_sink_tensor(&s, "nothing")->error);
	assert_int_equal(dcp_copies_emit(&g, 2, &s.sink, "c.pt: is gone"), 0);
	assert_string_equal(t_sink_tensor(&s, "hole")->error,
			    "4 of 10 elements are missing: c.pt: is gone");
	s.fail_at = s.calls + 1;
	assert_int_equal(dcp_copies_emit(&g, 0, &s.sink, NULL), -ENOSPC);
	t_sink_finish(&s);
	dcp_copies_finish(&g);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(joining_keeps_one_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
