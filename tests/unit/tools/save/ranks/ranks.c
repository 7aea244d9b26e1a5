/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that the ranks of a job write together: tensors cut at random against what one
 * process writes, and ranks that do not agree, fail or are gone.
 * covers: tools/save/ranks/agreed, tools/save/ranks/given, tools/save/ranks/library
 * covers: library
 * covers: tools/save/ranks/shares, library, shares
 */
#include "tests/unit/t.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/t/comm.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/random.h"
#include "tools/save/dcpsave.h"

enum { TENSORS = 5, CUTS = 6, RANKS = 5 };

/* cmocka's assertions do not work in ranks: say what is wrong and count it. */
static int wrong(const struct dcpload_comm *comm, const char *what, int rc,
		 const struct dcpload_error *err)
{
	fprintf(stderr, "rank %u, %s: %d, %s\n", comm->rank, what, rc, err->text);
	return 1;
}

/* ---- any cuts ---- */

struct job {
	uint64_t seed;
	const char *out;
	uint32_t flags;
	uint64_t staging;
	_Atomic uint64_t own, given;
};

struct box {
	uint64_t lo[3], len[3];
	uint32_t holders; /* bits */
};

struct invented {
	char key[16];
	const char *dtype;
	uint32_t itemsize, ndim;
	uint64_t shape[3];
	struct box box[CUTS];
	size_t nboxes;
};

/* The same in every rank. */
static void invent(uint64_t *seed, size_t number, struct invented *t)
{
	static const struct {
		const char *name;
		uint32_t size;
	} types[] = { { "F32", 4 }, { "BF16", 2 }, { "U8", 1 }, { "C64", 8 } };
	size_t type = t_random(seed, DCP_LEN(types));

	memset(t, 0, sizeof(*t));
	snprintf(t->key, sizeof(t->key), "layer.%zu.w", number);
	t->dtype = types[type].name;
	t->itemsize = types[type].size;
	t->ndim = (uint32_t)t_random(seed, 4);
	for (uint32_t d = 0; d < t->ndim; d++)
		t->shape[d] = t_random(seed, 20) ? 1 + t_random(seed, 7) : 0;
	memcpy(t->box[0].len, t->shape, sizeof(t->shape));
	t->nboxes = 1;
	for (size_t k = t_random(seed, CUTS); k && t->ndim; k--) {
		struct box *b = &t->box[t_random(seed, t->nboxes)], *more = &t->box[t->nboxes];
		uint32_t d = (uint32_t)t_random(seed, t->ndim);
		uint64_t at = t_random(seed, b->len[d] + 1);

		*more = *b;
		more->lo[d] += at;
		more->len[d] -= at;
		b->len[d] = at;
		t->nboxes++;
	}
	for (size_t i = 0; i < t->nboxes; i++)
		t->box[i].holders = 1 + (uint32_t)t_random(seed, (1 << RANKS) - 1);
}

static unsigned char byte_of(size_t tensor, uint64_t element, uint32_t b)
{
	return (unsigned char)((element * 31 + tensor * 7 + b) * 2654435761u >> 13);
}

/* The box in memory, with its dimensions the other way round: the first is contiguous. */
static char *fill(size_t tensor, const struct invented *t, const struct box *b, int64_t *stride)
{
	uint64_t n = 1, at[3] = { 0 };
	char *memory;

	for (uint32_t d = 0; d < t->ndim; n *= b->len[d++])
		stride[d] = (int64_t)n;
	memory = malloc(n * t->itemsize + 1);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t e = 0, to = 0;

		for (uint32_t d = 0; d < t->ndim; d++) {
			e = e * t->shape[d] + b->lo[d] + at[d];
			to += at[d] * (uint64_t)stride[d];
		}
		for (uint32_t k = 0; k < t->itemsize; k++)
			memory[to * t->itemsize + k] = (char)byte_of(tensor, e, k);
		for (uint32_t d = t->ndim; d-- && ++at[d] == b->len[d];)
			at[d] = 0;
	}
	return memory;
}

static int give(struct dcpsave *s, const struct dcpload_comm *comm, size_t number,
		const struct invented *t, char **memory, struct dcpload_error *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < t->nboxes; i++) {
		const struct box *b = &t->box[i];
		int64_t stride[3];
		struct dcpsave_tensor give = { .size = sizeof(give),
					       .ndim = t->ndim,
					       .key = t->key,
					       .dtype = t->dtype,
					       .shape = t->shape,
					       .lo = b->lo,
					       .len = b->len,
					       .stride = stride };

		if (comm->ranks > 1 && !(b->holders >> comm->rank & 1))
			continue;
		give.data = memory[i] = fill(number, t, b, stride);
		rc = dcpsave_add(s, &give, err);
	}
	return rc;
}

