/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of whole jobs by themselves: no files, no bytes.
 *
 *	job rank [REPS]     what one rank of 64 reads of 100,000 tensors in 8 pieces each
 *	job whole [REPS [MODEL [NODE [WAY]]]]
 *			    who reads and sends what: 1,024 ranks, 100,000 tensors; of models whose name
 *			    has MODEL, with nodes of NODE ranks, by WAY: all, node, never, direct
 *	job rounds [REPS]   the messages of 4,096 ranks that load 100,000 tensors, each byte read once
 *
 * A JSON line each: {"what", "n", "wall", "cpu", "peak"}; n counts reads, or ranks that need
 * anything; peak is the most memory the process had, in bytes. Tensors come from memory, as
 * a planner of torch finds them; making them up is not timed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"
#include "core/model/job/job_int.h"
#include "core/model/layout/layout.h"
#include "core/parse/layout/layout.h"
#include "tests/unit/t/rounds.h"

enum { KEYS = 100000, WRITERS = 8 };

static double read_seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(bool ok, const char *what, const struct dcp_err *err)
{
	if (ok)
		return;
	fprintf(stderr, "job: %s: %s\n", what, err ? err->msg : "");
	exit(1);
}

/* A kind of model: shapes and names of its tensors. */
struct model {
	const char *name, *layout;
	uint32_t keys, layers;
	bool distinct; /* no two tensors have the same shape */
	bool asked;    /* planned only where its name is given */
	struct {
		const char *front, *behind; /* of the layer's number */
		uint64_t rows, cols;
	} of_layer[10];
};

#define DENSE(dp)                                                                              \
	"mesh dp=" dp " pp=8 tp=8\n"                                                           \
	"*.layers.{*}.*.q.* *.layers.{*}.*.up.* stage(10000)@pp shard(0)@tp shard(0)@dp\n"     \
	"*.layers.{*}.*.o.* *.layers.{*}.*.down.* stage(10000)@pp shard(1)@tp shard(0)@dp\n"   \
	"*.layers.{*}.* stage(10000)@pp replicate\n"                                           \
	"* replicate\n"

#define DENSE_LAYER                                                                            \
	{                                                                                      \
		{ "m.layers.", ".attn.q.weight", 4096, 4096 },                                 \
			{ "m.layers.", ".attn.k.weight", 1024, 4096 },                         \
			{ "m.layers.", ".attn.v.weight", 1024, 4096 },                         \
			{ "m.layers.", ".attn.o.weight", 4096, 4096 },                         \
			{ "m.layers.", ".mlp.up.weight", 14336, 4096 },                        \
			{ "m.layers.", ".mlp.gate.weight", 14336, 4096 },                      \
			{ "m.layers.", ".mlp.down.weight", 4096, 14336 },                      \
			{ "m.layers.", ".norm1.weight", 4096, 1 },                             \
			{ "m.layers.", ".norm2.weight", 4096, 1 },                             \
		{                                                                              \
			"m.layers.", ".router.weight", 128, 4096                               \
		}                                                                              \
	}

#define LARGE                                                                                  \
	"mesh dp=32 pp=16 tp=8\n"                                                              \
	"*.layers.{*}.*.router.* stage(10000)@pp shard(1)@tp shard(0)@dp\n"                    \
	"*.layers.{*}.*norm*.* stage(10000)@pp replicate\n"                                    \
	"*.layers.{*}.* stage(10000)@pp shard(0)@tp shard(0)@dp\n"                             \
	"* replicate\n"

#define DISTINCT(what, l)                                                                      \
	{                                                                                      \
		.name = what, .layout = l, .keys = KEYS, .layers = KEYS, .distinct = true,     \
		.of_layer = {                                                                  \
			{ "layers.", ".w", 64, 8 }                                             \
		}                                                                              \
	}

static const struct model models[] = {
	{ .name = "one shape, 1,024 ranks",
	  .layout = "mesh fsdp=1024\n* shard(0, optional)\n",
	  .keys = KEYS,
	  .layers = KEYS,
	  .of_layer = { { "layers.", ".w", 64, 8 } } },
	{ .name = "dense, 16 x 8 x 8 ranks",
	  .layout = DENSE("16"),
	  .keys = KEYS,
	  .layers = KEYS / 10,
	  .of_layer = DENSE_LAYER },
	{ .name = "dense, 64 x 8 x 8 ranks",
	  .asked = true,
	  .layout = DENSE("64"),
	  .keys = KEYS,
	  .layers = KEYS / 10,
	  .of_layer = DENSE_LAYER },
	{ .name = "everybody has everything",
	  .layout = "mesh dp=1024\n* replicate\n",
	  .keys = KEYS,
	  .layers = KEYS,
	  .of_layer = { { "layers.", ".w", 64, 8 } } },
	DISTINCT("no two alike, rows", "mesh fsdp=1024\n* shard(0, optional)\n"),
	DISTINCT("no two alike, rows and columns, 16 x 8 x 8 ranks",
		 "mesh dp=16 pp=8 tp=8\n* shard(0)@dp shard(1)@tp\n"),
	DISTINCT("no two alike, strided, 128 x 8 ranks",
		 "mesh dp=128 tp=8\n* strided(0, 8)@dp shard(0)@tp\n"),
	DISTINCT("no two alike, flattened", "mesh dp=1024\n* flat\n"),
	DISTINCT("no two alike, flattened over columns, 128 x 8 ranks",
		 "mesh dp=128 tp=8\n* shard(1)@tp flat@dp\n"),
};

