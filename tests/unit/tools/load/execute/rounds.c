/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each byte is read by one rank of the job: a rank that is gone, or says nothing any more, at
 * each step; that no byte is read twice, by a job or by a node; and that messages bring hardly more
 * than is needed.
 */
#include "tests/unit/t.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "tests/unit/t/comm.h"
#include "tests/unit/t/fault.h"
#include "tests/unit/t/load.h"
#include "tools/load/load.h"

enum { RANKS = 3, VICTIM = 1 };

/* ---- a rank that is lost ---- */

struct lost {
	const char *root;
	uint32_t timeout_ms;
	uint64_t after; /* calls of the transport before the one where the victim is lost */
	bool silent;    /* it sleeps while the others give up, and is gone only then */
	bool killed;    /* with its process */
	struct losing {
		const struct dcpload_comm *comm;
		struct lost *job;
		uint64_t calls;
		int code;
	} rank[RANKS];
};

/* All make the same calls: only for the one where the victim says nothing is the time short. */
static int lose(struct losing *l, int *timeout_ms)
{
	const struct lost *job = l->job;

	if (l->calls++ < job->after)
		return 0;
	if (job->silent)
		*timeout_ms /= 200;
	if (l->comm->rank != VICTIM)
		return 0;
	if (job->killed)
		kill(getpid(), SIGKILL);
	if (job->silent && l->calls == job->after + 1)
		usleep(300000);
	return -ECONNRESET;
}

static int allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct losing *l = ctx;
	int rc = lose(l, &timeout_ms);

	return rc ? rc : l->comm->allgather(l->comm->ctx, mine, n, all, timeout_ms);
}

static int alltoallv(void *ctx, const void *const *send, const uint64_t *nsend,
		     void *const *recv, const uint64_t *nrecv, int timeout_ms)
{
	struct losing *l = ctx;
	int rc = lose(l, &timeout_ms);

	return rc ? rc : l->comm->alltoallv(l->comm->ctx, send, nsend, recv, nrecv, timeout_ms);
}

static int rank_load(const struct dcpload_comm *comm, void *arg)
{
	struct lost *job = arg;
	struct losing *l = &job->rank[comm->rank];
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = DCPLOAD_IO_DIRECT,
					       .exchange = DCPLOAD_EXCHANGE_ALL,
					       .staging = 1,
					       .timeout_ms = job->timeout_ms,
					       .version = "1",
					       .cache = "" };
	struct dcpload_error err = { 0 };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	struct dcpload_comm own = *comm;

	own.ctx = l;
	own.allgather = allgather;
	own.alltoallv = alltoallv;
	*l = (struct losing){ .comm = comm, .job = job };
	l->code = dcpload_open(&own, job->root, &config, &ck, &err);
	if (l->code == 0)
		l->code = dcpload_plan_create(ck, 0, &plan, &err);
	if (l->code == 0)
		l->code = dcpload_want_layout(plan, "fsdp3", comm->rank, NULL, &err);
	if (l->code == 0)
		l->code = dcpload_plan_finish(plan, &err);
	if (l->code == 0)
		l->code = dcpload_execute(plan, &err);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return (l->code < 0 && err.text[0] == '\0') || (job->killed && l->code != -ECONNRESET);
}

/*
 * Losing it after @after calls, the others fail, or the job was over; and did the victim get so
 * far?
 */
static bool lose_after(struct lost *job, uint64_t after)
{
	bool lost;

	job->after = after;
	assert_int_equal(t_comm_run(RANKS, rank_load, job), 0);
	lost = job->rank[VICTIM].calls > after;
	for (uint32_t r = 0; r < RANKS; r++)
		if ((job->rank[r].code < 0) != lost)
			fail_msg("call %llu: rank %u returns %d", (unsigned long long)after, r,
				 job->rank[r].code);
	return lost;
}

