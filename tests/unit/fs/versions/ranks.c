/* SPDX-License-Identifier: Apache-2.0 */
/* How many ranks are kept, which go, and their slots. */
#include "tests/unit/t.h"

#include <errno.h>
#include <stdlib.h>

#include "core/model/layout/layout.h"
#include "core/parse/layout/layout.h"
#include "core/store/layouts/layouts.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions/versions.h"

enum { RANKS = 1 << 20, KEPT = DCPFS_RANKS_KEPT };

struct world {
	struct dcpfs fs;
	struct dcpfs_version *ver;
	struct dcp_layout *l;
	struct dcp_named_layout layout;
};

static void setup(struct world *w)
{
	static char name[] = "step-1";

	*w = (struct world){ 0 };
	pthread_rwlock_init(&w->fs.lock, NULL);
	w->fs.ranks = dcpfs_ranks_create();
	assert_non_null(w->fs.ranks);
	assert_int_equal(dcp_layout_named("fsdp1048576", &w->l, NULL), 0);
	w->layout = (struct dcp_named_layout){ .id = 7, .name = "fsdp1048576", .l = w->l };
	w->ver = calloc(1, sizeof(*w->ver));
	assert_non_null(w->ver);
	w->ver->refs = 1;
	w->ver->name = name;
	w->ver->slot = dcpfs_slot_take(&w->fs, 1);
	dcp_arena_init(&w->ver->arena, 0);
}

static void teardown(struct world *w)
{
	dcpfs_ranks_destroy(w->fs.ranks);
	assert_int_equal(w->ver->refs, 1); /* every rank gave its count back */
	dcpfs_version_put(w->ver);
	dcp_layout_free(w->l);
	pthread_rwlock_destroy(&w->fs.lock);
}

static struct dcpfs_version *get(struct world *w, uint32_t rank)
{
	struct dcpfs_version *r = NULL;

	assert_int_equal(dcpfs_rank_get(&w->fs, w->ver, &w->layout, rank, &r), 0);
	assert_int_equal(r->rank, rank);
	assert_ptr_equal(r->of, w->ver);
	return r;
}

/* Enter it and leave again: its slot. */
static uint32_t enter(struct world *w, uint32_t rank)
{
	struct dcpfs_version *r = get(w, rank);
	uint32_t slot = r->slot;

	dcpfs_version_put(r);
	return slot;
}

static bool is_kept(struct world *w, uint32_t slot)
{
	struct dcpfs_version *r = dcpfs_version_by_slot(&w->fs, slot);

	dcpfs_version_put(r);
	return r != NULL;
}

static void listing_keeps_no_ranks(void **state)
{
	struct world w;
	uint32_t slot;

	(void)state;
	setup(&w);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_not_equal(dcpfs_rank_slot(&w.fs, w.ver, &w.layout, rank), 0);
	assert_int_equal(w.ver->refs, 1);
	slot = dcpfs_rank_slot(&w.fs, w.ver, &w.layout, 5);
	assert_false(is_kept(&w, slot));
	assert_int_equal(enter(&w, 5), slot); /* what was listed is what is entered */
	assert_int_equal(dcpfs_rank_slot(&w.fs, w.ver, &w.layout, 5), slot);
	assert_true(is_kept(&w, slot));
	teardown(&w);
}

static void entering_always_works(void **state)
{
	struct dcpfs_version *held;
	struct world w;
	uint32_t first, again;

	(void)state;
	setup(&w);
	held = get(&w, 3);
	first = enter(&w, 0);
	for (uint32_t rank = 10; rank < RANKS; rank++) {
		enter(&w, rank);
		assert_true(w.ver->refs <= KEPT + 1);
	}
	assert_int_equal(w.ver->refs, KEPT + 1);
	assert_true(is_kept(&w, held->slot)); /* it is in use */
	assert_false(is_kept(&w, first));
	again = enter(&w, 0);
	assert_int_not_equal(again, first); /* the kernel may have pages of that one */
	assert_true(is_kept(&w, again));
	dcpfs_version_put(held);
	assert_int_equal(dcpfs_rank_get(&w.fs, w.ver, &w.layout, RANKS, &held), -ENOENT);
	teardown(&w);
}

static void the_longest_unused_ranks_go(void **state)
{
	struct world w;
	uint32_t used, unused;

	(void)state;
	setup(&w);
	used = enter(&w, 0);
	unused = enter(&w, 1);
	for (uint32_t rank = 2; rank < KEPT + 100; rank++) {
		enter(&w, rank);
		assert_true(is_kept(&w, used)); /* each look is a use */
	}
	assert_false(is_kept(&w, unused));
	teardown(&w);
}

/* More than are kept are in use: none of them goes, and they go when they are let go. */
static void ranks_in_use_stay(void **state)
{
	struct dcpfs_version **held = calloc(KEPT + 500, sizeof(*held));
	struct world w;

	(void)state;
	assert_non_null(held);
	setup(&w);
	for (uint32_t rank = 0; rank < KEPT + 500; rank++)
		held[rank] = get(&w, rank);
	for (uint32_t rank = 0; rank < KEPT + 500; rank++) {
		assert_true(is_kept(&w, held[rank]->slot));
		dcpfs_version_put(held[rank]);
	}
	assert_int_equal(w.ver->refs, KEPT + 501);
	for (uint32_t rank = 0; rank < 20; rank++)
		enter(&w, RANKS - 1 - rank);
	assert_int_equal(w.ver->refs, KEPT + 1);
	free(held);
	teardown(&w);
}

/* A slot is given to something else only when all were given, as another generation. */
static void reused_slots_get_another_generation(void **state)
{
	const uint32_t slots = 1u << DCPFS_SLOT_BITS;
	struct world w;
	uint32_t slot = 0, live;

	(void)state;
	setup(&w);
	live = enter(&w, 0);
	assert_int_equal(dcpfs_slot_generation(&w.fs, live), 1);
	for (uint32_t i = 0; i < slots; i++) {
		slot = dcpfs_slot_take(&w.fs, i);
		assert_int_not_equal(slot, live);
		if (dcpfs_slot_generation(&w.fs, slot) > 1)
			break;
		assert_int_not_equal(slot, 0);
	}
	assert_int_equal(dcpfs_slot_generation(&w.fs, slot), 2);
	assert_int_equal(dcpfs_slot_generation(&w.fs, live), 1);
	assert_int_equal(enter(&w, 0), live);
	teardown(&w);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(listing_keeps_no_ranks),
		cmocka_unit_test(entering_always_works),
		cmocka_unit_test(the_longest_unused_ranks_go),
		cmocka_unit_test(ranks_in_use_stay),
		cmocka_unit_test(reused_slots_get_another_generation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