/* All tensors of a model, in rows over WRITERS files, each after the other in its file. */
struct told {
	struct dcp_tensor *t;
	uint32_t n;
	struct dcp_file_id files[WRITERS];
	struct dcp_arena arena;
};

static void make_model(struct told *x, const struct model *m)
{
	uint32_t each = m->keys / m->layers;

	memset(x, 0, sizeof(*x));
	dcp_arena_init(&x->arena, (size_t)1 << 30);
	x->n = m->keys;
	x->t = dcp_arena_calloc(&x->arena, x->n, sizeof(*x->t));
	must(x->t != NULL, "out of memory", NULL);
	for (uint32_t i = 0; i < x->n; i++) {
		struct dcp_piece *p = dcp_arena_calloc(&x->arena, WRITERS, sizeof(*p));
		uint64_t *v = dcp_arena_calloc(&x->arena, 2 + 4 * WRITERS, sizeof(*v));
		char key[64];

		must(p && v, "out of memory", NULL);
		snprintf(key, sizeof(key), "%s%u%s", m->of_layer[i % each].front, i / each,
			 m->of_layer[i % each].behind);
		v[0] = m->of_layer[i % each].rows + (m->distinct ? i : 0);
		v[1] = m->of_layer[i % each].cols;
		x->t[i] = (struct dcp_tensor){
			.key = dcp_arena_strndup(&x->arena, key, strlen(key)),
			.itemsize = 2,
			.ndim = 2,
			.shape = v,
			.pieces = p,
			.npieces = WRITERS,
		};
		for (uint32_t k = 0; k < WRITERS; k++) {
			uint64_t *box = v + 2 + 4 * k;

			box[0] = v[0] * k / WRITERS;
			box[2] = v[0] * (k + 1) / WRITERS - box[0];
			box[3] = v[1];
			p[k] = (struct dcp_piece){ .lo = box,
						   .len = box + 2,
						   .run_n = box[2] * box[3],
						   .nbytes = box[2] * box[3] * 2,
						   .off = x->files[k].size,
						   .file = k };
			x->files[k].size += p[k].nbytes;
			x->files[k].name = "f";
		}
	}
}

static void say_time(const char *what, uint64_t n, double wall, double cpu)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	printf("{\"what\": \"%s\", \"n\": %llu, \"wall\": %.6f, \"cpu\": %.6f, \"peak\": "
	       "%ld}\n",
	       what, (unsigned long long)n, read_seconds(CLOCK_MONOTONIC) - wall,
	       read_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, use.ru_maxrss * 1024);
	fflush(stdout);
}

/* What the command line asks for. */
static struct dcp_job_opts asked;

static struct dcp_job *add_all(const struct told *x, const struct dcp_layout *l)
{
	struct dcp_job_opts opts = asked;
	struct dcp_err err = { 0 };
	struct dcp_job *job;

	opts.to = l;
	opts.files = x->files;
	opts.nfiles = WRITERS;
	must(dcp_job_create(&opts, &job, &err) == 0, "create", &err);
	for (uint32_t i = 0; i < x->n; i++)
		must(dcp_job_add(job, &x->t[i], &err) == 0, "add", &err);
	return job;
}

static void one_rank(int reps)
{
	struct dcp_layout *l;
	struct dcp_err err = { 0 };
	struct told x;

	make_model(&x, &models[0]);
	must(dcp_layout_named("fsdp64", &l, &err) == 0, "layout", &err);
	for (int r = 0; r < reps; r++) {
		double wall = read_seconds(CLOCK_MONOTONIC),
		       cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
		struct dcp_job *job = add_all(&x, l);
		struct job_needs needs;

		dcp_job_needs_init(&needs, job);
		must(dcp_job_needs(&needs, 64 / 3, &err) == 0, "needs", &err);
		say_time("one rank's plan, 100k keys", needs.n, wall, cpu);
		dcp_job_needs_finish(&needs);
		dcp_job_free(job);
	}
	dcp_layout_free(l);
	dcp_arena_finish(&x.arena);
}

