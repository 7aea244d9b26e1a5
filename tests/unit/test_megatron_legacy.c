/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mp_rank directories: tensor, pipeline and expert parallel ranks put together.
 *
 * covers: megatron_files, megatron_join, megatron_whole
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/parse/dir.h"
#include "tests/unit/t_dir.h"
#include "tests/unit/t_manifest.h"
#include "tests/unit/t_sink.h"
#include "tests/unit/t_torch.h"
#include "tests/unit/t_zip.h"

static void golden(void **state)
{
	struct dcp_err err = { 0 };
	enum dcp_match match;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	assert_int_equal(
		dcp_dir_open("tests/golden/megatron-legacy/ckpt/iter_0000100", &dir, NULL), 0);
	t_sink_init(&s, &dir);
	if (dcp_format_probe(&dir, &match, NULL, 0)
		    ->load(&(struct dcp_load){ .dir = &dir, .sink = &s.sink }, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(t_manifest_check(&s, "megatron-legacy", "iter_0000100", ""), 31);
	assert_non_null(strstr(t_sink_fact(&s, "inferred"), "inferred from their names"));
	assert_string_equal(t_sink_fact(&s, "parallel"), "tp=2 pp=2 ep=1");
	/* the same on all ranks: told once; different: below the rank's name */
	assert_string_equal(t_sink_object(&s, "iteration")->json, "100");
	assert_null(t_sink_object(&s, "mp_rank_01_001.iteration"));
	for (size_t i = 0; i < s.ntensors; i++)
		assert_null(s.tensor[i].error);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

/* ---- models made here ---- */

enum { MAX_PARAMS = 10 };

struct param {
	const char *key;   /* in the file */
	const char *whole; /* in the model */
	int64_t shape[2];
	size_t ndim;
	int cut;    /* dimension; -1: the same on all ranks */
	int groups; /* cut each by itself */
	int pp, ep; /* stage and expert rank that hold it; -1: all */
	int chunk;  /* of an interleaved pipeline */
};

struct job {
	const char *what;
	int tp, pp, ep;
	const char *dir; /* format of tp, pp, ep */
	struct param param[MAX_PARAMS];
	const char *skip;  /* a directory that is not there */
	const char *rules; /* dcpfs.rules */
	int64_t vocab;     /* padded_vocab_size; 0: not said */
	int chunks;        /* of an interleaved pipeline; 0: it is none */
};

/* Floats, each the number of its element in the whole: what rank @t of the job holds. */
static void slice(struct dcp_buf *b, const struct job *j, const struct param *p, int t,
		  int64_t *shape)
{
	int64_t rows = p->ndim > 1 ? p->shape[0] : 1, cols = p->shape[p->ndim - 1];
	int64_t along = p->cut < 0 ? 1 : p->shape[p->cut];
	int64_t each = along / p->groups / j->tp;

	shape[0] = p->shape[0];
	shape[1] = p->shape[1];
	if (p->cut >= 0)
		shape[p->cut] = along / j->tp;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			int64_t i = p->ndim > 1 && p->cut == 0 ? r : c;
			float v = (float)(r * cols + c);

			if (p->cut < 0 || i % (along / p->groups) / each == t)
				dcp_buf_add(b, &v, sizeof(v));
		}
}

static void put_args(struct dcp_buf *b, const struct job *j)
{
	const struct {
		const char *name;
		int64_t v;
	} args[] = { { "tensor_model_parallel_size", j->tp },
		     { "pipeline_model_parallel_size", j->pp },
		     { "expert_model_parallel_size", j->ep },
		     { "padded_vocab_size", j->vocab } };

	t_pk_str(b, "args");
	t_pk_global(b, "argparse", "Namespace");
	t_pk_mark(b);
	t_pk_tuple(b);
	t_pk_newobj(b);
	t_pk_dict(b);
	t_pk_mark(b);
	for (size_t i = 0; i < DCP_LEN(args); i++) {
		if (args[i].v == 0)
			continue;
		t_pk_str(b, args[i].name);
		t_pk_int(b, args[i].v);
	}
	t_pk_setitems(b);
	t_pk_build(b);
}

/* "model", or "model<c>" of several: its parameters that this rank holds. */
static void put_chunk(struct dcp_buf *b, struct dcp_buf *data, const struct job *j, int c,
		      int t, int s, int e)
{
	char name[16];

	snprintf(name, sizeof(name), j->chunks ? "model%d" : "model", c);
	t_pk_str(b, name);
	t_pk_dict(b);
	t_pk_mark(b);
	for (size_t i = 0; i < MAX_PARAMS && j->param[i].key; i++) {
		const struct param *p = &j->param[i];
		int64_t shape[2], stride[2] = { 1, 1 };
		char key[16];

		if ((p->pp >= 0 && p->pp != s) || (p->ep >= 0 && p->ep != e) || p->chunk != c)
			continue;
		slice(&data[i], j, p, t, shape);
		stride[0] = p->ndim > 1 ? shape[1] : 1;
		snprintf(key, sizeof(key), "%zu", i);
		t_pk_str(b, p->key);
		t_pk_tensor(b, "FloatStorage", key, (int64_t)(data[i].n / 4), 0, shape, stride,
			    p->ndim);
	}
	t_pk_setitems(b);
}

static void put_rank(const struct t_dir *tree, const struct job *j, int t, int s, int e,
		     const char *dir)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, name = DCP_BUF_INIT;
	struct dcp_buf data[MAX_PARAMS] = { 0 };
	struct t_zip z = { .torch = true };

	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	put_args(&b, j);
	t_pk_str(&b, "seed");
	t_pk_int(&b, t);
	for (int c = 0; c < DCP_MAX(j->chunks, 1); c++)
		put_chunk(&b, data, j, c, t, s, e);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	for (size_t i = 0; i < DCP_LEN(data); i++) {
		char member[32];

		snprintf(member, sizeof(member), "archive/data/%zu", i);
		if (data[i].n)
			t_zip_add(&z, member, data[i].p, data[i].n);
		dcp_buf_finish(&data[i]);
	}
	t_zip_end(&z);
	dcp_buf_printf(&name, "%s/model_optim_rng.pt", dir);
	t_dir_put(tree, name.p, z.b.p, z.b.n);
	t_zip_free(&z);
}

static void put_job(const struct t_dir *tree, const struct job *j)
{
	for (int t = 0; t < j->tp; t++)
		for (int s = 0; s < j->pp; s++)
			for (int e = 0; e < j->ep; e++) {
				char dir[64];

				if (j->pp > 1 && j->ep > 1)
					snprintf(dir, sizeof(dir), "mp_rank_%02d_%03d_%03d", t,
						 s, e);
				else if (j->pp > 1 || j->ep > 1)
					snprintf(dir, sizeof(dir), "mp_rank_%02d_%03d", t,
						 j->pp > 1 ? s : e);
				else
					snprintf(dir, sizeof(dir), "mp_rank_%02d", t);
				if (!j->skip || strcmp(j->skip, dir) != 0)
					put_rank(tree, j, t, s, e, dir);
			}
	if (j->rules)
		t_dir_text(tree, "dcpfs.rules", j->rules);
}

static int load(const struct t_dir *tree, struct t_sink *s, struct dcp_dir *dir,
		struct dcp_err *err)
{
	enum dcp_match match;
	const struct dcp_format *f;

	assert_int_equal(dcp_dir_open(tree->root, dir, NULL), 0);
	f = dcp_format_probe(dir, &match, NULL, 0);
	assert_non_null(f);
	assert_string_equal(f->name, "megatron-legacy");
	t_sink_init(s, dir);
	return f->load(&(struct dcp_load){ .dir = dir, .sink = &s->sink }, err);
}

/* clang-format off */
static const struct job jobs[] = {
	{ "one rank", 1, 1, 1, NULL, {
		{ "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", { 6, 4 }, 2, -1, 1, -1, -1 },
		{ "what.nobody.knows", "what.nobody.knows", { 5 }, 1, -1, 1, -1, -1 } } },
	{ "three tensor-parallel ranks", 3, 1, 1, NULL, {
		{ "embedding.word_embeddings.weight", "embedding.word_embeddings.weight", { 9, 2 }, 2, 0, 1, -1, -1 },
		{ "decoder.layers.0.self_attention.linear_proj.weight", "decoder.layers.0.self_attention.linear_proj.weight", { 2, 6 }, 2, 1, 1, -1, -1 },
		{ "decoder.layers.0.self_attention.linear_proj.bias", "decoder.layers.0.self_attention.linear_proj.bias", { 2 }, 1, -1, 1, -1, -1 },
		{ "decoder.layers.0.self_attention.linear_qkv.bias", "decoder.layers.0.self_attention.linear_qkv.bias", { 12 }, 1, 0, 1, -1, -1 },
		{ "decoder.final_layernorm.weight", "decoder.final_layernorm.weight", { 2 }, 1, -1, 1, -1, -1 } }, .vocab = 9 },
	{ "SwiGLU: halves are cut apart", 2, 1, 1, NULL, {
		{ "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", { 12, 3 }, 2, 0, 2, -1, -1 },
		{ "decoder.layers.0.mlp.linear_fc1.bias", "decoder.layers.0.mlp.linear_fc1.bias", { 12 }, 1, 0, 2, -1, -1 },
		{ "decoder.layers.0.mlp.linear_fc2.weight", "decoder.layers.0.mlp.linear_fc2.weight", { 3, 6 }, 2, 1, 1, -1, -1 } } },
	{ "without gate", 2, 1, 1, NULL, {
		{ "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc1.weight", { 12, 3 }, 2, 0, 1, -1, -1 },
		{ "decoder.layers.0.mlp.linear_fc2.weight", "decoder.layers.0.mlp.linear_fc2.weight", { 3, 12 }, 2, 1, 1, -1, -1 } } },
	{ "stages of unequal length", 2, 3, 1, NULL, {
		{ "embedding.word_embeddings.weight", "embedding.word_embeddings.weight", { 4, 2 }, 2, 0, 1, 0, -1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.0.input_layernorm.weight", { 3 }, 1, -1, 1, 0, -1 },
		{ "decoder.layers.1.input_layernorm.weight", "decoder.layers.1.input_layernorm.weight", { 4 }, 1, -1, 1, 0, -1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.2.input_layernorm.weight", { 5 }, 1, -1, 1, 1, -1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.3.input_layernorm.weight", { 6 }, 1, -1, 1, 2, -1 },
		{ "decoder.layers.1.input_layernorm.weight", "decoder.layers.4.input_layernorm.weight", { 7 }, 1, -1, 1, 2, -1 },
		{ "mtp.layers.0.enorm.weight", "mtp.layers.0.enorm.weight", { 7 }, 1, -1, 1, 2, -1 },
		{ "output_layer.weight", "output_layer.weight", { 4, 2 }, 2, 0, 1, 2, -1 } } },
	{ "experts", 1, 1, 2, NULL, {
		{ "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", { 2, 2 }, 2, -1, 1, -1, 0 },
		{ "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", { 2, 3 }, 2, -1, 1, -1, 0 },
		{ "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.2.linear_fc1.weight", { 2, 4 }, 2, -1, 1, -1, 1 },
		{ "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight", "decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", { 2, 5 }, 2, -1, 1, -1, 1 },
		{ "decoder.layers.0.mlp.router.weight", "decoder.layers.0.mlp.router.weight", { 4, 2 }, 2, -1, 1, -1, -1 } } },
	{ "tensor, pipeline and expert parallel, grouped experts", 2, 2, 2, NULL, {
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.0.mlp.experts.linear_fc2.weight0", { 2, 6 }, 2, 1, 1, 0, 0 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.0.mlp.experts.linear_fc2.weight1", { 2, 6 }, 2, 1, 1, 0, 1 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.1.mlp.experts.linear_fc2.weight0", { 2, 6 }, 2, 1, 1, 1, 0 },
		{ "decoder.layers.0.mlp.experts.linear_fc2.weight0", "decoder.layers.1.mlp.experts.linear_fc2.weight1", { 2, 6 }, 2, 1, 1, 1, 1 } } },
	{ "an interleaved pipeline", 1, 2, 1, NULL, {
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.0.input_layernorm.weight", { 3 }, 1, -1, 1, 0, -1, 0 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.1.input_layernorm.weight", { 4 }, 1, -1, 1, 1, -1, 0 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.2.input_layernorm.weight", { 5 }, 1, -1, 1, 0, -1, 1 },
		{ "decoder.layers.0.input_layernorm.weight", "decoder.layers.3.input_layernorm.weight", { 6 }, 1, -1, 1, 1, -1, 1 } }, .chunks = 2 },
	{ "rules of one's own", 2, 1, 1, NULL, {
		{ "decoder.layers.0.mixer.in_proj.weight", "decoder.layers.0.mixer.in_proj.weight", { 8, 3 }, 2, 0, 2, -1, -1 },
		{ "decoder.layers.0.mixer.odd", "decoder.layers.0.mixer.odd", { 5 }, 1, -1, 1, -1, -1 } },
		.rules = "*.in_proj.weight shard(0, groups=2)\n*.odd replicate\n" },
};
/* clang-format on */

static void check_iota(const struct t_sink *s, const struct param *p)
{
	const struct dcp_tensor *t = t_sink_tensor(s, p->whole);
	struct dcp_err err = { 0 };
	size_t n;
	float *got;

	if (!t)
		fail_msg("%s was not told", p->whole);
	assert_string_equal(t->path[0], p->whole);
	assert_int_equal(t->npath, 1);
	assert_int_equal(t->ndim, p->ndim);
	for (size_t k = 0; k < p->ndim; k++)
		assert_int_equal(t->shape[k], p->shape[k]);
	got = (float *)(void *)t_sink_read(s, t, &n, &err);
	if (!got)
		fail_msg("%s: %s", p->whole, err.msg);
	for (size_t i = 0; i < n / sizeof(*got); i++)
		assert_true(got[i] == (float)i);
	free(got);
}

static void whole_models(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(jobs); i++) {
		struct dcp_err err = { 0 };
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;
		size_t n = 0;

		t_case(jobs[i].what);
		t_dir_make(&tree, "megatron");
		put_job(&tree, &jobs[i]);
		if (load(&tree, &s, &dir, &err) < 0)
			fail_msg("%s", err.msg);
		for (; n < DCP_LEN(jobs[i].param) && jobs[i].param[n].key; n++)
			check_iota(&s, &jobs[i].param[n]);
		assert_int_equal(s.ntensors, n);
		assert_string_equal(t_sink_object(&s, "seed")->json, "0");
		if (jobs[i].tp > 1)
			assert_int_equal(!t_sink_object(&s, "mp_rank_01.seed") +
						 !t_sink_object(&s, "mp_rank_01_000.seed") +
						 !t_sink_object(&s, "mp_rank_01_000_000.seed"),
					 2);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* clang-format off */
static const struct {
	struct job j;
	const char *key, *says; /* the broken key; its error */
	const char *good;       /* one that can be read all the same */
} faults[] = {
	{ { "a key that no rule knows", 2, 1, 1, NULL, { { "mixer.in_proj.weight", "", { 8, 3 }, 2, 0, 1, -1, -1 }, { "output_layer.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 } } },
	  "mixer.in_proj.weight", "put a line \"mixer.in_proj.weight shard(0)\" (or replicate) into dcpfs.rules", "output_layer.weight" },
	{ { "a rank that is not there", 2, 1, 1, NULL, { { "output_layer.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 }, { "final_layernorm.weight", "", { 4 }, 1, -1, 1, -1, -1 } }, .skip = "mp_rank_01" },
	  "output_layer.weight", "mp_rank_01/model_optim_rng.pt is missing", "final_layernorm.weight" },
	{ { "a stage that is not there", 1, 2, 1, NULL, { { "output_layer.weight", "", { 4, 2 }, 2, -1, 1, -1, -1 }, { "final_layernorm.weight", "", { 4 }, 1, -1, 1, -1, -1 } }, .skip = "mp_rank_00_001" },
	  "mp_rank_00_001", "mp_rank_00_001/model_optim_rng.pt is missing", "final_layernorm.weight" },
	{ { "another vocabulary than the arguments say", 2, 1, 1, NULL, { { "output_layer.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 } }, .vocab = 5 },
	  "output_layer.weight", "make 4 along dimension 0, the arguments of the run say 5", NULL },
	{ { "a gate that cannot be seen", 2, 1, 1, NULL, { { "mlp.linear_fc1.weight", "", { 4, 2 }, 2, 0, 1, -1, -1 } } },
	  "mlp.linear_fc1.weight", "whether it is two halves (SwiGLU) cannot be seen", NULL },
	{ { "a gate of no size", 2, 1, 1, NULL, { { "mlp.linear_fc1.weight", "", { 8, 2 }, 2, 0, 1, -1, -1 }, { "mlp.linear_fc2.weight", "", { 2, 6 }, 2, 1, 1, -1, -1 } } },
	  "mlp.linear_fc1.weight", "4 of its rows, and its second layer has 3 inputs", "mlp.linear_fc2.weight" },
	{ { "a rule along a dimension that is not there", 2, 1, 1, NULL, { { "x", "", { 8 }, 1, 0, 1, -1, -1 } }, .rules = "x shard(1)" },
	  "x", "1 dimensions and should be cut along dimension 1", NULL },
	{ { "a rule that does not divide", 2, 1, 1, NULL, { { "x", "", { 6 }, 1, 0, 1, -1, -1 } }, .rules = "x shard(0, groups=2)" },
	  "x", "do not fit together along dimension 0", NULL },
};
/* clang-format on */

static const char *error_of(const struct t_sink *s, const char *key)
{
	const struct dcp_tensor *t = t_sink_tensor(s, key);
	const struct dcp_object *o = t_sink_object(s, key);

	return t ? t->error : o ? o->error : "it was not told";
}

static void broken_keys(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(faults); i++) {
		struct dcp_err err = { 0 };
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;

		t_case(faults[i].j.what);
		t_dir_make(&tree, "megatron");
		put_job(&tree, &faults[i].j);
		if (load(&tree, &s, &dir, &err) < 0)
			fail_msg("%s", err.msg);
		assert_non_null(error_of(&s, faults[i].key));
		if (!strstr(error_of(&s, faults[i].key), faults[i].says))
			fail_msg("%s", error_of(&s, faults[i].key));
		if (faults[i].good)
			assert_null(error_of(&s, faults[i].good));
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

static void damaged_files(void **state)
{
	struct job j = jobs[1];
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "megatron");
	put_job(&tree, &j);

	t_case("the first rank's: the others are read");
	t_dir_text(&tree, "mp_rank_00/model_optim_rng.pt", "what is this");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);
	assert_non_null(strstr(t_sink_tensor(&s, "embedding.word_embeddings.weight")->error,
			       "mp_rank_00/model_optim_rng.pt: "));
	assert_null(t_sink_tensor(&s, "decoder.final_layernorm.weight")->error);
	assert_non_null(t_sink_object(&s, "mp_rank_00")->error);
	assert_string_equal(t_sink_object(&s, "seed")->json, "1");
	t_sink_finish(&s);
	dcp_dir_close(&dir);

	t_case("rules that are none");
	t_dir_text(&tree, "dcpfs.rules", "* maybe\n");
	assert_int_equal(load(&tree, &s, &dir, &err), -EBADMSG);
	t_assert_says(&err, "dcpfs.rules:1: ");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_delete(&tree, "dcpfs.rules");

	t_case("all of them");
	t_dir_text(&tree, "mp_rank_01/model_optim_rng.pt", "");
	t_dir_text(&tree, "mp_rank_02/model_optim_rng.pt", "");
	assert_int_equal(load(&tree, &s, &dir, &err), -EBADMSG);
	t_assert_says(&err, "mp_rank_00/model_optim_rng.pt: ");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* What lies beside the state keeps its own names, below the directory's. */
static void other_files(void **state)
{
	static const int64_t shape[] = { 4 }, stride[] = { 1 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "buckets_coalesced");
	t_pk_bool(&b, true);
	t_pk_int(&b, 0);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "exp_avg");
	t_pk_tensor(&b, "ByteStorage", "0", 4, 0, shape, stride, 1);
	t_pk_setitems(&b);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/data/0", "abcd", 4);
	t_zip_end(&z);
	t_dir_make(&tree, "megatron");
	put_job(&tree, &jobs[1]);
	t_dir_put(&tree, "mp_rank_01/distrib_optim.pt", z.b.p, z.b.n);
	t_dir_text(&tree, "mp_rank_02/distrib_optim.pt", "damaged");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);
	assert_null(t_sink_tensor(&s, "mp_rank_01.distrib_optim.0.exp_avg")->error);
	assert_int_equal(t_sink_tensor(&s, "mp_rank_01.distrib_optim.0.exp_avg")->npath, 4);
	assert_string_equal(
		t_sink_object(&s, "mp_rank_01.distrib_optim.buckets_coalesced")->json, "true");
	assert_null(t_sink_tensor(&s, "embedding.word_embeddings.weight")->error);
	assert_non_null(t_sink_object(&s, "mp_rank_02.distrib_optim")->error);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
	t_zip_free(&z);
}

/* Arguments that claim a million ranks cost nothing. */
static void claims(void **state)
{
	struct job j = { "", 1, 1, 1, NULL, { { "x", "x", { 4 }, 1, -1, 1, -1, -1 } } };
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "megatron");
	put_job(&tree, &j);
	j.tp = j.pp = j.ep = 4096;
	put_rank(&tree, &j, 0, 0, 0, "mp_rank_00");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);
	assert_true(s.nobjects < 300);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	j.pp = 1 << 30;
	put_rank(&tree, &j, 0, 0, 0, "mp_rank_00");
	assert_int_equal(load(&tree, &s, &dir, &err), -E2BIG);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden),      cmocka_unit_test(whole_models),
		cmocka_unit_test(broken_keys), cmocka_unit_test(damaged_files),
		cmocka_unit_test(other_files), cmocka_unit_test(claims),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
