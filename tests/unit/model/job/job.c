/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/model/job/job.h"
#include "tests/unit/t/model/job.h"
#include "tests/unit/t/model/layout.h"
#include "tests/unit/t/model/rule.h"

enum { ROUNDS = T_ROUNDS(400) };

/* Every placement, dimensions that only some ranks are told of, and what no rank holds. The
 * last three leave parts of a tensor to no rank. */
static const char *const layouts[] = {
	"mesh a=1\n* replicate\n",
	"mesh a=7\n* shard(0, optional)\n",
	"mesh a=3 b=4\n* shard(0, optional)@a shard(1, optional)@b\n",
	"mesh a=3 b=4\n* shard(0, optional)@b shard(0, optional)@a\n",
	"mesh a=2 b=3\na.* replicate\nb.* strided(0, 2, optional)@a shard(0, optional)@b\n"
	"c.* shard(1, balanced, optional)@b\n* shard(0, pad, optional)@a\n",
	"mesh a=5\n* interleave(0, 2, optional)\n",
	"mesh a=4 b=2\n* flat(tight)@a\n",
	"mesh a=4 b=2\na.* flat(pad=4)@b flat@a\n* shard(0, pad, optional)@a flat@b\n",
	"mesh pp=3 tp=2\n*.{*}.w stage(9)@pp shard(0, optional)@tp\n",
	"mesh pp=3 tp=2\na.* drop\nb.* only(pp=1) shard(0, optional)@tp\n"
	"* only(pp=0|-1, tp=0) replicate\n",
	"mesh a=24\n* shard(0, optional)\n",
	"mesh a=4\n* only(a=1-2) shard(0, optional)@a\n",
	"mesh a=3 b=2\n* only(a=0) shard(1, optional)@a shard(0, optional)@b\n",
	"mesh a=5\na.* only(a=0|3) flat@a\n* only(a=0-3) interleave(0, optional)@a\n",
};

static struct t_job w;

static void shuffle(size_t *order, size_t n, struct t_choice *c)
{
	for (size_t i = 0; i < n; i++)
		order[i] = i;
	for (size_t i = n; i > 1; i--) {
		size_t j = t_pick(c, i), x = order[i - 1];

		order[i - 1] = order[j];
		order[j] = x;
	}
}

static void check(const char *what, int round, struct t_choice *c)
{
	size_t order[T_JOB_TENSORS];
	uint64_t first = 0, again = 0;
	const char *wrong;

	for (int k = 0; k < 2; k++) {
		shuffle(order, w.n, c);
		wrong = t_job_check(&w, order, k ? &again : &first);
		if (wrong)
			fail_msg("%s, round %d: %s", what, round, wrong);
	}
	if (first != again)
		fail_msg("%s, round %d: told in another order, another plan", what, round);
}

/* Plans of random checkpoints against the reference, told in two orders. */
static void by_chance(uint64_t seed)
{
	struct t_choice c = { .seed = seed };

	for (size_t i = 0; i < DCP_LEN(layouts); i++) {
		struct dcp_layout *l = t_layout(layouts[i]);

		t_case(layouts[i]);
		w.opts = (struct dcp_job_opts){ .to = l };
		for (int round = 0; round < ROUNDS / (int)DCP_LEN(layouts); round++) {
			t_job_random(&w, &c, false);
			check(layouts[i], round, &c);
		}
		dcp_layout_free(l);
	}
}

static void random_bytes_are_shared(void **state)
{
	(void)state;
	by_chance(0x6a6f62);
}

/* Layouts at random, some of which cannot be had; every third with ranks that hold it all. */
static void random_layouts_are_dealt(void **state)
{
	struct t_choice c = { .seed = 0x72756c65 };

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		char text[2][T_RULE_TEXT];

		for (int i = 0; i < 2; i++)
			t_rule_layout(text[i], T_JOB_RANKS, &c);
		w.opts = (struct dcp_job_opts){ .to = t_layout(text[0]) };
		if (round % 3 == 0)
			w.opts.from = t_layout(text[1]);
		t_job_random(&w, &c, false);
		check(text[0], round, &c);
		dcp_layout_free((struct dcp_layout *)(uintptr_t)w.opts.to);
		dcp_layout_free((struct dcp_layout *)(uintptr_t)w.opts.from);
	}
}

