/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random pieces, overlapping as they like, against an element-by-element reference: the same
 * elements are held, each once, by the last piece that has it, at its place in the file.
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/model/geometry/tiling.h"

enum { MOST = 4096, PIECES = 9, NDIM = 3, ITEM = 4 };

static uint64_t seed = 88172645463325252ull;

static uint64_t rnd(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

struct made {
	uint64_t shape[NDIM], lo[PIECES][NDIM], len[PIECES][NDIM], stride[PIECES][NDIM];
	struct dcp_piece p[PIECES];
	struct dcp_tensor t;
};

static uint64_t volume(const uint64_t *len, uint32_t ndim)
{
	uint64_t v;

	assert_true(dcp_shape_volume(len, ndim, &v));
	return v;
}

static void make(struct made *m)
{
	*m = (struct made){ .t = { .itemsize = ITEM, .shape = m->shape, .pieces = m->p } };
	m->t.ndim = 1 + (uint32_t)rnd(NDIM);
	m->t.npieces = 1 + rnd(PIECES);
	for (uint32_t d = 0; d < m->t.ndim; d++)
		m->shape[d] = 1 + rnd(7);
	for (size_t i = 0; i < m->t.npieces; i++) {
		struct dcp_piece *p = &m->p[i];
		uint64_t n;

		for (uint32_t d = 0; d < m->t.ndim; d++) {
			m->lo[i][d] = rnd(m->shape[d]);
			m->len[i][d] = 1 + rnd(m->shape[d] - m->lo[i][d]);
		}
		n = volume(m->len[i], m->t.ndim);
		*p = (struct dcp_piece){ .lo = m->lo[i],
					 .len = m->len[i],
					 .run_n = n,
					 .off = rnd(100),
					 .file = (uint32_t)i };
		if (rnd(3) == 0) {
			p->run_lo = rnd(n);
			p->run_n = 1 + rnd(n - p->run_lo);
		} else if (rnd(3) == 0) { /* column-major */
			uint64_t step = 1;

			for (uint32_t d = 0; d < m->t.ndim; d++, step *= m->len[i][d - 1])
				m->stride[i][d] = step;
			p->stride = m->stride[i];
		}
		p->nbytes = p->run_n * ITEM;
	}
}

/* The offset in its file of element @at, if @p holds it. */
static bool holds(const struct dcp_piece *p, uint32_t ndim, const uint64_t *at, uint64_t *off)
{
	uint64_t linear = 0, strided = 0;

	for (uint32_t d = 0; d < ndim; d++) {
		if (at[d] < p->lo[d] || at[d] >= p->lo[d] + p->len[d])
			return false;
		linear = linear * p->len[d] + (at[d] - p->lo[d]);
		if (p->stride)
			strided += (at[d] - p->lo[d]) * p->stride[d];
	}
	if (linear < p->run_lo || linear >= p->run_lo + p->run_n)
		return false;
	*off = p->off + ITEM * (p->stride ? strided : linear - p->run_lo);
	return true;
}

static void check_element(const struct made *m, const struct dcp_piece *out, size_t nout,
			  const uint64_t *at)
{
	const struct dcp_piece *by = NULL;
	bool held = false;
	uint64_t off, was, last = 0, want = 0;
	uint32_t from = 0;

	for (size_t i = 0; i < nout; i++)
		if (holds(&out[i], m->t.ndim, at, &off)) {
			assert_null(by);
			by = &out[i];
			last = off;
		}
	for (size_t i = 0; i < m->t.npieces; i++)
		if (holds(&m->p[i], m->t.ndim, at, &was)) {
			held = true;
			want = was;
			from = m->p[i].file;
		}
	assert_int_equal(held, by != NULL);
	if (by) {
		assert_int_equal(by->file, from);
		assert_int_equal(last, want);
		assert_true(last >= by->off && last + ITEM <= by->off + by->nbytes);
	}
}

static void elements_are_covered_once(void **state)
{
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 64 << 20);
	for (int round = 0; round < MOST; round++) {
		struct dcp_err err = { 0 };
		struct dcp_piece *out;
		struct made m;
		uint64_t at[NDIM] = { 0 };
		size_t nout;
		uint32_t d;

		make(&m);
		dcp_arena_reset(&arena);
		if (dcp_cover(&m.t, &arena, &out, &nout, &err) < 0)
			fail_msg("%s", err.msg);
		do {
			check_element(&m, out, nout, at);
			for (d = m.t.ndim; d-- > 0 && ++at[d] == m.shape[d];)
				at[d] = 0;
		} while (d != UINT32_MAX);
	}
	dcp_arena_finish(&arena);
}

