/* SPDX-License-Identifier: Apache-2.0 */
/*
 * covers: cut
 *
 * What descriptors a cut becomes. That they are right is test_geometry_plan's: it holds them
 * against a reference, by chance. Here: that they are few.
 */
#include "tests/unit/t.h"
#include "tests/unit/t/random.h"

#include "core/base/arena.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/strided.h"
#include "core/model/geometry/tiling.h"

enum { MOST = 8 };

/* A matrix of 8 x 12 elements of 2 bytes, in consecutive pieces of a file,
 * or each in a file of its own. */
struct matrix {
	uint64_t shape[2], lo[MOST][2], len[MOST][2], stride[2];
	struct dcp_piece pieces[MOST];
	struct dcp_tensor t;
	struct dcp_arena arena;
	struct dcp_tiling tl;
	struct dcp_cut cut;
	struct dcp_axis axis[2];
	struct dcp_strided got[64];
	size_t n;
};

static void make(struct matrix *m, uint64_t rows, uint64_t cols, bool one_file)
{
	uint64_t off = 0;

	memset(m, 0, sizeof(*m));
	m->shape[0] = 8;
	m->shape[1] = 12;
	m->t = (struct dcp_tensor){ .ndim = 2,
				    .shape = m->shape,
				    .pieces = m->pieces,
				    .npieces = rows * cols,
				    .itemsize = 2 };
	for (uint64_t i = 0; i < rows * cols; i++) {
		m->len[i][0] = 8 / rows;
		m->len[i][1] = 12 / cols;
		m->lo[i][0] = i / cols * m->len[i][0];
		m->lo[i][1] = i % cols * m->len[i][1];
		m->pieces[i] = (struct dcp_piece){ .lo = m->lo[i],
						   .len = m->len[i],
						   .run_n = m->len[i][0] * m->len[i][1],
						   .off = one_file ? off : 0,
						   .file = one_file ? 0 : (uint32_t)i };
		off += m->pieces[i].run_n * 2;
	}
	dcp_arena_init(&m->arena, 1 << 20);
	assert_int_equal(dcp_tiling_init(&m->tl, &m->t, &m->arena, NULL), 0);
	assert_int_equal(dcp_cut_whole(&m->cut, 2, m->shape, &m->arena), 0);
}

static int keep(void *ctx, const struct dcp_strided *s)
{
	struct matrix *m = ctx;

	assert_true(m->n < DCP_LEN(m->got));
	m->got[m->n++] = *s;
	return 0;
}

static void tell(struct matrix *m, size_t wanted)
{
	m->n = 0;
	assert_true(dcp_cut_fits(&m->cut, 2, m->shape));
	assert_int_equal(dcp_strided_emit(&m->tl, &m->cut, keep, m), 0);
	assert_int_equal(m->n, wanted);
}

static void check(const struct dcp_strided *s, uint64_t off, uint64_t dst, uint64_t run,
		  uint32_t ndim)
{
	assert_int_equal(s->off, off);
	assert_int_equal(s->dst, dst);
	assert_int_equal(s->run, run);
	assert_int_equal(s->ndim, ndim);
}

static void check_dim(const struct dcp_strided *s, uint32_t k, uint64_t count, uint64_t file,
		      uint64_t dst)
{
	assert_int_equal(s->count[k], count);
	assert_int_equal(s->file_stride[k], file);
	assert_int_equal(s->dst_stride[k], dst);
}

static void grids_become_strided_runs(void **state)
{
	struct matrix m;

	(void)state;
	t_case("one piece is one run");
	make(&m, 1, 1, true);
	tell(&m, 1);
	check(&m.got[0], 0, 0, 192, 0);
	dcp_arena_finish(&m.arena);
	t_case("consecutive rows are one run");
	make(&m, 4, 1, true);
	tell(&m, 1);
	check(&m.got[0], 0, 0, 192, 0);
	dcp_arena_finish(&m.arena);
	t_case("rows in files of their own are as many runs");
	make(&m, 4, 1, false);
	tell(&m, 4);
	check(&m.got[3], 0, 144, 48, 0);
	dcp_arena_finish(&m.arena);
	t_case("column pieces in files of their own");
	make(&m, 1, 2, false);
	tell(&m, 2);
	check(&m.got[1], 0, 12, 12, 1);
	check_dim(&m.got[1], 0, 8, 12, 24);
	dcp_arena_finish(&m.arena);
	t_case("column pieces of one file are one descriptor");
	make(&m, 1, 2, true);
	tell(&m, 1);
	check(&m.got[0], 0, 0, 12, 2);
	check_dim(&m.got[0], 0, 2, 96, 12);
	check_dim(&m.got[0], 1, 8, 12, 24);
	assert_int_equal(dcp_strided_bytes(&m.got[0]), 192);
	assert_int_equal(dcp_strided_extent(&m.got[0]), 192);
	dcp_arena_finish(&m.arena);
}

