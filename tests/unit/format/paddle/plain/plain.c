/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paddle's plain files: names, what a file may hold, tensor streams, several files together.
 * covers: part, plain, state
 */
#include "tests/unit/t.h"

#include "core/format/formats.h"
#include "tests/unit/t/format/group.h"
#include "tests/unit/t/format/pdplain.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"

static const struct dcp_format *const format = &dcp_format_paddle_plain;

/* ---- what the frameworks wrote ---- */

static void check_version(const char *folder, const char *name, int complete)
{
	const char *at = strchr(name, '@');
	struct t_group g;
	char root[256];

	t_case(name ? name : "");
	assert_true(complete);
	snprintf(root, sizeof(root), "tests/golden/%s/ckpt/%.*s", folder,
		 (int)(at ? (size_t)(at - name) : strlen(name)), name);
	t_group_load(&g, root, format, at ? at + 1 : NULL, 0);
	if (g.rc < 0)
		fail_msg("%s", g.err.msg);
	assert_true(t_manifest_check(&g.s, folder, name, "") > 0);
	t_group_finish(&g);
}

static void paddle_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("paddle-plain", check_version);
	t_manifest_each("paddle-plain-26", check_version);
}

/* ---- names ---- */

/* clang-format off */
static const struct {
	const char *file, *version; /* NULL: not one of ours */
} names[] = {
	{ "model.pdparams", "model" }, { "model.pdopt", "model" }, { "model.pdmodel", "model" },
	{ "model.pdiparams", "model" }, { "model.pdiparams.info", "model" }, { "model.json", "model" },
	{ "opt_rank0.pdopt", "opt" }, { "opt_rank12.pdopt", "opt" }, { "opt-rank-3.pdopt", "opt" },
	{ "w_dist1.pdparams", "w" }, { "w_dist1.pdattr", "w" },
	{ "model_state.tp00.pdparams", "model_state" }, { "model_state.tp00_pp01.pdparams", "model_state" },
	{ "optimizer.tp00_pp00_shard01.pdopt", "optimizer" },
	{ "rank3.pdparams", "rank" }, { "rank_3.pdparams", "rank" },
	{ "step_100.pdparams", "step_100" }, { "frank3.pdparams", "frank3" }, { "a_rank.pdparams", "a_rank" },
	{ "a_rank9999999999.pdparams", "a_rank9999999999" },
	{ "x.pdz", "x.pdz" }, { "x.pdtensor", "x.pdtensor" }, { "x_rank1.pd", "x_rank1.pd" }, { "x.lod", "x.lod" },
	{ "epoch.1.pdparams", "epoch.1" },
	{ "model.pt", NULL }, { "pdparams", NULL }, { ".pdparams", NULL }, { ".hidden.pdparams", NULL },
	{ "model.pdparams.tmp", NULL }, { "modelpdparams", NULL },
};
/* clang-format on */

static void files_are_grouped(void **state)
{
	char version[DCP_GROUP_MAX], longest[DCP_GROUP_MAX + 16];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(names); i++) {
		t_case(names[i].file);
		assert_int_equal(format->group(names[i].file, version),
				 names[i].version != NULL);
		if (names[i].version)
			assert_string_equal(version, names[i].version);
	}
	memset(longest, 'a', sizeof(longest));
	strcpy(longest + DCP_GROUP_MAX - 1 - strlen(".pdparams"), ".pdparams");
	assert_true(format->group(longest, version));
	strcpy(longest + DCP_GROUP_MAX - strlen(".pdparams"), ".pdparams");
	assert_false(format->group(longest, version));
}

/* ---- contents ---- */

/* A dict of one array of @n bytes, called @key. */
static void put_state(struct t_dir *d, const char *file, const char *key, const char *data)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, key);
	t_pd_row(&b, 3, "u1", data, strlen(data), 1);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_dir_put(d, file, b.p, b.n);
}

