/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that want different keys, and files that change between plan and execution: all ranks come
 * to the same end.
 * covers: keyset
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "tests/unit/t/comm.h"
#include "tests/unit/t/load.h"

/* ---- ranks that differ, and files that change ---- */

struct ranks {
	const char *source;
	uint32_t flags, exchange, io;
	const char *const *keys; /* of each rank two; NULL: none */
	const char *says;
	int rc;
	/* Done by rank 0 between plan and execution. */
	void (*spoil)(const struct t_dir *d);
	const struct t_dir *d;
};

static int rank_differ(const struct dcpload_comm *comm, void *arg)
{
	const struct ranks *r = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = r->io,
					       .exchange = r->exchange,
					       .staging = 1,
					       .timeout_ms = 60000,
					       .cache = "" };
	struct dcpload_error err = { 0 };
	struct dcpload *ck;
	struct dcpload_plan *p = NULL;
	uint8_t word[8], all[64];
	int bad = 0, rc = dcpload_open(comm, r->source, &config, &ck, &err);

	if (rc < 0)
		return expect(fprintf(stderr, "%s\n", err.text) < 0);
	rc = dcpload_plan_create(ck, r->flags, &p, &err);
	for (int i = 0; i < 2 && rc == 0; i++)
		if (r->keys[2 * comm->rank + i])
			rc = dcpload_want(
				p,
				&(struct dcpload_want){ .size = sizeof(struct dcpload_want),
							.key = r->keys[2 * comm->rank + i] },
				&err);
	bad += expect(rc == 0);
	rc = dcpload_plan_finish(p, &err);
	if (r->spoil) {
		bad += expect(rc == 0);
		if (comm->rank == 0)
			r->spoil(r->d);
		bad += expect(comm->allgather(comm->ctx, word, 8, all, 60000) == 0);
		rc = dcpload_execute(p, &err);
	}
	if (rc != r->rc || (rc && (err.code != rc || !strstr(err.text, r->says)))) {
		fprintf(stderr, "rank %u: %d, %s\n", comm->rank, rc, err.text);
		bad++;
	}
	dcpload_plan_free(p);
	dcpload_close(ck);
	return bad;
}

static void differing_ranks_are_reported(void **state)
{
	static const char *const same[] = { "model.f", "model.b", "model.b",
					    "model.f", "model.f", "model.b" };
	static const char *const twice[] = { "model.f", "model.f", "model.f",
					     NULL,      "model.f", NULL };
	static const char *const more[] = { "model.f", NULL,      "model.f",
					    NULL,      "model.b", "model.f" };
	static const char *const other[] = {
		"model.f", NULL, "model.b", NULL, "model.b", NULL
	};
	static const struct {
		const char *what;
		struct ranks r;
	} cases[] = {
		{ "the same keys", { .flags = DCPLOAD_SAME_KEYS, .keys = same } },
		{ "one of them twice", { .flags = DCPLOAD_SAME_KEYS, .keys = twice } },
		{ "rank 2 has one more",
		  { .flags = DCPLOAD_SAME_KEYS,
		    .keys = more,
		    .rc = -EINVAL,
		    .says = "rank 0 wants 0 that rank 2 does not; rank 2 wants 1 that rank 0 "
			    "does not, as model.b" } },
		{ "each has its own",
		  { .flags = DCPLOAD_SAME_KEYS,
		    .keys = other,
		    .rc = -EINVAL,
		    .says = "rank 0 wants 1 that rank 1 does not, as model.f; rank 1 wants 1 "
			    "that rank 0 does not, as model.b" } },
		{ "together all", { .flags = DCPLOAD_STRICT, .keys = other } },
		{ "no rank wants one",
		  { .flags = DCPLOAD_STRICT,
		    .keys = twice,
		    .rc = -EINVAL,
		    .says = "model.b is stored, and no rank wants it" } },
	};
	struct t_load *f = *state;

	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct ranks r = cases[i].r;

		t_case(cases[i].what);
		r.source = t_dir_path(&f->d, "step-2");
		assert_int_equal(t_comm_run(3, rank_differ, &r), 0);
	}
}

