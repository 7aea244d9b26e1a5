/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks agree on, over ranks that are threads; and the transport of one process.
 */
#include <malloc.h>
#include <stdatomic.h>

#include "core/base/base.h"
#include "tests/unit/t.h"
#include "tests/unit/t/comm.h"
#include "tools/load/comm/comm.h"

#define ANY 60000

/* In a rank: a failure counts and is told. */
#define expect(what) ((what) ? 0 : (fprintf(stderr, "%d: not so: %s\n", __LINE__, #what), 1))

/* Which ranks fail, and how; who is heard. */
struct case_agree {
	const char *what;
	uint32_t ranks;
	uint64_t failing; /* a bit a rank */
	int rank, code;
	uint64_t late, stopped; /* those with -ETIMEDOUT, -ECANCELED */
};

static int rank_agree(const struct dcpload_comm *comm, void *arg)
{
	const struct case_agree *c = arg;
	struct dcpload_error err = { 0 };
	char text[64];
	int rc = 0, bad = 0;

	rc = c->failing >> comm->rank & 1   ? -ENOENT - (int)comm->rank
	     : c->late >> comm->rank & 1    ? -ETIMEDOUT
	     : c->stopped >> comm->rank & 1 ? -ECANCELED
					    : 0;
	if (rc < 0)
		load_fail(&err, rc, "key of rank %u", comm->rank);
	rc = load_agree(comm, rc, &err, ANY);
	bad += expect(rc == c->code);
	if (c->code < 0) {
		snprintf(text, sizeof(text), "key of rank %d", c->rank);
		bad += expect(err.code == c->code) + expect(err.rank == c->rank);
		bad += expect(strcmp(err.text, text) == 0);
	}
	return bad;
}

static void ranks_agree_on_a_code(void **state)
{
	static const struct case_agree cases[] = {
		{ "all is well", 3, 0, 0, 0 },
		{ "one rank fails", 3, 4, 2, -ENOENT - 2 },
		{ "the lowest of those that fail is heard", 8, 0x88, 3, -ENOENT - 3 },
		{ "all fail", 5, 0x1f, 0, -ENOENT },
		{ "those that waited for it in vain are not", 4, 8, 3, -ENOENT - 3, 3, 4 },
		{ "nor those that only stopped", 4, 0, 2, -ETIMEDOUT, 4, 3 },
		{ "all stopped", 3, 0, 1, -ECANCELED, 0, 6 },
		{ "more ranks than text fits at once", 64, 1u << 31, 31, -ENOENT - 31 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct case_agree c = cases[i];

		t_case(c.what);
		assert_int_equal(t_comm_run(c.ranks, rank_agree, &c), 0);
	}
}

/* A text that needs several rounds, a failure without a text, and a struct that no rank filled. */
static int rank_texts(const struct dcpload_comm *comm, void *arg)
{
	struct dcpload_error err = { 0 }, old = { 0 };
	int bad = 0;

	(void)arg;
	if (comm->rank == 1)
		load_fail(&err, -EIO, "%s%0*d", "long ", 2000, 7);
	bad += expect(load_agree(comm, comm->rank == 1 ? -EIO : 0, &err, ANY) == -EIO);
	bad += expect(strlen(err.text) == sizeof(err.text) - 1) + expect(err.rank == 1);
	bad += expect(strncmp(err.text, "long 000", 8) == 0);
	bad += expect(load_agree(comm, comm->rank == 1 ? -ENOMEM : 0, &old, ANY) == -ENOMEM);
	bad += expect(strcmp(old.text, strerror(ENOMEM)) == 0);
	/* What err says belongs to an earlier failure. */
	bad += expect(load_agree(comm, comm->rank == 0 ? -EPERM : 0, &err, ANY) == -EPERM);
	bad += expect(strcmp(err.text, strerror(EPERM)) == 0);
	bad += expect(load_agree(comm, comm->rank == 0 ? -EPERM : 0, NULL, ANY) == -EPERM);
	/* One rank says that another is at fault. */
	if (comm->rank == 2) {
		load_fail(&err, -EIO, "not by me");
		err.rank = 3;
	}
	bad += expect(load_agree(comm, comm->rank == 2 ? -EIO : 0, &err, ANY) == -EIO);
	bad += expect(err.rank == 3);
	return bad;
}

static void texts_are_gathered(void **state)
{
	(void)state;
	assert_int_equal(t_comm_run(4, rank_texts, NULL), 0);
	assert_int_equal(t_comm_run(64, rank_texts, NULL), 0);
}

static uint64_t blob_len(uint32_t rank, uint64_t most)
{
	return rank == 1 ? most : rank == 3 ? 0 : rank * 5 + 1;
}

static int rank_gather(const struct dcpload_comm *comm, void *arg)
{
	const uint64_t *most = arg;
	uint64_t n = blob_len(comm->rank, *most);
	struct dcpload_error err = { 0 };
	struct load_blobs all;
	char *mine = malloc(n + 1);
	int bad = 0;

	memset(mine, (int)('a' + comm->rank), n);
	bad += expect(load_gather(comm, mine, n, &all, &err, ANY) == 0);
	for (uint32_t r = 0; r < comm->ranks && !bad; r++) {
		const char *p = all.at[r];
		uint64_t wrong = 0;

		bad += expect((uintptr_t)p % 16 == 0) + expect(all.n[r] == blob_len(r, *most));
		for (uint64_t i = 0; i < all.n[r]; i++)
			wrong += p[i] != (char)('a' + r);
		bad += expect(wrong == 0);
	}
	if (!bad)
		load_blobs_free(&all);
	bad += expect(load_gather_first(comm, mine, n, &all, &err, ANY) == 0);
	bad += expect(!all.memory == (comm->rank != 0));
	for (uint32_t r = 0; r < comm->ranks && !bad; r++) {
		uint64_t len = blob_len(r, *most);
		const char *p = all.at[r];

		bad += expect(all.n[r] == len) + expect(!p == (comm->rank != 0));
		bad += expect(!p || !len || (p[0] == (char)('a' + r) && p[len - 1] == p[0]));
	}
	load_blobs_free(&all);
	free(mine);
	return bad;
}

static void gathering_keeps_the_order(void **state)
{
	static uint64_t most[] = { 0, 1, 4000, 10u << 20 };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(most); i++) {
		assert_int_equal(t_comm_run(1, rank_gather, &most[i]), 0);
		assert_int_equal(t_comm_run(5, rank_gather, &most[i]), 0);
	}
}

