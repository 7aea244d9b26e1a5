/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What frameworks wrote, loaded by 1 to 8 ranks, which are threads, in every way: each part is the
 * region of the whole tensor that torch.chunk() would give the rank. That whole tensors are right
 * is seen elsewhere (tests/cli/golden.py).
 * covers: execute, rounds, slots, wants, verify, tools/load/plan/decide, tools/load/plan/schedule
 */
#include "tests/unit/t.h"

#include "core/model/job/chunk.h"
#include "core/store/version/version.h"
#include "tests/unit/t/comm.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/random.h"
#include "tools/load/dcpload.h"

/* In a rank: a failure counts and is told. */
#define expect(what) ((what) ? 0 : (fprintf(stderr, "%d: not so: %s\n", __LINE__, #what), 1))

static const char *const goldens[] = {
	"composer",
	"composer-sharded",
	"dcp-async-dedup",
	"dcp-experimental",
	"dcp-fsdp2",
	"dcp-hf",
	"dcp-old-1.13.1",
	"dcp-plain",
	"dcp-rank-local",
	"dcp-sharded-tensor",
	"dcp-tp-fsdp",
	"deepspeed-3d",
	"deepspeed-moe",
	"deepspeed-universal",
	"deepspeed-z1",
	"deepspeed-z3",
	"hf-bin",
	"hf-llama",
	"hf-mlx-jax",
	"megatron-dist",
	"megatron-dist-012",
	"megatron-legacy",
	"numpy",
	"paddle-dist",
	"paddle-dist-26",
	"paddle-dist-32",
	"paddle-dist-32st",
	"paddle-dist-flat",
	"paddle-dist-stale",
	"paddle-hf",
	"paddle-plain",
	"parts",
	"torch-checkpointing",
	"torch-ranks",
	"torch-save",
};

/* One way to load; the ways take turns. */
static const struct {
	uint32_t exchange, io, threads;
	uint64_t staging;
} ways[] = {
	{ DCPLOAD_EXCHANGE_NODE, DCPLOAD_IO_BUFFERED, 0, 1 },
	{ DCPLOAD_EXCHANGE_ALL, DCPLOAD_IO_DIRECT, 0, 1 },
	{ DCPLOAD_EXCHANGE_NEVER, DCPLOAD_IO_BUFFERED, 3, 0 },
	{ DCPLOAD_EXCHANGE_ALL, DCPLOAD_IO_BUFFERED, 0, 0 },
	{ DCPLOAD_EXCHANGE_NODE, DCPLOAD_IO_DIRECT, 0, 0 },
	{ DCPLOAD_EXCHANGE_NEVER, DCPLOAD_IO_DIRECT, 0, 1 },
	{ DCPLOAD_EXCHANGE_AUTO, DCPLOAD_IO_AUTO, 0, 0 },
};

struct job {
	const char *source, *version, *cache, *dtype;
	const struct dcpload_plan *whole; /* of one rank */
	size_t way;
	uint32_t dim;
	bool large;
};

/* Is @part of @whole what rank @r of @ranks has when dimension @dim is cut? */
static int is_part(const struct dcpload_part *part, const struct dcpload_part *whole,
		   uint32_t dim, uint32_t r, uint32_t ranks)
{
	uint64_t before = 1, behind = part->itemsize, full, chunk, lo, n;

	if (strcmp(part->key, whole->key) || part->ndim != whole->ndim ||
	    part->global_ndim != whole->ndim || !part->complete)
		return 0;
	if (dim >= whole->ndim || !memcmp(part->shape, whole->shape, part->ndim * 8))
		return part->nbytes == whole->nbytes &&
		       (!part->nbytes || !memcmp(part->data, whole->data, part->nbytes));
	for (uint32_t d = 0; d < whole->ndim; d++) {
		if (d != dim && part->shape[d] != whole->shape[d])
			return 0;
		before *= d < dim ? whole->shape[d] : 1;
		behind *= d > dim ? whole->shape[d] : 1;
	}
	full = whole->shape[dim];
	chunk = (full + ranks - 1) / ranks;
	lo = DCP_MIN(r * chunk, full);
	n = DCP_MIN(chunk, full - lo);
	if (part->shape[dim] != n || part->nbytes != before * n * behind)
		return 0;
	for (uint64_t i = 0; part->nbytes && i < before; i++)
		if (memcmp((char *)part->data + i * n * behind,
			   (char *)whole->data + (i * full + lo) * behind, n * behind))
			return 0;
	return 1;
}

