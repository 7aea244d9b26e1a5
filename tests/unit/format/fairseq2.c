/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fairseq2: what its ranks hold is put together, or it is said which file is missing.
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/pickle.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

static void load_path(const char *path, struct dcp_dir *dir, struct t_sink *s)
{
	const struct dcp_format *format;
	enum dcp_match match;
	struct dcp_err err = { 0 };
	struct dcp_load in = { .dir = dir, .sink = &s->sink };

	assert_int_equal(dcp_dir_open(path, dir, NULL), 0);
	t_sink_init(s, dir);
	format = dcp_format_probe(dir, &match, NULL, 0);
	assert_non_null(format);
	assert_string_equal(format->name, "fairseq2");
	assert_int_equal(match, DCP_MATCH_YES);
	if (format->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
}

static void golden_version(const char *folder, const char *name, int complete)
{
	char path[256];
	struct dcp_dir dir;
	struct t_sink s;

	t_case(name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	load_path(path, &dir, &s);
	t_manifest_check(&s, folder, name, "");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

static void steps_are_put_together(void **state)
{
	(void)state;
	t_manifest_each("fairseq2", golden_version);
}

/*
 * A file with one tensor @key of @rows x @columns, whose element i is 100 * @mark + i. No rows:
 * "{}".
 */
static void put(const struct t_dir *tree, const char *file, const char *key, int64_t rows,
		int64_t columns, int mark)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	const int64_t shape[] = { rows, columns }, stride[] = { columns, 1 };
	struct t_zip z = { .torch = true };
	float data[64];

	for (int i = 0; i < 64; i++)
		data[i] = (float)(100 * mark + i);
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	if (rows) {
		t_pk_str(&b, key);
		t_pk_tensor(&b, "FloatStorage", "0", 64, 0, shape, stride, 2);
	}
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/byteorder", "little", 6);
	t_zip_add(&z, "archive/data/0", data, sizeof(data));
	t_zip_add(&z, "archive/version", "3\n", 2);
	t_zip_end(&z);
	t_dir_put(tree, file, z.b.p, z.b.n);
	t_zip_free(&z);
}

/* clang-format off */
static const struct {
	const char *what, *key;
	struct {
		const char *file; /* a tensor of so many rows and columns; no columns: damaged */
		int rows, columns;
	} files[5];
	const char *shape, *error; /* of the key */
} cases[] = {
	{ "rows of ranks", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_01.pt", 1, 3 } }, "[3, 3]", NULL },
	{ "the last has none", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_01.pt", 0, 3 } }, "[2, 3]", NULL },
	{ "rows of tensor-parallel ranks", "l.q_proj.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_01/sdp_00.pt", 2, 3 } }, "[4, 3]", NULL },
	{ "columns of them", "l.ffn.output_proj.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_01/sdp_00.pt", 2, 3 } }, "[2, 6]", NULL },
	{ "all have it", "l.layer_norm.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_01/sdp_00.pt", 2, 3 } }, "[2, 3]", NULL },
	{ "a gap", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_02.pt", 2, 3 } }, NULL,
	  "model/pp_00/tp_00/sdp_01.pt is missing" },
	{ "another tensor-parallel rank has more", "l.q_proj.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_01.pt", 2, 3 },
	  { "model/pp_00/tp_01/sdp_00.pt", 2, 3 } }, NULL, "model/pp_00/tp_01/sdp_01.pt is missing" },
	{ "the optimizer has more", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "optimizer/pp_00/tp_00/sdp_01.pt", 0, 0 } }, NULL,
	  "model/pp_00/tp_00/sdp_01.pt is missing" },
	{ "the trainer has more", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_01.pt", 2, 3 }, { "trainer/rank_00.pt", 0, 3 },
	  { "trainer/rank_01.pt", 0, 3 }, { "trainer/rank_02.pt", 0, 3 } }, NULL, "trainer/ has files of 3 ranks, which is no multiple of the 2 in model/" },
	{ "a damaged file", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_01.pt", 0, 0 } }, NULL, "model/pp_00/tp_00/sdp_01.pt: " },
	{ "a rank between without rows", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_01.pt", 0, 3 }, { "model/pp_00/tp_00/sdp_02.pt", 2, 3 } },
	  NULL, "sdp_02.pt holds a part of it, and a rank before that does not" },
	{ "other columns", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_01.pt", 2, 4 } }, NULL, "disagree about its dtype or shape" },
	{ "a name that does not tell", "l.mixer.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_01/sdp_00.pt", 2, 3 } }, NULL,
	  "the files do not say how 2 tensor-parallel ranks hold it" },
	{ "a width that is not known", "d.embed.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_01/sdp_00.pt", 2, 3 } }, NULL,
	  "the files do not say how 2 tensor-parallel ranks hold it" },
	{ "other rows", "l.q_proj.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_01/sdp_00.pt", 1, 3 } }, NULL,
	  "tensor-parallel ranks hold 2 and 1 rows of it" },
	{ "one does not hold it", "l.q_proj.weight", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_01/sdp_00.pt", 0, 3 } }, NULL,
	  "model/pp_00/tp_01/sdp_00.pt does not hold it, as other ranks do" },
	{ "two stages hold it", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_01/tp_00/sdp_00.pt", 2, 3 } }, NULL,
	  "several pipeline stages hold it: model/pp_00/tp_00/sdp_00.pt and model/pp_01/tp_00/sdp_00.pt" },
	{ "numbers written otherwise are no ranks", "w", { { "model/pp_00/tp_00/sdp_00.pt", 2, 3 }, { "model/pp_00/tp_00/sdp_1.pt", 2, 3 } }, "[2, 3]", NULL },
};
/* clang-format on */