static void check_bytes(const struct t_sink *s, const char *key, const char *want)
{
	const struct dcp_tensor *t = t_sink_tensor(s, key);
	struct dcp_err err = { 0 };
	char *got;
	size_t n;

	if (!t)
		fail_msg("%s was not told", key);
	got = t_sink_read(s, t, &n, &err);
	if (!got)
		fail_msg("%s: %s", key, err.msg);
	assert_int_equal(n, strlen(want));
	assert_memory_equal(got, want, n);
	free(got);
}

/* clang-format off */
static const struct {
	const char *what, *file, *bytes;
	size_t n;
	const char *says;
} strange[] = {
	{ "nothing",            "m.pdparams",  "",               0, "m.pdparams: it is empty" },
	{ "a zip archive",      "m.pdparams",  "PK\3\4....",     8, "m.pdparams: begins with 50 4b, expected a pickle (80)" },
	{ "one byte",           "m.pdopt",     "\0",             1, "m.pdopt: begins with 00 00" },
	{ "zeros",              "m.pdparams",  "\0\0\0\0\0\0\0", 7, "m.pdparams: not a Paddle tensor stream: the file ends" },
	{ "half a pickle",      "m.pdparams",  "\x80\x04}(",     4, "m.pdparams: " },
	{ "a program alone",    "m.pdmodel",   "\x0a\x00",       2, "m.pdmodel: it is a program, and its tensors (.pdiparams) are not here" },
	{ "attributes alone",   "m_dist0.pdattr", "what",        4, "m_dist0.pdattr: begins with 77 68" },
	{ "parameters cut",     "m.pdiparams", "\0\0\0\0\0\0\0", 7, "m.pdiparams: tensor 0: not a Paddle tensor stream: the file ends" },
};
/* clang-format on */

static void other_files_are_named_as_such(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(strange); i++) {
		struct t_dir tree;
		struct t_group g;

		t_case(strange[i].what);
		t_dir_make(&tree, "paddle");
		t_dir_put(&tree, strange[i].file, strange[i].bytes, strange[i].n);
		t_group_load(&g, tree.root, format, NULL, 0);
		assert_true(g.rc < 0);
		t_assert_says(&g.err, strange[i].says);
		t_group_finish(&g);
		t_dir_remove(&tree);
	}
}

/* group_sharded calls a pickle .pdmodel; attributes alone are shown as what they are. */
static void contents_not_names_decide(void **state)
{
	const int64_t dims[] = { 3 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	put_state(&tree, "model.pdmodel", "w", "weights");
	put_state(&tree, "model.pdopt", "w_moment", "moments");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	check_bytes(&g.s, "w", "weights");
	check_bytes(&g.s, "w_moment", "moments");
	assert_string_equal(t_sink_fact(&g.s, "framework"), "paddle");
	t_group_finish(&g);

	t_case("a stream called .pdparams");
	t_lod(&b, 20, dims, 1, "abc", 3);
	t_dir_put(&tree, "one.pdparams", b.p, b.n);
	t_group_load(&g, tree.root, format, "one", 0);
	check_bytes(&g.s, "value", "abc");
	assert_int_equal(g.s.tensor[0].npath, 0);
	t_group_finish(&g);

	t_case("a pickle called .pdiparams");
	put_state(&tree, "two.pdiparams", "k", "v");
	t_group_load(&g, tree.root, format, "two", 0);
	check_bytes(&g.s, "k", "v");
	t_group_finish(&g);
	t_dir_remove(&tree);
}

/* ---- tensor streams ---- */

static void put_params(struct t_dir *d, const char *file, size_t n, size_t cut)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	const int64_t dims[][2] = { { 2, 2 }, { 3, 1 }, { 0, 5 }, { 4, 1 } };
	const char *const data[] = { "aaaa", "bbb", "", "dddd" };

	for (size_t i = 0; i < n; i++)
		t_lod(&b, 20, dims[i], 2, data[i], strlen(data[i]));
	t_dir_put(d, file, b.p, b.n - cut);
}

