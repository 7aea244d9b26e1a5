/* SPDX-License-Identifier: Apache-2.0 */
/* Every part is taken once, by however many threads; the first job is the caller's. */
#include <pthread.h>

#include "core/base/system.h"
#include "tests/unit/t.h"

enum { PARTS = 1000, MOST = 9 };

struct shared {
	unsigned next, taken[PARTS];
};

struct job {
	struct shared *s;
	pthread_t self;
};

static void *work(void *ctx)
{
	struct job *j = ctx;
	unsigned i;

	j->self = pthread_self();
	while ((i = __atomic_fetch_add(&j->s->next, 1, __ATOMIC_RELAXED)) < PARTS)
		__atomic_fetch_add(&j->s->taken[i], 1, __ATOMIC_RELAXED);
	return NULL;
}

static void team_takes_every_part_once(void **state)
{
	(void)state;
	for (unsigned n = 0; n <= MOST; n++) {
		struct shared s = { 0 };
		struct job jobs[MOST + 1];

		for (unsigned i = 0; i <= MOST; i++)
			jobs[i].s = &s;
		dcp_team_run(n, work, jobs, sizeof(jobs[0]));
		for (unsigned i = 0; i < PARTS; i++)
			assert_int_equal(s.taken[i], 1);
		assert_true(pthread_equal(jobs[0].self, pthread_self()));
	}
}

static void *count(void *ctx)
{
	__atomic_fetch_add((unsigned *)ctx, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void team_shares_a_job_of_no_size(void **state)
{
	unsigned n = 0;

	(void)state;
	dcp_team_run(5, count, &n, 0);
	assert_int_equal(n, 5);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(team_takes_every_part_once),
		cmocka_unit_test(team_shares_a_job_of_no_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
