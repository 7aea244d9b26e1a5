/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: model/tensor
 *
 * Strided descriptors and meetings agree with a reference that looks at one element after the
 * other (t_plan), on random tensors, cuts and ranges; what is no tiling.
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/geometry/tiling.h"
#include "core/model/tensor.h"
#include "tests/unit/t/model/plan.h"
#include "tests/unit/t/random.h"

static void random_plans_agree(void **state)
{
	enum { CASES = T_ROUNDS(120000) };
	struct t_plan *w = calloc(1, sizeof(*w));
	struct t_choice c = { .seed = t_random_seed(1) };

	(void)state;
	assert_non_null(w);
	for (int i = 0; i < CASES; i++) {
		uint64_t seed = c.seed;
		const char *wrong = t_plan_check(w, &c);

		if (wrong)
			fail_msg("case %d, DCPFS_TEST_SEED=0x%llx: %s", i,
				 (unsigned long long)seed, wrong);
	}
	free(w);
}

static void packed_pieces_come_back(void **state)
{
	struct t_plan *w = calloc(1, sizeof(*w));
	struct t_choice c = { .seed = t_random_seed(1) };
	struct dcp_arena arena;

	(void)state;
	assert_non_null(w);
	dcp_arena_init(&arena, 1 << 22);
	for (int round = 0; round < 300; round++) {
		dcp_auto_buf struct dcp_buf blob = DCP_BUF_INIT;
		struct dcp_err err = { 0 };
		struct dcp_piece *p;
		size_t n;

		t_plan_tensor(w, &c);
		dcp_pack_pieces(&blob, &w->t);
		assert_int_equal(
			dcp_unpack_part(blob.p, blob.n, w->t.ndim, NULL, &arena, &p, &n, &err),
			0);
		assert_int_equal(n, w->t.npieces);
		for (size_t i = 0; i < n; i++) {
			size_t bytes = w->t.ndim * sizeof(uint64_t);

			assert_int_equal(p[i].off, w->pieces[i].off);
			assert_int_equal(p[i].nbytes, w->pieces[i].nbytes);
			assert_int_equal(p[i].run_lo, w->pieces[i].run_lo);
			assert_int_equal(p[i].run_n, w->pieces[i].run_n);
			assert_int_equal(p[i].file, w->pieces[i].file);
			assert_int_equal(p[i].swap, w->pieces[i].swap);
			assert_memory_equal(p[i].lo, w->pieces[i].lo, bytes);
			assert_memory_equal(p[i].len, w->pieces[i].len, bytes);
			assert_int_equal(!p[i].stride, !w->pieces[i].stride);
			if (p[i].stride)
				assert_memory_equal(p[i].stride, w->pieces[i].stride, bytes);
		}
		for (size_t cut_at = 0; cut_at < blob.n; cut_at++)
			assert_int_equal(dcp_unpack_part(blob.p, cut_at, w->t.ndim, NULL,
							 &arena, &p, &n, &err),
					 -EBADMSG);
		dcp_arena_finish(&arena);
	}
	free(w);
}

#define BOX2(a, b, c, d)                                                                       \
	{ a, c },                                                                              \
	{                                                                                      \
		(b) - (a), (d) - (c)                                                           \
	}