/* Variables "a" to @n, of the shapes above but @odd, which has another. */
static void put_program(struct t_dir *d, const char *file, size_t n, size_t odd)
{
	dcp_auto_buf struct dcp_buf block = DCP_BUF_INIT, b = DCP_BUF_INIT;
	const int64_t dims[][2] = { { 2, 2 }, { -1, 1 }, { 0, 5 }, { 4, 1 }, { 1, 1 } };
	const int64_t other[] = { 7, 7 };

	for (size_t i = 0; i < n; i++) {
		const char name[2] = { (char)('a' + i), '\0' };

		t_pd_var(&block, name, T_PD_LOD_TENSOR, true, 20, i == odd ? other : dims[i],
			 2);
	}
	t_pb_bytes(&b, 1, block.p, block.n);
	t_dir_put(d, file, b.p, b.n);
}

static void programs_name_the_parameters(void **state)
{
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	put_params(&tree, "m.pdiparams", 4, 0);

	t_case("no program: numbers");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.s.ntensors, 4);
	check_bytes(&g.s, "0", "aaaa");
	check_bytes(&g.s, "2", "");
	check_bytes(&g.s, "3", "dddd");
	assert_string_equal(t_sink_fact(&g.s, "names"),
			    "no m.pdmodel or m.json beside it: keys are numbers");
	t_group_finish(&g);

	t_case("a program");
	put_program(&tree, "m.pdmodel", 4, SIZE_MAX);
	t_dir_text(&tree, "m.pdiparams.info", "not looked at");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.s.ntensors, 4);
	check_bytes(&g.s, "a", "aaaa");
	check_bytes(&g.s, "b", "bbb");
	check_bytes(&g.s, "d", "dddd");
	assert_null(t_sink_fact(&g.s, "names"));
	t_group_finish(&g);

	t_case("a .json that is something else does not hide it");
	t_dir_text(&tree, "m.json", "{\"vocab\": 3}");
	t_group_load(&g, tree.root, format, NULL, 0);
	check_bytes(&g.s, "b", "bbb");
	t_group_finish(&g);

	t_case("a damaged one: numbers, and why");
	t_dir_text(&tree, "m.pdmodel", "\n\x7f");
	t_group_load(&g, tree.root, format, NULL, 0);
	check_bytes(&g.s, "1", "bbb");
	assert_non_null(strstr(t_sink_fact(&g.s, "names"), "m.pdmodel: "));
	t_group_finish(&g);
	t_dir_remove(&tree);
}

static void misfitting_programs_are_reported(void **state)
{
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	put_params(&tree, "m.pdiparams", 4, 0);

	t_case("another shape for one of them");
	put_program(&tree, "m.pdmodel", 4, 1);
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	check_bytes(&g.s, "a", "aaaa");
	assert_non_null(strstr(t_sink_tensor(&g.s, "b")->error,
			       "m.pdmodel says that its shape is [7, 7], the tensor in its "
			       "place in m.pdiparams has another"));
	t_group_finish(&g);

	t_case("more tensors than names");
	put_program(&tree, "m.pdmodel", 3, SIZE_MAX);
	t_group_load(&g, tree.root, format, NULL, 0);
	check_bytes(&g.s, "b", "bbb");
	check_bytes(&g.s, "3", "dddd");
	t_group_finish(&g);

	t_case("fewer");
	put_program(&tree, "m.pdmodel", 5, SIZE_MAX);
	t_group_load(&g, tree.root, format, NULL, 0);
	check_bytes(&g.s, "d", "dddd");
	assert_string_equal(t_sink_tensor(&g.s, "e")->error,
			    "m.pdiparams ends after 4 tensors");
	t_group_finish(&g);

	t_case("cut inside one: it and those behind it");
	put_params(&tree, "m.pdiparams", 2, 1);
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	check_bytes(&g.s, "a", "aaaa");
	assert_non_null(strstr(t_sink_tensor(&g.s, "b")->error,
			       "m.pdiparams, tensor 1: tensor needs 3 bytes, the file has 2"));
	assert_non_null(strstr(t_sink_tensor(&g.s, "e")->error, "m.pdiparams, tensor 1: "));
	t_group_finish(&g);

	t_case("cut, and what was there is unknown");
	t_dir_delete(&tree, "m.pdmodel");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_true(g.rc < 0);
	t_assert_says(&g.err, "m.pdiparams: tensor 1: tensor needs 3 bytes");
	t_group_finish(&g);

	t_case("a model without parameters");
	t_dir_put(&tree, "m.pdiparams", "", 0);
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	assert_int_equal(g.s.ntensors, 0);
	t_group_finish(&g);
	t_dir_remove(&tree);
}