static int save_rank(const struct dcpload_comm *comm, void *arg)
{
	struct job *job = arg;
	const struct dcpsave_config config = { .size = sizeof(config),
					       .flags = job->flags,
					       .format = "safetensors",
					       .staging = job->staging,
					       .timeout_ms = 60000 };
	char *memory[TENSORS][CUTS] = { 0 };
	struct dcpsave_report report = { .size = sizeof(report) };
	struct dcpload_error err = { 0 };
	struct dcpsave *s = NULL;
	uint64_t seed = job->seed;
	int rc = dcpsave_open(comm, job->out, &config, &s, &err), bad;

	for (size_t i = 0; rc == 0 && i < TENSORS; i++) {
		struct invented t;

		invent(&seed, i, &t);
		rc = give(s, comm, i, &t, memory[i], &err);
	}
	if (rc == 0)
		rc = dcpsave_plan(s, &err);
	if (rc == 0)
		rc = dcpsave_write(s, &err);
	for (size_t i = 0; i < TENSORS * CUTS; i++) {
		char *p = memory[i / CUTS][i % CUTS];

		if (p && job->flags & DCPSAVE_ASYNC)
			p[0] = (char)~p[0];
		free(p);
	}
	if (rc == 0)
		rc = dcpsave_wait(s, &err);
	bad = rc < 0 ? wrong(comm, "saving", rc, &err) : 0;
	if (rc == 0) {
		dcpsave_report(s, &report);
		job->own += report.own;
		job->given += report.given;
		bad += report.written != report.own
			       ? wrong(comm, "not all its own was written", 0, &err)
			       : 0;
		bad += job->staging && report.copied > job->staging
			       ? wrong(comm, "more was copied than is allowed", 0, &err)
			       : 0;
	}
	dcpsave_close(s);
	return bad;
}

static void *slurp(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	struct stat st;
	void *p;

	assert_non_null(f);
	assert_int_equal(fstat(fileno(f), &st), 0);
	*n = (size_t)st.st_size;
	p = malloc(*n + 1);
	assert_int_equal(fread(p, 1, *n, f), *n);
	fclose(f);
	return p;
}

static void check_equal(const char *a, const char *b)
{
	size_t na, nb;
	char x[256], y[256], *p, *q;

	snprintf(x, sizeof(x), "%s/model.safetensors", a);
	snprintf(y, sizeof(y), "%s/model.safetensors", b);
	p = slurp(x, &na);
	q = slurp(y, &nb);
	assert_int_equal(na, nb);
	assert_memory_equal(p, q, na);
	free(p);
	free(q);
}

static void cuts_are_agreed(void **state)
{
	uint64_t seed = t_random_seed(11);
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "save");
	for (int round = 0; round < T_ROUNDS(60); round++) {
		char whole[200], cut[200];
		struct job alone = { .out = whole, .seed = t_random64(&seed) };
		struct job many = { .out = cut, .seed = alone.seed };

		print_message("           DCPFS_TEST_SEED, round %d: %llu\n", round,
			      (unsigned long long)alone.seed);
		snprintf(whole, sizeof(whole), "%s/whole-%d", d.root, round);
		snprintf(cut, sizeof(cut), "%s/cut-%d", d.root, round);
		many.flags = t_random(&seed, 2) ? DCPSAVE_ASYNC : 0;
		many.staging = t_random(&seed, 3) * 50;
		assert_int_equal(t_comm_run(1, save_rank, &alone), 0);
		assert_int_equal(t_comm_run(RANKS, save_rank, &many), 0);
		check_equal(whole, cut);
		assert_int_equal(many.own, alone.own);
		assert_int_equal(alone.given, alone.own);
	}
	t_dir_remove(&d);
}