static void a_lost_rank_fails_all(void **state)
{
	const struct t_load *f = *state;
	struct lost job = { .root = f->d.root, .timeout_ms = 20000 };
	uint64_t after = 0;

	while (lose_after(&job, after))
		after++;
	print_message("           %llu steps\n", (unsigned long long)after);
	assert_true(after > 20);
	job.silent = true;
	for (after = 1; lose_after(&job, after);)
		after += after < 20 ? 9 : 7;
}

static int rank_waits(const struct dcpload_comm *comm, void *arg)
{
	(void)comm;
	(void)arg;
	pause();
	return 0;
}

/* The same of processes, of which one is killed; and all, when they do not end. */
static void a_killed_rank_fails_all(void **state)
{
	const struct t_load *f = *state;
	struct lost job = { .root = f->d.root, .timeout_ms = INT32_MAX, .killed = true };

	for (; job.after <= 20; job.after += 4)
		assert_int_equal(t_comm_run_nodes(RANKS, 1, 600000, rank_load, &job), 1);
	assert_int_equal(t_comm_run_nodes(RANKS, 2, 0, rank_waits, NULL), RANKS);
}

/*
 * The threads that read for later rounds end with the round that fails: they do not wait out the
 * timeout.
 */
static void a_rank_lost_while_reading_fails_all(void **state)
{
	struct t_dir d;
	struct lost job = { .root = d.root, .timeout_ms = INT32_MAX };
	uint64_t calls;

	(void)state;
	t_dir_make(&d, "test_load");
	t_load_put_large(&d, "step-1/model.safetensors", 6);
	assert_false(lose_after(&job, UINT64_MAX));
	calls = job.rank[VICTIM].calls;
	/* The last are to agree, twice; before them are nine rounds, or more. */
	assert_true(lose_after(&job, calls - 8));
	t_dir_remove(&d);
}

/* Processes on one node, of which the victim gets no thread, as stacks do not fit in memory. */
static int rank_without_thread(const struct dcpload_comm *comm, void *arg)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = DCPLOAD_IO_DIRECT,
					       .exchange = DCPLOAD_EXCHANGE_NODE,
					       .staging = 1,
					       .timeout_ms = INT32_MAX,
					       .cache = "" };
	struct dcpload_error err = { 0 };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	pthread_attr_t large;
	int rc = dcpload_open(comm, arg, &config, &ck, &err);

	if (rc == 0) {
		ck->nnodes = 1;
		ck->self = comm->rank;
		ck->nlocal = comm->ranks;
		for (uint32_t r = 0; r < comm->ranks; r++)
			ck->local[r] = r;
		rc = dcpload_plan_create(ck, 0, &plan, &err);
	}
	if (rc == 0)
		rc = dcpload_want_layout(plan, "fsdp3", comm->rank, NULL, &err);
	if (rc == 0)
		rc = dcpload_plan_finish(plan, &err);
	if (rc == 0 && comm->rank == VICTIM) {
		pthread_attr_init(&large);
		pthread_attr_setstacksize(&large, (size_t)1 << 47);
		pthread_setattr_default_np(&large);
		pthread_attr_destroy(&large);
	}
	rc = rc == 0 && dcpload_execute(plan, &err) == -EAGAIN && err.rank == VICTIM ? 0 : 1;
	if (rc)
		fprintf(stderr, "rank %u: %s\n", comm->rank, err.text);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return rc;
}

static void a_rank_without_thread_fails_all(void **state)
{
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "test_load");
	t_load_put_large(&d, "model.safetensors", 6);
	assert_int_equal(t_comm_run_nodes(RANKS, 1, 60000, rank_without_thread, d.root), 0);
	t_dir_remove(&d);
}

/* ---- once ---- */

struct once {
	struct t_dir d;
	uint32_t exchange, nodes, used;
	const char *layout, *part; /* the digits: what each rank has of it; -: nothing */
	bool buffered;             /* the last rank reads through the page cache */
	uint64_t read[4];
	bool cached; /* what was dropped from the page cache is there */
};

