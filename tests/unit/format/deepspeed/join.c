/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor-parallel ranks and pipeline stages: joined by the rules that are recorded, told one by
 * one where there are none.
 * covers: join, rule, module_joined, state, module
 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/ds.h"
#include "tests/unit/t/format/torch.h"

enum { TP = 2 };

/* What each of two ranks holds. */
static const struct t_ds_param local[] = {
	{ "row.w", { 3, 4 }, 2, 0, false, NULL },
	{ "col.w", { 4, 3 }, 2, 0, false, NULL },
	{ "norm.w", { 5 }, 1, 0, false, NULL },
	{ "mean.w", { 3 }, 1, 0, false, NULL },
	{ "swiglu.w", { 4, 3 }, 2, 0, false, NULL },
	{ "vocab.w", { 4, 2 }, 2, 0, false, NULL },
	{ "qkv.0.w", { 6, 2 }, 2, 0, false, NULL },
	{ "even.w", { 6, 2 }, 2, 0, false, NULL },
	{ "scaled.w", { 2 }, 1, 0, false, NULL },
	{ "no.w", { 2 }, 1, 0, false, NULL },
	{ "same.table", { 3 }, 1, 0, true, NULL },
	{ "mean.same", { 9 }, 1, 0, .same = true },
	{ "gather.w", { 3, 2 }, 2, 0, false, NULL },
	{ "across.w", { 2, 4 }, 2, 0, false, NULL },
	{ "same.name", { 2, 2 }, 2, 0, true, .same = true },
};

/* The element of rank (and in it) that element @i of the whole is. */
struct from {
	unsigned rank;
	size_t element;
};

static struct from rows(size_t i)
{
	return (struct from){ (unsigned)(i / 12), i % 12 };
}

static struct from columns(size_t i) /* 4 x 6 of 4 x 3 each */
{
	return (struct from){ (unsigned)(i % 6 / 3), i / 6 * 3 + i % 3 };
}

static struct from first_only(size_t i)
{
	return (struct from){ 0, i };
}

static struct from halves(size_t i) /* rows 0 1 of both, then 2 3 of both */
{
	size_t row = i / 3, half = row / 4, in = row % 4;

	return (struct from){ (unsigned)(in / 2), (half * 2 + in % 2) * 3 + i % 3 };
}

static struct from padded(size_t i) /* 7 rows of 8 */
{
	return (struct from){ (unsigned)(i / 8), i % 8 };
}

static struct from widths(size_t i) /* parts of (1, 3) (2, 2) (3, 1) rows */
{
	static const unsigned rank[] = { 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1 };
	static const size_t row[] = { 0, 0, 1, 2, 1, 2, 3, 4, 3, 4, 5, 5 };

	return (struct from){ rank[i / 2], row[i / 2] * 2 + i % 2 };
}

static struct from segments(size_t i) /* rows 0 1 and 2 3 of each, row 4 of both */
{
	static const size_t row[] = { 0, 1, 0, 1, 2 };

	return (struct from){ i / 2 == 2 || i / 2 == 3, row[i / 2] * 2 + i % 2 };
}

static struct from across(size_t i) /* columns: q of both, then k of both */
{
	size_t column = i % 8, part = column / 4, in = column % 4;

	return (struct from){ (unsigned)(in / 2), i / 8 * 4 + part * 2 + in % 2 };
}

static struct from thirds(size_t i) /* three equal parts of 4 rows, 2 of each rank */
{
	size_t row = i / 2, part = row / 4, in = row % 4;

	return (struct from){ (unsigned)(in / 2), (part * 2 + in % 2) * 2 + i % 2 };
}

/* clang-format off */
static const struct {
	const char *name;
	size_t n;
	uint64_t shape[2];
	struct from (*from)(size_t i);
} wholes[] = {
	{ "row.w", 24, { 6, 4 }, rows },
	{ "col.w", 24, { 4, 6 }, columns },
	{ "norm.w", 5, { 5 }, first_only },
	{ "swiglu.w", 24, { 8, 3 }, halves },
	{ "vocab.w", 14, { 7, 2 }, padded },
	{ "qkv.0.w", 24, { 12, 2 }, widths },
	{ "even.w", 24, { 12, 2 }, thirds },
	{ "gather.w", 10, { 5, 2 }, segments },
	{ "across.w", 16, { 2, 8 }, across },
};
/* clang-format on */

/* ---- the rules ---- */

static void push_strings(struct dcp_buf *b, const char *key, const char *one, const char *two)
{
	t_pk_str(b, key);
	t_pk_list(b);
	t_pk_mark(b);
	t_pk_str(b, one);
	if (two)
		t_pk_str(b, two);
	t_pk_appends(b);
}

