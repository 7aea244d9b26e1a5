/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts at random, and of every element of a tensor whether each rank has it.
 *
 * covers: model/layout/cut
 */
#include "tests/unit/t.h"

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/model/layout/layout.h"
#include "core/model/layout/spread/spread.h"
#include "tests/unit/t/model/layout.h"
#include "tests/unit/t/model/rule.h"

enum { RANKS = 60, ELEMENTS = 1024, DIMS = 4, ROUNDS = T_ROUNDS(1500), BOXES = 12 };

/* The layout that is being checked; said when a check fails. */
static char text[T_RULE_TEXT];

#define MUST(ok)                                                                               \
	do {                                                                                   \
		if (!(ok))                                                                     \
			fail_msg("%s: %s", text, #ok);                                         \
	} while (0)

/* What each rank has of a tensor, element by element, by the definition of its cut. */
struct truth {
	bool has_key[RANKS], holds[RANKS][ELEMENTS];
	uint64_t shape[DIMS], volume;
	uint32_t ndim, ranks;
	int rc; /* of the first rank that cannot have a cut */
	struct dcp_err err;
};

static void find_truth(struct truth *t, const struct dcp_layout *l, const char *key)
{
	uint64_t volume, at[DCP_MAX_NDIM] = { 0 };

	t->ranks = dcp_layout_ranks(l);
	t->rc = 0;
	memset(t->holds, 0, sizeof(t->holds));
	for (uint32_t r = 0; r < t->ranks && t->rc == 0; r++) {
		struct dcp_arena arena;
		struct dcp_cut cut;
		int rc;

		dcp_arena_init(&arena, 1 << 20);
		rc = dcp_layout_cut(l, r, key, t->ndim, t->shape, &arena, &cut, &t->err);
		t->has_key[r] = rc == 1;
		t->rc = DCP_MIN(rc, 0);
		assert_true(rc != 1 || dcp_cut_volume(&cut, &volume));
		for (uint64_t e = 0; rc == 1 && e < volume; e++) {
			uint64_t i = 0;

			if (!t_cut_at(&cut, e, at))
				continue;
			for (uint32_t d = 0; d < t->ndim; d++)
				i = i * t->shape[d] + at[d];
			assert_true(i < ELEMENTS && !t->holds[r][i]);
			t->holds[r][i] = true;
		}
		dcp_arena_finish(&arena);
	}
}

static uint64_t count(const struct truth *t, uint32_t rank, const uint64_t *lo,
		      const uint64_t *len)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < t->volume; i++) {
		bool in = t->holds[rank][i];
		uint64_t rest = i;

		for (uint32_t d = t->ndim; d-- > 0; rest /= t->shape[d])
			in = in && rest % t->shape[d] - lo[d] < len[d];
		n += in;
	}
	return n;
}

/* ---- one tensor ---- */

struct met {
	const struct dcp_spread *s;
	uint64_t part[RANKS], sum[RANKS]; /* by first rank; by rank, as sums have it */
};

static void add(void *ctx, const struct dcp_spread_hit *hit)
{
	struct met *met = ctx;

	dcp_spread_add(met->s, hit, hit->n, met->sum);
	for (uint32_t i = 0; i < dcp_spread_parts(hit); i++) {
		uint32_t first = dcp_spread_part(hit, i);

		MUST(first < RANKS && hit->n != 0 && met->part[first] == 0);
		met->part[first] = hit->n;
	}
}

static void check_box(const struct dcp_spread *s, const struct truth *t, struct t_choice *c)
{
	uint64_t lo[DIMS], len[DIMS];
	struct met met = { .s = s };
	struct dcp_spread_box box = { lo, len };

	for (uint32_t d = 0; d < t->ndim; d++) {
		lo[d] = t_pick(c, t->shape[d]);
		len[d] = t_pick(c, 3) ? 1 + t_pick(c, t->shape[d] - lo[d]) : t->shape[d];
		lo[d] = len[d] == t->shape[d] ? 0 : lo[d];
		len[d] = DCP_MIN(len[d], t->shape[d] - lo[d]);
	}
	dcp_spread_meet(s, &box, add, &met);
	for (uint32_t r = 0; r < t->ranks; r++) {
		uint64_t n = count(t, r, lo, len);
		uint32_t first = dcp_spread_first(s, r);

		MUST((first != UINT32_MAX) == t->has_key[r]);
		if (!t->has_key[r])
			continue;
		MUST(dcp_spread_count(s, r, &box) == n);
		MUST(met.part[first] == n && met.sum[r] == n);
	}
}

/* Copies stand at the same offsets behind the first; parts share nothing. */
static void check_holders(const struct dcp_spread *s, const struct truth *t)
{
	uint32_t n, holders[ELEMENTS] = { 0 };
	const uint32_t *copy = dcp_spread_copies(s, &n);

	for (uint32_t r = 0; r < t->ranks; r++) {
		uint32_t first = dcp_spread_first(s, r), k = 0;

		if (first == UINT32_MAX)
			continue;
		while (k < n && first + copy[k] != r)
			k++;
		MUST(k < n && (k == 0 || copy[k] > copy[k - 1]));
		MUST(!memcmp(t->holds[r], t->holds[first], sizeof(t->holds[r])));
		for (uint64_t i = 0; r == first && i < t->volume; i++)
			holders[i] += t->holds[r][i];
	}
	for (uint64_t i = 0; i < t->volume; i++)
		MUST(holders[i] == 1 || (holders[i] == 0 && !dcp_spread_is_complete(s)));
}

