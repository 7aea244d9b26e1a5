/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_place: which rows each rank holds, against torch.chunk() done on lists of rows.
 *
 * covers: torch
 */
#include "tests/unit/t.h"

#include <errno.h>

#include "core/base/arena.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"

enum { MOST = 64 };

/* Rows, in the order the rank has them. */
struct rows {
	uint64_t v[MOST];
	size_t n;
};

/* Piece @at of @n, as torch.chunk() cuts a list. */
static struct rows chunk(const struct rows *r, size_t n, size_t at)
{
	struct rows out = { .n = 0 };
	size_t full = (r->n + n - 1) / n;

	for (size_t i = at * full; i < (at + 1) * full && i < r->n; i++)
		out.v[out.n++] = r->v[i];
	return out;
}

static struct rows all(size_t n)
{
	struct rows r = { .n = n };

	for (size_t i = 0; i < n; i++)
		r.v[i] = i;
	return r;
}

static void same_rows(const struct dcp_axis *a, const struct rows *want)
{
	size_t at = 0;

	assert_int_equal(a->len, want->n);
	for (size_t i = 0; i < a->n; i++) {
		assert_int_equal(a->span[i].at, at);
		for (uint64_t k = 0; k < a->span[i].n; k++)
			assert_int_equal(a->span[i].lo + k, want->v[at++]);
	}
	assert_int_equal(at, want->n);
}

static struct dcp_axis cut(const struct dcp_torch_placement *p, uint32_t n, uint64_t size,
			   struct dcp_arena *arena)
{
	struct dcp_err err = { 0 };
	struct dcp_cut c;

	if (dcp_torch_placement_cut(p, n, 1, &size, arena, &c, &err) < 0)
		fail_msg("%s", err.msg);
	return c.axis[0];
}

/* All sizes, even and uneven, empty shards and one rank. */
static void shards_are_placed(void **state)
{
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 26);
	for (uint64_t size = 0; size < 20; size++)
		for (uint64_t n = 1; n < 9; n++)
			for (uint64_t at = 0; at < n; at++) {
				struct dcp_torch_placement p = {
					.kind = DCP_TORCH_PLACEMENT_SHARD, .n = n, .at = at
				};
				struct rows r = all(size), want = chunk(&r, n, at);
				struct dcp_axis a = cut(&p, 1, size, &arena);

				same_rows(&a, &want);
			}
	dcp_arena_finish(&arena);
}

/* [Shard(0), Shard(0)]: each cuts what the one before left. */
static void shards_of_shards_are_placed(void **state)
{
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 26);
	for (uint64_t size = 0; size < 30; size++)
		for (uint64_t i = 0; i < 6; i++) {
			struct dcp_torch_placement p[] = {
				{ .kind = DCP_TORCH_PLACEMENT_SHARD, .n = 2, .at = i / 3 },
				{ .kind = DCP_TORCH_PLACEMENT_REPLICATE, .n = 7, .at = 6 },
				{ .kind = DCP_TORCH_PLACEMENT_SHARD, .n = 3, .at = i % 3 },
			};
			struct rows r = all(size), half = chunk(&r, 2, i / 3);
			struct rows want = chunk(&half, 3, i % 3);
			struct dcp_axis a = cut(p, 3, size, &arena);

			same_rows(&a, &want);
		}
	dcp_arena_finish(&arena);
}

/* FSDP2 over tensor parallel: tensor parallel ranks cut first, whatever the sizes. */
static void strided_shards_are_placed(void **state)
{
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 26);
	for (uint64_t size = 0; size < 40; size++)
		for (uint64_t i = 0; i < 6; i++) {
			struct dcp_torch_placement p[] = {
				{ .kind = DCP_TORCH_PLACEMENT_STRIDED,
				  .factor = 3,
				  .n = 2,
				  .at = i / 3 },
				{ .kind = DCP_TORCH_PLACEMENT_SHARD, .n = 3, .at = i % 3 },
			};
			struct rows r = all(size), tp = chunk(&r, 3, i % 3);
			struct rows want = chunk(&tp, 2, i / 3);
			struct dcp_axis a = cut(p, 2, size, &arena);

			same_rows(&a, &want);
		}
	dcp_arena_finish(&arena);
}

/* A strided shard by itself: a piece of each of the chunks, end to end. */
static void a_strided_shard_alone_is_placed(void **state)
{
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 26);
	for (uint64_t size = 0; size < 40; size++)
		for (uint64_t at = 0; at < 2; at++) {
			struct dcp_torch_placement p = { .kind = DCP_TORCH_PLACEMENT_STRIDED,
							 .factor = 4,
							 .n = 2,
							 .at = at };
			struct rows r = all(size), want = { .n = 0 };
			struct dcp_axis a = cut(&p, 1, size, &arena);

			for (size_t f = 0; f < 4; f++) {
				struct rows part = chunk(&r, 4, f), mine = chunk(&part, 2, at);

				for (size_t k = 0; k < mine.n; k++)
					want.v[want.n++] = mine.v[k];
			}
			same_rows(&a, &want);
		}
	dcp_arena_finish(&arena);
}

