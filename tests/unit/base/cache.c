/* SPDX-License-Identifier: Apache-2.0 */
/* cache: things are found by their keys, and the one used longest ago that may goes first. */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "core/base/cache.h"

struct thing {
	struct dcp_lru_link use;
	int number;
	bool held;
	struct dcp_table_link at;
};

static struct thing *found(const struct dcp_table *t, uint64_t key)
{
	return DCP_OF(dcp_table_find(t, key), struct thing, at);
}

/* One bucket, so that all are in one chain, and several. */
static void links_are_found_by_key(void **state)
{
	struct dcp_table_link *bucket[16];

	(void)state;
	for (size_t n = 1; n <= DCP_LEN(bucket); n *= 4) {
		struct dcp_table t = { bucket, n };
		struct thing thing[100];

		memset(bucket, 0, sizeof(bucket));
		for (int i = 0; i < 100; i++) {
			thing[i].number = i;
			dcp_table_add(&t, &thing[i].at, (uint64_t)i << 32 | 7);
		}
		assert_null(found(&t, 7ull << 32));
		for (int i = 0; i < 100; i += 3)
			dcp_table_remove(&t, &thing[i].at);
		dcp_table_remove(&t, &thing[3].at); /* once more */
		for (int i = 0; i < 100; i++) {
			struct thing *f = found(&t, (uint64_t)i << 32 | 7);

			if (i % 3 == 0)
				assert_null(f);
			else
				assert_int_equal(f->number, i);
		}
	}
}

static void the_last_link_of_a_key_comes_first(void **state)
{
	struct dcp_table_link *bucket[1] = { NULL };
	struct dcp_table t = { bucket, 1 };
	struct thing a = { .number = 1 }, other = { .number = 2 }, b = { .number = 3 };

	(void)state;
	dcp_table_add(&t, &a.at, 5);
	dcp_table_add(&t, &other.at, 6);
	dcp_table_add(&t, &b.at, 5);
	assert_ptr_equal(found(&t, 5), &b);
	assert_ptr_equal(DCP_OF(dcp_table_before(&b.at), struct thing, at), &a);
	assert_null(dcp_table_before(&a.at));
}

static bool is_free(const struct dcp_lru_link *l)
{
	return !((const struct thing *)l)->held;
}

static struct thing *oldest(struct dcp_lru *t, size_t looks)
{
	return (struct thing *)dcp_lru_oldest(t, looks, is_free);
}

static void held_entries_stay(void **state)
{
	struct dcp_lru t = { 0 };
	struct thing v[4] = {
		{ .held = true }, { .held = true }, { .number = 2 }, { .number = 3 }
	};

	(void)state;
	assert_null(oldest(&t, 10));
	for (size_t i = 0; i < DCP_LEN(v); i++)
		dcp_lru_add(&t, &v[i].use);
	assert_null(oldest(&t, 1)); /* the first counts as used now */
	assert_ptr_equal(t.newest, &v[0]);
	assert_ptr_equal(oldest(&t, 2), &v[2]);
	dcp_lru_use(&t, &v[2].use);
	assert_ptr_equal(oldest(&t, 1), &v[3]);
	dcp_lru_remove(&t, &v[2].use);
	dcp_lru_remove(&t, &v[3].use);
	assert_null(oldest(&t, 100));
	v[1].held = false;
	assert_ptr_equal(oldest(&t, 100), &v[1]);
	dcp_lru_remove(&t, &v[1].use);
	dcp_lru_remove(&t, &v[0].use);
	assert_null(t.oldest);
	assert_null(t.newest);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(links_are_found_by_key),
		cmocka_unit_test(the_last_link_of_a_key_comes_first),
		cmocka_unit_test(held_entries_stay),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