/* The bytes themselves, once: two halves of a matrix, columns of it. */
static void bytes_of_ranks_are_written(void **state)
{
	static const float left[2][1] = { { 1 }, { 3 } }, right[2][1] = { { 2 }, { 4 } };
	static const float want[4] = { 1, 2, 3, 4 };
	const struct dcpsave_config config = { .size = sizeof(config),
					       .format = "safetensors" };
	const uint64_t shape[2] = { 2, 2 }, len[2] = { 2, 1 },
		       lo[2][2] = { { 0, 0 }, { 0, 1 } };
	struct dcpload_error err = { 0 };
	struct dcpsave *s;
	struct t_dir d;
	size_t n;
	char path[200], *file;

	(void)state;
	t_dir_make(&d, "save");
	snprintf(path, sizeof(path), "%s/one.safetensors", d.root);
	assert_int_equal(dcpsave_open(NULL, path, &config, &s, &err), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(dcpsave_add(s,
					     &(struct dcpsave_tensor){
						     .size = sizeof(struct dcpsave_tensor),
						     .ndim = 2,
						     .key = "w",
						     .dtype = "F32",
						     .shape = shape,
						     .lo = lo[i],
						     .len = len,
						     .data = i ? right : left },
					     &err),
				 0);
	assert_int_equal(dcpsave_write(s, &err), -EINVAL); /* there is no plan yet */
	assert_int_equal(dcpsave_plan(s, &err), 0);
	assert_int_equal(dcpsave_write(s, &err), 0);
	assert_int_equal(dcpsave_wait(s, &err), 0);
	dcpsave_close(s);
	file = slurp(path, &n);
	assert_memory_equal(file + n - sizeof(want), want, sizeof(want));
	free(file);
	assert_int_equal(t_dir_count(&d, "."), 2); /* and the list */
	t_dir_remove(&d);
}

/* ---- gathering ---- */

enum { GATHERED = 9 };

struct gathered {
	const char *root, *format, *file;
	uint64_t limit;
	uint32_t to[2];
	bool bulk;
	_Atomic uint64_t rounds, grouped;
};

static uint64_t gathered_size(size_t i)
{
	return i == 3 ? 0 : i * i * 37 + 1;
}

/* Some of the tensors have no memory of their own. */
static int read_gathered(void *ctx, uint32_t thread, uint64_t off, void *to, uint64_t n,
			 struct dcpload_error *err)
{
	size_t number = (size_t)(uintptr_t)ctx;

	(void)thread, (void)err;
	for (uint64_t i = 0; i < n; i++)
		((unsigned char *)to)[i] = byte_of(number, off + i, 0);
	return 0;
}

static int gather_rank(const struct dcpload_comm *given, void *arg)
{
	struct gathered *job = arg;
	struct dcpload_comm comm = *given;
	char path[300];
	const struct dcpsave_config config = { .size = sizeof(config),
					       .flags = DCPSAVE_FILE,
					       .format = job->format,
					       .timeout_ms = 60000,
					       .gather_to = job->to,
					       .ngather = given->ranks > 1 ? 2 : 0,
					       .max_grouped = job->limit };
	static const char zeros[4096];
	struct dcpsave_report report = { .size = sizeof(report) };
	struct dcpload_error err = { 0 };
	struct dcpsave *s = NULL;
	int rc;

	if (!job->bulk)
		comm.alltoallv = NULL;
	snprintf(path, sizeof(path), "%s/%u-%u", job->root, comm.ranks, comm.rank);
	mkdir(path, 0777);
	snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%s", job->file);
	rc = dcpsave_open(&comm, path, &config, &s, &err);
	for (size_t i = 0; rc == 0 && i < GATHERED; i++) {
		const uint64_t n = gathered_size(i);
		uint32_t owner = (uint32_t)(i * comm.ranks / GATHERED);
		char key[8];
		const struct dcpsave_tensor t = { .size = sizeof(t),
						  .ndim = 1,
						  .key = key,
						  .dtype = "U8",
						  .shape = &n,
						  .data = owner == comm.rank ? NULL : zeros,
						  .read = read_gathered,
						  .ctx = (void *)(uintptr_t)i };

		snprintf(key, sizeof(key), "w%zu", i);
		/* What a later rank gives, too, counts less. */
		if (owner == comm.rank || owner == comm.rank + 1)
			rc = dcpsave_add(s, &t, &err);
	}
	if (rc == 0)
		rc = dcpsave_plan(s, &err);
	if (rc == 0)
		rc = dcpsave_write(s, &err);
	if (rc == 0) {
		dcpsave_report(s, &report);
		job->rounds += report.rounds;
		job->grouped = DCP_MAX(job->grouped, report.grouped);
	}
	dcpsave_close(s);
	return rc < 0 ? wrong(given, "gathering", rc, &err) : 0;
}

/*
 * The ranks that write make the file that one process makes, in rounds of no more than the limit.
 */
static void ranks_are_gathered(void **state)
{
	static const struct {
		const char *format, *file;
	} kinds[] = { { "safetensors", "w.safetensors" }, { "torch-save", "w.pt" } };
	uint64_t seed = t_random_seed(12);
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "gather");
	for (int round = 0; round < T_ROUNDS(16); round++) {
		uint32_t ranks = 2 + (uint32_t)t_random(&seed, 4);
		struct gathered job = { .root = d.root,
					.format = kinds[round & 1].format,
					.file = kinds[round & 1].file,
					.limit = t_random(&seed, 4) ? 30 + t_random(&seed, 9000)
								    : 0,
					.to = { (uint32_t)t_random(&seed, ranks),
						(uint32_t)t_random(&seed, ranks) },
					.bulk = t_random(&seed, 2) };
		size_t n, want;
		char path[300], *whole, *got;

		assert_int_equal(t_comm_run(1, gather_rank, &job), 0);
		snprintf(path, sizeof(path), "%s/1-0/%s", d.root, job.file);
		whole = slurp(path, &want);
		assert_int_equal(unlink(path), 0);
		assert_int_equal(t_comm_run(ranks, gather_rank, &job), 0);
		assert_true(job.rounds && (!job.limit || job.grouped <= job.limit));
		for (uint32_t r = 0; r < ranks; r++) {
			snprintf(path, sizeof(path), "%s/%u-%u/%s", d.root, ranks, r, job.file);
			if (r == job.to[0] || r == job.to[1]) {
				got = slurp(path, &n);
				assert_int_equal(n, want);
				assert_memory_equal(got, whole, n);
				free(got);
				assert_int_equal(unlink(path), 0);
			}
			strcpy(strrchr(path, '/'), "/.dcpfs-written");
			assert_int_equal(unlink(path),
					 r == job.to[0] || r == job.to[1] ? 0 : -1);
			*strrchr(path, '/') = '\0';
			assert_int_equal(rmdir(path), 0); /* there is nothing else */
		}
		free(whole);
	}
	t_dir_remove(&d);
}