/*
 * Have the data of @part, of a device, in host memory. NULL: it is there, or the copy, which is
 * freed.
 */
static void *fetch(struct dcpload_plan *plan, uint64_t i, struct dcpload_part *part)
{
	struct dcpload_error err;
	void *own;

	if (dcpload_part_memory(plan, i, NULL) == DCPLOAD_MEMORY_HOST)
		return NULL;
	own = malloc(part->nbytes + 1);
	if (own && dcpload_part_read(plan, i, 0, own, part->nbytes, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	part->data = own;
	return own;
}

static int compare(struct dcpload_plan *plan, const struct job *j, uint32_t r, uint32_t ranks)
{
	struct dcpload_part part, whole;
	int bad = 0;

	for (uint64_t i = 0; dcpload_part(j->whole, i, &whole) == 0; i++) {
		void *own;

		bad += expect(dcpload_part(plan, i, &part) == 0);
		own = fetch(plan, i, &part);
		if (!is_part(&part, &whole, j->dim, r, ranks)) {
			fprintf(stderr, "%s: rank %u of %u, dim %u, way %zu: %s differs\n",
				j->version, r, ranks, j->dim, j->way, whole.key);
			bad++;
		}
		free(own);
	}
	return bad + expect(dcpload_part(plan, UINT64_MAX, &part) == -ENOENT);
}

static int plan_all(struct dcpload *ck, const char *layout, uint32_t rank, const char *dtype,
		    struct dcpload_plan **plan, struct dcpload_error *err)
{
	const struct dcpload_select select = { .size = sizeof(select), .dtype = dtype };
	int rc = dcpload_plan_create(ck, DCPLOAD_PARTIAL, plan, err);

	if (rc == 0)
		rc = dcpload_want_layout(*plan, layout, rank, &select, err);
	return rc < 0 ? rc : dcpload_plan_finish(*plan, err);
}

/* Not a byte more of staging than is allowed, 1 MiB at the least. */
static int expect_little(const struct job *j, const struct dcpload_plan *plan,
			 const struct dcpload_config *config, uint32_t ranks)
{
	struct dcpload_report report = { .size = sizeof(report) };
	uint64_t most = config->staging ? DCP_MAX(config->staging, 1ull << 20) : 64ull << 20;

	dcpload_plan_report(plan, &report);
	/* Messages hold hardly more than what was asked for: its runs have 256 bytes or more. */
	if (j->large && report.exchange == DCPLOAD_EXCHANGE_ALL && ranks <= 4 &&
	    report.received * 8 > report.needed * 9 + 4096)
		return expect(printf("received %llu, needed %llu\n",
				     (unsigned long long)report.received,
				     (unsigned long long)report.needed) < 0);
	return expect(report.staging <= most);
}

static int rank_load(const struct dcpload_comm *comm, void *arg)
{
	const struct job *j = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .io = ways[j->way].io,
					       .exchange = ways[j->way].exchange,
					       .threads = ways[j->way].threads,
					       .staging = ways[j->way].staging,
					       .version = j->version,
					       .cache = j->cache,
					       .device = getenv("DCPFS_DEVICE") };
	struct dcpload *ck = NULL;
	struct dcpload_plan *plan = NULL;
	struct dcpload_error err = { 0 };
	char layout[32];
	int bad = 0, rc = dcpload_open(comm, j->source, &config, &ck, &err);

	snprintf(layout, sizeof(layout), "dim%ux%u", j->dim, comm->ranks);
	if (j->dim == 0)
		snprintf(layout, sizeof(layout), "fsdp%u", comm->ranks);
	if (rc == 0)
		rc = plan_all(ck, layout, comm->rank, j->dtype, &plan, &err);
	for (int i = 0; i < 2 && rc == 0; i++)
		rc = dcpload_execute(plan, &err);
	if (rc == 0)
		bad += compare(plan, j, comm->rank, comm->ranks) +

		       expect_little(j, plan, &config, comm->ranks);
	if (rc == 0)
		rc = dcpload_check(plan, &err);
	if (rc < 0)
		bad += expect(fprintf(stderr, "%s: %s\n", j->version, err.text) < 0);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return bad;
}

static const uint32_t rank_counts[] = { 1, 2, 3, 4, 8 };

/* Ways @first to @end of @version, each by several numbers of ranks. */
static void load_version(struct job j, size_t first, size_t end, size_t step)
{
	static const char *const dtypes[] = { NULL, NULL, "F32", NULL, "BF16", "F8_E4M3" };
	const struct dcpload_config config = { .size = sizeof(config),
					       .version = j.version,
					       .cache = j.cache };
	struct dcpload_plan *whole = NULL;
	struct dcpload *ck = NULL;
	struct dcpload_error err;

	if (dcpload_open(NULL, j.source, &config, &ck, &err) < 0) {
		assert_non_null(strstr(err.text, "TorchScript")); /* of torch-save */
		return;
	}
	j.dtype = dtypes[first % DCP_LEN(dtypes)];
	if (plan_all(ck, "fsdp1", 0, j.dtype, &whole, &err) < 0 && j.dtype &&
	    strstr(err.text, "quantized")) {
		dcpload_plan_free(whole);
		whole = NULL;
		j.dtype = NULL;
	}
	if ((!whole && plan_all(ck, "fsdp1", 0, j.dtype, &whole, &err) < 0) ||
	    dcpload_execute(whole, &err) < 0 || dcpload_check(whole, &err) < 0)
		fail_msg("%s", err.text);
	j.whole = whole;
	for (size_t n = first; n < end; n += step) {
		j.way = n % DCP_LEN(ways);
		j.dim = (uint32_t)(n / 2) % 2;
		assert_int_equal(
			t_comm_run(rank_counts[n % DCP_LEN(rank_counts)], rank_load, &j), 0);
	}
	dcpload_plan_free(whole);
	dcpload_close(ck);
}

/* Formats and devices do not meet: with the slow GPU that is not there, every third of them. */
static void golden_files_are_loaded(void **state)
{
	const size_t step = T_SLOW * (getenv("DCPFS_DEVICE") ? 3 : 1);
	struct t_dir cache;
	size_t n = 0;

	(void)state;
	t_dir_make(&cache, "test_load");
	for (size_t i = 0; i < DCP_LEN(goldens); i += step) {
		char source[256];
		struct dcp_scan scan;
		struct dcp_err err = { 0 };

		t_case(goldens[i]);
		snprintf(source, sizeof(source), "tests/golden/%s/ckpt", goldens[i]);
		if (dcp_scan(source, &scan, &err) < 0)
			fail_msg("%s", err.msg);
		for (size_t k = 0; k < scan.n; k++)
			if (scan.found[k].complete)
				load_version((struct job){ .source = source,
							   .version = scan.found[k].name,
							   .cache = cache.root },
					     n, n + 10, 6),
					n++;
		dcp_scan_finish(&scan);
	}
	t_dir_remove(&cache);
}

/* A file of tensors at odd offsets, whose elements lie across the ends of blocks and chunks. */
static void put_tensors(const struct t_dir *d, const char *name, const char *header)
{
	static const size_t bytes = 3 << 20;
	uint64_t x = strlen(header), n = x | 1;
	uint8_t *p = malloc(8 + n + bytes);

	assert_non_null(p);
	memcpy(p, &n, 8);
	memset(p + 8, ' ', n);
	memcpy(p + 8, header, x);
	for (size_t i = 0; i < bytes; i++) {
		p[8 + n + i] = (uint8_t)t_random(&x, 256);
	}
	t_dir_put(d, name, p, 8 + n + bytes);
	free(p);
}

static void put_large(const struct t_dir *d)
{
	put_tensors(
		d, "model-00001-of-00002.safetensors",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[512,1024],\"data_offsets\":[0,2097152]},"
		"\"b\":{\"dtype\":\"BF16\",\"shape\":[128,4096],\"data_offsets\":[2097152,"
		"3145728]}}");
	put_tensors(
		d, "model-00002-of-00002.safetensors",
		"{\"c\":{\"dtype\":\"F64\",\"shape\":[131072],\"data_offsets\":[0,1048576]},"
		"\"d\":{\"dtype\":\"F16\",\"shape\":[1024,8,64],\"data_offsets\":[1048576,"
		"2097152]},"
		"\"e\":{\"dtype\":\"U8\",\"shape\":[1048575],\"data_offsets\":[2097152,3145727]"
		"},"
		"\"f\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[3145727,3145728]}}");
	t_dir_text(d, "model.safetensors.index.json",
		   "{\"metadata\":{},\"weight_map\":{"
		   "\"a\":\"model-00001-of-00002.safetensors\","
		   "\"b\":\"model-00001-of-00002.safetensors\","
		   "\"c\":\"model-00002-of-00002.safetensors\","
		   "\"d\":\"model-00002-of-00002.safetensors\","
		   "\"e\":\"model-00002-of-00002.safetensors\","
		   "\"f\":\"model-00002-of-00002.safetensors\"}}");
}

/* Many chunks. The GPU that is not there takes four times as long: fewer ways of each dtype. */
static void large_tensors_are_loaded(void **state)
{
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "test_load");
	put_large(&d);
	for (size_t n = 0; n < 6; n++) /* dtypes */
		load_version((struct job){ .source = d.root, .cache = "", .large = true }, n,
			     n + T_ROUNDS(getenv("DCPFS_DEVICE") ? 12 : 36), 3);
	t_dir_remove(&d);
}