static void time_whole(int reps, const char *only)
{
	enum { RANKS = 4096 };
	static struct dcp_job_flow rank[RANKS], group[RANKS];
	static uint64_t rows[RANKS * 1024];
	struct dcp_err err = { 0 };

	for (size_t m = 0; m < DCP_LEN(models); m++) {
		struct dcp_layout *l;
		struct told x;
		uint32_t ranks;
		char what[96];

		if (!strstr(models[m].name, only) || (models[m].asked && !*only))
			continue;
		make_model(&x, &models[m]);
		must(dcp_layout_parse("bench", models[m].layout, strlen(models[m].layout), &l,
				      &err) == 0,
		     "layout", &err);
		ranks = dcp_layout_ranks(l);
		for (int r = 0; r < reps; r++) {
			double wall = read_seconds(CLOCK_MONOTONIC);
			double cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
			struct dcp_job *job = add_all(&x, l);
			uint64_t n = 0;

			must(dcp_job_finish(job, &err) == 0, "finish", &err);
			must(dcp_job_flows(job, rank, group, &err) == 0, "flows", &err);
			for (uint32_t i = 0; i < ranks; i++)
				n += rank[i].needs != 0;
			snprintf(what, sizeof(what), "plan: %s", models[m].name);
			say_time(what, n, wall, cpu);

			wall = read_seconds(CLOCK_MONOTONIC);
			cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
			for (uint32_t i = 0; i < ranks; i += 1024)
				must(dcp_job_sends(job, i, 1024, rows, &err) == 0, "sends",
				     &err);
			snprintf(what, sizeof(what), "table: %s", models[m].name);
			say_time(what, n, wall, cpu);

			wall = read_seconds(CLOCK_MONOTONIC);
			cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
			must(dcp_job_receives(job, 341, rows, &err) == 0, "receives", &err);
			snprintf(what, sizeof(what), "one rank's: %s", models[m].name);
			say_time(what, n, wall, cpu);
			dcp_job_free(job);
		}
		dcp_layout_free(l);
		dcp_arena_finish(&x.arena);
	}
}

static const struct model large[] = {
	{ .name = "dense, 32 x 16 x 8 ranks",
	  .layout = LARGE,
	  .keys = KEYS,
	  .layers = KEYS / 10,
	  .of_layer = { { "m.layers.", ".attn.q.weight", 4096, 512 },
			{ "m.layers.", ".attn.k.weight", 1024, 512 },
			{ "m.layers.", ".attn.v.weight", 1024, 512 },
			{ "m.layers.", ".attn.o.weight", 4096, 512 },
			{ "m.layers.", ".mlp.up.weight", 14336, 512 },
			{ "m.layers.", ".mlp.gate.weight", 14336, 512 },
			{ "m.layers.", ".mlp.down.weight", 4096, 1792 },
			{ "m.layers.", ".norm1.weight", 4096, 1 },
			{ "m.layers.", ".norm2.weight", 4096, 1 },
			{ "m.layers.", ".router.weight", 128, 512 } } },
};

static void time_rounds(int reps)
{
	enum { RANKS = 4096 };
	static struct dcp_job_flow rank[RANKS], group[RANKS];
	struct dcp_err err = { 0 };

	for (size_t m = 0; m < DCP_LEN(large); m++) {
		struct t_rounds x = { .ranks = RANKS, .staging = 64 << 20 };
		struct dcp_layout *l;
		struct told told;
		char what[192];

		make_model(&told, &large[m]);
		must(dcp_layout_parse("bench", large[m].layout, strlen(large[m].layout), &l,
				      &err) == 0,
		     "layout", &err);
		for (int r = 0; r < reps; r++) {
			double wall = read_seconds(CLOCK_MONOTONIC);
			double cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
			struct dcp_job *job = add_all(&told, l);

			must(dcp_job_finish(job, &err) == 0, "finish", &err);
			must(dcp_job_flows(job, rank, group, &err) == 0, "flows", &err);
			snprintf(what, sizeof(what), "plan: %s", large[m].name);
			say_time(what, RANKS, wall, cpu);

			wall = read_seconds(CLOCK_MONOTONIC);
			cpu = read_seconds(CLOCK_PROCESS_CPUTIME_ID);
			must(t_rounds_predict(&x, job, told.files, WRITERS) == 0, "rounds",
			     &err);
			snprintf(what, sizeof(what),
				 "%llu rounds, stripe %llu, %llu messages, %llu bytes, at most "
				 "%llu at once: %s",
				 (unsigned long long)x.rounds, (unsigned long long)x.stripe,
				 (unsigned long long)x.messages, (unsigned long long)x.bytes,
				 (unsigned long long)x.most, large[m].name);
			say_time(what, x.tries, wall, cpu);
			t_rounds_free(&x);
			dcp_job_free(job);
		}
		dcp_layout_free(l);
		dcp_arena_finish(&told.arena);
	}
}

int main(int argc, char **argv)
{
	static const char *const ways[] = { "all", "node", "never", "direct" };
	int reps = argc > 2 ? atoi(argv[2]) : 3;

	asked.group = argc > 4 ? (uint32_t)atoi(argv[4]) : 1;
	for (int i = 0; argc > 5 && i < 4; i++)
		if (!strcmp(argv[5], ways[i])) {
			asked.exchange = (enum dcp_job_exchange)DCP_MIN(i, 2);
			asked.direct = i == 3;
		}

	if (argc > 1 && !strcmp(argv[1], "rank"))
		one_rank(reps);
	else if (argc > 1 && !strcmp(argv[1], "whole"))
		time_whole(reps, argc > 3 ? argv[3] : "");
	else if (argc > 1 && !strcmp(argv[1], "rounds"))
		time_rounds(argc > 2 ? reps : 1);
	else
		must(false, "usage: job rank|whole|rounds [REPS]", NULL);
	return 0;
}
