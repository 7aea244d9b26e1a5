/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 64 ranks carry out the rounds of a job with real messages: as many, and with as many bytes, as the planner says.
 * With DCPFS_TEST_LAYERS=33334 of 100,000 small tensors.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/model/job/job.h"
#include "core/model/layout/layout.h"
#include "tests/unit/t/comm.h"
#include "tests/unit/t/load.h"
#include "tests/unit/t/model/layout.h"
#include "tests/unit/t/rounds.h"
#include "tools/load/load.h"
#include "tools/load/plan/schedule.h"

enum { RANKS = 64, FILES = 4, STAGING = 1 << 20 };

static uint32_t layers = 8;

/* ---- sizes of stripes ---- */

static void test_stripe(void **state)
{
	static const struct {
		uint64_t staging, ranks, slack, tried, most, want;
	} cases[] = {
		{ 64 << 20, 8, 0, 0, 0, 4 << 20 },
		{ 64 << 20, 8, 0, 4 << 20, 8 << 20, 4 << 20 },        /* it fits */
		{ 64 << 20, 4096, 0, 4 << 20, 504 << 20, 508 << 10 }, /* a part of it would */
		{ 64 << 20, 4096, 0, 4 << 20, 57 << 20, 2 << 20 },    /* hardly too large */
		{ 64 << 20, 4096, 0, 4096, 1 << 30, 4096 },           /* none is smaller */
		{ 64 << 20, 8, 0, 4 << 20, 64 << 20, 3727360 },       /* this always fits */
		{ 1 << 20, 4096, 4096, 0, 0, 253952 },
		{ 1 << 20, 4096, 4096, 253952, 1 << 30, 4096 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++)
		assert_int_equal(load_rounds_stripe(cases[i].staging, (uint32_t)cases[i].ranks,
						    cases[i].slack, cases[i].tried,
						    cases[i].most),
				 cases[i].want);
}

/* ---- a job ---- */

struct world {
	struct t_dir d;
	const char *layout;
	struct t_rounds want;
	struct counted {
		const struct dcpload_comm *comm;
		uint64_t rounds;
		struct t_rounds_of of;
	} got[RANKS];
};

/* A quarter of the layers to a file; of more than a few, small ones. */
static void put_layers(const struct t_dir *d)
{
	uint64_t off = 0, by = layers > 8 ? 4 : 1;
	struct dcp_buf header = DCP_BUF_INIT;

	for (uint32_t i = 0; i < layers; i++) {
		const struct {
			const char *name, *dtype;
			uint64_t rows, cols, size;
		} tensors[] = { { "q", "F32", 256 / by, 128 / by / by, 4 },
				{ "o", "BF16", 192 / by, 256 / by / by, 2 },
				{ "norm", "F32", 1, 200 / by / by, 4 } };

		for (size_t k = 0; k < DCP_LEN(tensors); k++) {
			uint64_t end =
				off + tensors[k].rows * tensors[k].cols * tensors[k].size;

			dcp_buf_printf(&header,
				       "%c\"layers.%u.%s.weight\":{\"dtype\":\"%s\","
				       "\"shape\":[%llu,%llu],\"data_offsets\":[%llu,%llu]}",
				       header.n ? ',' : '{', i, tensors[k].name,
				       tensors[k].dtype, (unsigned long long)tensors[k].rows,
				       (unsigned long long)tensors[k].cols,
				       (unsigned long long)off, (unsigned long long)end);
			off = end;
		}
		if ((i + 1) * FILES / layers != i * FILES / layers) {
			uint64_t size;
			uint8_t *p;
			char name[64];

			dcp_buf_str(&header, "}");
			size = header.n;
			p = malloc(8 + size + off);
			memcpy(p, &size, 8);
			memcpy(p + 8, header.p, size);
			for (uint64_t b = 0; b < off; b++)
				p[8 + size + b] = t_load_byte(b, i);
			snprintf(name, sizeof(name), "model-%05d-of-%05d.safetensors",
				 (int)((i + 1) * FILES / layers), FILES);
			t_dir_put(d, name, p, 8 + size + off);
			free(p);
			dcp_buf_reset(&header);
			off = 0;
		}
	}
	dcp_buf_finish(&header);
}

static int add_tensor(struct dcpload *ck, const struct dcp_row *row, struct dcp_job *job)
{
	struct dcp_arena arena;
	struct dcp_tensor t;
	int rc;

	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_index_tensor(dcp_version_index(ck->v), row->id, &arena, &t, NULL);
	if (rc == 0)
		rc = dcp_job_add(job, &t, NULL);
	dcp_arena_finish(&arena);
	return rc;
}

static void predict(struct world *w)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .cache = layers > 8 ? NULL : "" };
	struct dcp_job_opts opts = { .group = 8 };
	struct dcp_index_scan *scan;
	struct dcpload_error err;
	struct dcp_layout *layout = t_layout(w->layout);
	struct dcp_job *job;
	struct dcpload *ck;
	struct dcp_row row;

	assert_int_equal(dcp_layout_ranks(layout), RANKS);
	if (dcpload_open(NULL, w->d.root, &config, &ck, &err) < 0)
		fail_msg("%s", err.text);
	opts.to = layout;
	opts.files = dcp_index_files(dcp_version_index(ck->v), &opts.nfiles);
	assert_int_equal(dcp_job_create(&opts, &job, NULL), 0);
	assert_int_equal(
		dcp_index_scan(dcp_version_index(ck->v), DCP_ROW_TENSOR, 0, false, &scan), 0);
	while (dcp_index_scan_next(scan, &row) > 0)
		assert_int_equal(add_tensor(ck, &row, job), 0);
	dcp_index_scan_end(scan);
	assert_int_equal(dcp_job_finish(job, NULL), 0);
	w->want = (struct t_rounds){ .ranks = RANKS, .staging = STAGING };
	assert_int_equal(t_rounds_predict(&w->want, job, opts.files, opts.nfiles), 0);
	dcp_job_free(job);
	dcpload_close(ck);
	dcp_layout_free(layout);
}

