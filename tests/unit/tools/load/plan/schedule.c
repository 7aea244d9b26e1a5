/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 64 ranks, in a process for each node, carry out the rounds of a job with real messages: as many,
 * and with as many bytes, as the planner says. With DCPFS_TEST_LAYERS=33334 of 100,000 small
 * tensors.
 */
#include "tests/unit/t.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "core/base/buf.h"
#include "core/model/job/job.h"
#include "core/model/layout/layout.h"
#include "tests/unit/t/comm.h"
#include "tests/unit/t/load.h"
#include "tests/unit/t/model/layout.h"
#include "tests/unit/t/rounds.h"
#include "tools/load/load.h"

enum { NODES = 8, RANKS = 64, FILES = 4, STAGING = 1 << 20, PATIENCE = 3600000 /* ms */ };

enum { SMALL = T_ROUNDS(80) };
static uint32_t layers = SMALL;

/* ---- a job ---- */

struct world {
	struct t_dir d;
	const char *layout;
	struct t_rounds want;
	uint64_t needs;           /* bytes of all ranks, as the planner says */
	uint64_t base[FILES + 1]; /* first stripe of each file */
	struct rows {
		uint64_t file, off, n, bytes; /* of each */
	} * rows;                             /* of each tensor */
	size_t nrows;
	struct counted {
		const struct dcpload_comm *comm;
		uint64_t rounds;
		struct t_rounds_of of;
		struct t_comm_node node; /* before, and in the end what has come since */
		long memory;             /* KiB that its process had at most */
	} * got;                         /* of each rank; shared by all processes */
};

/* A quarter of the layers to a file; of more than SMALL, tiny ones. */
static void put_layers(const struct t_dir *d)
{
	uint64_t off = 0, by = layers > SMALL ? 4 : 1;
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

static int add_tensor(struct world *w, struct dcpload *ck, const struct dcp_row *row,
		      struct dcp_job *job)
{
	struct dcp_arena arena;
	struct dcp_tensor t;
	int rc;

	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_index_tensor(dcp_version_index(ck->of.v), row->id, &arena, &t, NULL);
	if (rc == 0)
		rc = dcp_job_add(job, &t, NULL);
	if (rc == 0)
		w->rows[w->nrows++] =
			(struct rows){ t.pieces[0].file, t.pieces[0].off, t.shape[0],
				       t.pieces[0].nbytes / t.shape[0] };
	dcp_arena_finish(&arena);
	return rc;
}

/*
 * What w->layout makes of the job, for as many ranks, nodes and bytes of staging as w->want says.
 */
static void predict(struct world *w)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .cache = layers > SMALL ? NULL : "" };
	struct dcp_job_flow *flow = calloc(w->want.ranks, sizeof(*flow));
	struct dcp_job_opts opts = { .group = w->want.node, .staging = w->want.staging };
	struct dcp_index_scan *scan;
	struct dcp_job_sum sum;
	struct dcpload_error err;
	struct dcp_layout *layout = t_layout(w->layout);
	struct dcp_job *job;
	struct dcpload *ck;
	struct dcp_row row;

	assert_int_equal(dcp_layout_ranks(layout), w->want.ranks);
	if (dcpload_open(NULL, w->d.root, &config, &ck, &err) < 0)
		fail_msg("%s", err.text);
	opts.to = layout;
	opts.files = dcp_index_files(dcp_version_index(ck->of.v), &opts.nfiles);
	assert_int_equal(dcp_job_create(&opts, &job, NULL), 0);
	assert_int_equal(
		dcp_index_scan(dcp_version_index(ck->of.v), DCP_ROW_TENSOR, 0, false, &scan),
		0);
	w->nrows = 0;
	while (dcp_index_scan_next(scan, &row) > 0)
		assert_int_equal(add_tensor(w, ck, &row, job), 0);
	dcp_index_scan_end(scan);
	assert_int_equal(dcp_job_finish(job, NULL), 0);
	assert_int_equal(dcp_job_flows(job, flow, NULL, NULL), 0);
	w->needs = 0;
	for (uint32_t r = 0; r < w->want.ranks; r++)
		w->needs += flow[r].needs;
	assert_int_equal(t_rounds_predict(&w->want, job, opts.files, opts.nfiles), 0);
	assert_int_equal(opts.nfiles, FILES);
	for (size_t i = 0; i < FILES; i++)
		w->base[i + 1] =
			w->base[i] + (opts.files[i].size + w->want.stripe - 1) / w->want.stripe;
	dcp_job_sum(job, &sum);
	assert_int_equal(sum.stripe, w->want.stripe);
	for (uint32_t r = 0; r < w->want.ranks; r++) {
		assert_int_equal(flow[r].sends, w->want.of[r].bytes_out);
		assert_int_equal(flow[r].receives, w->want.of[r].bytes_in);
	}
	dcp_job_free(job);
	dcpload_close(ck);
	dcp_layout_free(layout);
	free(flow);
}