/* A byte that is not as it is stored. */
static void execution_checks_bytes(void **state)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .version = "llama",
					       .cache = "" };
	struct dcpload_plan *plan = NULL;
	struct dcpload_part part;
	struct dcpload_error err;
	struct dcpload *ck;

	(void)state;
	assert_int_equal(dcpload_open(NULL, "tests/golden/hf-llama/ckpt", &config, &ck, &err),
			 0);
	assert_int_equal(plan_all(ck, "fsdp1", 0, NULL, &plan, &err), 0);
	assert_int_equal(dcpload_execute(plan, &err), 0);
	assert_int_equal(dcpload_check(plan, &err), 0);
	assert_int_equal(dcpload_part(plan, 1, &part), 0);
	((char *)part.data)[part.nbytes - 1] ^= 1;
	assert_int_equal(dcpload_check(plan, &err), -EILSEQ);
	assert_non_null(strstr(err.text, "what was loaded differs from what is stored"));
	dcpload_plan_free(plan);
	dcpload_close(ck);
}

enum { ROOM = 16 << 20 };

/* Of two ranks, the bits of those that say how much staging they may take: ROOM. */
struct asking {
	uint32_t who;
	uint64_t staging; /* what each took */
};

static int rank_asking(const struct dcpload_comm *comm, void *arg)
{
	struct asking *a = arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .exchange = DCPLOAD_EXCHANGE_NODE,
					       .staging = (a->who >> comm->rank & 1) * ROOM,
					       .cache = "" };
	struct dcpload_report report = { .size = sizeof(report) };
	struct dcpload_plan *plan = NULL;
	struct dcpload_error err;
	struct dcpload *ck = NULL;
	int rc = dcpload_open(comm, "tests/golden/hf-llama/ckpt", &config, &ck, &err);

	if (rc == 0)
		rc = plan_all(ck, "fsdp2", comm->rank, NULL, &plan, &err);
	if (rc == 0)
		rc = dcpload_execute(plan, &err);
	if (rc == 0)
		dcpload_plan_report(plan, &report);
	if (comm->rank == 0)
		a->staging = report.staging;
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return expect(rc == 0);
}