static void bad_placements_are_refused(void **state)
{
	static const struct {
		struct dcp_torch_placement p;
		uint64_t size;
		int code;
		const char *says;
	} rows[] = {
		{ { .kind = DCP_TORCH_PLACEMENT_SHARD, .dim = 1, .n = 2 },
		  8,
		  -EBADMSG,
		  "Shard(1) of" },
		{ { .kind = DCP_TORCH_PLACEMENT_SHARD, .n = 2, .at = 2 },
		  8,
		  -EBADMSG,
		  "coordinate 2" },
		{ { .kind = DCP_TORCH_PLACEMENT_SHARD }, 8, -EBADMSG, "dimension of 0 ranks" },
		{ { .kind = DCP_TORCH_PLACEMENT_STRIDED, .n = 2 },
		  8,
		  -EBADMSG,
		  "split_factor 0" },
		{ { .kind = DCP_TORCH_PLACEMENT_STRIDED, .n = 2, .factor = UINT64_MAX },
		  8,
		  -EBADMSG,
		  "split_factor 18446744073709551615" },
	};
	static const struct dcp_torch_placement many[DCP_TORCH_PLACEMENT_MAX + 1];
	struct dcp_arena arena;
	struct dcp_err err = { 0 };
	struct dcp_cut c;
	uint64_t size = 8;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].says);
		assert_int_equal(dcp_torch_placement_cut(&rows[i].p, 1, 1, &rows[i].size,
							 &arena, &c, &err),
				 rows[i].code);
		t_assert_says(&err, rows[i].says);
	}
	assert_int_equal(dcp_torch_placement_cut(many, DCP_TORCH_PLACEMENT_MAX + 1, 1, &size,
						 &arena, &c, &err),
			 -E2BIG);
	dcp_arena_finish(&arena);
	dcp_arena_init(&arena, 8);
	assert_int_equal(dcp_torch_placement_cut(NULL, 0, 1, &size, &arena, &c, &err), -ENOMEM);
	dcp_arena_finish(&arena);
}

/* Sizes and ranks of foreign files: nothing overflows, nothing takes long. */
static void huge_shapes_are_refused(void **state)
{
	const uint64_t n[] = { UINT64_MAX, UINT64_MAX - 1, 3, 1ull << 63 };
	struct dcp_arena arena;

	(void)state;
	dcp_arena_init(&arena, 1 << 22);
	for (size_t i = 0; i < DCP_LEN(n); i++)
		for (size_t k = 0; k < DCP_LEN(n); k++) {
			struct dcp_torch_placement p = { .kind = DCP_TORCH_PLACEMENT_SHARD,
							 .n = n[k] };
			struct dcp_axis first = cut(&p, 1, n[i], &arena), last;

			p.at = n[k] - 1;
			last = cut(&p, 1, n[i], &arena);
			assert_true(first.len >= last.len && first.len > 0);
			assert_true(!last.n || last.span[0].lo + last.len == n[i]);
		}
	dcp_arena_finish(&arena);
}

/* A cut of two spans of rows and one of columns, of which the local tensor is [4, 6]. */
static void cuts_become_boxes_and_pieces(void **state)
{
	const struct dcp_span rows[] = { { 0, 8, 1 }, { 1, 20, 3 } },
			      columns[] = { { 0, 0, 6 } };
	const struct dcp_axis axis[] = { { rows, 2, 4 }, { columns, 1, 6 } };
	const struct dcp_cut cut = { .ndim = 2, .axis = axis };
	const uint64_t shape[] = { 4, 6 }, stride[] = { 1, 4 }, huge[] = { 1ull << 63, 2 };
	const struct dcp_torch_placement_box *box, whole = { dcp_origin, dcp_origin, shape };
	struct dcp_piece p = { .off = 100 };
	struct dcp_arena arena;
	size_t n;

	(void)state;
	dcp_arena_init(&arena, 1 << 16);
	assert_int_equal(dcp_torch_placement_boxes(&cut, 1, &arena, &box, &n), -E2BIG);
	assert_int_equal(dcp_torch_placement_boxes(&cut, 2, &arena, &box, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(box[1].lo[0], 20);
	assert_int_equal(box[1].at[0], 1);
	assert_int_equal(box[1].len[0], 3);
	assert_int_equal(dcp_torch_placement_piece(&box[1], 2, shape, NULL, 2, &arena, &p), 0);
	assert_int_equal(p.off, 100 + 6 * 2);
	assert_int_equal(p.nbytes, 18 * 2);
	assert_int_equal(p.run_n, 18);
	assert_int_equal(p.stride[0], 6);
	p = (struct dcp_piece){ .off = 100 };
	assert_int_equal(dcp_torch_placement_piece(&whole, 2, shape, NULL, 2, &arena, &p), 0);
	assert_null(p.stride);
	assert_int_equal(p.nbytes, 24 * 2);
	assert_int_equal(dcp_torch_placement_piece(&whole, 2, shape, stride, 2, &arena, &p), 0);
	assert_non_null(p.stride);
	assert_int_equal(p.stride[1], 4);
	assert_int_equal(dcp_torch_placement_piece(&whole, 2, huge, NULL, 2, &arena, &p),
			 -EBADMSG);
	dcp_arena_finish(&arena);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shards_are_placed),
		cmocka_unit_test(shards_of_shards_are_placed),
		cmocka_unit_test(strided_shards_are_placed),
		cmocka_unit_test(a_strided_shard_alone_is_placed),
		cmocka_unit_test(bad_placements_are_refused),
		cmocka_unit_test(huge_shapes_are_refused),
		cmocka_unit_test(cuts_become_boxes_and_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