static void print_rounds(const struct t_rounds *r)
{
	print_message("           %llu rounds of stripes of %llu bytes (tried %llu): "
		      "%llu messages, %llu bytes\n",
		      (unsigned long long)r->rounds, (unsigned long long)r->stripe,
		      (unsigned long long)r->tries, (unsigned long long)r->messages,
		      (unsigned long long)r->bytes);
}

static int make_world(void **state)
{
	const char *large = getenv("DCPFS_TEST_LAYERS");
	static struct world w;

	layers = large ? (uint32_t)atoi(large) : layers;
	w.rows = calloc(3ul * layers, sizeof(*w.rows));
	t_dir_make(&w.d, "test_load");
	put_layers(&w.d);
	*state = &w;
	return 0;
}

static int remove_world(void **state)
{
	struct world *w = *state;

	t_dir_remove(&w->d);
	free(w->rows);
	return 0;
}

/* ---- of many ranks, on paper ---- */

/* Rows by 64, each held by 64 ranks: row by row, who gets it from whom. */
static void many_ranks_are_scheduled(void **state)
{
	enum { MANY = 4096, PARTS = 64 };
	struct world *w = *state;
	uint64_t messages = 0, bytes = 0, far_messages = 0, far_bytes = 0, needs = 0;
	struct t_rounds_of sum = { 0 };
	clock_t began = clock();
	struct rusage used;
	uint8_t *sent; /* of stripe and rank: 1 */

	w->layout = "mesh rows=64 copies=64\n* shard(0)@rows\n";
	w->want = (struct t_rounds){ .ranks = MANY, .node = 8, .staging = 1 << 20 };
	predict(w);
	print_rounds(&w->want);
	getrusage(RUSAGE_SELF, &used);
	print_message("           %.1f CPU s; the process had %ld MiB\n",
		      (double)(clock() - began) / CLOCKS_PER_SEC, used.ru_maxrss >> 10);
	sent = calloc(w->base[FILES], MANY);
	for (size_t i = 0; i < w->nrows; i++)
		for (uint64_t k = 0; k < w->rows[i].n; k++) {
			const struct rows *r = &w->rows[i];
			uint64_t first = k / ((r->n + PARTS - 1) / PARTS) * (MANY / PARTS);
			uint64_t lo = r->off + k * r->bytes, end = lo + r->bytes, hi;

			needs += r->bytes * (MANY / PARTS);
			for (; lo < end; lo = hi) {
				uint64_t at = lo / w->want.stripe,
					 stripe = w->base[r->file] + at;
				uint64_t owner = stripe % MANY;

				hi = DCP_MIN((at + 1) * w->want.stripe, end);
				for (uint64_t to = first; to < first + MANY / PARTS; to++) {
					uint8_t *p = &sent[stripe * MANY + to];
					bool far = owner / 8 != to / 8;

					if (owner == to)
						continue;
					messages += !*p;
					bytes += hi - lo;
					far_messages += !*p && far;
					far_bytes += far ? hi - lo : 0;
					*p = 1;
				}
			}
		}
	free(sent);
	for (uint32_t r = 0; r < MANY; r++) {
		sum.messages_out += w->want.of[r].messages_out;
		sum.messages_in += w->want.of[r].messages_in;
		sum.bytes_out += w->want.of[r].bytes_out;
		sum.bytes_in += w->want.of[r].bytes_in;
	}
	assert_int_equal(w->want.rounds, (w->base[FILES] + MANY - 1) / MANY);
	assert_int_equal(w->needs, needs);
	assert_int_equal(w->want.messages, messages);
	assert_int_equal(w->want.bytes, bytes);
	assert_int_equal(w->want.far_messages, far_messages);
	assert_int_equal(w->want.far_bytes, far_bytes);
	assert_int_equal(sum.messages_out, messages);
	assert_int_equal(sum.messages_in, messages);
	assert_int_equal(sum.bytes_out, bytes);
	assert_int_equal(sum.bytes_in, bytes);
	assert_in_range(w->want.most, 1, w->want.staging);
	t_rounds_free(&w->want);
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
	struct t_comm_node now;
	struct rusage used;
	const struct t_rounds_of *want = &w->want.of[comm->rank];
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = DCPLOAD_IO_BUFFERED,
					       .exchange = DCPLOAD_EXCHANGE_ALL,
					       .staging = STAGING,
					       .timeout_ms = 600000,
					       .cache = layers > SMALL ? NULL : "" };
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
	t_comm_node(comm, &c->node);
	if (rc == 0)
		rc = dcpload_execute(plan, &err);
	t_comm_node(comm, &now);
	c->node.messages = now.messages - c->node.messages;
	c->node.bytes = now.bytes - c->node.bytes;
	bad += expect(c->rounds == w->want.rounds);
	bad += expect(!memcmp(&c->of, want, sizeof(*want)));
	if (rc == 0) {
		dcpload_plan_report(plan, &report);
		bad += expect(report.sent == want->bytes_out &&
			      report.received == want->bytes_in);
		bad += expect(report.staging <= STAGING);
		bad += expect(report.nodes == now.nodes);
		rc = dcpload_check(plan, &err);
	}
	if (rc < 0)
		bad += expect(fprintf(stderr, "%s\n", err.text) < 0);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	getrusage(RUSAGE_SELF, &used);
	c->memory = used.ru_maxrss;
	return bad;
}

