/* SPDX-License-Identifier: Apache-2.0 */
/* Few connections for many indexes, used by many threads. */
#include "tests/unit/t.h"

#include <errno.h>
#include <pthread.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/store/index/index.h"
#include "core/store/index/index_int.h"
#include "tests/unit/t/index.h"

enum { INDEXES = 4, ROWS = 50, IDLE = 2, THREADS = 6 };

struct many {
	struct t_index *at[INDEXES];
	struct dcp_index_pool *pool;
};

static int setup(void **state)
{
	struct many *m = calloc(1, sizeof(*m));

	assert_int_equal(dcp_index_pool_create(IDLE, &m->pool), 0);
	for (size_t i = 0; i < INDEXES; i++) {
		void *p;

		t_index_setup(&p);
		m->at[i] = p;
		for (unsigned k = 0; k < ROWS; k++) {
			char key[32];

			snprintf(key, sizeof(key), "k%zu.%u", i, k);
			t_tell_vector(&m->at[i]->sink, key, m->at[i]->file, k, 1, NULL);
		}
		t_index_reopen(m->at[i]);
		dcp_index_share(m->at[i]->ix, m->pool);
	}
	*state = m;
	return 0;
}

static int teardown(void **state)
{
	struct many *m = *state;

	for (size_t i = 0; i < INDEXES; i++) {
		void *p = m->at[i];

		t_index_teardown(&p);
	}
	assert_null(m->pool->idle); /* those of closed indexes went with them */
	assert_int_equal(m->pool->n, 0);
	dcp_index_pool_destroy(m->pool);
	dcp_index_pool_destroy(NULL);
	free(m);
	return 0;
}

/* Each index answers for itself, whatever connections went round. */
static bool looks_up(struct many *m, unsigned seed)
{
	struct dcp_arena arena;
	struct dcp_row row;
	bool right = true;
	char key[32];

	dcp_arena_init(&arena, 1 << 20);
	for (unsigned n = 0; n < 400 && right; n++) {
		unsigned i = (n * 7 + seed) % INDEXES, k = (n * 13 + seed) % ROWS;

		dcp_arena_reset(&arena);
		snprintf(key, sizeof(key), "k%u.%u", i, k);
		right = dcp_index_by_key(m->at[i]->ix, DCP_ROW_TENSOR, key, &arena, &row) ==
				0 &&
			row.id == k + 1;
	}
	dcp_arena_finish(&arena);
	return right;
}

static void one_thread_keeps_few_connections(void **state)
{
	struct many *m = *state;

	assert_int_equal(m->pool->n, 0);
	assert_true(looks_up(m, 1));
	assert_int_equal(m->pool->n, IDLE);
}

static void overlapping_scans_keep_apart(void **state)
{
	struct many *m = *state;
	struct dcp_index_scan *scan[INDEXES];
	struct dcp_row row;

	for (size_t i = 0; i < INDEXES; i++)
		assert_int_equal(
			dcp_index_scan(m->at[i]->ix, DCP_ROW_TENSOR, 0, false, &scan[i]), 0);
	for (unsigned k = 0; k < ROWS; k++)
		for (size_t i = 0; i < INDEXES; i++) {
			char key[32];

			assert_int_equal(dcp_index_scan_next(scan[i], &row), 1);
			snprintf(key, sizeof(key), "k%zu.%u", i, k);
			assert_string_equal(row.key, key);
		}
	for (size_t i = 0; i < INDEXES; i++)
		dcp_index_scan_end(scan[i]);
	assert_int_equal(m->pool->n, IDLE);
}

struct worker {
	struct many *m;
	unsigned seed;
	bool right;
};

static void *work(void *arg)
{
	struct worker *w = arg;

	w->right = looks_up(w->m, w->seed);
	return NULL;
}

static void many_threads_share_connections(void **state)
{
	struct many *m = *state;
	struct worker w[THREADS];
	pthread_t thread[THREADS];

	for (unsigned i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ m, i, false };
		assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(thread[i], NULL);
		assert_true(w[i].right);
	}
	assert_true(m->pool->n <= IDLE);
}