/* clang-format off */
static const struct {
	const char *what;
	uint32_t ndim;
	uint64_t shape[2];
	struct { uint64_t lo[2], len[2], run_lo, run_n; } pieces[4];
	size_t n;
	int code;
	const char *says;
} tilings[] = {
	{ "two halves", 2, { 4, 6 },
	  { { BOX2(0, 2, 0, 6), 0, 12 }, { BOX2(2, 4, 0, 6), 0, 12 } }, 2, 0, NULL },
	{ "no pieces for no elements", 2, { 0, 6 }, { { { 0 }, { 0 }, 0, 0 } }, 0, 0, NULL },
	{ "no pieces", 2, { 4, 6 }, { { { 0 }, { 0 }, 0, 0 } }, 0, -EBADMSG, "elements [0:4, 0:6] are stored nowhere" },
	{ "hole in the middle", 2, { 4, 6 },
	  { { BOX2(0, 1, 0, 6), 0, 6 }, { BOX2(2, 4, 0, 6), 0, 12 } }, 2, -EBADMSG, "elements [1:2, 0:6] are stored nowhere" },
	{ "overlap", 2, { 4, 6 },
	  { { BOX2(0, 3, 0, 6), 0, 18 }, { BOX2(2, 4, 0, 6), 0, 12 } }, 2, -EBADMSG, "pieces [0:3, 0:6] and [2:4, 0:6] overlap" },
	{ "the same box twice", 2, { 4, 6 },
	  { { BOX2(0, 4, 0, 6), 0, 24 }, { BOX2(0, 4, 0, 6), 0, 24 } }, 2, -EBADMSG, "two pieces hold the same box [0:4, 0:6]" },
	{ "leaves the shape", 2, { 4, 6 },
	  { { BOX2(0, 4, 2, 7), 0, 20 } }, 1, -EBADMSG, "piece 2+5 leaves dimension 1 of size 6" },
	{ "offset that wraps", 2, { 4, 6 },
	  { { { UINT64_MAX, 0 }, { 2, 6 }, 0, 12 } }, 1, -EBADMSG, "leaves dimension 0" },
	{ "runs of one box", 2, { 2, 3 },
	  { { BOX2(0, 2, 0, 3), 4, 2 }, { BOX2(0, 2, 0, 3), 0, 4 } }, 2, 0, NULL },
	{ "runs with a gap", 2, { 2, 3 },
	  { { BOX2(0, 2, 0, 3), 4, 2 }, { BOX2(0, 2, 0, 3), 0, 3 } }, 2, -EBADMSG, "elements 3 to 4 of box [0:2, 0:3] are stored nowhere" },
	{ "runs that overlap", 2, { 2, 3 },
	  { { BOX2(0, 2, 0, 3), 3, 3 }, { BOX2(0, 2, 0, 3), 0, 4 } }, 2, -EBADMSG, "elements 3 to 4 of box [0:2, 0:3] are stored twice" },
	{ "an empty run beside the whole box", 2, { 4, 6 },
	  { { BOX2(0, 4, 0, 6), 0, 0 }, { BOX2(0, 4, 0, 6), 0, 24 } }, 2, 0, NULL },
	{ "an empty run in a box inside it", 2, { 4, 6 },
	  { { BOX2(0, 4, 0, 6), 0, 24 }, { BOX2(1, 2, 0, 6), 3, 0 } }, 2, 0, NULL },
	{ "an empty run alone", 2, { 4, 6 },
	  { { BOX2(0, 4, 0, 6), 0, 0 } }, 1, -EBADMSG, "elements [0:4, 0:6] are stored nowhere" },
	{ "run past its box", 2, { 2, 3 },
	  { { BOX2(0, 2, 0, 3), 0, 7 } }, 1, -EBADMSG, "elements 0+7 of 6" },
};
/* clang-format on */

static void tilings_are_recognised(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(tilings); i++) {
		struct dcp_piece pieces[4] = { { 0 } };
		struct dcp_tensor t = { .ndim = tilings[i].ndim,
					.shape = tilings[i].shape,
					.pieces = pieces,
					.npieces = tilings[i].n,
					.itemsize = 1 };
		struct dcp_err err = { 0 };
		struct dcp_arena arena;
		struct dcp_tiling tl;

		t_case(tilings[i].what);
		for (size_t k = 0; k < t.npieces; k++)
			pieces[k] = (struct dcp_piece){ .lo = tilings[i].pieces[k].lo,
							.len = tilings[i].pieces[k].len,
							.run_lo = tilings[i].pieces[k].run_lo,
							.run_n = tilings[i].pieces[k].run_n };
		dcp_arena_init(&arena, 1 << 20);
		assert_int_equal(dcp_tiling_init(&tl, &t, &arena, &err), tilings[i].code);
		if (tilings[i].says)
			t_assert_says(&err, tilings[i].says);
		dcp_arena_finish(&arena);
	}
}