static void push_widths(struct dcp_buf *b)
{
	static const int64_t each[3][2] = { { 1, 3 }, { 2, 2 }, { 3, 1 } };

	t_pk_str(b, "sub_param_shard_widths");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "^qkv\\.0\\.w$");
	t_pk_list(b);
	t_pk_mark(b);
	for (int i = 0; i < 3; i++)
		t_pk_dims(b, each[i], 2);
	t_pk_appends(b);
	t_pk_setitems(b);
}

static void push_sub(struct dcp_buf *b, const char *pattern, const int64_t *part, size_t nparts,
		     int64_t dim)
{
	t_pk_dict(b);
	t_pk_mark(b);
	push_strings(b, "patterns", pattern, NULL);
	t_pk_str(b, "shape");
	t_pk_list(b);
	t_pk_mark(b);
	if (dim)
		t_pk_int(b, -1);
	if (nparts > 1)
		t_pk_dims(b, part, nparts);
	else
		t_pk_int(b, part[0]);
	if (!dim)
		t_pk_int(b, -1);
	t_pk_appends(b);
	t_pk_str(b, "partition_dim");
	t_pk_int(b, dim);
	t_pk_setitems(b);
}

/* A block of a map, row-major on both sides. */
struct block {
	int64_t shape[2], source, dest, holder;
	double scale;
};

static void push_corner(struct dcp_buf *b, const char *key, int64_t off, int64_t columns)
{
	t_pk_str(b, key);
	t_pk_list(b);
	t_pk_mark(b);
	t_pk_int(b, off);
	t_pk_numbers(b, (const int64_t[]){ columns, 1 }, 2);
	t_pk_appends(b);
}

static void push_map(struct dcp_buf *b, const char *pattern, const int64_t *whole,
		     const int64_t *shard, const struct block *block, size_t each)
{
	t_pk_str(b, pattern);
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "logical_shape");
	t_pk_numbers(b, whole, 2);
	t_pk_str(b, "ranks");
	t_pk_dict(b);
	t_pk_mark(b);
	for (int r = 0; r < TP; r++) {
		t_pk_int(b, r);
		t_pk_dict(b);
		t_pk_mark(b);
		t_pk_str(b, "shard_shape");
		t_pk_numbers(b, shard, 2);
		t_pk_str(b, "pieces");
		t_pk_list(b);
		t_pk_mark(b);
		for (size_t i = 0; i < each; i++, block++) {
			int64_t holders[] = { block->holder, r };

			t_pk_dict(b);
			t_pk_mark(b);
			t_pk_str(b, "shape");
			t_pk_numbers(b, block->shape, 2);
			push_corner(b, "source", block->source, whole[1]);
			push_corner(b, "dest", block->dest, shard[1]);
			t_pk_str(b, "locations");
			t_pk_numbers(b, holders, 2);
			if (block->scale > 0) {
				t_pk_str(b, "scale");
				t_pk_float(b, block->scale);
			}
			t_pk_setitems(b);
		}
		t_pk_appends(b);
		t_pk_setitems(b);
	}
	t_pk_setitems(b);
	t_pk_setitems(b);
}

static void push_affine(struct dcp_buf *b)
{
	static const int64_t row[] = { 6, 4 }, rows[] = { 3, 4 }, five[] = { 5, 2 },
			     three[] = { 3, 2 }, two[] = { 2, 2 }, one[] = { 1, 2 };
	static const struct block halves_of[] = { { { 3, 4 }, 0, 0, 0, 1 },
						  { { 3, 4 }, 12, 0, 1, 0 } };
	/* rank 1 has the last row, too, but rank 0 comes first */
	static const struct block parts[] = { { { 2, 2 }, 0, 0, 0, 0 },
					      { { 1, 2 }, 8, 4, 0, 0 },
					      { { 2, 2 }, 4, 0, 1, 0 },
					      { { 1, 2 }, 8, 4, 0, 0 } };
	static const struct block scaled[] = { { { 1, 2 }, 0, 0, 0, 0.5 },
					       { { 1, 2 }, 2, 0, 1, 0.5 } };

	t_pk_str(b, "affine_map");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "version");
	t_pk_int(b, 1);
	t_pk_str(b, "params");
	t_pk_dict(b);
	t_pk_mark(b);
	push_map(b, "^row\\.w$", row, rows, halves_of, 1);
	push_map(b, "^gather\\.w$", five, three, parts, 2);
	push_map(b, "^scaled\\.w$", two, one, scaled, 1);
	t_pk_setitems(b);
	t_pk_setitems(b);
}