/* Ranks take turns on @nodes machines. */
static int rank_once(const struct dcpload_comm *comm, void *arg)
{
	struct once *o = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = o->buffered && comm->rank == 3
							     ? DCPLOAD_IO_BUFFERED
							     : DCPLOAD_IO_DIRECT,
					       .exchange = o->exchange,
					       .staging = 1,
					       .cache = "" };
	struct dcpload_report report = { .size = sizeof(report) };
	struct dcpload_error err = { 0 };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	int rc = dcpload_open(comm, o->d.root, &config, &ck, &err);

	if (rc == 0) {
		ck->nnodes = o->nodes;
		ck->nlocal = 0;
		for (uint32_t r = 0; r < comm->ranks; r++) {
			ck->node[r] = r % o->nodes;
			if (r == comm->rank)
				ck->self = ck->nlocal;
			if (r % o->nodes == comm->rank % o->nodes)
				ck->local[ck->nlocal++] = r;
		}
		rc = dcpload_plan_create(ck, 0, &plan, &err);
	}
	if (rc == 0 && o->part[comm->rank] != '-')
		rc = dcpload_want_layout(plan, o->layout, (uint32_t)(o->part[comm->rank] - '0'),
					 NULL, &err);
	if (rc == 0)
		rc = dcpload_plan_finish(plan, &err);
	if (rc == 0 && o->exchange == DCPLOAD_EXCHANGE_AUTO) {
		rc = dcpload_drop_caches(plan, &err);
		if (rc == 0)
			rc = dcpload_plan_rebase(plan, ck, &err);
	}
	if (rc == 0)
		rc = dcpload_execute(plan, &err);
	if (rc == 0)
		rc = dcpload_check(plan, &err);
	if (rc == 0)
		dcpload_plan_report(plan, &report);
	if (rc == 0 && comm->rank == 0)
		o->used = report.exchange;
	if (rc == 0 && comm->rank == 0)
		o->cached = strstr(report.exchange_why, "is in the page cache");
	o->read[comm->rank] = report.read;
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return expect(rc == 0);
}

/* Of 2 MiB, of which ranks need a half or a quarter or nothing, by 4 ranks on as many nodes. */
static void each_byte_is_read_once(void **state)
{
	static const struct {
		uint32_t exchange, nodes, times;
		bool remote;
		uint32_t uses;
		const char *layout, *part;
		bool buffered;
	} cases[] = {
		{ DCPLOAD_EXCHANGE_ALL, 1, 2 },
		{ DCPLOAD_EXCHANGE_ALL, 2, 2 },
		{ DCPLOAD_EXCHANGE_ALL, 4, 2 },
		{ DCPLOAD_EXCHANGE_NODE, 1, 2 },
		{ DCPLOAD_EXCHANGE_NODE, 2, 4 },
		{ DCPLOAD_EXCHANGE_NODE, 4, 4 },
		{ DCPLOAD_EXCHANGE_NEVER, 1, 4 },
		/* cold files */
		{ DCPLOAD_EXCHANGE_AUTO, 2, 2, true, DCPLOAD_EXCHANGE_ALL },
		{ DCPLOAD_EXCHANGE_AUTO, 1, 2, true, DCPLOAD_EXCHANGE_NODE },
		/*
		 * no byte for two ranks of a node; on one of the nodes; where one rank reads
		 * otherwise
		 */
		{ DCPLOAD_EXCHANGE_AUTO, 2, 4, false, DCPLOAD_EXCHANGE_NEVER },
		{ DCPLOAD_EXCHANGE_AUTO, 1, 2, false, DCPLOAD_EXCHANGE_NEVER, "fsdp4", "0123" },
		{ DCPLOAD_EXCHANGE_AUTO, 2, 3, false, DCPLOAD_EXCHANGE_NODE, "fsdp2", "0010" },
		/* no byte for two, but nothing for some: all ranks read */
		{ DCPLOAD_EXCHANGE_AUTO, 1, 2, false, DCPLOAD_EXCHANGE_NODE, "fsdp2", "01--" },
		{ DCPLOAD_EXCHANGE_AUTO, 2, 2, false, DCPLOAD_EXCHANGE_NODE, "fsdp2", "01--" },
		{ DCPLOAD_EXCHANGE_AUTO, 1, 2, false, DCPLOAD_EXCHANGE_NODE, "fsdp4", "0123",
		  true },
	};
	struct once o;

	(void)state;
	t_dir_make(&o.d, "test_load");
	t_load_put_large(&o.d, "model.safetensors", 2);
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		uint64_t all = 0, want = (uint64_t)cases[i].times << 20;

		o.exchange = cases[i].exchange;
		o.nodes = cases[i].nodes;
		o.layout = cases[i].layout ? cases[i].layout : "fsdp2";
		o.part = cases[i].part ? cases[i].part : "0011";
		o.buffered = cases[i].buffered;
		t_fault_remote = cases[i].remote;
		assert_int_equal(t_comm_run(4, rank_once, &o), 0);
		t_fault_remote = false;
		if (o.exchange == DCPLOAD_EXCHANGE_AUTO && o.cached) {
			print_message("           no cold files: these stay in memory\n");
			break;
		}
		if (o.exchange == DCPLOAD_EXCHANGE_AUTO && o.used != cases[i].uses)
			fail_msg("%s, %s on %u nodes: exchange %u, not %u", o.layout, o.part,
				 o.nodes, o.used, cases[i].uses);
		for (uint32_t r = 0; r < 4; r++)
			all += o.read[r];
		if (all < want || all > want + want / 50)
			fail_msg("exchange %u on %u nodes: %llu bytes were read, not %llu",
				 o.exchange, o.nodes, (unsigned long long)all,
				 (unsigned long long)want);
	}
	t_dir_remove(&o.d);
}