static void cuts_become_strided_runs(void **state)
{
	const uint64_t lo[2] = { 0, 3 }, len[2] = { 8, 5 };
	const struct dcp_span every_third[] = { { 0, 1, 1 }, { 1, 4, 1 }, { 2, 7, 1 } };
	const struct dcp_span continued[] = { { 0, 2, 1 }, { 1, 3, 2 }, { 3, 0, 2 } };
	struct matrix m;

	(void)state;
	make(&m, 2, 1, true);
	t_case("columns, over two pieces that follow each other");
	assert_int_equal(dcp_cut_box(&m.cut, 2, lo, len, &m.arena), 0);
	tell(&m, 1);
	check(&m.got[0], 6, 0, 10, 1);
	check_dim(&m.got[0], 0, 8, 24, 10);
	t_case("spans at equal distances");
	assert_int_equal(dcp_cut_whole(&m.cut, 2, m.shape, &m.arena), 0);
	memcpy(m.axis, m.cut.axis, sizeof(m.axis));
	m.cut.axis = m.axis;
	m.axis[0] = (struct dcp_axis){ every_third, 3, 3 };
	tell(&m, 1);
	check(&m.got[0], 24, 0, 24, 1);
	check_dim(&m.got[0], 0, 3, 72, 24);
	t_case("spans that continue each other, and one that goes back");
	m.axis[0] = (struct dcp_axis){ continued, 3, 5 };
	tell(&m, 2);
	check(&m.got[0], 48, 0, 72, 0);
	check(&m.got[1], 0, 72, 48, 0);
	t_case("a flat run with padding");
	assert_int_equal(dcp_cut_whole(&m.cut, 2, m.shape, &m.arena), 0);
	m.cut.flat = true;
	m.cut.flat_lo = 5;
	m.cut.flat_n = 60;
	m.cut.pad = 3;
	tell(&m, 1);
	check(&m.got[0], 10, 0, 120, 0);
	t_case("elements of it, into the padding");
	m.n = 0;
	assert_int_equal(dcp_strided_part(&m.tl, &m.cut, 58, 5, keep, &m), 0);
	assert_int_equal(m.n, 1);
	check(&m.got[0], 126, 0, 4, 0);
	m.n = 0;
	assert_int_equal(dcp_strided_part(&m.tl, &m.cut, 60, 3, keep, &m), 0);
	assert_int_equal(m.n, 0);
	dcp_arena_finish(&m.arena);
}

static void transposed_matrices_become_strided_runs(void **state)
{
	struct matrix m;

	(void)state;
	make(&m, 1, 1, true);
	t_case("a transposed matrix is one descriptor");
	m.stride[0] = 1;
	m.stride[1] = 8;
	m.pieces[0].stride = m.stride;
	tell(&m, 1);
	check(&m.got[0], 0, 0, 2, 2);
	check_dim(&m.got[0], 0, 8, 2, 24);
	check_dim(&m.got[0], 1, 12, 16, 2);
	dcp_arena_finish(&m.arena);
}

/* Six dimensions stored the other way round: nothing merges, and four fit. */
static void too_many_dimensions_become_more_runs(void **state)
{
	const uint64_t shape[6] = { 2, 3, 2, 2, 2, 2 }, lo[6] = { 0 },
		       stride[6] = { 1, 2, 6, 12, 24, 48 };
	const struct dcp_piece piece = {
		.lo = lo, .len = shape, .stride = stride, .run_n = 96, .nbytes = 96
	};
	struct matrix m = { .t = { .ndim = 6,
				   .shape = shape,
				   .pieces = &piece,
				   .npieces = 1,
				   .itemsize = 1 } };

	(void)state;
	dcp_arena_init(&m.arena, 1 << 20);
	assert_int_equal(dcp_tiling_init(&m.tl, &m.t, &m.arena, NULL), 0);
	assert_int_equal(dcp_cut_whole(&m.cut, 6, shape, &m.arena), 0);
	assert_int_equal(dcp_strided_emit(&m.tl, &m.cut, keep, &m), 0);
	assert_int_equal(m.n, 6);
	check(&m.got[5], 5, 80, 1, 4);
	dcp_arena_finish(&m.arena);
}