static void push_rules(struct dcp_buf *b)
{
	static const int64_t qkv[] = { 4, 4, 4 }, even[] = { 3 }, qk[] = { 4, 4 };

	t_pk_dict(b);
	t_pk_mark(b);
	push_strings(b, "parameter_with_row_parallelism_patterns", "col\\.[a-z]$", NULL);
	push_strings(b, "tp_replicated_parameter_patterns", "^norm\\.w$", "nothing_like_it");
	push_strings(b, "parameter_to_average_patterns", "m(e|i)an\\.\\w+", NULL);
	push_strings(b, "parameter_with_2_sub_params_cat_dim_0", "swiglu", NULL);
	push_strings(b, "vocabulary_parameter_patterns", "vocab.*", NULL);
	t_pk_str(b, "original_vocab_size");
	t_pk_int(b, 7);
	t_pk_str(b, "parameter_with_sub_params");
	t_pk_list(b);
	t_pk_mark(b);
	push_sub(b, "^qkv\\.0\\.w$", qkv, 3, 0);
	push_sub(b, "even\\.", even, 1, 0);
	push_sub(b, "across", qk, 2, 1);
	t_pk_appends(b);
	push_widths(b);
	push_affine(b);
	t_pk_str(b, "autotp_unsupported_parameter_patterns");
	t_pk_dict(b);
	t_pk_mark(b);
	t_pk_str(b, "^no\\.w$");
	t_pk_str(b, "because");
	t_pk_setitems(b);
	t_pk_setitems(b);
}

static struct t_ds part(unsigned mp, const struct dcp_buf *rules)
{
	return (struct t_ds){ .stage = 1,
			      .world = 3,
			      .param = local,
			      .nparams = DCP_LEN(local),
			      .ngroups = 1,
			      .lean = true,
			      .mp = mp,
			      .tp = rules ? TP : 0,
			      .pp = 1,
			      .uc_info = rules ? rules->p : NULL,
			      .uc_n = rules ? rules->n : 0,
			      .buffer = "same.table" };
}

/* All ranks of a tensor-parallel checkpoint, or the first of them only. */
static void make(struct t_ds_loaded *l, const struct dcp_buf *rules, unsigned ranks)
{
	t_ds_make(l, NULL);
	for (unsigned mp = 0; mp < ranks; mp++) {
		struct t_ds c = part(mp, rules);

		t_ds_write(&c, &l->tree, "");
	}
}

static void load(struct t_ds_loaded *l)
{
	t_ds_load(l, NULL, false);
	if (l->rc < 0)
		fail_msg("%s", l->err.msg);
}

static void check_whole(const struct t_ds_loaded *l, const char *state, size_t w)
{
	const struct dcp_tensor *t;
	struct dcp_err err = { 0 };
	char key[64], *bytes;
	size_t n;

	snprintf(key, sizeof(key), "%s.%s", state, wholes[w].name);
	t = t_sink_tensor(&l->s, key);
	if (!t)
		fail_msg("%s was not told", key);
	for (uint32_t d = 0; d < t->ndim; d++)
		assert_int_equal(t->shape[d], wholes[w].shape[d]);
	bytes = t_sink_read(&l->s, t, &n, &err);
	if (!bytes)
		fail_msg("%s: %s", key, err.msg);
	assert_int_equal(n, wholes[w].n * sizeof(float));
	for (size_t i = 0; i < wholes[w].n; i++) {
		struct from f = wholes[w].from(i);
		float want = t_ds_value(state, wholes[w].name, f.element) +
			     T_DS_RANK * (float)f.rank;

		if (memcmp(bytes + i * sizeof(want), &want, sizeof(want)) != 0)
			fail_msg("%s: element %zu is not element %zu of rank %u", key, i,
				 f.element, f.rank);
	}
	free(bytes);
}

