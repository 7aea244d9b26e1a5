/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/model/overlap.h"
#include "tests/unit/t_layout.h"
#include "tests/unit/t_plan.h"

enum { ELEMENTS = 512, ROUNDS = 20000 };

struct side {
	struct dcp_cut cut;
	struct dcp_axis axis[T_PLAN_DIMS];
	struct dcp_span span[T_PLAN_DIMS][T_PLAN_SPANS];
};

/* Which elements of the tensor a cut holds, by its definition. */
static uint64_t mark(const struct dcp_cut *cut, const uint64_t *shape, bool *holds)
{
	uint64_t volume = 0, at[DCP_MAX_NDIM] = { 0 }, n = 0;

	memset(holds, 0, ELEMENTS * sizeof(*holds));
	assert_true(dcp_cut_volume(cut, &volume));
	for (uint64_t e = 0; e < volume; e++) {
		uint64_t i = 0;

		if (!t_cut_at(cut, e, at))
			continue;
		for (uint32_t d = 0; d < cut->ndim; d++)
			i = i * shape[d] + at[d];
		assert_true(i < ELEMENTS);
		n += !holds[i];
		holds[i] = true;
	}
	return n;
}

static void compare(const struct dcp_cut *a, const struct dcp_cut *b, const uint64_t *shape)
{
	bool in_a[ELEMENTS], in_b[ELEMENTS];
	uint64_t na = mark(a, shape, in_a), nb = mark(b, shape, in_b), both = 0;

	for (size_t i = 0; i < ELEMENTS; i++)
		both += in_a[i] && in_b[i];
	assert_int_equal(dcp_overlap(a, b), both);
	assert_int_equal(dcp_overlap(b, a), both);
	assert_int_equal(dcp_cut_held(a), na);
	assert_int_equal(dcp_cut_held(b), nb);
}

/* Two random cuts of one tensor, and a random cut and each piece of it. */
static void by_chance(void **state)
{
	static struct t_plan w;
	struct t_choice c = { .seed = 0x6f7665726c6170 };
	struct side a, b;
	uint64_t flat = 0, multi = 0;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		t_plan_tensor(&w, &c);
		t_random_cut(&a.cut, w.t.ndim, w.shape, a.axis, a.span, &c);
		t_random_cut(&b.cut, w.t.ndim, w.shape, b.axis, b.span, &c);
		if (!dcp_cut_ascends(&a.cut) || !dcp_cut_ascends(&b.cut))
			continue;
		compare(&a.cut, &b.cut, w.shape);
		flat += a.cut.flat && b.cut.flat;
		for (size_t i = 0; i < w.t.npieces; i++) {
			const struct dcp_piece *p = &w.pieces[i];
			struct dcp_piece_cut piece;
			uint64_t first = p->run_n / 3, n = p->run_n - first;

			dcp_piece_cut(&piece, p, w.t.ndim);
			compare(&a.cut, &piece.cut, w.shape);
			dcp_piece_cut_part(&piece, p, w.t.ndim, first, n);
			compare(&b.cut, &piece.cut, w.shape);
			multi++;
		}
	}
	assert_true(flat > ROUNDS / 50 && multi > ROUNDS / 2);
}

static void ascending(void **state)
{
	const struct dcp_span up[] = { { 0, 0, 2 }, { 2, 2, 1 }, { 3, 7, 1 } };
	const struct dcp_span down[] = { { 0, 4, 2 }, { 2, 0, 1 } };
	const struct dcp_span twice[] = { { 0, 0, 2 }, { 2, 1, 1 } };
	struct dcp_axis axis = { up, 3, 4 };
	struct dcp_cut cut = { .ndim = 1, .axis = &axis };

	(void)state;
	assert_true(dcp_cut_ascends(&cut));
	axis = (struct dcp_axis){ down, 2, 3 };
	assert_false(dcp_cut_ascends(&cut));
	axis = (struct dcp_axis){ twice, 2, 3 };
	assert_false(dcp_cut_ascends(&cut));
	axis = (struct dcp_axis){ NULL, 0, 0 };
	assert_true(dcp_cut_ascends(&cut));
}

/* What everything built on this takes for granted: cuts of a layout ascend, and those of two
 * ranks are equal or share nothing. */
static void of_layouts(void **state)
{
	static const char *const rules[] = {
		"shard(0)@a shard(1)@b",
		"shard(0)@b shard(0)@a",
		"strided(0,2)@a shard(0)@b",
		"interleave(0,3)@a interleave(1)@b",
		"shard(0, groups=[2,1])@a shard(1, balanced)@b",
		"shard(0, pad)@a shard(0)@b",
		"shard(0, pad)@a flat@b",
		"flat@a flat(tight)@b",
		"interleave(1,2)@b flat(pad=4)@a",
		"shard(3, optional)@a replicate@b",
	};
	const uint64_t shape[2] = { 18, 11 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rules); i++) {
		char text[128];
		struct dcp_arena arena;
		struct dcp_layout *l;
		struct dcp_cut cut[12];
		bool in_a[ELEMENTS], in_b[ELEMENTS];

		t_case(rules[i]);
		snprintf(text, sizeof(text), "mesh a=4 b=3\n* %s\n", rules[i]);
		l = t_layout(text);
		dcp_arena_init(&arena, 1 << 20);
		for (uint32_t r = 0; r < 12; r++) {
			assert_int_equal(
				dcp_layout_cut(l, r, "k", 2, shape, &arena, &cut[r], NULL), 1);
			assert_true(dcp_cut_ascends(&cut[r]));
		}
		for (uint32_t r = 0; r < 12; r++)
			for (uint32_t s = 0; s < 12; s++) {
				uint64_t n = dcp_overlap(&cut[r], &cut[s]);

				mark(&cut[r], shape, in_a);
				mark(&cut[s], shape, in_b);
				assert_true(n == 0 || !memcmp(in_a, in_b, sizeof(in_a)));
				compare(&cut[r], &cut[s], shape);
			}
		dcp_arena_finish(&arena);
		dcp_layout_free(l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ascending),
		cmocka_unit_test(by_chance),
		cmocka_unit_test(of_layouts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