/* Bytes from rank to rank; *@arg: the most. */
static uint64_t sent(uint32_t from, uint32_t to, uint64_t most)
{
	return (from + to) % 3 ? most / (1 + from) + to : 0;
}

typedef int gather_fn(void *ctx, const void *mine, size_t n, void *all, int timeout_ms);

/* Memory while all ranks, which are threads, exchange. */
static struct {
	gather_fn *_Atomic allgather;
	_Atomic size_t most;
} watched;

static int watch(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	const struct mallinfo2 now = mallinfo2();

	if (now.uordblks + now.hblkhd > watched.most)
		watched.most = now.uordblks + now.hblkhd;
	return watched.allgather(ctx, mine, n, all, timeout_ms);
}

static int rank_mine(const struct dcpload_comm *comm, void *arg)
{
	const uint64_t *most = arg;
	struct dcpload_comm own = *comm;
	struct dcpload_error err = { 0 };
	void *send[8], *recv[8];
	uint64_t nsend[8], nrecv[8];
	int bad = 0;

	watched.allgather = comm->allgather;
	own.allgather = watch;
	for (uint32_t r = 0; r < comm->ranks; r++) {
		nsend[r] = sent(comm->rank, r, *most);
		nrecv[r] = sent(r, comm->rank, *most);
		send[r] = malloc(nsend[r] + 1);
		recv[r] = malloc(nrecv[r] + 1);
		memset(send[r], (int)(16 * comm->rank + r), nsend[r]);
	}
	bad += expect(load_gather_mine(&own, (const void *const *)send, nsend, recv, nrecv,
				       &err, ANY) == 0);
	for (uint32_t r = 0; r < comm->ranks; r++) {
		uint64_t wrong = 0;

		for (uint64_t i = 0; i < nrecv[r]; i++)
			wrong += ((uint8_t *)recv[r])[i] != 16 * r + comm->rank;
		bad += expect(wrong == 0);
	}
	nrecv[0] += comm->rank == 1; /* which all hear of */
	bad += expect(load_gather_mine(&own, (const void *const *)send, nsend, recv, nrecv,
				       &err, ANY) == (comm->ranks > 1 ? -EPROTO : 0));
	for (uint32_t r = 0; r < comm->ranks; r++) {
		free(send[r]);
		free(recv[r]);
	}
	return bad;
}