/* All layouts into all, by what their ranks hold. */
static void any_layout_is_resharded(void **state)
{
	struct t_choice c = { .seed = 0x66726f6d };

	(void)state;
	for (size_t i = 0; i < 9; i++)
		for (size_t j = 0; j < DCP_LEN(layouts); j++) {
			struct dcp_layout *from = t_layout(layouts[i]);
			struct dcp_layout *to = t_layout(layouts[j]);

			w.opts = (struct dcp_job_opts){ .to = to, .from = from };
			for (int round = 0; round < 4; round++) {
				t_job_random(&w, &c, false);
				check(layouts[j], round, &c);
			}
			dcp_layout_free(from);
			dcp_layout_free(to);
		}
}

/* ---- cases ---- */

/* Tensors of one dimension and one byte an element; each piece is a stretch of it. */
struct stored {
	uint32_t tensor, file;
	uint64_t lo, n, off;
	bool whole;
	uint64_t frame; /* bytes around its elements */
	bool zeros;
	uint64_t stride; /* 0: none */
};

struct small {
	struct dcp_layout *to, *from;
	struct dcp_job *job;
	struct dcp_file_id files[2];
	struct dcp_err err;
};

static const char *const keys[] = { "w0", "w1", "w2" };

static int tell(struct small *x, uint32_t tensor, const struct stored *v, size_t n)
{
	struct dcp_piece pieces[8];
	uint64_t shape = 0;
	size_t npieces = 0;

	for (size_t i = 0; i < n; i++) {
		if (v[i].tensor != tensor)
			continue;
		pieces[npieces++] =
			(struct dcp_piece){ .lo = &v[i].lo,
					    .len = &v[i].n,
					    .run_n = v[i].n,
					    .off = v[i].off,
					    .nbytes = v[i].n + v[i].frame,
					    .file = v[i].file,
					    .enc = v[i].whole ? DCP_ENC_TORCH : DCP_ENC_PLAIN,
					    .filter = v[i].zeros ? DCP_FILTER_ZERO
								 : DCP_FILTER_NONE,
					    .stride = v[i].stride ? &v[i].stride : NULL };
		shape = DCP_MAX(shape, v[i].lo + v[i].n);
	}
	return dcp_job_add(x->job,
			   &(struct dcp_tensor){ .key = keys[tensor],
						 .itemsize = 1,
						 .ndim = 1,
						 .shape = &shape,
						 .pieces = pieces,
						 .npieces = npieces },
			   &x->err);
}

static int open_small(struct small *x, const char *to, const char *from, uint32_t group,
		      const struct stored *v, size_t n)
{
	struct dcp_job_opts opts = { .files = x->files, .nfiles = 2 };
	int rc = 0;

	memset(x, 0, sizeof(*x));
	x->files[0] = (struct dcp_file_id){ .name = "a", .size = 10000 };
	x->files[1] = (struct dcp_file_id){ .name = "b", .size = 20000 };
	opts.to = x->to = t_layout(to);
	opts.from = x->from = from ? t_layout(from) : NULL;
	opts.group = group;
	assert_int_equal(dcp_job_create(&opts, &x->job, &x->err), 0);
	for (uint32_t t = 0; rc == 0 && t < DCP_LEN(keys); t++)
		for (size_t i = 0; i < n; i++)
			if (v[i].tensor == t) {
				rc = tell(x, t, v, n);
				break;
			}
	return rc ? rc : dcp_job_finish(x->job, &x->err);
}

static void close_small(struct small *x)
{
	dcp_job_free(x->job);
	dcp_layout_free(x->to);
	dcp_layout_free(x->from);
}

static int write_read(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	char *text = ctx;

	(void)rank;
	sprintf(text + strlen(text), " %c%llu+%llu", (char)('a' + file),
		(unsigned long long)off, (unsigned long long)n);
	return 0;
}