/* clang-format off */
static const struct {
	const char *what;
	uint64_t lo[2], len[2];
	struct { uint64_t lo[2], len[2]; } pieces[4];
	size_t n;
	int code;
	const char *says;
} parts[] = { /* of a tensor of 4 x 6 */
	{ "a piece that holds it", BOX2(1, 2, 1, 2), { { BOX2(0, 4, 0, 6) } }, 1, 0, NULL },
	{ "a corner of each of four", BOX2(1, 3, 2, 4),
	  { { BOX2(0, 2, 0, 3) }, { BOX2(0, 2, 3, 6) }, { BOX2(2, 4, 0, 3) }, { BOX2(2, 4, 3, 6) } }, 4, 0, NULL },
	{ "what is elsewhere is missing", BOX2(2, 4, 0, 6), { { BOX2(2, 4, 0, 6) } }, 1, 0, NULL },
	{ "overlaps elsewhere", BOX2(2, 4, 0, 6),
	  { { BOX2(0, 2, 0, 6) }, { BOX2(0, 1, 0, 6) }, { BOX2(2, 4, 0, 6) } }, 3, 0, NULL },
	{ "a hole in it", BOX2(1, 3, 0, 6), { { BOX2(2, 4, 0, 6) } }, 1, -EBADMSG,
	  "elements [1:2, 0:6] are stored nowhere" },
	{ "nothing of it", BOX2(1, 3, 0, 6), { { BOX2(3, 4, 0, 6) } }, 1, -EBADMSG,
	  "elements [1:3, 0:6] are stored nowhere" },
	{ "an overlap in it", BOX2(2, 4, 0, 6), { { BOX2(0, 3, 0, 6) }, { BOX2(2, 4, 0, 6) } }, 2, -EBADMSG,
	  "pieces [0:3, 0:6] and [2:4, 0:6] overlap" },
	{ "one elsewhere leaves the shape", BOX2(2, 4, 0, 6), { { BOX2(0, 1, 0, 7) }, { BOX2(2, 4, 0, 6) } }, 2,
	  -EBADMSG, "leaves dimension 1" },
};
/* clang-format on */

static void parts_of_tilings_are_recognised(void **state)
{
	const uint64_t shape[2] = { 4, 6 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(parts); i++) {
		struct dcp_piece pieces[4] = { { 0 } };
		struct dcp_tensor t = { .ndim = 2,
					.shape = shape,
					.pieces = pieces,
					.npieces = parts[i].n,
					.itemsize = 1 };
		struct dcp_box box;
		struct dcp_err err = { 0 };
		struct dcp_arena arena;
		struct dcp_tiling tl;

		t_case(parts[i].what);
		memcpy(box.lo, parts[i].lo, sizeof(parts[i].lo));
		memcpy(box.len, parts[i].len, sizeof(parts[i].len));
		for (size_t k = 0; k < t.npieces; k++)
			pieces[k] = (struct dcp_piece){ .lo = parts[i].pieces[k].lo,
							.len = parts[i].pieces[k].len,
							.run_n = parts[i].pieces[k].len[0] *
								 parts[i].pieces[k].len[1] };
		dcp_arena_init(&arena, 1 << 20);
		assert_int_equal(dcp_tiling_init_part(&tl, &t, &box, &arena, &err),
				 parts[i].code);
		if (parts[i].says)
			t_assert_says(&err, parts[i].says);
		dcp_arena_finish(&arena);
	}
}

/* Scattered boxes would need the square of their number in cells: refused, not attempted. */
static void irregular_tiling_is_refused(void **state)
{
	enum { N = 3000 };
	struct dcp_piece *pieces = calloc(N, sizeof(*pieces));
	uint64_t shape[2] = { N, N }, (*lo)[2] = calloc(N, sizeof(*lo)), len[2] = { 1, 1 };
	struct dcp_tensor t = { .ndim = 2, .shape = shape, .pieces = pieces, .npieces = N };
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	struct dcp_tiling tl;

	(void)state;
	for (size_t i = 0; i < N; i++) {
		lo[i][0] = lo[i][1] = i;
		pieces[i] = (struct dcp_piece){ .lo = lo[i], .len = len, .run_n = 1 };
	}
	dcp_arena_init(&arena, 1 << 26);
	assert_int_equal(dcp_tiling_init(&tl, &t, &arena, &err), -E2BIG);
	t_assert_says(&err, "3000 pieces cut the tensor into more than");
	dcp_arena_finish(&arena);
	free(pieces);
	free(lo);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tilings_are_recognised),
		cmocka_unit_test(parts_of_tilings_are_recognised),
		cmocka_unit_test(irregular_tiling_is_refused),
		cmocka_unit_test(random_plans_agree),
		cmocka_unit_test(packed_pieces_come_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
