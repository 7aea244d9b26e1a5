/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executions that are begun and waited for, and the order in which the caller is called; objects
 * against the manifest.
 * covers: execute
 */
#include "tests/unit/t.h"

#include <pthread.h>

#include "tests/unit/t/comm.h"
#include "tests/unit/t/golden.h"
#include "tests/unit/t/load.h"

enum { RANKS = 3, MOST = 4096 };

/* What the caller of a rank saw: a letter for each call. */
struct seen {
	char calls[MOST];
	size_t n, objects;
	int fail; /* of set_state() */
	const json_t *want;
	int bad;
	pthread_t by;
};

struct job {
	const json_t *objects;
	int failing; /* rank whose set_state() fails; -1: none */
	uint32_t flags;
	bool leave; /* free the plan without waiting */
};

static void see(struct seen *s, char call)
{
	s->by = pthread_self();
	if (s->n < MOST - 1 && (s->n == 0 || s->calls[s->n - 1] != call))
		s->calls[s->n++] = call;
}

static int get_state(void *ctx)
{
	see(ctx, 'g');
	return 0;
}

static int resolve(void *ctx, uint64_t number, struct dcpload_part *part)
{
	(void)number;
	(void)part;
	see(ctx, 'r');
	return 0;
}

static int commit(void *ctx, uint64_t number, const struct dcpload_part *part)
{
	(void)number;
	(void)part;
	see(ctx, 'c');
	return 0;
}

/* Numbers of manifests are read as reals; what is no JSON is not in them. */
static int object(void *ctx, const char *key, const char *type, const char *json, uint64_t n)
{
	const size_t how = JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL;
	struct seen *s = ctx;
	json_t *got = json ? json_loadb(json, n, how, NULL) : NULL, *o = NULL, *want;

	see(s, 'o');
	s->objects++;
	for (size_t i = 0; i < json_array_size(s->want); i++) {
		o = json_array_get(s->want, i);
		if (strcmp(json_string_value(json_object_get(o, "key")), key) == 0)
			break;
	}
	want = json_object_get(o, "json");
	s->bad += expect(got && json[n] == '\0');
	s->bad += expect(!want || json_is_null(want) || json_equal(got, want));
	s->bad += expect(!strcmp(json_string_value(json_object_get(o, "type")), type));
	json_decref(got);
	return 0;
}

static int set_state(void *ctx)
{
	struct seen *s = ctx;

	see(s, 's');
	return s->fail;
}

static int run_rank(const struct dcpload_comm *comm, void *arg)
{
	const struct job *j = arg;
	struct dcpload_comm own = *comm;
	struct seen s = { .want = j->objects };
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = DCPLOAD_IO_BUFFERED,
					       .version = "20",
					       .cache = "",
					       .device = getenv("DCPFS_DEVICE") };
	const struct dcpload_hooks hooks = { .size = sizeof(hooks),
					     .ctx = &s,
					     .resolve = resolve,
					     .commit = commit,
					     .get_state = get_state,
					     .object = object,
					     .set_state = set_state };
	struct dcpload_plan *plan = NULL;
	struct dcpload_error err = { 0 };
	struct dcpload *ck = NULL;
	int bad = 0, rc;

	own.flags = j->flags;
	s.fail = j->failing == (int)comm->rank ? -ENOTUNIQ : 0;
	rc = dcpload_open(&own, "tests/golden/dcp-fsdp2/ckpt", &config, &ck, &err);
	if (rc == 0)
		rc = dcpload_plan_create(ck, 0, &plan, &err);
	if (rc == 0)
		rc = dcpload_want_layout(plan, "fsdp3", comm->rank, NULL, &err);
	dcpload_plan_hooks(plan, &hooks);
	if (rc == 0)
		rc = dcpload_plan_finish(plan, &err);
	bad += expect(rc == 0) + expect(dcpload_wait(plan, 0, &err) == -EINVAL);
	for (int i = 0; i < 2 && !bad; i++) {
		s.n = s.objects = 0;
		bad += expect(dcpload_start(plan, &err) == 0);
		bad += expect(dcpload_start(plan, &err) == -EBUSY);
		if (j->leave)
			break;
		while ((rc = dcpload_wait(plan, i ? 1 : -1, &err)) == -EAGAIN)
			;
		bad += expect(dcpload_wait(plan, -1, NULL) == -EINVAL);
		bad += expect(pthread_equal(s.by, pthread_self()) == (j->flags != 0));
		bad += expect(strcmp(s.calls, "grcos") == 0);
		bad += expect(s.objects == json_array_size(j->objects)) + s.bad;
		if (j->failing < 0)
			bad += expect(rc == 0) + expect(dcpload_check(plan, &err) == 0);
		else
			bad += expect(rc == -ENOTUNIQ && err.rank == j->failing &&
				      strstr(err.text, "set_state() failed"));
	}
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return bad;
}

static void started_objects_reach_every_rank(void **state)
{
	json_t *m = t_golden_manifest("dcp-fsdp2"), *v;
	const json_t *objects = NULL;
	size_t i;

	(void)state;
	json_array_foreach(
		json_object_get(m, "versions"), i,
		v) if (strcmp(json_string_value(json_object_get(v, "name")), "step-20") == 0)
		objects = json_object_get(v, "objects");
	assert_true(json_array_size(objects) > 50);
	for (i = 0; i < 8; i++) {
		struct job j = { .objects = objects,
				 .failing = i & 1 ? 1 : -1,
				 .flags = i & 2 ? DCPLOAD_COMM_ONE_THREAD : 0,
				 .leave = i == 4 };

		assert_int_equal(t_comm_run(RANKS, run_rank, &j), 0);
	}
	json_decref(m);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(started_objects_reach_every_rank),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
