/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: plan, tiling, pack
 *
 * Random tensors are cut into random pieces whose "files" hold, at every byte, a value that
 * can be computed from (element, byte). A plan is right when reading what it says gives the
 * bytes of the region's elements in row-major order, and nothing else was read.
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/pack.h"
#include "core/model/plan.h"
#include "core/model/tiling.h"

enum { MAX_PIECES = 64, MAX_ELEMENTS = 4096, FILE_BYTES = 1 << 17 };

static uint64_t seed = 0x9e3779b97f4a7c15;

static uint64_t rnd(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

struct world {
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_piece pieces[MAX_PIECES];
	uint64_t lo[MAX_PIECES][8], len[MAX_PIECES][8], stride[MAX_PIECES][8];
	uint8_t *file; /* all pieces lie in one file, one behind the other */
	uint64_t used;
};

static uint8_t value(uint64_t element, uint64_t byte)
{
	return (uint8_t)(element * 131 + byte * 29 + (element >> 8) + 7);
}

static uint64_t volume(const uint64_t *v, uint32_t n)
{
	uint64_t r = 1;

	for (uint32_t i = 0; i < n; i++)
		r *= v[i];
	return r;
}

/* Row-major number in the tensor of element @e of a box. */
static uint64_t global_of(const struct dcp_tensor *t, const uint64_t *lo, const uint64_t *len,
			  uint64_t e)
{
	uint64_t at[8], r = 0;

	for (uint32_t d = t->ndim; d-- > 0; e /= len[d])
		at[d] = lo[d] + e % len[d];
	for (uint32_t d = 0; d < t->ndim; d++)
		r = r * t->shape[d] + at[d];
	return r;
}

/* Dense strides of a random permutation of the dimensions, sometimes with gaps. */
static void random_strides(struct world *w, uint32_t i, uint64_t *span)
{
	uint32_t order[8], n = w->t.ndim;
	uint64_t step = 1 + rnd(2);

	for (uint32_t d = 0; d < n; d++)
		order[d] = d;
	for (uint32_t d = n; d > 1; d--) {
		uint32_t j = (uint32_t)rnd(d), x = order[d - 1];

		order[d - 1] = order[j];
		order[j] = x;
	}
	*span = 1;
	for (uint32_t k = n; k-- > 0;) {
		uint32_t d = order[k];

		w->stride[i][d] = step;
		*span += (w->len[i][d] - 1) * step;
		step *= w->len[i][d] + (rnd(4) == 0 ? rnd(3) : 0);
	}
}

static void add_piece(struct world *w, const uint64_t *lo, const uint64_t *len, uint64_t run_lo,
		      uint64_t run_n, bool strided)
{
	uint32_t i = (uint32_t)w->t.npieces++;
	struct dcp_piece *p = &w->pieces[i];
	uint64_t span = run_n, isz = w->t.itemsize;

	memcpy(w->lo[i], lo, 8 * sizeof(*lo));
	memcpy(w->len[i], len, 8 * sizeof(*len));
	*p = (struct dcp_piece){ .lo = w->lo[i],
				 .len = w->len[i],
				 .run_lo = run_lo,
				 .run_n = run_n,
				 .off = w->used + rnd(5) };
	if (strided && run_n) {
		random_strides(w, i, &span);
		p->stride = w->stride[i];
	}
	p->nbytes = span * isz;
	assert_true(p->off + p->nbytes <= FILE_BYTES);
	for (uint64_t e = run_lo; e < run_lo + run_n; e++) {
		uint64_t at = e - run_lo, rest = e;

		if (p->stride) {
			at = 0;
			for (uint32_t d = w->t.ndim; d-- > 0; rest /= len[d])
				at += rest % len[d] * p->stride[d];
		}
		for (uint64_t b = 0; b < isz; b++)
			w->file[p->off + at * isz + b] = value(global_of(&w->t, lo, len, e), b);
	}
	w->used = p->off + p->nbytes;
}

/* Cut [lo, lo + len) into pieces by random guillotine cuts; leaves may become runs. */
static void cut(struct world *w, const uint64_t *lo, const uint64_t *len, int depth)
{
	uint32_t d = w->t.ndim ? (uint32_t)rnd(w->t.ndim) : 0;
	uint64_t n = volume(len, w->t.ndim);

	if (w->t.ndim && depth > 0 && len[d] > 1 && w->t.npieces < MAX_PIECES - 12) {
		uint64_t a[8] = { 0 }, b[8] = { 0 }, first = 1 + rnd(len[d] - 1);
		uint64_t lo2[8];

		memcpy(a, len, sizeof(a));
		memcpy(b, len, sizeof(b));
		memcpy(lo2, lo, sizeof(lo2));
		a[d] = first;
		b[d] = len[d] - first;
		lo2[d] = lo[d] + first;
		if (rnd(2)) {
			cut(w, lo, a, depth - 1);
			cut(w, lo2, b, depth - 1);
		} else {
			cut(w, lo2, b, depth - 1);
			cut(w, lo, a, depth - 1);
		}
	} else if (rnd(4) == 0 && n > 2) {
		uint64_t x = 1 + rnd(n - 1);

		add_piece(w, lo, len, x, n - x, false);
		add_piece(w, lo, len, 0, x, false);
	} else {
		add_piece(w, lo, len, 0, n, rnd(3) == 0);
	}
}

static void random_world(struct world *w)
{
	static const uint32_t sizes[] = { 1, 2, 4, 8, 16 };
	uint64_t lo[8] = { 0 }, len[8] = { 0 };

	w->used = 0;
	w->t = (struct dcp_tensor){ .key = "k",
				    .shape = w->shape,
				    .pieces = w->pieces,
				    .itemsize = sizes[rnd(5)],
				    .ndim = (uint32_t)rnd(6) };
	for (uint32_t d = 0; d < w->t.ndim; d++)
		len[d] = w->shape[d] = 1 + rnd(w->t.ndim > 3 ? 4 : 12);
	cut(w, lo, len, (int)rnd(6));
	if (rnd(4) == 0 && w->t.ndim) { /* an empty shard, as torch records it: at the end */
		memset(lo, 0, sizeof(lo));
		lo[0] = w->shape[0];
		len[0] = 0;
		add_piece(w, lo, len, 0, 0, false);
	}
}

static void check_range(const struct world *w, const struct dcp_tiling *tl, const uint64_t *lo,
			const uint64_t *len, uint64_t off, uint64_t n)
{
	struct dcp_plan_iter it;
	struct dcp_arena arena;
	struct dcp_cut cut;
	struct dcp_seg s;
	uint64_t pos = off;

	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_cut_box(&cut, w->t.ndim, lo, len, &arena), 0);
	dcp_plan_start(&it, tl, &cut, off, n);
	while (dcp_plan_next(&it, &s)) {
		assert_true(s.count >= 1 && s.run >= 1);
		for (uint64_t c = 0; c < s.count; c++) {
			uint64_t from = s.off + c * s.stride;

			assert_true(from >= s.piece->off);
			assert_true(from + s.run <= s.piece->off + s.piece->nbytes);
			for (uint64_t b = 0; b < s.run; b++, pos++) {
				uint64_t e = pos / w->t.itemsize;

				assert_int_equal(w->file[from + b],
						 value(global_of(&w->t, lo, len, e),
						       pos % w->t.itemsize));
			}
		}
	}
	assert_int_equal(pos, off + n);
	dcp_arena_finish(&arena);
}