/* ---- ranks that differ ---- */

struct differing {
	const char *what, *says;
	int rc;
	uint32_t flags[3];
	struct {
		const char *key, *dtype;
		uint64_t n, lo, len;
	} give[3];
	const char *object; /* a key of all ranks; NULL: none */
	const char *path[3];
	uint32_t gone; /* this rank ends before dcpsave_write(); 0: none */
};

static int differ_rank(const struct dcpload_comm *comm, void *arg)
{
	const struct differing *row = arg;
	const struct dcpsave_config config = { .size = sizeof(config),
					       .flags = row->flags[comm->rank],
					       .format = "safetensors",
					       .timeout_ms = 60000 };
	static const char memory[64];
	const struct dcpsave_tensor t = { .size = sizeof(t),
					  .ndim = 1,
					  .key = row->give[comm->rank].key,
					  .dtype = row->give[comm->rank].dtype,
					  .shape = &row->give[comm->rank].n,
					  .lo = &row->give[comm->rank].lo,
					  .len = &row->give[comm->rank].len,
					  .data = memory };
	const struct dcpsave_object o = { .size = sizeof(o), .key = row->object, .json = "1" };
	struct dcpload_error err = { 0 };
	struct dcpsave *s = NULL;
	int rc = dcpsave_open(comm, row->path[comm->rank], &config, &s, &err);

	if (rc == 0)
		rc = dcpsave_add(s, &t, &err);
	if (rc == 0 && row->object)
		rc = dcpsave_add_object(s, &o, &err);
	if (rc == 0)
		rc = dcpsave_plan(s, &err);
	if (rc == 0 && row->gone && row->gone == comm->rank) {
		dcpsave_close(s);
		return 0;
	}
	if (rc == 0)
		rc = dcpsave_write(s, &err);
	dcpsave_close(s);
	return rc != row->rc || (rc && !strstr(err.text, row->says))
		       ? wrong(comm, row->what, rc, &err)
		       : 0;
}

#define HALF(k)                                                                                \
	{ k, "F32", 8, 0, 4 },                                                                 \
	{                                                                                      \
		k, "F32", 8, 4, 4                                                              \
	}