/* ---- ranks that count ---- */

static int allgather(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	const struct counted *c = ctx;

	return c->comm->allgather(c->comm->ctx, mine, n, all, timeout_ms);
}

static int alltoallv(void *ctx, const void *const *send, const uint64_t *nsend,
		     void *const *recv, const uint64_t *nrecv, int timeout_ms)
{
	struct counted *c = ctx;

	c->rounds++;
	for (uint32_t r = 0; r < c->comm->ranks; r++) {
		if (r == c->comm->rank)
			continue;
		c->of.messages_out += nsend[r] != 0;
		c->of.messages_in += nrecv[r] != 0;
		c->of.bytes_out += nsend[r];
		c->of.bytes_in += nrecv[r];
	}
	return c->comm->alltoallv(c->comm->ctx, send, nsend, recv, nrecv, timeout_ms);
}

static int rank_load(const struct dcpload_comm *comm, void *arg)
{
	struct world *w = arg;
	struct counted *c = &w->got[comm->rank];
	const struct t_rounds_of *want = &w->want.of[comm->rank];
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = DCPLOAD_IO_BUFFERED,
					       .exchange = DCPLOAD_EXCHANGE_ALL,
					       .staging = STAGING,
					       .timeout_ms = 600000,
					       .cache = layers > 8 ? NULL : "" };
	struct dcpload_report report = { .size = sizeof(report) };
	struct dcpload_comm own = *comm;
	struct dcpload_error err = { 0 };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	int bad = 0, rc;

	own.ctx = c;
	own.allgather = allgather;
	own.alltoallv = alltoallv;
	*c = (struct counted){ .comm = comm };
	rc = dcpload_open(&own, w->d.root, &config, &ck, &err);
	if (rc == 0)
		rc = dcpload_plan_create(ck, 0, &plan, &err);
	if (rc == 0)
		rc = dcpload_want_layout(plan, "job", comm->rank, NULL, &err);
	if (rc == 0)
		rc = dcpload_plan_finish(plan, &err);
	*c = (struct counted){ .comm = comm }; /* what planning sent does not count */
	if (rc == 0)
		rc = dcpload_execute(plan, &err);
	bad += expect(c->rounds == w->want.rounds);
	bad += expect(!memcmp(&c->of, want, sizeof(*want)));
	if (rc == 0) {
		dcpload_plan_report(plan, &report);
		bad += expect(report.sent == want->bytes_out &&
			      report.received == want->bytes_in);
		bad += expect(report.staging <= STAGING);
		rc = dcpload_check(plan, &err);
	}
	if (rc < 0)
		bad += expect(fprintf(stderr, "%s\n", err.text) < 0);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return bad;
}