static void random_plans_agree(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct dcp_arena arena;

	(void)state;
	assert_non_null(w);
	w->file = calloc(1, FILE_BYTES);
	assert_non_null(w->file);
	dcp_arena_init(&arena, 1 << 24);
	for (int round = 0; round < 3000; round++) {
		struct dcp_err err = { 0 };
		struct dcp_tiling tl;

		random_world(w);
		if (dcp_tiling_init(&tl, &w->t, &arena, &err) < 0)
			fail_msg("round %d: %s", round, err.msg);
		for (int k = 0; k < 12; k++) {
			uint64_t lo[8] = { 0 }, len[8] = { 0 }, bytes, off;

			for (uint32_t d = 0; d < w->t.ndim; d++) {
				lo[d] = k ? rnd(w->shape[d]) : 0;
				len[d] = k ? 1 + rnd(w->shape[d] - lo[d]) : w->shape[d];
			}
			bytes = volume(len, w->t.ndim) * w->t.itemsize;
			off = k ? rnd(bytes) : 0;
			check_range(w, &tl, lo, len, off, k ? rnd(bytes - off + 1) : bytes);
		}
		dcp_arena_finish(&arena);
	}
	free(w->file);
	free(w);
}

static void packed_pieces_come_back(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct dcp_arena arena;

	(void)state;
	assert_non_null(w);
	w->file = calloc(1, FILE_BYTES);
	assert_non_null(w->file);
	dcp_arena_init(&arena, 1 << 22);
	for (int round = 0; round < 300; round++) {
		dcp_auto_buf struct dcp_buf blob = DCP_BUF_INIT;
		struct dcp_err err = { 0 };
		struct dcp_piece *p;
		size_t n;

		random_world(w);
		dcp_pack_pieces(&blob, &w->t);
		assert_int_equal(
			dcp_unpack_pieces(blob.p, blob.n, w->t.ndim, &arena, &p, &n, &err), 0);
		assert_int_equal(n, w->t.npieces);
		for (size_t i = 0; i < n; i++) {
			size_t bytes = w->t.ndim * sizeof(uint64_t);

			assert_int_equal(p[i].off, w->pieces[i].off);
			assert_int_equal(p[i].nbytes, w->pieces[i].nbytes);
			assert_int_equal(p[i].run_lo, w->pieces[i].run_lo);
			assert_int_equal(p[i].run_n, w->pieces[i].run_n);
			assert_memory_equal(p[i].lo, w->pieces[i].lo, bytes);
			assert_memory_equal(p[i].len, w->pieces[i].len, bytes);
			assert_int_equal(!p[i].stride, !w->pieces[i].stride);
			if (p[i].stride)
				assert_memory_equal(p[i].stride, w->pieces[i].stride, bytes);
		}
		for (size_t cut_at = 0; cut_at < blob.n; cut_at++)
			assert_int_equal(dcp_unpack_pieces(blob.p, cut_at, w->t.ndim, &arena,
							   &p, &n, &err),
					 -EBADMSG);
		dcp_arena_finish(&arena);
	}
	free(w->file);
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
	{ "run past its box", 2, { 2, 3 },
	  { { BOX2(0, 2, 0, 3), 0, 7 } }, 1, -EBADMSG, "elements 0+7 of 6" },
};
/* clang-format on */

