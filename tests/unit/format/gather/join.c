/* SPDX-License-Identifier: Apache-2.0 */
/* join: pieces in any order become those of one tensor, or it is said what is missing. */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/format/gather/join.h"

struct given {
	uint64_t lo, n;
	uint32_t file;
};

/* A tensor of 8 numbers; the number of a piece among those added is its place in the file. */
static const struct {
	const char *what, *lost, *missing;
	struct given in[4];
	size_t n;
	bool cut;
	int rc;
	struct given out[4]; /* file: the number of the piece */
	size_t npieces, ncopies;
	const char *why;
} cases[] = {
	/* clang-format off */
	{ "sorted", .in = { { 0, 4, 0 }, { 4, 4, 1 } }, .n = 2,
	  .out = { { 0, 4, 0 }, { 4, 4, 1 } }, .npieces = 2 },
	{ "reversed", .in = { { 4, 4, 1 }, { 0, 4, 0 } }, .n = 2,
	  .out = { { 0, 4, 1 }, { 4, 4, 0 } }, .npieces = 2 },
	{ "replicas: the first added, and one of another file", .in = { { 0, 8, 3 }, { 0, 8, 3 }, { 0, 8, 1 }, { 0, 8, 2 } }, .n = 4,
	  .out = { { 0, 8, 0 } }, .npieces = 1, .ncopies = 1 },
	{ "replicas of one file are no copies", .in = { { 0, 8, 3 }, { 0, 8, 3 } }, .n = 2,
	  .out = { { 0, 8, 0 } }, .npieces = 1 },
	{ "a hole that the index finds", .in = { { 0, 4, 0 } }, .n = 1, .out = { { 0, 4, 0 } }, .npieces = 1 },
	{ "a hole", .missing = "rank 1 is gone", .in = { { 4, 3, 0 } }, .n = 1, .out = { { 4, 3, 0 } }, .npieces = 1,
	  .why = "5 of 8 elements are missing: rank 1 is gone" },
	{ "nothing", .missing = "rank 1 is gone", .why = "8 of 8 elements are missing: rank 1 is gone" },
	{ "a lost piece", .lost = "b.pt is cut", .missing = "rank 1 is gone", .in = { { 0, 4, 0 } }, .n = 1,
	  .out = { { 0, 4, 0 } }, .npieces = 1, .why = "b.pt is cut" },
	{ "a lost replica", .lost = "b.pt is cut", .in = { { 0, 8, 0 } }, .n = 1, .out = { { 0, 8, 0 } }, .npieces = 1 },
	{ "overlaps are left alone", .in = { { 0, 6, 0 }, { 2, 6, 1 } }, .n = 2,
	  .out = { { 0, 6, 0 }, { 2, 6, 1 } }, .npieces = 2 },
	{ "overlaps, sorted: the first added counts", .cut = true, .in = { { 0, 6, 0 }, { 2, 6, 1 } }, .n = 2, .rc = 1,
	  .out = { { 6, 2, 1 }, { 0, 6, 0 } }, .npieces = 2 },
	{ "overlaps, reversed: the first added counts", .cut = true, .in = { { 2, 6, 1 }, { 0, 6, 0 } }, .n = 2, .rc = 1,
	  .out = { { 0, 2, 1 }, { 2, 6, 0 } }, .npieces = 2 },
	{ "overlaps that leave a hole", .cut = true, .lost = "b.pt is cut", .in = { { 0, 5, 0 }, { 1, 5, 1 } }, .n = 2, .rc = 1,
	  .out = { { 5, 1, 1 }, { 0, 5, 0 } }, .npieces = 2, .why = "b.pt is cut" },
	/* clang-format on */
};

static void pieces_are_put_together(void **state)
{
	struct dcp_join j = { 0 };
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const uint64_t shape = 8;
		struct dcp_tensor t = { .key = "k", .ndim = 1, .shape = &shape, .itemsize = 1 };
		struct dcp_err why = { 0 };

		t_case(cases[i].what);
		dcp_join_begin(&j);
		for (size_t k = 0; k < cases[i].n; k++) {
			const struct given *g = &cases[i].in[k];
			const struct dcp_piece p = { .lo = &g->lo,
						     .len = &g->n,
						     .run_n = g->n,
						     .nbytes = g->n,
						     .file = g->file,
						     .off = 100 * k };

			assert_int_equal(dcp_join_add(&j, &p), 0);
		}
		for (int again = 0; cases[i].lost && again < 2; again++)
			dcp_join_lose(&j, -EBADMSG, "%s", again ? "another" : cases[i].lost);
		assert_int_equal(dcp_join_end(&j, &t, cases[i].cut ? &arena : NULL,
					      cases[i].missing, &why),
				 cases[i].rc);
		assert_string_equal(why.msg, cases[i].why ? cases[i].why : "");
		assert_int_equal(t.npieces, cases[i].npieces);
		assert_int_equal(t.ncopies, cases[i].ncopies);
		for (size_t k = 0; k < t.npieces; k++) {
			assert_int_equal(t.pieces[k].lo[0], cases[i].out[k].lo);
			assert_int_equal(t.pieces[k].run_n, cases[i].out[k].n);
			assert_int_equal(t.pieces[k].off / 100, cases[i].out[k].file);
		}
		for (size_t k = 0; k < t.ncopies; k++)
			assert_int_equal(t.copies[k].file, 1);
	}
	dcp_join_finish(&j);
	dcp_arena_finish(&arena);
}

static void parts_are_placed_and_checked(void **state)
{
	const uint64_t zero[2] = { 0 }, len[2] = { 2, 3 }, shape[2] = { 4, 3 };
	const uint64_t at[2] = { 2, 0 }, far[2] = { UINT64_MAX, 0 }, over[2] = { 1, 0 };
	const struct dcp_piece p = { .lo = zero, .len = len, .run_n = 6 };
	const struct dcp_piece q = { .lo = over, .len = len, .run_n = 6 };
	struct dcp_tensor t = { .ndim = 2, .shape = shape };
	const struct dcp_tensor part = { .ndim = 2, .shape = len, .pieces = &p, .npieces = 1 };
	const struct dcp_tensor other = { .ndim = 2, .shape = len, .pieces = &q, .npieces = 1 };
	struct dcp_join j = { 0 };
	struct dcp_arena arena;
	struct dcp_err why = { 0 };

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(dcp_join_add_part(&j, &part, at, &arena), 0);
	assert_int_equal(dcp_join_add_part(&j, &part, zero, &arena), 0);
	assert_int_equal(dcp_join_end(&j, &t, NULL, "a rank is gone", &why), 0);
	assert_int_equal(why.code, 0);
	assert_int_equal(t.npieces, 2);
	assert_int_equal(t.pieces[0].lo[0], 0);
	assert_int_equal(t.pieces[1].lo[0], 2);
	assert_int_equal(dcp_join_add_part(&j, &other, far, &arena), -EBADMSG);
	dcp_join_finish(&j);
	dcp_arena_finish(&arena);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_are_put_together),
		cmocka_unit_test(parts_are_placed_and_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