/* What all processes say that they sent and received, together. */
static void check_sums(const struct world *w)
{
	struct t_rounds_of all = { 0 };
	struct t_comm_node far = { 0 };
	long memory = 0;

	for (uint32_t r = 0; r < RANKS; r++) {
		const struct counted *c = &w->got[r];

		assert_int_equal(c->rounds, w->want.rounds);
		all.messages_out += c->of.messages_out;
		all.messages_in += c->of.messages_in;
		all.bytes_out += c->of.bytes_out;
		all.bytes_in += c->of.bytes_in;
		if (r % (RANKS / NODES))
			continue;
		far.messages += c->node.messages;
		far.bytes += c->node.bytes;
		memory += c->memory;
	}
	assert_int_equal(all.messages_out, w->want.messages);
	assert_int_equal(all.messages_in, w->want.messages);
	assert_int_equal(all.bytes_out, w->want.bytes);
	assert_int_equal(all.bytes_in, w->want.bytes);
	assert_int_equal(far.messages, w->want.far_messages);
	assert_int_equal(far.bytes, w->want.far_bytes);
	print_message("           %llu of the messages, %llu of the bytes came from other "
		      "processes, which had %ld MiB\n",
		      (unsigned long long)far.messages, (unsigned long long)far.bytes,
		      memory >> 10);
}

static void schedules_are_as_predicted(void **state)
{
	char stages[256];
	const char *const layouts[] = {
		stages, "mesh fsdp=64\n* shard(0, optional)\n",
		"mesh tp=64\n* shard(1, optional)\n",
		"mesh fsdp=16 dp=4\n* shard(0, optional)@fsdp\n", /* messages of some ranks are too large at first */
	};
	struct world *w = *state;
	uint64_t tries = 0;

	snprintf(stages, sizeof(stages),
		 "mesh dp=4 pp=4 tp=4\n"
		 "*.{*}.q.* stage(%1$u)@pp shard(0)@tp shard(0)@dp\n"
		 "*.{*}.o.* stage(%1$u)@pp shard(1)@tp shard(0)@dp\n"
		 "*.{*}.* stage(%1$u)@pp replicate\n",
		 layers);
	w->got = mmap(NULL, RANKS * sizeof(*w->got), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(w->got, MAP_FAILED);
	for (size_t i = 0; i < DCP_LEN(layouts); i++) {
		w->layout = layouts[i];
		w->want = (struct t_rounds){ .ranks = RANKS,
					     .node = RANKS / NODES,
					     .staging = STAGING };
		t_dir_text(&w->d, "job.dcpl", w->layout);
		predict(w);
		print_rounds(&w->want);
		assert_true(w->want.messages > RANKS && w->want.far_messages > 0);
		tries = DCP_MAX(tries, w->want.tries);
		memset(w->got, 0, RANKS * sizeof(*w->got));
		assert_int_equal(t_comm_run_nodes(NODES, RANKS / NODES, PATIENCE, rank_load, w),
				 0);
		check_sums(w);
		t_rounds_free(&w->want);
	}
	assert_true(tries > 1);
	munmap(w->got, RANKS * sizeof(*w->got));
}

/* ---- a rank that requests bytes outside of every file ---- */

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
	       expect(strstr(err.text, "rank 1 requests bytes outside of every file"));
}

static void spoiled_round_parts_are_refused(void **state)
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
		cmocka_unit_test_setup_teardown(many_ranks_are_scheduled, make_world,
						remove_world),
		cmocka_unit_test_setup_teardown(schedules_are_as_predicted, make_world,
						remove_world),
		cmocka_unit_test_setup_teardown(spoiled_round_parts_are_refused, t_load_setup,
						t_load_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
