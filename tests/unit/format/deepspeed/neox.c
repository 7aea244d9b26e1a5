/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor-parallel ranks of GPT-NeoX, which records no rules: what is joined, and what is told
 * of each rank.
 * covers: rule
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
	{ "sequential.2.mlp.linear2.bias", { WIDTH }, 1, 0, .same = true },
	{ "sequential.2.mlp.linear1.weight", { 6, WIDTH }, 2, 0, .same = false },
	{ "sequential.2.mlp.w1.weight", { 6, WIDTH }, 2, 0, .same = false },
};

enum cut { ROWS, COLUMNS, ONE, NOT };

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
	{ NOT, "a mean" },
	{ NOT, "perhaps a sum" },
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

static void check(const struct t_ds_loaded *l, const char *state, size_t k)
{
	const struct t_ds_param *p = &local[k];
	size_t n, all = t_ds_numel(p) * (wants[k].cut == ONE ? 1 : TP);
	const struct dcp_tensor *t;
	struct dcp_err err = { 0 };
	char key[80], *bytes;

	snprintf(key, sizeof(key), "%s.%s", state, p->name);
	t = t_sink_tensor(&l->s, key);
	if (wants[k].cut == NOT) {
		assert_null(t);
		snprintf(key, sizeof(key), "mp_rank_01.%s.%s", state, p->name);
		assert_null(t_sink_tensor(&l->s, key)->error);
		return;
	}
	assert_non_null(t);
	assert_int_equal(t->shape[0], p->shape[0] * (wants[k].cut == ROWS ? TP : 1));
	bytes = t_sink_read(&l->s, t, &n, &err);
	assert_non_null(bytes);
	assert_int_equal(n, all * sizeof(float));
	for (size_t i = 0; i < all; i++) {
		float want = element(state, p, wants[k].cut, i);

		assert_memory_equal(bytes + i * sizeof(want), &want, sizeof(want));
	}
	free(bytes);
}

static void joined(void **state)
{
	struct t_ds_loaded l;

	(void)state;
	t_ds_make(&l, NULL);
	for (uint32_t mp = 0; mp < TP; mp++) {
		struct t_ds c = { .stage = 1,
				  .world = 1,
				  .param = local,
				  .nparams = DCP_LEN(local),
				  .ngroups = 1,
				  .lean = true,
				  .mp = mp,
				  .neox = WIDTH };

		t_ds_write(&c, &l.tree, "");
	}
	t_ds_load(&l, NULL, false);
	assert_int_equal(l.rc, 0);
	for (size_t k = 0; k < DCP_LEN(local); k++) {
		t_case(wants[k].what);
		check(&l, "module", k);
		check(&l, "fp32", k);
	}
	t_ds_unload(&l);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(joined),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