static void ranks_gather_only_their_own(void **state)
{
	static uint64_t most[] = { 0, 5, 100000, 12 << 20 };
	const size_t turn = 21 << 20; /* of all ranks, and of its own, in each */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(most); i++) {
		size_t own = 0;

		for (uint32_t r = 0; r < 4; r++)
			for (uint32_t d = 0; d < 4; d++)
				own += 2 * sent(r, d, most[i]);
		watched.most = 0;
		assert_int_equal(t_comm_run(1, rank_mine, &most[i]), 0);
		assert_int_equal(t_comm_run(4, rank_mine, &most[i]), 0);
		if (watched.most > own + 4 * turn)
			fail_msg("%zu bytes to exchange %zu", watched.most, own);
	}
}

/* A record that is longer on one rank: *@arg, or on none. */
static int rank_same(const struct dcpload_comm *comm, void *arg)
{
	const uint32_t *other = arg;
	struct dcpload_error err = { 0 };
	struct load_blobs all;
	uint64_t mine[2] = { comm->rank, 0 };
	char text[64];
	int bad = 0;

	if (*other < comm->ranks) {
		snprintf(text, sizeof(text), "ranks 0 and %u run different releases of dcpfs",
			 *other ? *other : 1);
		bad += expect(load_gather_same(comm, mine, comm->rank == *other ? 16 : 8, &all,
					       &err, ANY) == -EPROTO);
		return bad + expect(strcmp(err.text, text) == 0) + expect(!all.memory);
	}
	bad += expect(load_gather_same(comm, mine, 8, &all, &err, ANY) == 0);
	for (uint32_t r = 0; r < comm->ranks && !bad; r++)
		bad += expect(*(uint64_t *)all.at[r] == r);
	load_blobs_free(&all);
	return bad;
}

static void ranks_compare_bytes(void **state)
{
	(void)state;
	for (uint32_t other = 0; other < 4; other++)
		assert_int_equal(t_comm_run(3, rank_same, &other), 0);
}

/* Rank 2 ends after as many calls of its own as @arg says. */
static int rank_leaves(const struct dcpload_comm *comm, void *arg)
{
	const int *calls = arg;
	struct dcpload_error err = { 0 };
	struct load_blobs all;
	uint32_t node[8], nnodes;
	int rc = 0;

	for (int i = 0; rc == 0 && (comm->rank != 2 || i < *calls); i++) {
		if (i % 3 == 0)
			rc = load_agree(comm, 0, &err, ANY);
		else if (i % 3 == 1)
			rc = load_nodes(comm, node, &nnodes, &err, ANY);
		else {
			rc = load_gather(comm, "x", 1, &all, &err, ANY);
			if (rc == 0)
				load_blobs_free(&all);
		}
	}
	if (comm->rank == 2)
		return 0;
	return expect(rc == -ECONNRESET) + expect(err.code == rc) +
	       expect(strcmp(err.text, "threads: another rank has ended") == 0);
}

static void leaving_ranks_are_noticed(void **state)
{
	(void)state;
	for (int calls = 0; calls < 5; calls++)
		assert_int_equal(t_comm_run(4, rank_leaves, &calls), 0);
}

static int rank_nodes(const struct dcpload_comm *comm, void *arg)
{
	uint32_t node[8] = { 9, 9, 9, 9, 9, 9, 9, 9 }, nnodes = 0;
	int bad = 0;

	(void)arg;
	bad += expect(load_nodes(comm, node, &nnodes, NULL, ANY) == 0) + expect(nnodes == 1);
	for (uint32_t r = 0; r < comm->ranks; r++)
		bad += expect(node[r] == 0);
	return bad;
}

static void ranks_of_a_node_are_known(void **state)
{
	(void)state;
	assert_int_equal(t_comm_run(1, rank_nodes, NULL), 0);
	assert_int_equal(t_comm_run(8, rank_nodes, NULL), 0);
}

/* A communicator in which the others' messages are made up: nothing but zeros, and in the second
 * call what is told. load_agree, which takes the first, finds all well. */
struct told {
	const void *all;
	int calls;
};

static int told_allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct told *t = ctx;

	(void)timeout_ms;
	memset(all, 0, 4 * n);
	if (t->calls++ == 1)
		memcpy(all, t->all, 4 * n);
	memcpy(all, mine, n);
	return 0;
}

