/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random Megatron-LM jobs: what all ranks of a job wrote, put together, is what one rank alone
 * would have written.
 *
 * t/megatron_ref.h says what each holds. Which ranks there are, and who of them writes, is
 * counted rank by rank.
 *
 * covers: join, grid
 */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "tests/unit/t/format/megatron.h"
#include "tests/unit/t/format/megatron_ref.h"
#include "tests/unit/t/random.h"

enum { JOBS = T_ROUNDS(250) };

/* ---- ranks ---- */

static void put_layer(struct t_megatron_file *f, const struct t_ref_job *j, int local,
		      int layer, const int *at)
{
	static struct t_ref_array a;
	char key[128];
	int n = j->experts / j->ep;

	for (int k = 0; k < T_REF_NKINDS; k++) {
		int first = t_ref_is_expert(k) ? at[2] * n : 0,
		    end = t_ref_is_expert(k) ? first + n : 1;
		bool etp = k >= T_REF_EXPERT1;

		for (int x = first; t_ref_has(j, k) && x < end; x++) {
			t_ref_fill(&a, j, k, etp ? at[3] : at[0], etp ? j->etp : j->tp, at[2],
				   j->ep);
			t_ref_mark(&a, layer, x);
			t_ref_name(key, j, k, local, x - first);
			t_megatron_param(f, key, a.v, a.shape, a.ndim);
		}
	}
}

/* The number of the first layer of stage @s of chunk @c. */
static int first_layer(const struct t_ref_job *j, int c, int s)
{
	int n = 0;

	for (int i = 0; i < c * j->pp + s; i++)
		n += j->layers[i];
	return n;
}

/* @at: numbers of tensor, pipeline, expert, expert tensor rank. */
static void put_rank(const struct t_dir *tree, const struct t_ref_job *j, const int *at)
{
	const struct t_megatron_arg args[] = {
		{ j->version < 3 ? "model_parallel_size" : "tensor_model_parallel_size",
		  j->tp },
		{ "pipeline_model_parallel_size", j->pp },
		{ "expert_model_parallel_size", j->ep },
		{ "expert_tensor_parallel_size", j->said },
		{ "hidden_size", j->hidden },
		{ "num_attention_heads", j->heads },
		{ "kv_channels", j->head },
		{ "group_query_attention", j->groups != j->heads },
		{ "num_query_groups", j->groups },
		{ j->experts % 2 ? "moe_ffn_hidden_size" : "ffn_hidden_size", j->ffn },
		{ "padded_vocab_size", j->vocab },
		{ "num_experts", j->experts },
		{ NULL, 0 },
	};
	static struct t_ref_array a;
	struct t_megatron_file f;
	char dir[64], path[128], chunk[16];

	t_megatron_begin(&f, args, j->version);
	for (int c = 0; c < j->chunks; c++) {
		snprintf(chunk, sizeof(chunk), j->chunks > 1 ? "model%d" : "model", c);
		t_megatron_model(&f, chunk);
		if (c == 0 && at[1] == 0) {
			t_ref_vocab(&a, j, at[0], j->tp);
			t_megatron_param(&f, "embedding.word_embeddings.weight", a.v, a.shape,
					 2);
		}
		for (int i = 0; i < j->layers[c * j->pp + at[1]]; i++)
			put_layer(&f, j, i, first_layer(j, c, at[1]) + i, at);
	}
	t_megatron_dir(dir, at[0], at[1], at[2], j->pp, j->ep);
	snprintf(path, sizeof(path), "%s/model_optim_rng.pt", dir);
	t_megatron_end(&f, tree, path);
}

/* All ranks of each stage, those that write. */
static void put_job(const struct t_dir *tree, const struct t_ref_job *j)
{
	int world = j->tp * j->ep * j->etp;

	for (int s = 0; s < j->pp; s++)
		for (int r = 0; r < world; r++) {
			const int at[] = { r % j->tp, s, r / j->etp % j->ep, r % j->etp };
			bool dense = r / j->tp == 0, expert = r / (j->etp * j->ep) == 0;

			if (expert || (dense && !j->edp_only))
				put_rank(tree, j, at);
		}
}

/* ---- proof ---- */