/* A window has more slots than it needs where every rank asks for staging. */
static void staging_gets_more_slots(void **state)
{
	uint64_t least = 0;

	(void)state;
	for (uint32_t who = 0; who < 4; who++) {
		struct asking a = { .who = who };

		assert_int_equal(t_comm_run(2, rank_asking, &a), 0);
		least = who ? least : a.staging;
		assert_true(a.staging > 0 && a.staging <= ROOM);
		assert_int_equal(a.staging > least, who == 3);
	}
}

/* Rank 1 of two asks for what is in no file. */
struct lie {
	const char *what;
	struct dcp_chunk_range first; /* what it sends as the first range that it needs */
	const struct dcpload_comm *comm;
	uint32_t told;
};

static int tell_lie(void *ctx, const void *mine, size_t n, void *all, int timeout_ms)
{
	struct lie *lie = ctx;
	struct dcp_chunk_range *own = malloc(n + 1);
	int rc;

	memcpy(own, mine, n);
	if (n && n % sizeof(*own) == 0 && own->zero == 0 && own->lo < own->hi &&
	    own->hi % DCP_CHUNK_BLOCK == 0) {
		*own = lie->first;
		lie->told++;
	}
	rc = lie->comm->allgather(lie->comm->ctx, own, n, all, timeout_ms);
	free(own);
	return rc;
}

