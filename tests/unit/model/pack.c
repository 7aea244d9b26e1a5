/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"
#include "tests/unit/t/random.h"

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/model/tensor.h"

static uint64_t seed = 7;

/* Any size, small ones as likely as large ones. */
static uint64_t any_number(void)
{
	uint64_t v = t_random64(&seed);

	return v >> t_random(&seed, 64);
}

static const uint64_t *any_numbers(struct dcp_arena *a, uint32_t n, uint64_t below)
{
	uint64_t *v = dcp_arena_calloc(a, n, sizeof(*v));

	for (uint32_t i = 0; i < n; i++)
		v[i] = below ? t_random(&seed, below) : any_number();
	return v;
}

static struct dcp_piece any_piece(struct dcp_arena *a, uint32_t ndim)
{
	struct dcp_piece p = {
		.lo = any_numbers(a, ndim, 0),
		.len = any_numbers(a, ndim, ndim > 8 ? 2 : 7), /* their product must fit */
		.stride = t_random(&seed, 2) ? any_numbers(a, ndim, 0) : NULL,
		.off = any_number(),
		.nbytes = any_number(),
		.file = (uint32_t)any_number(),
		.enc = (uint8_t)t_random(&seed, 3),
		.filter = (uint8_t)t_random(&seed, 8),
		.swap = t_random(&seed, 2),
	};

	if (p.filter == DCP_FILTER_SUM) {
		uint32_t n = (uint32_t)t_random(&seed, 4);
		struct dcp_term *more = dcp_arena_calloc(a, n + 1, sizeof(*more));

		for (uint32_t i = 0; i < n; i++)
			more[i] = (struct dcp_term){ any_number(), (uint32_t)any_number() };
		p.more = more;
		p.nmore = n;
		p.mean = t_random(&seed, 2);
	}
	if (p.stride && t_random(&seed, 2)) {
		p.item_n = any_number() + 1;
		p.item_lo = any_number() % p.item_n;
	}
	if (t_random(&seed, 2)) {
		assert_true(dcp_shape_volume(p.len, ndim, &p.run_n));
	} else {
		p.run_lo = any_number();
		p.run_n = any_number();
	}
	return p;
}

static void same_numbers(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(a[i], b[i]);
}

static void same_piece(const struct dcp_piece *a, const struct dcp_piece *b, uint32_t ndim)
{
	same_numbers(a->lo, b->lo, ndim);
	same_numbers(a->len, b->len, ndim);
	assert_int_equal(a->stride == NULL, b->stride == NULL);
	if (a->stride)
		same_numbers(a->stride, b->stride, ndim);
	assert_int_equal(a->run_lo, b->run_lo);
	assert_int_equal(a->run_n, b->run_n);
	assert_int_equal(a->off, b->off);
	assert_int_equal(a->nbytes, b->nbytes);
	assert_int_equal(a->item_lo, b->item_lo);
	assert_int_equal(a->item_n, b->item_n);
	assert_int_equal(a->file, b->file);
	assert_int_equal(a->enc, b->enc);
	assert_int_equal(a->filter, b->filter);
	assert_int_equal(a->swap, b->swap);
	assert_int_equal(a->mean, b->mean);
	assert_int_equal(a->nmore, b->nmore);
	for (uint32_t i = 0; i < a->nmore; i++) {
		assert_int_equal(a->more[i].off, b->more[i].off);
		assert_int_equal(a->more[i].file, b->more[i].file);
	}
}

/* Unpack exactly @n bytes, on the heap, so that reading one more is seen. */
static int unpack(const void *blob, size_t n, uint32_t ndim, struct dcp_arena *a,
		  struct dcp_piece **pieces, size_t *npieces)
{
	struct dcp_err err = { 0 };
	dcp_auto_free void *exact = malloc(n ? n : 1);
	int code;

	if (n)
		memcpy(exact, blob, n);
	code = dcp_unpack_part(exact, n, ndim, NULL, a, pieces, npieces, &err);
	if (code == -EBADMSG)
		t_assert_says(&err, "index row");
	return code;
}

static void random_pieces_come_back(void **state)
{
	(void)state;
	for (int round = 0; round < 400; round++) {
		uint32_t ndim = (uint32_t)(t_random(&seed, round % 10 ? 5 : DCP_MAX_NDIM + 1));
		dcp_auto_buf struct dcp_buf blob = DCP_BUF_INIT;
		struct dcp_piece pieces[6], *got = NULL;
		size_t n = t_random(&seed, DCP_LEN(pieces) + 1), ngot = 77;
		struct dcp_tensor t = { .ndim = ndim, .pieces = pieces, .npieces = n };
		struct dcp_arena a;

		dcp_arena_init(&a, 1 << 20);
		for (size_t i = 0; i < n; i++)
			pieces[i] = any_piece(&a, ndim);
		dcp_pack_pieces(&blob, &t);
		assert_int_equal(unpack(blob.p, blob.n, ndim, &a, &got, &ngot), 0);
		assert_int_equal(ngot, n);
		for (size_t i = 0; i < n; i++)
			same_piece(&pieces[i], &got[i], ndim);
		dcp_arena_finish(&a);
	}
}

