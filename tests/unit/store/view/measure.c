/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a version's tensors are measured once, and then known also to the next opening. */
#include "tests/unit/t.h"

#include <errno.h>

#include "core/store/index/index.h"
#include "core/store/view/measure.h"
#include "tests/unit/t/version.h"

static struct dcp_row row_of(struct dcp_version *v, const char *key, struct dcp_arena *arena)
{
	struct dcp_row row;

	assert_int_equal(
		dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR, key, arena, &row), 0);
	return row;
}

static void a_tensor_is_measured_once(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row x = row_of(v, "x", &arena), y = row_of(v, "y", &arena);
	struct dcp_measured got, again;
	struct dcp_measures *m;
	struct dcp_err err = { 0 };

	for (int round = 0; round < 2; round++) {
		assert_int_equal(dcp_measures_open(v, &m), 0);
		assert_int_equal(dcp_measures_know(m, &x, &got), round);
		assert_int_equal(dcp_measures_get(m, &x, NULL, NULL, &got, &err), 0);
		assert_int_equal(got.s.n, 60);
		assert_int_equal(got.s.nans, 0);
		assert_true(dcp_measures_know(m, &x, &again));
		assert_memory_equal(&again.s, &got.s, sizeof(got.s));
		assert_false(dcp_measures_know(m, &y, &got));
		dcp_measures_close(m);
	}
	dcp_version_close(v);
}

static bool always(void *ctx, uint64_t done, uint64_t all)
{
	return true;
}

static void interrupted_tensors_are_not_known(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row x = row_of(v, "x", &arena);
	const struct dcp_measure_stop stop = { always, NULL };
	struct dcp_measured got;
	struct dcp_measures *m;
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_measures_open(v, &m), 0);
	assert_int_equal(dcp_measures_get(m, &x, NULL, &stop, &got, &err), -EINTR);
	assert_false(dcp_measures_know(m, &x, &got));
	dcp_measures_close(m);
	dcp_version_close(v);
}

/* Two processes measure at the same time: none forgets what the other kept. */
static void measures_of_other_processes_stay(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row x = row_of(v, "x", &arena), y = row_of(v, "y", &arena);
	struct dcp_measures *one, *other;
	struct dcp_measured got;
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_measures_open(v, &one), 0);
	assert_int_equal(dcp_measures_open(v, &other), 0);
	assert_int_equal(dcp_measures_get(one, &x, NULL, NULL, &got, &err), 0);
	dcp_measures_close(one);
	assert_int_equal(dcp_measures_get(other, &y, NULL, NULL, &got, &err), 0);
	assert_true(dcp_measures_know(other, &x, &got));
	dcp_measures_close(other);
	assert_int_equal(dcp_measures_open(v, &one), 0);
	assert_true(dcp_measures_know(one, &x, &got));
	assert_true(dcp_measures_know(one, &y, &got));
	dcp_measures_close(one);
	dcp_version_close(v);
}

static void unreadable_tensors_are_not_known(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *v = t_version_open(p);
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row z = row_of(v, "z", &arena);
	struct dcp_measured got;
	struct dcp_measures *m;
	struct dcp_err err = { 0 };

	assert_int_equal(dcp_measures_open(v, &m), 0);
	assert_true(dcp_measures_get(m, &z, NULL, NULL, &got, &err) < 0);
	assert_non_null(strstr(err.msg, "gone.shard"));
	assert_false(dcp_measures_know(m, &z, &got));
	dcp_measures_close(m);
	dcp_measures_close(NULL);
	dcp_version_close(v);
}

T_TESTS()
{
#define AT_PLACE(f) cmocka_unit_test_setup_teardown(f, t_version_setup, t_version_teardown)
	const struct CMUnitTest tests[] = {
		AT_PLACE(a_tensor_is_measured_once),
		AT_PLACE(interrupted_tensors_are_not_known),
		AT_PLACE(measures_of_other_processes_stay),
		AT_PLACE(unreadable_tensors_are_not_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