/* "a0+10 b4+6" of each rank, and what each sends to each. */
static void reads_and_sends_are_dealt(void **state)
{
	static const struct {
		const char *what, *layout;
		struct stored v[6];
		size_t n;
		const char *reads, *sends;
	} cases[] = {
		{ "a file is one stripe, which is of one rank",
		  "mesh a=2\n* shard(0)\n",
		  { { 0, 0, 0, 100, 0 } },
		  1,
		  " a0+4096 | |",
		  "50 50 | 0 0 |" },
		{ "files take turns",
		  "mesh a=2\n* replicate\n",
		  { { 0, 0, 0, 60, 0 }, { 0, 1, 60, 40, 10 } },
		  2,
		  " a0+4096 | b0+4096 |",
		  "60 60 | 40 40 |" },
		{ "blocks around what is needed, holes of two blocks between them",
		  "mesh a=1\n* replicate\n",
		  { { 0, 1, 0, 10, 0 }, { 1, 1, 0, 10, 12290 }, { 2, 1, 0, 10, 19980 } },
		  3,
		  " b0+20000 |",
		  "30 |" },
		{ "a hole of more is left out",
		  "mesh a=1\n* replicate\n",
		  { { 0, 1, 0, 10, 0 }, { 2, 1, 0, 10, 16384 } },
		  2,
		  " b0+4096 b16384+3616 |",
		  "20 |" },
		{ "bytes that two tensors share are read and sent once",
		  "mesh a=2\n* replicate\n",
		  { { 0, 0, 0, 40, 0 }, { 1, 0, 0, 40, 20 } },
		  2,
		  " a0+4096 | |",
		  "60 60 | 0 0 |" },
		{ "what no rank needs is not read",
		  "mesh a=2\nw0 drop\nw1 only(a=0) shard(0)\n* replicate\n",
		  { { 0, 0, 0, 10, 5000 }, { 1, 0, 0, 20, 10 }, { 2, 1, 0, 10, 100 } },
		  3,
		  " a0+4096 | b0+4096 |",
		  "10 0 | 10 10 |" },
		{ "what is decoded each rank reads for itself",
		  "mesh a=2\n* replicate\n",
		  { { 0, 0, 0, 45, 0 }, { 1, 0, 0, 20, 4500, true } },
		  2,
		  " a0+4096 | |",
		  "45 45 | 0 0 |" },
		{ "zeros that are stored nowhere are neither read nor sent",
		  "mesh a=2\n* shard(0)\n",
		  { { 0, 0, 0, 36, 0 }, { 0, 0, 36, 12, 0, false, 0, true } },
		  2,
		  " a0+4096 | |",
		  "24 12 | 0 0 |" },
		{ "copies: from the file that has least to give",
		  "mesh a=1\n* replicate\n",
		  { { 0, 0, 0, 30, 0 },
		    { 1, 0, 0, 10, 30 },
		    { 1, 1, 0, 10, 500 },
		    { 2, 0, 0, 20, 40 },
		    { 2, 1, 0, 20, 600 } },
		  5,
		  " a0+4096 b0+4096 |",
		  "60 |" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char reads[256] = "", sends[256] = "";
		uint64_t rows[16];
		struct small x;
		uint32_t ranks;

		t_case(cases[i].what);
		assert_int_equal(
			open_small(&x, cases[i].layout, NULL, 0, cases[i].v, cases[i].n), 0);
		ranks = dcp_layout_ranks(x.to);
		assert_int_equal(dcp_job_sends(x.job, 0, ranks, rows, NULL), 0);
		for (uint32_t r = 0; r < ranks; r++) {
			assert_int_equal(dcp_job_reads(x.job, r, write_read, reads), 0);
			strcat(reads, *reads ? " |" : "|");
			for (uint32_t s = 0; s < ranks; s++)
				sprintf(sends + strlen(sends), "%llu ",
					(unsigned long long)rows[r * ranks + s]);
			strcat(sends, r + 1 < ranks ? "| " : "|");
		}
		assert_string_equal(reads, cases[i].reads);
		assert_string_equal(sends, cases[i].sends);
		close_small(&x);
	}
}

/* Ranks 0 and 1 hold all, 2 and 3 nothing: who is in the same group gives; else in turn. */
static void holders_take_turns(void **state)
{
	static const struct stored v[] = { { 0, 0, 0, 10, 0 } };
	static const struct {
		const char *what;
		uint32_t group;
		uint64_t rows[16];
	} cases[] = {
		{ "each by itself: they take turns", 1, { 10, 0, 10, 0, 0, 10, 0, 10 } },
		{ "in one group all the same", 4, { 10, 0, 10, 0, 0, 10, 0, 10 } },
	};
	static const struct {
		const char *what;
		uint64_t rows[16];
	} near = { "1 and 3 hold: each gives to the one of its group",
		   { 0, 0, 0, 0, 10, 10, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10 } };
	uint64_t rows[16];
	struct small x;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		t_case(cases[i].what);
		open_small(&x, "mesh a=4\n* replicate\n", "mesh a=4\n* only(a=0-1) replicate\n",
			   cases[i].group, v, 1);
		assert_int_equal(dcp_job_sends(x.job, 0, 4, rows, NULL), 0);
		assert_memory_equal(rows, cases[i].rows, sizeof(rows));
		close_small(&x);
	}
	t_case(near.what);
	open_small(&x, "mesh a=4\n* replicate\n", "mesh a=4\n* only(a=1|3) replicate\n", 2, v,
		   1);
	assert_int_equal(dcp_job_sends(x.job, 0, 4, rows, NULL), 0);
	assert_memory_equal(rows, near.rows, sizeof(rows));
	close_small(&x);
	t_case("what no rank holds cannot be asked for");
	open_small(&x, "mesh a=2\n* replicate\n", "mesh a=2\n* only(a=1) shard(0)\n", 2, v, 1);
	assert_int_equal(dcp_job_sends(x.job, 0, 2, rows, &x.err), -EINVAL);
	t_assert_says(&x.err, "w0: rank 0 of test needs 5 elements of it that no rank of test "
			      "holds");
	close_small(&x);
}