static void selected_rows_are_read(void **state)
{
	const int64_t dims[] = { 2, 3 };
	uint8_t head[36] = { [4] = 2, [12] = 9, [20] = 4, [28] = 100 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_dir tree;
	struct t_group g;

	(void)state;
	dcp_buf_add(&b, head, sizeof(head));
	t_lod_tensor(&b, 20, dims, 2, "abcdef", 6);
	t_dir_make(&tree, "paddle");
	t_dir_put(&tree, "rows.pdtensor", b.p, b.n);
	t_group_load(&g, tree.root, format, NULL, 0);
	if (g.rc < 0)
		fail_msg("%s", g.err.msg);
	check_bytes(&g.s, "value", "abcdef");
	assert_int_equal(t_sink_tensor(&g.s, "rows")->dtype, DCP_DTYPE_I64);
	assert_int_equal(t_sink_tensor(&g.s, "rows")->shape[0], 2);
	assert_string_equal(t_sink_object(&g.s, "height")->json, "100");
	t_group_finish(&g);
	t_dir_remove(&tree);
}

/* ---- several files ---- */

/* {"own": array, "both": array, "same": 1, "other": @n, "t": (array, 1)} */
static void put_rank(struct t_dir *d, const char *file, const char *own, int64_t n)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	const char one = (char)('0' + n);

	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, own);
	t_pd_row(&b, 3, "u1", own, strlen(own), 1);
	t_pk_str(&b, "both");
	t_pd_row(&b, 3, "u1", &one, 1, 1);
	t_pk_str(&b, "same");
	t_pk_int(&b, 1);
	t_pk_str(&b, "other");
	t_pk_int(&b, n);
	t_pk_str(&b, "t");
	t_pk_mark(&b);
	t_pd_row(&b, 3, "u1", &one, 1, 1);
	t_pk_int(&b, n);
	t_pk_tuple(&b);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_dir_put(d, file, b.p, b.n);
}