static int refuse(void *ctx, const struct dcp_strided *s)
{
	(void)s;
	++*(int *)ctx;
	return -ECANCELED;
}

static int refuse_meet(void *ctx, const struct dcp_meet *m)
{
	(void)m;
	++*(int *)ctx;
	return -ECANCELED;
}

static void the_callback_may_stop_it(void **state)
{
	struct matrix m;
	int calls = 0;

	(void)state;
	make(&m, 4, 1, false);
	assert_int_equal(dcp_strided_emit(&m.tl, &m.cut, refuse, &calls), -ECANCELED);
	assert_int_equal(calls, 1);
	assert_int_equal(dcp_meet(&m.tl, &m.cut, 0, 96, refuse_meet, &calls), -ECANCELED);
	assert_int_equal(calls, 2);
	dcp_arena_finish(&m.arena);
}

/* ---- parts ---- */

enum { SIDE = 4096 };

struct seen {
	uint8_t count[SIDE]; /* times a byte of the destination was told */
	uint16_t from[SIDE]; /* its byte of the file */
	uint64_t lo, hi, unit;
};

static int note(void *ctx, const struct dcp_strided *s)
{
	struct seen *seen = ctx;
	uint64_t i[DCP_STRIDED_DIMS] = { 0 };
	uint32_t k;

	do {
		uint64_t off = s->off, dst = s->dst;

		for (k = 0; k < s->ndim; k++) {
			off += i[k] * s->file_stride[k];
			dst += i[k] * s->dst_stride[k];
		}
		assert_int_equal(s->run % seen->unit, 0);
		for (uint64_t b = 0; b < s->run; b++) {
			uint64_t start = off + b / seen->unit * seen->unit;

			assert_true(start >= seen->lo && start < seen->hi);
			seen->count[dst + b]++;
			seen->from[dst + b] = (uint16_t)(off + b);
		}
		for (k = s->ndim; k > 0 && ++i[k - 1] == s->count[k - 1]; k--)
			i[k - 1] = 0;
	} while (k > 0);
	return 0;
}

/* Dense in the destination; anywhere, also on top of each other, in the file. */
static void random_descriptor(struct dcp_strided *s, uint64_t unit, uint64_t *seed)
{
	uint64_t step;

	*s = (struct dcp_strided){ .off = t_random(seed, 64),
				   .run = unit * (1 + t_random(seed, 6)) };
	s->ndim = (uint32_t)(t_random(seed, 4));
	step = s->run;
	for (uint32_t k = s->ndim; k-- > 0;) {
		s->count[k] = 2 + t_random(seed, 3);
		s->dst_stride[k] = step;
		s->file_stride[k] = t_random(seed, 5) ? t_random(seed, 200) : 0;
		step *= s->count[k];
	}
}

static void clipped_parts_make_the_whole(void **state)
{
	uint64_t *seed = &(uint64_t){ 7 };

	(void)state;
	for (int n = 0; n < 3000; n++) {
		static struct seen whole, parts;
		uint64_t unit = 1ull << t_random(seed, 4), at = 0;
		struct dcp_strided s;

		random_descriptor(&s, unit, seed);
		memset(&whole, 0, sizeof(whole));
		memset(&parts, 0, sizeof(parts));
		whole.unit = parts.unit = unit;
		whole.hi = UINT64_MAX;
		note(&whole, &s);
		for (; at < s.off + dcp_strided_extent(&s); at = parts.hi) {
			parts.lo = at;
			parts.hi = at + 1 + t_random(seed, 300);
			assert_int_equal(
				dcp_strided_clip(&s, parts.lo, parts.hi, unit, note, &parts),
				0);
		}
		assert_memory_equal(whole.count, parts.count, sizeof(whole.count));
		assert_memory_equal(whole.from, parts.from, sizeof(whole.from));
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grids_become_strided_runs),
		cmocka_unit_test(cuts_become_strided_runs),
		cmocka_unit_test(transposed_matrices_become_strided_runs),
		cmocka_unit_test(too_many_dimensions_become_more_runs),
		cmocka_unit_test(the_callback_may_stop_it),
		cmocka_unit_test(clipped_parts_make_the_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