/* A plain look at one piece after the other. */
static bool is_near(const struct dcp_piece *p, const struct dcp_box *box, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++)
		if (p->lo[d] + p->len[d] <= box->lo[d] ||
		    box->lo[d] + box->len[d] <= p->lo[d] || !p->len[d] || !box->len[d])
			return false;
	return true;
}

/* Of more pieces than a block has: all, and those that are near a box. */
static void blocks_are_left_out(void **state)
{
	(void)state;
	for (int round = 0; round < 300; round++) {
		uint32_t ndim = (uint32_t)t_random(&seed, 4);
		size_t n = t_random(&seed, 5 * DCP_PACK_BLOCK), ngot = 77, k = 0;
		struct dcp_piece *pieces = calloc(n + 1, sizeof(*pieces)), *got = NULL;
		struct dcp_tensor t = { .ndim = ndim, .pieces = pieces, .npieces = n };
		dcp_auto_buf struct dcp_buf blob = DCP_BUF_INIT;
		struct dcp_box box;
		struct dcp_arena a;

		dcp_arena_init(&a, 1 << 20);
		for (size_t i = 0; i < n; i++) {
			uint64_t *lo = dcp_arena_calloc(&a, ndim, sizeof(*lo));

			pieces[i] = any_piece(&a, ndim);
			for (uint32_t d = 0; d < ndim; d++)
				lo[d] = d ? t_random(&seed, 20) : i * 3 + t_random(&seed, 9);
			pieces[i].lo = lo;
		}
		for (uint32_t d = 0; d < ndim; d++) {
			box.lo[d] = t_random(&seed, d ? 20 : 3 * n + 1);
			box.len[d] = t_random(&seed, 12);
		}
		dcp_pack_pieces(&blob, &t);
		assert_int_equal(unpack(blob.p, blob.n, ndim, &a, &got, &ngot), 0);
		assert_int_equal(ngot, n);
		for (size_t i = 0; i < n; i++)
			same_piece(&pieces[i], &got[i], ndim);
		assert_int_equal(
			dcp_unpack_part(blob.p, blob.n, ndim, &box, &a, &got, &ngot, NULL), 0);
		for (size_t i = 0; i < n; i++)
			if (is_near(&pieces[i], &box, ndim)) {
				assert_true(k < ngot);
				same_piece(&pieces[i], &got[k++], ndim);
			}
		assert_int_equal(k, ngot);
		for (size_t cut = 0; cut < blob.n; cut += 1 + cut / 8)
			assert_int_equal(
				dcp_unpack_part(blob.p, cut, ndim, &box, &a, &got, &ngot, NULL),
				-EBADMSG);
		dcp_arena_finish(&a);
		free(pieces);
	}
}

static void every_cut_is_refused(void **state)
{
	(void)state;
	for (int round = 0; round < 60; round++) {
		uint32_t ndim = (uint32_t)t_random(&seed, 4);
		dcp_auto_buf struct dcp_buf blob = DCP_BUF_INIT;
		struct dcp_piece pieces[3], *got;
		struct dcp_tensor t = { .ndim = ndim, .pieces = pieces, .npieces = 3 };
		struct dcp_arena a;
		size_t ngot;

		dcp_arena_init(&a, 1 << 20);
		for (size_t i = 0; i < 3; i++)
			pieces[i] = any_piece(&a, ndim);
		dcp_pack_pieces(&blob, &t);
		for (size_t cut = 0; cut < blob.n; cut++)
			assert_int_equal(unpack(blob.p, cut, ndim, &a, &got, &ngot), -EBADMSG);
		dcp_buf_add(&blob, "", 1); /* and a byte too many */
		assert_int_equal(unpack(blob.p, blob.n, ndim, &a, &got, &ngot), -EBADMSG);
		dcp_arena_finish(&a);
	}
}