/* ---- hardly more than is needed ---- */

enum { COLUMNS = 5 }; /* tensors */

static const uint64_t columns[COLUMNS] = { 1, 12, 250, 260, 5000 }; /* of a rank */

struct narrow {
	struct t_dir d;
	const char *dtype; /* to convert to */
	uint64_t needed[COLUMNS], received[COLUMNS];
};

/* Each of 4 ranks has its columns of one tensor. */
static int rank_narrow(const struct dcpload_comm *comm, void *arg)
{
	struct narrow *w = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .exchange = DCPLOAD_EXCHANGE_ALL,
					       .cache = "" };
	struct dcpload_error err = { 0 };
	struct dcpload *ck = NULL;
	int rc = dcpload_open(comm, w->d.root, &config, &ck, &err);

	for (size_t i = 0; i < COLUMNS && rc == 0; i++) {
		const char key[] = { (char)('a' + i), 0 }, *keys[] = { key };
		const struct dcpload_select only = {
			.size = sizeof(only), .nkeys = 1, .keys = keys, .dtype = w->dtype
		};
		struct dcpload_report report = { .size = sizeof(report) };
		struct dcpload_plan *plan = NULL;

		rc = dcpload_plan_create(ck, 0, &plan, &err);
		if (rc == 0)
			rc = dcpload_want_layout(plan, "dim1x4", comm->rank, &only, &err);
		if (rc == 0)
			rc = dcpload_plan_finish(plan, &err);
		if (rc == 0)
			rc = dcpload_execute(plan, &err);
		if (rc == 0)
			rc = dcpload_check(plan, &err);
		if (rc == 0 && dcpload_plan_report(plan, &report) == 0) {
			__atomic_add_fetch(&w->needed[i], report.needed, __ATOMIC_RELAXED);
			__atomic_add_fetch(&w->received[i], report.received, __ATOMIC_RELAXED);
		}
		dcpload_plan_free(plan);
	}
	dcpload_close(ck);
	return rc < 0 ? expect(fprintf(stderr, "%s\n", err.text) < 0) : 0;
}