static void tiling_table(void **state)
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

/* A transposed matrix is one strided run a row; a column cut of a dense one is a single run
 * series. */
static void strided_pieces_stay_few(void **state)
{
	uint64_t shape[2] = { 100, 200 }, lo[2] = { 0, 0 }, stride[2] = { 1, 100 };
	uint64_t col_lo[2] = { 0, 50 }, col_len[2] = { 100, 25 };
	struct dcp_piece piece = { .lo = lo, .len = shape, .run_n = 20000, .nbytes = 80000 };
	struct dcp_tensor t = {
		.ndim = 2, .shape = shape, .pieces = &piece, .npieces = 1, .itemsize = 4
	};
	struct dcp_plan_iter it;
	struct dcp_cut col, whole;
	struct dcp_arena arena;
	struct dcp_tiling tl;
	struct dcp_seg s;
	int n = 0;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(dcp_tiling_init(&tl, &t, &arena, NULL), 0);
	assert_int_equal(dcp_cut_box(&col, 2, col_lo, col_len, &arena), 0);
	dcp_plan_start(&it, &tl, &col, 0, 100 * 25 * 4);
	assert_true(dcp_plan_next(&it, &s));
	assert_int_equal(s.run, 100);
	assert_int_equal(s.count, 100);
	assert_int_equal(s.stride, 800);
	assert_false(dcp_plan_next(&it, &s));

	piece.stride = stride;
	assert_int_equal(dcp_cut_whole(&whole, 2, shape, &arena), 0);
	dcp_plan_start(&it, &tl, &whole, 0, 80000);
	while (dcp_plan_next(&it, &s)) {
		assert_int_equal(s.run, 4);
		assert_int_equal(s.count, 200);
		assert_int_equal(s.stride, 400);
		n++;
	}
	assert_int_equal(n, 100);
	dcp_arena_finish(&arena);
}