static void partitions_are_joined(void **state)
{
	dcp_auto_buf struct dcp_buf rules = DCP_BUF_INIT;
	struct t_ds_loaded l;

	(void)state;
	push_rules(&rules);
	make(&l, &rules, TP);
	load(&l);
	for (size_t w = 0; w < DCP_LEN(wholes); w++) {
		t_case(wholes[w].name);
		check_whole(&l, "fp32", w);
		check_whole(&l, "exp_avg", w);
		check_whole(&l, "module", w);
	}
	t_case("what no rule can join");
	assert_null(t_sink_tensor(&l.s, "fp32.mean.w"));
	for (unsigned mp = 0; mp < TP; mp++) {
		static const char *const names[] = { "mean.w", "scaled.w", "no.w" };

		for (size_t i = 0; i < DCP_LEN(names); i++) {
			char key[64];

			snprintf(key, sizeof(key), "mp_rank_%02u.exp_avg_sq.%s", mp, names[i]);
			assert_string_equal(t_sink_tensor(&l.s, key)->path[1], "exp_avg_sq");
			assert_string_equal(t_sink_tensor(&l.s, key)->path[2], names[i]);
			assert_null(t_sink_tensor(&l.s, key)->error);
			snprintf(key, sizeof(key), "mp_rank_%02u.module.%s", mp, names[i]);
			if (i ==
			    0) /* in the model's files every rank's is one run, and can be added up */
				assert_null(t_sink_tensor(&l.s, key));
			else
				assert_null(t_sink_tensor(&l.s, key)->error);
		}
	}
	assert_true(t_sink_tensor(&l.s, "module.mean.w")->pieces->mean);
	t_case("a mean of what is the same");
	t_ds_check_one(&l.s, "exp_avg.mean.same", "exp_avg", "mean.same", 9);
	t_ds_check_one(&l.s, "module.mean.same", "module", "mean.same", 9);
	t_case("no parameter, the same on all ranks");
	t_ds_check_one(&l.s, "module.same.name", "module", "same.name", 4);
	t_case("a buffer that the ranks disagree on");
	assert_null(t_sink_tensor(&l.s, "module.same.table"));
	assert_non_null(t_sink_tensor(&l.s, "mp_rank_01.module.same.table"));
	assert_non_null(strstr(t_sink_fact(&l.s, "unjoined"), "mp_rank_<nn>"));
	t_ds_unload(&l);
}

/* A rank's part of another height is not joined by columns. */
static void unlike_ranks_are_refused(void **state)
{
	dcp_auto_buf struct dcp_buf rules = DCP_BUF_INIT;
	struct t_ds_param other[DCP_LEN(local)];
	struct t_ds_loaded l;
	struct t_ds second;

	(void)state;
	memcpy(other, local, sizeof(other));
	other[1].shape[0] = 2; /* col.w */
	other[1].shape[1] = 6;
	push_rules(&rules);
	make(&l, &rules, 1);
	second = part(1, &rules);
	second.param = other;
	t_ds_write(&second, &l.tree, "");
	load(&l);
	assert_null(t_sink_tensor(&l.s, "fp32.col.w"));
	assert_null(t_sink_tensor(&l.s, "mp_rank_01.fp32.col.w")->error);
	check_whole(&l, "fp32", 0);
	t_ds_unload(&l);
}

static void states_without_rules_stay_apart(void **state)
{
	struct t_ds_loaded l;

	(void)state;
	make(&l, NULL, TP);
	load(&l);
	assert_null(t_sink_tensor(&l.s, "fp32.row.w"));
	t_ds_check_one(&l.s, "mp_rank_00.fp32.row.w", "fp32", "row.w", 12);
	assert_null(t_sink_tensor(&l.s, "mp_rank_01.fp32.row.w")->error);
	assert_null(t_sink_tensor(&l.s, "mp_rank_01.step.row.w")->error);
	assert_non_null(strstr(t_sink_fact(&l.s, "unjoined"), "universal_checkpoint_info"));
	t_ds_unload(&l);
}