static void ranks_are_put_together(void **state)
{
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	put_rank(&tree, "opt_rank0.pdopt", "w0", 0);
	put_rank(&tree, "opt_rank1.pdopt", "w1", 1);
	t_group_load(&g, tree.root, format, NULL, 0);
	if (g.rc < 0)
		fail_msg("%s", g.err.msg);
	check_bytes(&g.s, "w0", "w0");
	check_bytes(&g.s, "w1", "w1");
	check_bytes(&g.s, "rank0.both", "0");
	check_bytes(&g.s, "rank1.both", "1");
	check_bytes(&g.s, "rank1.t.0", "1");
	assert_string_equal(t_sink_tensor(&g.s, "rank1.both")->path[0], "rank1");
	assert_string_equal(t_sink_tensor(&g.s, "rank1.both")->path[1], "both");
	assert_string_equal(t_sink_object(&g.s, "same")->json, "1");
	assert_string_equal(t_sink_object(&g.s, "rank0.other")->json, "0");
	assert_string_equal(t_sink_object(&g.s, "rank1.other")->json, "1");
	assert_string_equal(t_sink_object(&g.s, "rank1.t")->json,
			    "[{\"$tensor\":\"rank1.t.0\"},1]");
	assert_int_equal(g.s.ntensors, 6);
	assert_int_equal(g.s.nobjects, 5);
	t_group_finish(&g);

	t_case("kinds too: both say which");
	put_rank(&tree, "opt.pdparams", "p", 2);
	t_group_load(&g, tree.root, format, NULL, 0);
	check_bytes(&g.s, "p", "p");
	check_bytes(&g.s, "rank1.pdopt.both", "1");
	check_bytes(&g.s, "pdparams.both", "2");
	t_group_finish(&g);
	t_dir_delete(&tree, "opt.pdparams");

	t_case("ranks that are not there");
	put_rank(&tree, "opt_rank4.pdopt", "w4", 4);
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	check_bytes(&g.s, "w4", "w4");
	assert_string_equal(t_sink_object(&g.s, "rank2")->error,
			    "opt_rank2.pdopt is missing: there are files of ranks up to 4");
	assert_non_null(t_sink_object(&g.s, "rank3")->error);
	assert_null(t_sink_object(&g.s, "rank1"));
	t_group_finish(&g);

	t_case("a damaged one hides no other");
	t_dir_text(&tree, "opt_rank1.pdopt", "\x80\x04what");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	check_bytes(&g.s, "w0", "w0");
	assert_null(t_sink_tensor(&g.s, "w1"));
	assert_non_null(strstr(t_sink_object(&g.s, "rank1")->error, "opt_rank1.pdopt: "));
	t_group_finish(&g);

	t_case("all damaged");
	t_dir_text(&tree, "opt_rank0.pdopt", "x");
	t_dir_text(&tree, "opt_rank4.pdopt", "x");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_true(g.rc < 0);
	t_assert_says(&g.err, "opt_rank4.pdopt: ");
	t_group_finish(&g);
	t_dir_remove(&tree);
}

/* A number is as wide as that of the file it is missing beside. */
static void missing_ranks_are_spelled_alike(void **state)
{
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	put_state(&tree, "w.tp00.pdparams", "a", "a");
	put_state(&tree, "w.tp02.pdparams", "b", "b");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_non_null(
		strstr(t_sink_object(&g.s, "tp01")->error, "w.tp01.pdparams is missing"));
	t_group_finish(&g);
	put_state(&tree, "w.tp999999999.pdparams", "c", "c");
	t_group_load(&g, tree.root, format, NULL, 0);
	assert_int_equal(g.rc, 0);
	assert_int_equal(g.s.nobjects, 1000);
	t_group_finish(&g);
	t_dir_remove(&tree);
}

/* Whatever call of the sink fails, the load fails with its code. */
static void failures_of_the_sink_are_returned(void **state)
{
	size_t at = 1;
	struct t_dir tree;
	struct t_group g;

	(void)state;
	t_dir_make(&tree, "paddle");
	put_rank(&tree, "opt_rank0.pdopt", "w0", 0);
	put_rank(&tree, "opt_rank2.pdopt", "w1", 1);
	put_params(&tree, "opt.pdiparams", 2, 0);
	for (;; at++) {
		t_group_load(&g, tree.root, format, NULL, at);
		if (g.rc == 0)
			break;
		assert_int_equal(g.rc, -ENOSPC);
		t_group_finish(&g);
	}
	assert_int_equal(at, g.s.calls + 1);
	assert_true(at > 15);
	t_group_finish(&g);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paddle_golden_files_are_read),
		cmocka_unit_test(files_are_grouped),
		cmocka_unit_test(other_files_are_named_as_such),
		cmocka_unit_test(contents_not_names_decide),
		cmocka_unit_test(programs_name_the_parameters),
		cmocka_unit_test(misfitting_programs_are_reported),
		cmocka_unit_test(selected_rows_are_read),
		cmocka_unit_test(ranks_are_put_together),
		cmocka_unit_test(missing_ranks_are_spelled_alike),
		cmocka_unit_test(failures_of_the_sink_are_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