/* A run that continues in the next span goes on; one that jumps, or leaves its piece, ends. */
static void spans_and_padding(void **state)
{
	const uint64_t shape[1] = { 20 }, lo[2][1] = { { 0 }, { 12 } },
		       len[2][1] = { { 12 }, { 8 } };
	const struct dcp_piece pieces[2] = {
		{ .lo = lo[0], .len = len[0], .run_n = 12, .nbytes = 24 },
		{ .lo = lo[1], .len = len[1], .run_n = 8, .off = 24, .nbytes = 16 },
	};
	const struct dcp_span spans[3] = { { 0, 2, 3 }, { 3, 5, 1 }, { 4, 10, 4 } };
	const struct dcp_axis axis = { spans, 3, 8 };
	const struct dcp_cut cut = {
		.ndim = 1, .axis = &axis, .flat = true, .flat_lo = 1, .flat_n = 7, .pad = 2
	};
	static const struct dcp_seg wanted[] = {
		{ .off = 6, .run = 6, .count = 1 },
		{ .off = 20, .run = 4, .count = 1 },
		{ .off = 24, .run = 4, .count = 1 },
		{ .off = 0, .run = 4, .count = 1 }, /* zeros */
	};
	const struct dcp_tensor t = {
		.ndim = 1, .shape = shape, .pieces = pieces, .npieces = 2, .itemsize = 2
	};
	struct dcp_plan_iter it;
	struct dcp_arena arena;
	struct dcp_tiling tl;
	struct dcp_seg s;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	assert_true(dcp_cut_fits(&cut, 1, shape));
	assert_int_equal(dcp_tiling_init(&tl, &t, &arena, NULL), 0);
	dcp_plan_start(&it, &tl, &cut, 0, 18);
	for (size_t i = 0; i < DCP_LEN(wanted); i++) {
		assert_true(dcp_plan_next(&it, &s));
		assert_int_equal(s.off, wanted[i].off);
		assert_int_equal(s.run, wanted[i].run);
		assert_int_equal(s.count, 1);
		assert_int_equal(!s.piece, i == 3);
	}
	assert_false(dcp_plan_next(&it, &s));
	dcp_plan_start(&it, &tl, &cut, 13, 4); /* the last byte, and three of the padding */
	assert_true(dcp_plan_next(&it, &s) && s.piece == &pieces[1]);
	assert_int_equal(s.off, 27);
	assert_int_equal(s.run, 1);
	assert_true(dcp_plan_next(&it, &s) && !s.piece);
	assert_int_equal(s.run, 3);
	assert_false(dcp_plan_next(&it, &s));
	dcp_arena_finish(&arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tiling_table),
		cmocka_unit_test(irregular_tiling_is_refused),
		cmocka_unit_test(strided_pieces_stay_few),
		cmocka_unit_test(spans_and_padding),
		cmocka_unit_test(random_plans_agree),
		cmocka_unit_test(packed_pieces_come_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