/* What an affine_map may say that cannot be followed: told of each rank, the reason named. */
static void unusable_maps_are_reported(void **state)
{
	static const int64_t whole[] = { 6, 4 }, shard[] = { 3, 4 };
	static const struct {
		const char *what;
		int64_t version;
		struct block second; /* of rank 1 */
		const char *why;     /* NULL: it is joined */
	} rows[] = {
		{ "sound", 1, { { 3, 4 }, 12, 0, 1, 1 }, NULL },
		{ "of a later version", 2, { { 3, 4 }, 12, 0, 1, 1 }, "not known yet" },
		{ "behind the end", 1, { { 3, 4 }, 16, 0, 1, 1 }, "is invalid" },
		{ "longer than a rank's", 1, { { 4, 4 }, 8, 0, 1, 1 }, "is invalid" },
		{ "scaled", 1, { { 3, 4 }, 12, 0, 1, 0.25 }, "scaled" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		dcp_auto_buf struct dcp_buf rules = DCP_BUF_INIT;
		const struct block blocks[] = { { { 3, 4 }, 0, 0, 0, 1 }, rows[i].second };
		const char *fact;
		struct t_ds_loaded l;

		t_case(rows[i].what);
		t_pk_dict(&rules);
		t_pk_mark(&rules);
		t_pk_str(&rules, "affine_map");
		t_pk_dict(&rules);
		t_pk_mark(&rules);
		t_pk_str(&rules, "version");
		t_pk_int(&rules, rows[i].version);
		t_pk_str(&rules, "params");
		t_pk_dict(&rules);
		t_pk_mark(&rules);
		push_map(&rules, "^row\\.w$", whole, shard, blocks, 1);
		t_pk_setitems(&rules);
		t_pk_setitems(&rules);
		t_pk_setitems(&rules);
		make(&l, &rules, TP);
		load(&l);
		fact = t_sink_fact(&l.s, "unjoined");
		if (rows[i].why)
			assert_null(t_sink_tensor(&l.s, "fp32.row.w"));
		else
			check_whole(&l, "fp32", 0);
		assert_null(t_sink_tensor(&l.s,
					  rows[i].why ? "mp_rank_01.fp32.row.w" : "fp32.row.w")
				    ->error);
		if (rows[i].why)
			assert_non_null(strstr(fact, rows[i].why));
		t_ds_unload(&l);
	}
}

static void missing_ranks_break_cut_tensors_only(void **state)
{
	dcp_auto_buf struct dcp_buf rules = DCP_BUF_INIT;
	struct t_ds_loaded l;

	(void)state;
	push_rules(&rules);
	t_case("an optimizer file of one");
	make(&l, &rules, TP);
	t_dir_delete(&l.tree, "zero_pp_rank_0_mp_rank_01_optim_states.pt");
	load(&l);
	assert_non_null(strstr(t_sink_tensor(&l.s, "fp32.row.w")->error,
			       "zero_pp_rank_0_mp_rank_01_optim_states.pt is missing"));
	check_whole(&l, "module", 0);
	check_whole(&l, "fp32", 2);
	t_ds_unload(&l);

	t_case("all files of one");
	make(&l, &rules, 1);
	t_dir_put(&l.tree, "zero_pp_rank_0_mp_rank_01_optim_states.pt", "?", 1);
	load(&l);
	assert_non_null(strstr(t_sink_tensor(&l.s, "fp32.row.w")->error,
			       "mp_rank_01_model_states.pt is missing or damaged"));
	assert_non_null(strstr(t_sink_tensor(&l.s, "module.row.w")->error, "1 of 2"));
	t_ds_unload(&l);

	t_case("all files of one, and nothing else speaks of it");
	make(&l, &rules, 1);
	load(&l);
	assert_non_null(strstr(t_sink_tensor(&l.s, "exp_avg.row.w")->error,
			       "mp_rank_01_model_states.pt is missing or damaged"));
	assert_non_null(strstr(t_sink_object(&l.s, "mp_rank_01_model_states.pt")->error,
			       "model-parallel rank 1 of 2"));
	t_ds_unload(&l);
}

/* Two stages, a tied weight in both: the first one's is told. */
static void every_zero_stage_is_joined(void **state)
{
	static const struct t_ds_param stage[2][2] = {
		{ { "tied.w", { 3, 2 }, 2, 0, false, NULL },
		  { "0.w", { 5 }, 1, 0, false, NULL } },
		{ { "tied.w", { 3, 2 }, 2, 0, false, NULL },
		  { "1.w", { 4 }, 1, 0, false, NULL } },
	};
	struct t_ds_loaded l;

	(void)state;
	t_ds_make(&l, NULL);
	for (unsigned mp = 0; mp < 2; mp++) {
		struct t_ds c = { .stage = 1,
				  .world = 2,
				  .param = stage[mp],
				  .nparams = 2,
				  .ngroups = 1,
				  .mp = mp,
				  .tp = 1,
				  .pp = 2 };

		t_ds_write(&c, &l.tree, "");
	}
	load(&l);
	t_ds_check_one(&l.s, "fp32.tied.w", "fp32", "tied.w", 6);
	t_ds_check_one(&l.s, "exp_avg.0.w", "exp_avg", "0.w", 5);
	assert_null(t_sink_tensor(&l.s, "fp32.1.w")->error);
	assert_null(t_sink_fact(&l.s, "unjoined"));
	t_ds_unload(&l);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(partitions_are_joined),
		cmocka_unit_test(states_without_rules_stay_apart),
		cmocka_unit_test(unusable_maps_are_reported),
		cmocka_unit_test(missing_ranks_break_cut_tensors_only),
		cmocka_unit_test(every_zero_stage_is_joined),
		cmocka_unit_test(unlike_ranks_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