static uint64_t checked, refused, incomplete;

static void check(const struct dcp_layout *l, struct truth *t, const char *key,
		  struct t_choice *c)
{
	struct dcp_layout_rule rule;
	struct dcp_arena arena;
	struct dcp_spread *s;
	struct dcp_err err = { 0 };

	find_truth(t, l, key);
	dcp_layout_rule(l, key, &rule);
	dcp_layout_rule_settle(l, &rule);
	dcp_arena_init(&arena, 1 << 20);
	MUST(dcp_spread_make(l, &rule, t->ndim, &arena, &s) == 0);
	MUST(dcp_spread_set(s, key, t->shape, &err) == t->rc);
	if (t->rc < 0) {
		MUST(!strcmp(err.msg, t->err.msg));
		refused++;
	} else {
		check_holders(s, t);
		for (int i = 0; i < BOXES; i++)
			check_box(s, t, c);
		checked++;
		incomplete += !dcp_spread_is_complete(s);
	}
	dcp_arena_finish(&arena);
}

static void random_shape(struct truth *t, struct t_choice *c)
{
	t->ndim = (uint32_t)t_pick(c, DIMS + 1);
	t->volume = 1;
	for (uint32_t d = 0; d < t->ndim; d++) {
		t->shape[d] = t_pick(c, DCP_MIN(40, ELEMENTS / DCP_MAX(t->volume, 1u)) + 1);
		t->volume *= t->shape[d];
	}
}

static void random_spreads_agree(void **state)
{
	struct t_choice c = { .seed = 0x737072656164 };
	static struct truth t;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct dcp_layout *l;
		char key[16];

		t_rule_layout(text, RANKS, &c);
		l = t_layout(text);
		for (int i = 0; i < 3; i++) {
			random_shape(&t, &c);
			snprintf(key, sizeof(key), "a.%u.w", (unsigned)t_pick(&c, 9));
			check(l, &t, key, &c);
		}
		dcp_layout_free(l);
	}
	print_message("           %ju checked, %ju of them incomplete, %ju refused\n",
		      (uintmax_t)checked, (uintmax_t)incomplete, (uintmax_t)refused);
	assert_true(checked > ROUNDS && refused > ROUNDS / 4 && incomplete > ROUNDS / 4);
}

/* ---- what chance does not find ---- */

static void bad_spreads_are_refused(void **state)
{
	static const struct {
		const char *what, *rule, *key;
		uint64_t rows;
		const char *says;
	} cases[] = {
		{ "no rule", "a replicate", "w", 4, "no rule matches" },
		{ "even after what is not the same for all", "* shard(0)@a shard(0, even)@b",
		  "w", 9, "rank 0: shard(0, even)@b: dimension 0: 3 is not a multiple of 2" },
		{ "a later rank", "* shard(0)@a shard(0, sizes=[2,2])@b", "w", 14,
		  "rank 6: shard(0, sizes=[2,2])@b" },
		{ "no rank is left to be refused", "* only(b=0) shard(7)@a only(b=1)", "w", 9,
		  NULL },
		{ "too many spans", "* strided(0, 70000)@a", "w", 70000, "70000 spans" },
		{ "many, but not too many", "* strided(0, 40000)@a strided(0, 40000)@b", "w",
		  40000 * 8, NULL },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_err err = { 0 };
		struct dcp_layout_rule rule;
		struct dcp_arena arena;
		struct dcp_spread *s;
		struct dcp_layout *l;
		int rc;

		t_case(cases[i].what);
		snprintf(text, sizeof(text), "mesh a=4 b=2\n%s\n", cases[i].rule);
		l = t_layout(text);
		dcp_arena_init(&arena, 1 << 20);
		dcp_layout_rule(l, cases[i].key, &rule);
		assert_int_equal(dcp_spread_make(l, &rule, 1, &arena, &s), 0);
		rc = dcp_spread_set(s, cases[i].key, &cases[i].rows, &err);
		assert_int_equal(rc < 0, cases[i].says != NULL);
		if (cases[i].says)
			t_assert_says(&err, cases[i].says);
		dcp_arena_finish(&arena);
		dcp_layout_free(l);
	}
}

static void little_memory_is_reported(void **state)
{
	struct dcp_layout *l = t_layout("mesh a=4 b=2\n* shard(0)@a flat@b\n");
	struct dcp_layout_rule rule;
	size_t limit = 0;
	int rc = -ENOMEM;

	(void)state;
	dcp_layout_rule(l, "w", &rule);
	for (; rc == -ENOMEM && limit < 1 << 16; limit += 16) {
		struct dcp_arena arena;
		struct dcp_spread *s;

		dcp_arena_init(&arena, limit);
		rc = dcp_spread_make(l, &rule, 2, &arena, &s);
		dcp_arena_finish(&arena);
	}
	assert_int_equal(rc, 0);
	assert_true(limit > 256);
	dcp_layout_free(l);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_spreads_agree),
		cmocka_unit_test(bad_spreads_are_refused),
		cmocka_unit_test(little_memory_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