/* Columns of 1 MiB each. */
static void put_narrow(const struct t_dir *d)
{
	static char header[1024];
	static uint8_t file[8 + sizeof(header) + (COLUMNS << 20)];
	uint64_t n = (uint64_t)snprintf(header, sizeof(header), "{"), off = 0;

	for (size_t i = 0; i < COLUMNS; i++) {
		uint64_t width = 4 * columns[i], rows = (1 << 20) / width / 2, end;

		end = off + rows * width * 2;
		n += (uint64_t)snprintf(header + n, sizeof(header) - n,
					"%s\"%c\":{\"dtype\":\"BF16\",\"shape\":[%llu,%llu],"
					"\"data_offsets\":[%llu,%llu]}",
					i ? "," : "", (char)('a' + i), (unsigned long long)rows,
					(unsigned long long)width, (unsigned long long)off,
					(unsigned long long)end);
		off = end;
	}
	header[n++] = '}';
	memcpy(file, &n, 8);
	memcpy(file + 8, header, n);
	for (size_t i = 8 + n; i < 8 + n + off; i++)
		file[i] = t_load_byte(i, 3);
	t_dir_put(d, "model.safetensors", file, 8 + n + off);
}

static void narrow_windows_work(void **state)
{
	static struct narrow w;

	(void)state;
	t_dir_make(&w.d, "test_load");
	put_narrow(&w.d);
	for (int cast = 0; cast < 2; cast++) {
		memset(w.needed, 0, sizeof(w.needed));
		memset(w.received, 0, sizeof(w.received));
		w.dtype = cast ? "F32" : NULL;
		assert_int_equal(t_comm_run(4, rank_narrow, &w), 0);
		for (size_t i = 0; i < COLUMNS; i++)
			if (w.needed[i] < 1000000 ||
			    w.received[i] > w.needed[i] + w.needed[i] / 8)
				fail_msg("%llu columns: %llu bytes for %llu",
					 (unsigned long long)columns[i],
					 (unsigned long long)w.received[i],
					 (unsigned long long)w.needed[i]);
	}
	t_dir_remove(&w.d);
}

/* ---- what is wanted more than once ---- */

/* Four bands of columns, whose runs lie between each other, and all of them again. */
static int rank_bands(const struct dcpload_comm *comm, void *arg)
{
	const struct t_dir *d = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .exchange = DCPLOAD_EXCHANGE_ALL,
					       .staging = 1,
					       .cache = "" };
	struct dcpload_error err = { 0 };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	struct dcpload_tensor b;
	int rc = dcpload_open(comm, d->root, &config, &ck, &err);

	if (rc == 0)
		rc = dcpload_tensor(ck, "b", &b, &err);
	if (rc == 0)
		rc = dcpload_plan_create(ck, 0, &plan, &err);
	for (uint64_t i = 0; i < 5 && rc == 0; i++) {
		const uint64_t n = b.shape[1] / 4, lo[] = { 0, i < 4 ? i * n : 0 },
			       len[] = { b.shape[0], i < 4 ? n : b.shape[1] };

		rc = dcpload_want(plan,
				  &(struct dcpload_want){ .size = sizeof(struct dcpload_want),
							  .key = "b",
							  .ndim = 2,
							  .lo = lo,
							  .len = len },
				  &err);
	}
	if (rc == 0)
		rc = dcpload_plan_finish(plan, &err);
	if (rc == 0)
		rc = dcpload_execute(plan, &err);
	if (rc == 0)
		rc = dcpload_check(plan, &err);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return rc < 0 ? expect(fprintf(stderr, "%s\n", err.text) < 0) : 0;
}

static void bands_are_loaded_in_rounds(void **state)
{
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "test_load");
	put_narrow(&d);
	assert_int_equal(t_comm_run(2, rank_bands, &d), 0);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_lost_rank_fails_all, t_load_setup,
						t_load_teardown),
		cmocka_unit_test_setup_teardown(a_killed_rank_fails_all, t_load_setup,
						t_load_teardown),
		cmocka_unit_test(a_rank_lost_while_reading_fails_all),
		cmocka_unit_test(a_rank_without_thread_fails_all),
		cmocka_unit_test(each_byte_is_read_once),
		cmocka_unit_test(narrow_windows_work),
		cmocka_unit_test(bands_are_loaded_in_rounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