static void check_layer(const struct t_megatron *m, const struct t_ref_job *j, int layer,
			size_t *n)
{
	static struct t_ref_array a;
	char key[128];

	for (int k = 0; k < T_REF_NKINDS; k++) {
		bool joined = (k == T_REF_MATRIX1 || k == T_REF_MATRIX2) && j->etp * j->ep > 1;

		for (int x = 0; t_ref_has(j, k) && x < (t_ref_is_expert(k) ? j->experts : 1);
		     x++) {
			t_ref_fill(&a, j, k, 0, 1, 0, 1);
			t_ref_mark(&a, layer, x);
			if (joined) {
				int64_t width = (int64_t)a.n / j->experts / j->hidden;

				a.ndim = 3;
				a.shape[0] = j->experts;
				a.shape[1] = k == T_REF_MATRIX1 ? j->hidden : width;
				a.shape[2] = k == T_REF_MATRIX1 ? width : j->hidden;
			}
			t_ref_name(key, j, k, layer, x);
			t_megatron_check(m, key, a.v, a.shape, a.ndim);
			++*n;
		}
	}
}

static void check_job(const struct t_ref_job *j)
{
	static struct t_ref_array a;
	struct t_megatron m;
	struct t_dir tree;
	size_t n = 1;

	t_dir_make(&tree, "megatron");
	put_job(&tree, j);
	if (t_megatron_load(&m, tree.root, "megatron-legacy") < 0)
		fail_msg("%s", m.err.msg);
	for (int i = 0; i < first_layer(j, j->chunks, 0); i++)
		check_layer(&m, j, i, &n);
	t_ref_vocab(&a, j, 0, 1);
	t_megatron_check(&m, "embedding.word_embeddings.weight", a.v, a.shape, 2);
	assert_int_equal(m.s.ntensors, n);
	for (size_t i = 0; i < m.s.nobjects; i++)
		if (m.s.object[i].error)
			fail_msg("%s: %s", m.s.object[i].key, m.s.object[i].error);
	t_megatron_close(&m);
	t_dir_remove(&tree);
}

static int pick(uint64_t *seed, int lo, int hi)
{
	return lo + (int)t_random(seed, (uint64_t)(hi - lo + 1));
}

static void pick_job(uint64_t *r, struct t_ref_job *j)
{
	*j = (struct t_ref_job){
		.tp = 1 << pick(r, 0, 2), .pp = pick(r, 1, 3), .ep = 1, .etp = 1
	};
	j->chunks = j->pp > 1 ? pick(r, 1, 2) : 1;
	j->version = DCP_MIN(pick(r, 0, 6), 3);
	j->hidden = pick(r, 2, 3);
	j->head = pick(r, 1, 2) * 4;
	j->heads = j->groups = j->tp * pick(r, 1, 2);
	j->ffn = 4 * pick(r, 1, 3);
	j->vocab = 4 * pick(r, 1, 4);
	j->gated = j->version >= 2 && pick(r, 0, 1);
	for (int i = 0; i < j->chunks * j->pp; i++)
		j->layers[i] = pick(r, i == 0, 2);
	j->said = j->etp = j->tp;
	if (j->version < 3)
		return;
	if (pick(r, 0, 1))
		j->groups = j->heads % 2 == 0 ? j->heads / 2 : 1;
	j->moe = pick(r, T_REF_NO_EXPERTS, T_REF_ONE_MATRIX);
	if (j->moe == T_REF_NO_EXPERTS)
		return;
	j->ep = pick(r, 1, 3);
	j->experts = j->ep * pick(r, 1, 2);
	j->etp = j->tp >> pick(r, 0, 2);
	j->etp = DCP_MAX(j->etp, 1);
	j->said = j->etp == j->tp && pick(r, 0, 1) ? 1 : j->etp; /* what a converter read */
	j->edp_only = j->etp * j->ep >= j->tp && pick(r, 0, 1);
}

static void random_jobs_are_joined(void **state)
{
	uint64_t seed = t_random_seed(20260801);

	(void)state;
	print_message("seed %llu (DCPFS_TEST_SEED sets it)\n", (unsigned long long)seed);
	for (int i = 0; i < JOBS; i++) {
		struct t_ref_job j;
		char what[200];

		pick_job(&seed, &j);
		snprintf(what, sizeof(what),
			 "%d: tp=%d pp=%d ep=%d etp=%d said=%d chunks=%d version=%d "
			 "heads=%d/%d gated=%d moe=%d experts=%d",
			 i, j.tp, j.pp, j.ep, j.etp, j.said, j.chunks, j.version, j.heads,
			 j.groups, j.gated, (int)j.moe, j.experts);
		t_case(what);
		check_job(&j);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_jobs_are_joined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