/* Pieces without overlap come out as they went in; the last keeps all it has. */
static void little_is_cut(void **state)
{
	static const uint64_t shape[] = { 6, 4 };
	uint64_t lo[3][2] = { { 0, 0 }, { 3, 0 }, { 2, 0 } };
	uint64_t len[3][2] = { { 3, 4 }, { 3, 4 }, { 2, 4 } };
	struct dcp_piece p[3] = { 0 }, *out;
	struct dcp_tensor t = { .ndim = 2, .shape = shape, .itemsize = 2, .pieces = p };
	struct dcp_arena arena;
	size_t n;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	for (int i = 0; i < 3; i++) {
		p[i].lo = lo[i];
		p[i].len = len[i];
		p[i].run_n = len[i][0] * 4;
		p[i].nbytes = p[i].run_n * 2;
		p[i].file = (uint32_t)i;
	}
	t.npieces = 2;
	assert_int_equal(dcp_cover(&t, &arena, &out, &n, NULL), 0);
	assert_int_equal(n, 2);
	assert_memory_equal(out, p, sizeof(*p) * 2);
	t.npieces = 3; /* rows 2 and 3 are the third's */
	p[0].filter = p[1].filter = p[2].filter = DCP_FILTER_LATIN1;
	assert_int_equal(dcp_cover(&t, &arena, &out, &n, NULL), -ENOTSUP);
	p[0].filter = p[1].filter = DCP_FILTER_NONE;
	assert_int_equal(dcp_cover(&t, &arena, &out, &n, NULL), 0);
	assert_int_equal(n, 3);
	assert_int_equal(out[0].lo[0], 0);
	assert_int_equal(out[0].len[0], 2);
	assert_int_equal(out[0].nbytes, 16);
	assert_null(out[0].stride);
	assert_int_equal(out[1].lo[0], 4);
	assert_int_equal(out[1].off, 8);
	assert_memory_equal(&out[2], &p[2], sizeof(*p));
	p[0].filter = DCP_FILTER_LATIN1; /* nothing is left of it */
	len[0][0] = 1;
	lo[0][0] = 2;
	p[0].run_n = 4;
	assert_int_equal(dcp_cover(&t, &arena, &out, &n, NULL), 0);
	assert_int_equal(n, 2);
	dcp_arena_finish(&arena);
}

/* A checkerboard of overlaps is refused before it takes long. */
static void covering_is_bounded(void **state)
{
	enum { N = 3000 };
	static uint64_t shape[] = { 2 * N, 2 * N }, lo[2 * N][2], len[2 * N][2];
	static struct dcp_piece p[2 * N];
	struct dcp_tensor t = {
		.ndim = 2, .shape = shape, .itemsize = 1, .pieces = p, .npieces = 2 * N
	};
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	struct dcp_piece *out;
	size_t n;

	(void)state;
	dcp_arena_init(&arena, (size_t)2 << 30);
	for (size_t i = 0; i < 2 * N; i++) {
		lo[i][i < N] = 2 * (i % N);
		len[i][i < N] = 1;
		len[i][i >= N] = 2 * N;
		p[i] = (struct dcp_piece){ lo[i], len[i], .run_n = 2 * N, .nbytes = 2 * N };
	}
	assert_int_equal(dcp_cover(&t, &arena, &out, &n, &err), -E2BIG);
	t_assert_says(&err, "too many ways");
	dcp_arena_finish(&arena);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(elements_are_covered_once),
		cmocka_unit_test(little_is_cut),
		cmocka_unit_test(covering_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