static void bad_jobs_are_refused(void **state)
{
	static const struct {
		const char *what, *layout;
		struct stored v[2];
		size_t n;
		int code;
		const char *says;
	} cases[] = {
		{ "a layout that cannot cut it",
		  "mesh a=2\nw0 shard(1)\n",
		  { { 0, 0, 0, 10, 0 } },
		  1,
		  -EINVAL,
		  "test:2: key w0, rank 0: shard(1)@a: the tensor has 1 dimension" },
		{ "no rule",
		  "mesh a=2\nw1 replicate\n",
		  { { 0, 0, 0, 10, 0 } },
		  1,
		  -EINVAL,
		  "key w0, rank 0: no rule matches; the nearest is w1" },
		{ "a rank other than the first",
		  "mesh a=3\nw0 shard(0, last)\n",
		  { { 0, 0, 0, 1, 0 } },
		  1,
		  -EINVAL,
		  "key w0, rank" },
		{ "a hole",
		  "mesh a=2\n* replicate\n",
		  { { 0, 0, 0, 10, 0 }, { 0, 0, 12, 3, 10 } },
		  2,
		  -EBADMSG,
		  "w0: elements [10:12] are stored nowhere" },
		{ "an overlap",
		  "mesh a=2\n* replicate\n",
		  { { 0, 0, 0, 10, 0 }, { 0, 0, 8, 3, 10 } },
		  2,
		  -EBADMSG,
		  "overlap" },
		{ "behind the end of a file",
		  "mesh a=2\n* replicate\n",
		  { { 0, 1, 0, 10, 19995 } },
		  1,
		  -EBADMSG,
		  "w0: a piece ends after the end of its file, b" },
		{ "at a stride whose product wraps",
		  "mesh a=2\n* replicate\n",
		  { { 0, 0, 0, 3, 0, false, 0, false, UINT64_MAX / 2 + 1 } },
		  1,
		  -EBADMSG,
		  "w0: a piece ends after the end of its file, a" },
		{ "in no file",
		  "mesh a=2\n* replicate\n",
		  { { 0, 2, 0, 10, 0 } },
		  1,
		  -EBADMSG,
		  "w0: a piece ends after the end of its file, which is missing" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct small x;

		t_case(cases[i].what);
		assert_int_equal(
			open_small(&x, cases[i].layout, NULL, 0, cases[i].v, cases[i].n),
			cases[i].code);
		t_assert_says(&x.err, cases[i].says);
		close_small(&x);
	}
}

/* With any limit a job is refused or right, and it gets there. */
static void little_memory_is_reported(void **state)
{
	struct dcp_layout *l = t_layout("mesh a=2 b=3\n* only(a=0) shard(0, optional)@a\n");
	struct t_choice c = { .seed = 7 };
	size_t refused = 0, limit = 64;
	bool done = false;

	(void)state;
	w.opts = (struct dcp_job_opts){ .to = l };
	t_job_random(&w, &c, true);
	for (; !done && limit < 1 << 24; limit += limit / 8) {
		struct dcp_err err = { 0 };
		struct dcp_job_flow rank[6];
		struct dcp_job *job;
		int rc = 0;

		w.opts.memory = limit;
		assert_int_equal(dcp_job_create(&w.opts, &job, &err), 0);
		for (size_t i = 0; rc == 0 && i < w.n; i++)
			rc = dcp_job_add(job, &w.plan[i].t, &err);
		if (rc == 0)
			rc = dcp_job_finish(job, &err);
		if (rc == 0)
			rc = dcp_job_flows(job, rank, NULL, &err);
		if (rc < 0) {
			assert_int_equal(rc, -ENOMEM);
			t_assert_says(&err, "of memory");
			refused++;
		}
		done = rc == 0;
		dcp_job_free(job);
	}
	assert_true(done && refused > 10);
	dcp_layout_free(l);
}

static void empty_jobs_have_nothing_to_do(void **state)
{
	uint64_t rows[4], from[2];
	struct dcp_job_sum sum;
	struct small x;

	(void)state;
	assert_int_equal(open_small(&x, "mesh a=2\n* replicate\n", NULL, 0, NULL, 0), 0);
	dcp_job_sum(x.job, &sum);
	assert_int_equal(sum.unique, 0);
	assert_int_equal(sum.ranks, 2);
	assert_int_equal(dcp_job_sends(x.job, 0, 2, rows, NULL), 0);
	assert_int_equal(dcp_job_receives(x.job, 1, from, NULL), 0);
	assert_int_equal(rows[0] + rows[1] + rows[2] + rows[3] + from[0] + from[1], 0);
	assert_int_equal(dcp_job_reads(x.job, 1, write_read, NULL), 0);
	close_small(&x);
}

static void jobs_are_written_as_json(void **state)
{
	static const struct stored v[] = { { 0, 0, 0, 60, 0 }, { 1, 1, 0, 40, 10 } };
	static const char want[] =
		",'group':1,'way':'all','stripe':4194304,'tensors':2,'kinds':2,'unique':100,"
		"'extents':2,"
		"'files':[{'file':'a','size':10000,'read':60},{'file':'b','size':20000,'read':"
		"40}"
		"],"
		"'ranks':[{'rank':0,'needs':70,'reads':4096,'keeps':30,'sends':30,'receives':"
		"40}"
		",{'rank':1,'needs':70,'reads':4096,'keeps':40,'sends':40,"
		"'receives':30}],'exchange':[[0,1,30],[1,0,40]]}";
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	struct dcp_jsonw json;
	struct small x;

	(void)state;
	open_small(&x, "mesh a=2\nw0 shard(0)\nw1 replicate\n", NULL, 0, v, 2);
	dcp_jsonw_init(&json, &out, false);
	dcp_jsonw_object(&json);
	assert_int_equal(dcp_job_json(x.job, &json, &x.err), 0);
	dcp_jsonw_end(&json);
	for (char *p = out.p; *p; p++)
		*p = *p == '"' ? '\'' : *p;
	assert_non_null(strchr(out.p, ','));
	assert_string_equal(strchr(out.p, ','), want);
	close_small(&x);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_bytes_are_shared),
		cmocka_unit_test(any_layout_is_resharded),
		cmocka_unit_test(random_layouts_are_dealt),
		cmocka_unit_test(reads_and_sends_are_dealt),
		cmocka_unit_test(holders_take_turns),
		cmocka_unit_test(bad_jobs_are_refused),
		cmocka_unit_test(little_memory_is_reported),
		cmocka_unit_test(empty_jobs_have_nothing_to_do),
		cmocka_unit_test(jobs_are_written_as_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
