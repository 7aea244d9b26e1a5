/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor-parallel ranks of GPT-NeoX, which records no rules: what is joined, and what is told
 * of each rank.
 * covers: rule, neox
 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/ds.h"

enum { WIDTH = 4, TP = 2 };

/* What each of two ranks holds. */
static const struct t_ds_param local[] = {
	{ "sequential.0.word_embeddings.weight", { 3, WIDTH }, 2, 0, .same = false },
	{ "sequential.2.attention.query_key_value.weight", { 6, WIDTH }, 2, 0, .same = false },
	{ "sequential.2.mlp.linear1.bias", { 8 }, 1, 0, .same = false },
	{ "sequential.2.attention.dense.weight", { WIDTH, 2 }, 2, 0, .same = false },
	{ "sequential.2.mlp.linear2.weight", { WIDTH, 3 }, 2, 0, .same = false },
	{ "sequential.2.input_layernorm.weight", { WIDTH }, 1, 0, .same = true },
	{ "sequential.3.input_layernorm.weight", { WIDTH }, 1, 0, .same = false },
	{ "sequential.2.mlp.linear2.bias", { WIDTH }, 1, 0, .same = false },
	{ "sequential.2.mlp.linear1.weight", { 6, WIDTH }, 2, 0, .same = false },
	{ "sequential.2.mlp.w1.weight", { 6, WIDTH }, 2, 0, .same = false },
};

enum cut { ROWS, COLUMNS, ONE, MEAN, SUM, NOT };

static const size_t bias = 7; /* of those below, what depends on gpt_j_residual */

static const struct {
	enum cut cut;
	const char *what;
} wants[] = {
	{ ROWS, "the vocabulary" },
	{ ROWS, "queries, keys and values: three times as high as the model is wide" },
	{ ROWS, "four times" },
	{ COLUMNS, "a weight that is cut by columns" },
	{ COLUMNS, "another one" },
	{ ONE, "the same on all ranks" },
	{ MEAN, "a mean" },
	{ NOT, "the bias of a weight that is cut by columns" },
	{ NOT, "not four times: a gate may be in it" },
	{ NOT, "a name that is not known" },
};

/* What element @i of the whole of @p is. */
static float element(const char *state, const struct t_ds_param *p, enum cut cut, size_t i)
{
	size_t width = (size_t)p->shape[1], n = t_ds_numel(p), rank = 0, at = i;

	if (cut == ROWS) {
		rank = i / n;
		at = i % n;
	} else if (cut == COLUMNS) {
		rank = i / width % TP;
		at = i / (width * TP) * width + i % width;
	}
	return t_ds_value(state, p->name, at) + T_DS_RANK * (float)rank;
}

/* Each rank's term of a sum, in the order of ranks. */
static void check_terms(const struct t_ds_loaded *l, const struct dcp_tensor *t,
			const struct t_ds_param *p, bool mean)
{
	const struct dcp_piece *piece = t->pieces;
	size_t n = t_ds_numel(p);

	assert_int_equal(t->npieces, 1);
	assert_int_equal(piece->filter, DCP_FILTER_SUM);
	assert_int_equal(piece->mean, mean);
	assert_int_equal(piece->nmore, TP - 1);
	assert_int_equal(piece->nbytes, n * sizeof(float));
	for (uint32_t k = 0; k < TP; k++) {
		uint32_t file = k ? piece->more[k - 1].file : piece->file;
		uint64_t off = k ? piece->more[k - 1].off : piece->off;
		struct dcp_input in;

		assert_int_equal(dcp_dir_input(&l->dir, l->s.file[file], &in, NULL), 0);
		for (size_t i = 0; i < n; i++) {
			float has,
				want = t_ds_value("module", p->name, i) + T_DS_RANK * (float)k;

			assert_int_equal(dcp_source_read(&in.src, off + i * sizeof(has), &has,
							 sizeof(has)),
					 0);
			assert_memory_equal(&has, &want, sizeof(has));
		}
		dcp_input_close(&in);
	}
}

static void check(const struct t_ds_loaded *l, const char *state, size_t k, enum cut cut)
{
	const struct t_ds_param *p = &local[k];
	size_t n, all = t_ds_numel(p) * (cut == ONE ? 1 : TP);
	const struct dcp_tensor *t;
	struct dcp_err err = { 0 };
	char key[80], *bytes;

	snprintf(key, sizeof(key), "%s.%s", state, p->name);
	t = t_sink_tensor(&l->s, key);
	if ((cut == MEAN || cut == SUM) && strcmp(state, "module") == 0) {
		assert_non_null(t);
		check_terms(l, t, p, cut == MEAN);
		return;
	}
	if (cut >= MEAN) {
		assert_null(t);
		snprintf(key, sizeof(key), "mp_rank_01.%s.%s", state, p->name);
		assert_null(t_sink_tensor(&l->s, key)->error);
		return;
	}
	assert_non_null(t);
	assert_int_equal(t->shape[0], p->shape[0] * (cut == ROWS ? TP : 1));
	bytes = t_sink_read(&l->s, t, &n, &err);
	assert_non_null(bytes);
	assert_int_equal(n, all * sizeof(float));
	for (size_t i = 0; i < all; i++) {
		float want = element(state, p, cut, i);

		assert_memory_equal(bytes + i * sizeof(want), &want, sizeof(want));
	}
	free(bytes);
}

/* What the options of the run say, and what the bias is then. */
static const struct {
	const char *what, *file, *text;
	enum cut bias;
} configs[] = {
	{ "no options", NULL, NULL, NOT },
	{ "options that are not for this", "configs/local.sh", "gpt_j_residual: true\n", NOT },
	{ "YAML", "configs/a.yml", "hidden-size: 4\n  \"gpt-j-residual\": true,\n", SUM },
	{ "JSON", "configs/a.json", "{\"num_layers\": 1, \"gpt_j_residual\": true}", SUM },
	{ "no", "configs/a.yaml", "gpt_j_residual: False\n", ONE },
	{ "by default not", "configs/a.yml", "hidden-size: 4\n", ONE },
	{ "in a comment", "configs/a.yml",
	  "# gpt-j-residual: true\nx: 1 # gpt-j-residual: true\n", ONE },
	{ "another option", "configs/a.yml",
	  "my-gpt-j-residual: true\ngpt-j-residual-x: true\n", ONE },
};

static void neox_layers_are_joined(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(configs); i++) {
		struct t_ds_loaded l;

		t_ds_make(&l, NULL);
		t_ds_write_neox(&l.tree, "", local, DCP_LEN(local), TP, WIDTH);
		if (configs[i].file)
			t_dir_put(&l.tree, configs[i].file, configs[i].text,
				  strlen(configs[i].text));
		t_ds_load(&l, NULL, false);
		assert_int_equal(l.rc, 0);
		for (size_t k = 0; k < DCP_LEN(local); k++) {
			enum cut cut = k == bias ? configs[i].bias : wants[k].cut;

			t_case(k == bias ? configs[i].what : wants[k].what);
			check(&l, "module", k, cut);
			check(&l, "fp32", k, cut);
		}
		t_ds_unload(&l);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(neox_layers_are_joined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