static void misfitting_ranks_are_named(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const struct dcp_tensor *t;
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;
		char shape[64];

		t_case(cases[i].what);
		t_dir_make(&tree, "test_fairseq2");
		for (int k = 0; k < 5 && cases[i].files[k].file; k++)
			if (cases[i].files[k].columns)
				put(&tree, cases[i].files[k].file, cases[i].key,
				    cases[i].files[k].rows, cases[i].files[k].columns, k);
			else
				t_dir_text(&tree, cases[i].files[k].file, "no checkpoint");
		load_path(tree.root, &dir, &s);
		t = t_sink_tensor(&s, cases[i].key);
		assert_non_null(t);
		if (!!t->error != !!cases[i].error)
			fail_msg("%s", t->error ? t->error : "no error");
		if (cases[i].error && !strstr(t->error, cases[i].error))
			fail_msg("%s", t->error);
		if (cases[i].shape)
			assert_string_equal(
				dcp_dims_text(shape, sizeof(shape), t->shape, t->ndim),
				cases[i].shape);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

static void replicas_of_ranks_are_copies(void **state)
{
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "test_fairseq2");
	put(&tree, "model/pp_00/tp_00/sdp_00.pt", "layer_norm.weight", 2, 3, 0);
	put(&tree, "model/pp_00/tp_01/sdp_00.pt", "layer_norm.weight", 2, 3, 0);
	t_dir_text(&tree, "hg/model.safetensors", "");
	load_path(tree.root, &dir, &s);
	assert_int_equal(t_sink_tensor(&s, "layer_norm.weight")->npieces, 1);
	assert_int_equal(t_sink_tensor(&s, "layer_norm.weight")->ncopies, 1);
	assert_string_equal(t_sink_fact(&s, "left_out"), "hg");
	assert_string_equal(t_sink_fact(&s, "framework"), "fairseq2");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

static void a_step_without_its_files_is_refused(void **state)
{
	static const struct {
		const char *file, *says;
	} bad[] = {
		{ "model/pp_00/x", "model/pp_00/tp_00/sdp_00.pt is missing" },
		{ "model/pp_00/tp_00/sdp_999999.pt",
		  "most of the files of its ranks are missing" },
		{ "model/pp_999999/tp_999999/sdp_999999.pt", "most of the files" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;
		struct dcp_err err = { 0 };
		enum dcp_match match;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };

		t_case(bad[i].file);
		t_dir_make(&tree, "test_fairseq2");
		t_dir_text(&tree, bad[i].file, "");
		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&s, &dir);
		assert_true(dcp_format_probe(&dir, &match, NULL, 0)->load(&in, &err) < 0);
		t_assert_says(&err, bad[i].says);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_are_put_together),
		cmocka_unit_test(misfitting_ranks_are_named),
		cmocka_unit_test(replicas_of_ranks_are_copies),
		cmocka_unit_test(a_step_without_its_files_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