static void overflowing_sizes_are_refused(void **state)
{
	static const uint64_t huge[] = { 0, UINT64_MAX - 3, 1, 1 };
	static const uint64_t sum[] = { 0, 1ull << 63, 1ull << 63, 9 };
	static const uint64_t large[] = { 0, 1ull << 62, 1, 1 };
	uint64_t id[] = { 0, 0, 5, 6, 7, 8, 5, 6 };
	struct told told = { huge, 0 };
	struct dcpload_comm comm = {
		.size = sizeof(comm),
		.ranks = 4,
		.name = "told",
		.ctx = &told,
		.allgather = told_allgather,
	};
	struct dcpload_error err;
	struct load_blobs all;
	uint32_t node[4], n;

	(void)state;
	t_case("lengths that no memory has");
	assert_int_equal(load_gather(&comm, NULL, 0, &all, &err, ANY), -EOVERFLOW);
	assert_null(all.memory);
	told = (struct told){ sum, 0 };
	assert_int_equal(load_gather(&comm, NULL, 0, &all, &err, ANY), -EOVERFLOW);
	told = (struct told){ large, 0 };
	assert_int_equal(load_gather(&comm, NULL, 0, &all, &err, ANY), -EOVERFLOW);
	assert_int_equal(err.rank, 0);
	t_case("three machines");
	told = (struct told){ id, 0 };
	assert_int_equal(load_nodes(&comm, node, &n, &err, ANY), 0);
	assert_int_equal(n, 3);
	assert_int_equal(node[0], 0);
	assert_int_equal(node[1], 1);
	assert_int_equal(node[2], 2);
	assert_int_equal(node[3], 1);
}

static void bad_communicators_are_refused(void **state)
{
	struct dcpload_comm comm = load_alone;
	struct dcpload_error err;

	(void)state;
	assert_int_equal(load_comm_check(&comm, &err), 0);
	comm.rank = 1;
	assert_int_equal(load_comm_check(&comm, &err), -EINVAL);
	assert_string_equal(err.text, "the communicator's rank is 1 of 1");
	comm.ranks = 2;
	assert_int_equal(load_comm_check(&comm, &err), 0);
	comm.allgather = NULL;
	assert_int_equal(load_comm_check(&comm, &err), -EINVAL);
	comm.size--;
	assert_int_equal(load_comm_check(&comm, NULL), -EINVAL);
}

static void a_rank_alone_agrees(void **state)
{
	struct dcpload_comm *comm = NULL, *part = NULL;
	struct dcpload_error err;
	char in[4] = "abc", out[4] = "";
	const void *send[] = { in };
	void *recv[] = { out };
	uint64_t four = 4, three = 3;

	(void)state;
	assert_int_equal(dcpload_comm_open("alone", &comm, &err), 0);
	assert_int_equal(comm->ranks, 1);
	assert_int_equal(comm->allgather(comm->ctx, in, 4, out, ANY), 0);
	assert_string_equal(out, "abc");
	memset(out, 0, 4);
	assert_int_equal(comm->alltoallv(comm->ctx, send, &four, recv, &four, ANY), 0);
	assert_string_equal(out, "abc");
	assert_int_equal(comm->alltoallv(comm->ctx, send, &four, recv, &three, ANY), -EPROTO);
	assert_int_equal(load_agree(comm, -EIO, &err, ANY), -EIO);
	assert_string_equal(err.text, strerror(EIO));
	assert_int_equal(comm->split(comm->ctx, 7, 7, &part, ANY), 0);
	assert_int_equal(load_agree(part, 0, NULL, ANY), 0);
	dcpload_comm_close(part);
	dcpload_comm_close(comm);
	dcpload_comm_close(NULL);
	assert_int_equal(dcpload_comm_open("carrier pigeon", &comm, &err), -EINVAL);
	assert_non_null(strstr(err.text, "\"carrier pigeon\""));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_agree_on_a_code),
		cmocka_unit_test(texts_are_gathered),
		cmocka_unit_test(gathering_keeps_the_order),
		cmocka_unit_test(ranks_compare_bytes),
		cmocka_unit_test(ranks_gather_only_their_own),
		cmocka_unit_test(leaving_ranks_are_noticed),
		cmocka_unit_test(ranks_of_a_node_are_known),
		cmocka_unit_test(overflowing_sizes_are_refused),
		cmocka_unit_test(bad_communicators_are_refused),
		cmocka_unit_test(a_rank_alone_agrees),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