static int rank_lying(const struct dcpload_comm *comm, void *arg)
{
	struct lie lie = *(struct lie *)arg;
	const struct dcpload_config config = { .size = sizeof(config),
					       .exchange = DCPLOAD_EXCHANGE_NODE,
					       .version = "llama",
					       .cache = "" };
	struct dcpload_plan *plan = NULL;
	struct dcpload_comm own = *comm;
	struct dcpload_error err;
	struct dcpload *ck = NULL;
	int rc;

	lie.comm = comm;
	if (comm->rank == 1) {
		own.ctx = &lie;
		own.allgather = tell_lie;
	}
	rc = dcpload_open(&own, "tests/golden/hf-llama/ckpt", &config, &ck, &err);
	if (rc == 0)
		rc = plan_all(ck, "fsdp2", comm->rank, NULL, &plan, &err);
	dcpload_plan_free(plan);
	dcpload_close(ck);
	return expect(rc == -EPROTO) + expect(err.rank == 0 || err.rank == 1) +
	       expect(strstr(err.text, "rank 1 asks for bytes that are in no file")) +
	       expect(comm->rank == 0 || lie.told == 1);
}

static void wrong_ranges_are_refused(void **state)
{
	struct lie rows[] = {
		{ "a file that is not there", { 1000, 0, 0, 4096 }, NULL, 0 },
		{ "bytes behind the end", { 0, 0, 0, 1ull << 40 }, NULL, 0 },
		{ "all there can be", { 0, 0, 4096, -4096ull }, NULL, 0 },
		{ "from behind the end", { 0, 0, 1ull << 40, (1ull << 40) + 4096 }, NULL, 0 },
		{ "backwards", { 0, 0, 4096, 0 }, NULL, 0 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].what);
		assert_int_equal(t_comm_run(2, rank_lying, &rows[i]), 0);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_files_are_loaded),
		cmocka_unit_test(large_tensors_are_loaded),
		cmocka_unit_test(execution_checks_bytes),
		cmocka_unit_test(staging_gets_more_slots),
		cmocka_unit_test(wrong_ranges_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