static void differing_ranks_are_refused(void **state)
{
	static const struct differing rows[] = {
		{ "equal ones", "", 0, { 0 }, { HALF("w"), { "w", "F32", 8, 4, 4 } }, NULL },
		{ "another shape",
		  "w is F32[8] on rank 0 and F32[9] on rank 2",
		  -EINVAL,
		  { 0 },
		  { HALF("w"), { "w", "F32", 9, 4, 5 } },
		  NULL },
		{ "another dtype",
		  "w is F32[8] on rank 0 and I32[8] on rank 2",
		  -EINVAL,
		  { 0 },
		  { HALF("w"), { "w", "I32", 8, 4, 4 } },
		  NULL },
		{ "a gap",
		  "w: elements",
		  -EINVAL,
		  { 0 },
		  { { "w", "F32", 8, 0, 4 }, { "w", "F32", 8, 5, 3 }, { "v", "F32", 1, 0, 1 } },
		  NULL },
		{ "an overlap",
		  "overlap",
		  -EINVAL,
		  { 0 },
		  { HALF("w"), { "w", "F32", 8, 3, 2 } },
		  NULL },
		{ "an empty region",
		  "",
		  0,
		  { 0 },
		  { HALF("w"), { "w", "F32", 8, 8, 0 } },
		  NULL },
		{ "keys of their own",
		  "",
		  0,
		  { 0 },
		  { { "a", "F32", 8, 0, 8 }, { "b", "F32", 8, 0, 8 }, { "c", "F32", 8, 0, 8 } },
		  NULL },
		{ "which they may not have",
		  "w is given by rank 0 and not by rank 2",
		  -EINVAL,
		  { DCPSAVE_SAME_KEYS, DCPSAVE_SAME_KEYS, DCPSAVE_SAME_KEYS },
		  { HALF("w"), { "v", "F32", 8, 0, 8 } },
		  NULL },
		{ "other options",
		  "DCPSAVE_PARTIAL is \"not set\" on rank 0 and \"set\" on rank 1: all ranks "
		  "need the same",
		  -EINVAL,
		  { 0, DCPSAVE_PARTIAL, 0 },
		  { HALF("w"), { "w", "F32", 8, 4, 4 } },
		  NULL },
		{ "no such region",
		  "dimension 0 of the region is [5, 5 + 4), of the tensor 8",
		  -EINVAL,
		  { 0 },
		  { { "w", "F32", 8, 5, 4 }, { "w", "F32", 8, 5, 4 }, { "w", "F32", 8, 5, 4 } },
		  NULL },
		{ "what the format does not hold",
		  "step: the format holds tensors only",
		  -ENOTSUP,
		  { 0 },
		  { HALF("w"), { "w", "F32", 8, 4, 4 } },
		  "step" },
		{ "and is left out",
		  "",
		  0,
		  { DCPSAVE_PARTIAL, DCPSAVE_PARTIAL, DCPSAVE_PARTIAL },
		  { HALF("w"), { "w", "F32", 8, 4, 4 } },
		  "step" },
		{ "an object with a tensor's key",
		  "w is a tensor and an object",
		  -EINVAL,
		  { DCPSAVE_PARTIAL, DCPSAVE_PARTIAL, DCPSAVE_PARTIAL },
		  { HALF("w"), { "w", "F32", 8, 4, 4 } },
		  "w" },
		{ "a rank that is gone",
		  "",
		  -ECONNRESET,
		  { 0 },
		  { HALF("w"), { "w", "F32", 8, 4, 4 } },
		  NULL,
		  { NULL },
		  2 },
	};
	struct t_dir d;

	(void)state;
	t_dir_make(&d, "save");
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct differing row = rows[i];
		char path[200];

		t_case(row.what);
		snprintf(path, sizeof(path), "%s/%zu", d.root, i);
		for (int r = 0; r < 3; r++)
			row.path[r] = path;
		assert_int_equal(t_comm_run(3, differ_rank, &row), 0);
		/* Complete, or nothing is left. */
		assert_int_equal(access(path, F_OK) == 0, row.rc == 0);
	}
	assert_int_equal(t_dir_count(&d, "."), 4);
	t_dir_remove(&d);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuts_are_agreed),
		cmocka_unit_test(bytes_of_ranks_are_written),
		cmocka_unit_test(ranks_are_gathered),
		cmocka_unit_test(differing_ranks_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