static void test_as_predicted(void **state)
{
	char stages[256];
	const char *const layouts[] = {
		stages, "mesh fsdp=64\n* shard(0, optional)\n",
		"mesh tp=64\n* shard(1, optional)\n",
		"mesh fsdp=16 dp=4\n* shard(0, optional)@fsdp\n", /* messages of some ranks are too large at first */
	};
	const char *large = getenv("DCPFS_TEST_LAYERS");
	static struct world w;
	uint64_t tries = 0;

	(void)state;
	layers = large ? (uint32_t)atoi(large) : layers;
	snprintf(stages, sizeof(stages),
		 "mesh dp=4 pp=4 tp=4\n"
		 "*.{*}.q.* stage(%1$u)@pp shard(0)@tp shard(0)@dp\n"
		 "*.{*}.o.* stage(%1$u)@pp shard(1)@tp shard(0)@dp\n"
		 "*.{*}.* stage(%1$u)@pp replicate\n",
		 layers);
	t_dir_make(&w.d, "test_load");
	put_layers(&w.d);
	for (size_t i = 0; i < DCP_LEN(layouts); i++) {
		w.layout = layouts[i];
		t_dir_text(&w.d, "job.dcpl", w.layout);
		predict(&w);
		print_message(
			"           %llu rounds of stripes of %llu bytes (tried %llu): "
			"%llu messages, %llu bytes\n",
			(unsigned long long)w.want.rounds, (unsigned long long)w.want.stripe,
			(unsigned long long)w.want.tries, (unsigned long long)w.want.messages,
			(unsigned long long)w.want.bytes);
		assert_true(w.want.messages > RANKS);
		tries = DCP_MAX(tries, w.want.tries);
		assert_int_equal(t_comm_run(RANKS, rank_load, &w), 0);
		t_rounds_free(&w.want);
	}
	assert_true(tries > 1);
	t_dir_remove(&w.d);
}

/* ---- a rank that asks for what is in no file ---- */

/* The parts that rank 0 hears rank 1 ask for, otherwise than it did. */
static void beyond_files(struct load_round_part *v)
{
	v->file = UINT32_MAX;
}

static void of_another_rank(struct load_round_part *v)
{
	v->stripe++;
}

static void beyond_its_file(struct load_round_part *v)
{
	v->stripe += 2;
}

static void empty(struct load_round_part *v)
{
	v->run = 0;
}

static void none(struct load_round_part *v)
{
	v->count = 0;
}

static void too_long(struct load_round_part *v)
{
	v->run += 1 << 20;
}

static void far_away(struct load_round_part *v)
{
	v->lo = UINT64_MAX - v->run / 2;
}

static void too_often(struct load_round_part *v)
{
	v->run = 1 << 17;
	v->step = 0;
	v->count = UINT32_MAX;
}

struct telling {
	const struct dcpload_comm *comm;
	const char *source;
	void (*spoil)(struct load_round_part *v);
	int calls;
};

static int tell(void *ctx, const void *const *send, const uint64_t *nsend, void *const *recv,
		const uint64_t *nrecv, int timeout_ms)
{
	struct telling *t = ctx;
	int rc = t->comm->alltoallv(t->comm->ctx, send, nsend, recv, nrecv, timeout_ms);

	if (rc == 0 && t->comm->rank == 0 && ++t->calls == 2) { /* first come their numbers */
		if (nrecv[1] != 2 * sizeof(struct load_round_part))
			return -EBADMSG;
		t->spoil(recv[1]);
	}
	return rc;
}

static int tell_same(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	const struct telling *t = ctx;

	return t->comm->allgather(t->comm->ctx, mine, n, all, timeout_ms);
}

static int rank_told(const struct dcpload_comm *comm, void *arg)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .exchange = DCPLOAD_EXCHANGE_ALL,
					       .staging = STAGING,
					       .version = "1",
					       .cache = "" };
	struct telling t = *(const struct telling *)arg;
	struct dcpload_comm own = *comm;
	struct dcpload_error err = { 0 };
	struct dcpload_plan *plan = NULL;
	struct dcpload *ck = NULL;
	int rc;

	t.comm = comm;
	own.ctx = &t;
	own.alltoallv = tell;
	own.allgather = tell_same;
	rc = dcpload_open(&own, t.source, &config, &ck, &err);
	if (rc == 0)
		rc = dcpload_plan_create(ck, 0, &plan, &err);
	if (rc == 0)
		rc = dcpload_want_layout(plan, "fsdp2", comm->rank, NULL, &err);
	if (rc == 0)
		rc = dcpload_plan_finish(plan, &err);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return expect(rc == -EPROTO) +
	       expect(strstr(err.text, "rank 1 asks for what is in no file"));
}

static void test_told(void **state)
{
	static void (*const spoil[])(struct load_round_part *) = {
		beyond_files, of_another_rank, beyond_its_file, empty,
		none,         too_long,        far_away,        too_often,
	};
	const struct t_load *f = *state;

	for (size_t i = 0; i < DCP_LEN(spoil); i++) {
		struct telling t = { .source = f->d.root, .spoil = spoil[i] };

		assert_int_equal(t_comm_run(2, rank_told, &t), 0);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stripe),
		cmocka_unit_test(test_as_predicted),
		cmocka_unit_test_setup_teardown(test_told, t_load_setup, t_load_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