static int pages_of(struct dcp_index_conn *c)
{
	int now = 0, most;

	assert_int_equal(sqlite3_db_status(c->db, SQLITE_DBSTATUS_CACHE_USED, &now, &most, 0),
			 0);
	return now;
}

/* Beyond the last used ones, idle connections give pages back; they can be used as before. */
static void pages_are_given_back(void **state)
{
	enum { OPEN = DCP_INDEX_WARM + 5 };
	struct many *m = *state;
	struct dcp_index *ix = m->at[0]->ix;
	struct dcp_index_scan *scan[OPEN];
	struct dcp_index_pool *pool;
	struct dcp_row row;
	unsigned n = 0;

	assert_int_equal(dcp_index_pool_create(OPEN, &pool), 0);
	dcp_index_share(ix, pool);
	for (unsigned round = 0; round < 2; round++, n = 0) {
		int full = 0, bare = 0;

		for (size_t i = 0; i < OPEN; i++) {
			assert_int_equal(dcp_index_scan(ix, DCP_ROW_TENSOR, 0, false, &scan[i]),
					 0);
			assert_int_equal(dcp_index_scan_next(scan[i], &row), 1);
			assert_string_equal(row.key, "k0.0");
		}
		for (size_t i = 0; i < OPEN; i++)
			dcp_index_scan_end(scan[i]);
		for (struct dcp_index_conn *c = pool->idle; c; c = c->next, n++) {
			assert_int_equal(c->bare, n >= DCP_INDEX_WARM);
			full = c->bare ? full : DCP_MAX(full, pages_of(c));
			bare = c->bare ? DCP_MAX(bare, pages_of(c)) : bare;
		}
		assert_int_equal(n, OPEN);
		assert_true(bare < full / 2);
	}
	dcp_index_pool_forget(pool, NULL);
	ix->pool = m->pool;
	dcp_index_pool_destroy(pool);
}

/*
 * A connection stays on the row that was looked up last, and in any order each name leads to its
 * row. A digit is a tensor, whose name is its key where the digit is even; - is a name that
 * nothing has.
 */
static void names_are_found_in_any_order(void **state)
{
	static const char *const orders[] = {
		"0123456789", "9876543210", "02468",   "0011223",
		"01-23-4-",   "0120120",    "890--12", "5430120"
	};
	struct t_index *p = *state;
	struct dcp_row row;
	char name[32];

	for (int i = 0; i < 10; i++) {
		snprintf(name, sizeof(name), i % 2 ? "layer/%d" : "layer.%d", i);
		t_tell_vector(&p->sink, name, p->file, (uint64_t)i, 11, NULL);
	}
	t_index_reopen(p);
	for (size_t i = 0; i < DCP_LEN(orders); i++) {
		t_case(orders[i]);
		for (const char *at = orders[i]; *at; at++) {
			int n = *at - '0', there = *at == '-' ? -ENOENT : 0;

			snprintf(name, sizeof(name), n % 2 ? "layer%%2F%d" : "layer.%d", n);
			assert_int_equal(
				dcp_index_by_name(p->ix, DCP_ROW_TENSOR, name, &p->arena, &row),
				there);
			if (there < 0)
				continue;
			assert_int_equal(row.id, n + 1);
			assert_int_equal(t_index_tensor(p, row.id).pieces[0].off, n);
		}
	}
	assert_int_equal(dcp_index_by_id(p->ix, DCP_ROW_TENSOR, 0, &p->arena, &row), -ENOENT);
	assert_int_equal(dcp_index_by_id(p->ix, DCP_ROW_TENSOR, 11, &p->arena, &row), -ENOENT);
	assert_int_equal(dcp_index_by_id(p->ix, DCP_ROW_TENSOR, 10, &p->arena, &row), 0);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_thread_keeps_few_connections, setup,
						teardown),
		cmocka_unit_test_setup_teardown(overlapping_scans_keep_apart, setup, teardown),
		cmocka_unit_test_setup_teardown(many_threads_share_connections, setup,
						teardown),
		cmocka_unit_test_setup_teardown(pages_are_given_back, setup, teardown),
		cmocka_unit_test_setup_teardown(names_are_found_in_any_order, t_index_setup,
						t_index_teardown),
	};
	return cmocka_run_group_tests_name("index_pool", tests, NULL, NULL);
}