/* ---- many wants ---- */

struct counted {
	const struct dcpload_comm *comm;
	size_t most; /* bytes that a rank has gathered at once */
};

static int allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct counted *c = ctx;

	c->most = DCP_MAX(c->most, n);
	return c->comm->allgather(c->comm->ctx, mine, n, all, timeout_ms);
}

static int rank_many(const struct dcpload_comm *comm, void *arg)
{
	const struct dcpload_config config = { .size = sizeof(config), .cache = "" };
	const struct dcpload_want want = { .size = sizeof(want), .key = "model.f" };
	struct dcpload_comm own = *comm;
	struct counted c = { comm, 0 };
	struct dcpload_error err = { 0 };
	struct dcpload_plan *p = NULL;
	const char *key = "";
	struct dcpload *ck;
	int bad, rc;

	own.ctx = &c;
	own.allgather = allgather;
	own.split = NULL;
	rc = dcpload_open(&own, arg, &config, &ck, &err);
	if (rc == 0)
		rc = dcpload_plan_create(ck, DCPLOAD_PARTIAL | DCPLOAD_SAME_KEYS, &p, &err);
	for (int i = 0; i < 2000 && rc == 0; i++)
		rc = dcpload_want(p, &want, &err);
	c.most = 0;
	if (rc == 0)
		rc = dcpload_plan_finish(p, &err);
	bad = expect(rc == 0) + expect(c.most < 4096);
	bad += expect(dcpload_plan_list(p, DCPLOAD_UNEXPECTED, 0, &key, NULL) == 0);
	bad += expect(strcmp(key, "model.b") == 0);
	dcpload_plan_free(p);
	dcpload_close(ck);
	return bad;
}

/* Ranks that want the same tell each other no keys. */
static void equal_wishes_exchange_no_keys(void **state)
{
	struct t_load *f = *state;
	char *source = strdup(t_dir_path(&f->d, "step-2"));

	assert_int_equal(t_comm_run(3, rank_many, source), 0);
	free(source);
}

static void cut_file(const struct t_dir *d)
{
	assert_int_equal(truncate(t_dir_path(d, "model.safetensors"), 6000), 0);
}

static void rewrite_file(const struct t_dir *d)
{
	t_load_put(d, "model.safetensors", T_LOAD_HEADER, 5);
	t_dir_touch(d, "model.safetensors", 1700000000000000000);
}

/* One rank reads what all need, and it is not the first: all say what that one found. */
static void spoiled_files_are_reported(void **state)
{
	static const char *const all[] = { "model.f", "model.b", "model.f", "model.b",
					   "model.f", "model.b", "model.f", "model.b" };
	static const uint32_t exchanges[] = { DCPLOAD_EXCHANGE_NEVER, DCPLOAD_EXCHANGE_NODE,
					      DCPLOAD_EXCHANGE_ALL };
	static void (*const spoil[])(const struct t_dir *) = { cut_file, rewrite_file };

	(void)state;
	for (size_t i = 0; i < 12; i++) {
		struct t_dir d;
		struct ranks r = { .keys = all,
				   .exchange = exchanges[i % 3],
				   .io = i / 3 % 2 ? DCPLOAD_IO_DIRECT : DCPLOAD_IO_BUFFERED,
				   .spoil = spoil[i / 6],
				   .says = "model.safetensors",
				   .rc = i < 6 ? -EIO : 0, /* planned again */
				   .d = &d };

		t_dir_make(&d, "test_load");
		t_load_put(&d, "model.safetensors", T_LOAD_HEADER, 4);
		r.source = d.root;
		assert_int_equal(t_comm_run(4, rank_differ, &r), 0);
		t_dir_remove(&d);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(equal_wishes_exchange_no_keys, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(differing_ranks_are_reported, t_load_setup,
						t_load_teardown),
		cmocka_unit_test(spoiled_files_are_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