/* clang-format off */
static const struct {
	const char *what, *blob;
	size_t n;
	uint32_t ndim;
	int code;
} bad[] = {
	{ "no pieces", "\1\0", 2, 1, 0 },
	{ "one of no dimension", "\1\1\0\0\0\4", 6, 0, 0 },
	{ "one of one dimension", "\1\1\0\0\0\4\0\1", 8, 1, 0 },
	{ "nothing", "", 0, 1, -EBADMSG },
	{ "version 0", "\0\0", 2, 1, -EBADMSG },
	{ "version 3", "\3\0", 2, 1, -EBADMSG },
	{ "no blocks", "\2\0", 2, 1, 0 },
	{ "a block", "\2\1\0\1\6\0\0\0\4\0\1", 11, 1, 0 },
	{ "a block that ends late", "\2\1\0\1\7\0\0\0\4\0\1", 11, 1, -EBADMSG },
	{ "a block that ends early", "\2\1\0\1\5\0\0\0\4\0\1", 11, 1, -EBADMSG },
	{ "a block that ends behind the end", "\2\1\0\1\x7f\0\0\0\4\0\1", 11, 1, -EBADMSG },
	{ "a piece outside its block", "\2\1\1\1\6\0\0\0\4\0\1", 11, 1, -EBADMSG },
	{ "a piece longer than its block", "\2\1\0\0\6\0\0\0\4\0\1", 11, 1, -EBADMSG },
	{ "an empty piece outside its block", "\2\1\1\0\6\0\0\0\4\0\0", 11, 1, 0 },
	{ "more pieces than bytes", "\1\xff\xff\xff\xff\x0f", 6, 1, -EBADMSG },
	{ "2^64 - 1 pieces", "\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", 11, 1, -EBADMSG },
	{ "a number of 65 bits", "\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\2", 11, 1, -EBADMSG },
	{ "encoding 3", "\1\1\3\0\0\4\0\1", 8, 1, -EBADMSG },
	{ "filter 5", "\1\1\x84\0\0\4\0\1", 8, 1, 0 },
	{ "filter 6", "\1\1\x88\0\0\4\0\1", 8, 1, 0 },
	{ "filter 7, the last, of one term", "\1\1\x8c\0\0\4\0\1\0", 9, 1, 0 },
	{ "of two", "\1\1\x8c\0\0\4\0\1\2\0\0", 11, 1, 0 },
	{ "terms cut off", "\1\1\x8c\0\0\4\0\1\4\0\0\0", 12, 1, -EBADMSG },
	{ "2^63 - 1 terms", "\1\1\x8c\0\0\4\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", 18, 1, -EBADMSG },
	{ "a term in file 2^32", "\1\1\x8c\0\0\4\0\1\2\x80\x80\x80\x80\x10\0", 15, 1, -EBADMSG },
	{ "file 2^32", "\1\1\0\x80\x80\x80\x80\x10\0\4\0\1", 12, 1, -EBADMSG },
	{ "file 2^32 - 1", "\1\1\0\xff\xff\xff\xff\x0f\0\4\0\1", 12, 1, 0 },
	{ "strides cut off", "\1\1\x20\0\0\4\0\1", 8, 1, -EBADMSG },
	{ "a run cut off", "\1\1\x40\0\0\4\0\1\0", 9, 1, -EBADMSG },
	{ "a box whose volume wraps", "\1\1\0\0\0\4\0\0\xff\xff\xff\xff\x1f\xff\xff\xff\xff\x1f", 18, 2,
	  -EBADMSG },
	{ "65 dimensions", "\1\0", 2, DCP_MAX_NDIM + 1, -EBADMSG },
};
/* clang-format on */

static void malformed_blobs_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		struct dcp_piece *got;
		struct dcp_arena a;
		size_t n;

		t_case(bad[i].what);
		dcp_arena_init(&a, 1 << 20);
		assert_int_equal(unpack(bad[i].blob, bad[i].n, bad[i].ndim, &a, &got, &n),
				 bad[i].code);
		dcp_arena_finish(&a);
	}
}

static void little_memory_is_reported(void **state)
{
	dcp_auto_buf struct dcp_buf blob = DCP_BUF_INIT;
	struct dcp_piece pieces[4], *got;
	struct dcp_tensor t = { .ndim = 3, .pieces = pieces, .npieces = 4 };
	struct dcp_arena a, small;
	unsigned failed = 0;
	int code = -ENOMEM;
	size_t n;

	(void)state;
	dcp_arena_init(&a, 1 << 20);
	for (size_t i = 0; i < 4; i++)
		pieces[i] = any_piece(&a, 3);
	dcp_pack_pieces(&blob, &t);
	for (size_t limit = 0; code != 0; limit += 16) {
		dcp_arena_init(&small, limit);
		code = unpack(blob.p, blob.n, 3, &small, &got, &n);
		dcp_arena_finish(&small);
		if (code) {
			assert_int_equal(code, -ENOMEM);
			failed++;
		}
	}
	assert_true(failed > 10);
	dcp_arena_finish(&a);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_pieces_come_back),
		cmocka_unit_test(blocks_are_left_out),
		cmocka_unit_test(every_cut_is_refused),
		cmocka_unit_test(malformed_blobs_are_refused),
		cmocka_unit_test(little_memory_is_reported),
	};
	return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
