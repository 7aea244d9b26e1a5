/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Meta's consolidated.<RR>.pth: what its ranks hold, put together.
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/pickle.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

struct part {
	const char *key;
	int64_t rows, columns; /* no columns: one dimension */
};

/*
 * The file of rank @rank: its tensors follow one another in one storage, whose element i is 100 *
 * @rank + i.
 */
static void put(const struct t_dir *tree, int rank, const struct part *part, size_t nparts,
		size_t cut)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	float data[64];
	char name[64];
	int64_t at = 0;

	for (int i = 0; i < 64; i++)
		data[i] = (float)(100 * rank + i);
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	for (size_t i = 0; i < nparts; i++) {
		bool flat = part[i].columns == 0;
		int64_t shape[] = { part[i].rows, part[i].columns };
		int64_t stride[] = { flat ? 1 : part[i].columns, 1 };

		t_pk_str(&b, part[i].key);
		t_pk_tensor(&b, "FloatStorage", "0", 64, at, shape, stride, flat ? 1 : 2);
		at += shape[0] * (flat ? 1 : shape[1]);
	}
	t_pk_str(&b, "note");
	t_pk_int(&b, rank);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/byteorder", "little", 6);
	t_zip_add(&z, "archive/data/0", data, sizeof(data));
	t_zip_add(&z, "archive/version", "3\n", 2);
	t_zip_end(&z);
	snprintf(name, sizeof(name), "consolidated.%02d.pth", rank);
	t_dir_put(tree, name, z.b.p, z.b.n / cut);
	t_zip_free(&z);
}

static void is(const struct t_sink *s, const char *key, const char *shape, const char *want)
{
	const struct dcp_tensor *t = t_sink_tensor(s, key);
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	char dims[64];
	struct dcp_err err = { 0 };
	size_t n;
	float *x;

	t_case(key);
	assert_non_null(t);
	if (t->error)
		fail_msg("%s", t->error);
	assert_string_equal(dcp_dims_text(dims, sizeof(dims), t->shape, t->ndim), shape);
	x = (float *)t_sink_read(s, t, &n, &err);
	assert_non_null(x);
	for (size_t i = 0; i < n / sizeof(*x); i++)
		dcp_buf_printf(&text, "%s%g", i ? " " : "", (double)x[i]);
	assert_string_equal(text.p, want);
	free(x);
}

static const struct part llama3[] = {
	{ "tok_embeddings.weight", 1, 4 },
	{ "layers.10.attention.wk.weight", 1, 4 },
	{ "layers.10.attention.wo.weight", 4, 2 },
	{ "layers.10.feed_forward.w2.weight", 2, 1 },
	{ "layers.10.feed_forward.w3.weight", 1, 2 },
	{ "layers.10.attention_norm.weight", 4, 0 },
	{ "norm.weight", 4, 0 },
	{ "output.weight", 1, 4 },
	{ "layers.10.feed_forward.experts.w.weight", 1, 4 },
	{ "rope.freqs", 2, 0 },
};

static const struct part llama2[] = {
	{ "tok_embeddings.weight", 3, 2 },
	{ "norm.weight", 4, 0 },
};

static void ranks_of_meta_are_joined(void **state)
{
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "torch_meta");
	for (int rank = 0; rank < 2; rank++)
		put(&tree, rank, llama3, DCP_LEN(llama3), 1);
	t_sink_load(&tree, &dir, &s);
	is(&s, "tok_embeddings.weight", "[2, 4]", "0 1 2 3 100 101 102 103");
	is(&s, "layers.10.attention.wk.weight", "[2, 4]", "4 5 6 7 104 105 106 107");
	is(&s, "layers.10.attention.wo.weight", "[4, 4]",
	   "8 9 108 109 10 11 110 111 12 13 112 113 14 15 114 115");
	is(&s, "layers.10.feed_forward.w2.weight", "[2, 2]", "16 116 17 117");
	is(&s, "layers.10.feed_forward.w3.weight", "[2, 2]", "18 19 118 119");
	is(&s, "layers.10.attention_norm.weight", "[4]", "20 21 22 23");
	is(&s, "norm.weight", "[4]", "24 25 26 27");
	is(&s, "output.weight", "[2, 4]", "28 29 30 31 128 129 130 131");
	is(&s, "rope.freqs", "[2]", "36 37");
	/* How ranks hold these is unknown. */
	is(&s, "rank1.layers.10.feed_forward.experts.w.weight", "[1, 4]", "132 133 134 135");
	assert_string_equal(t_sink_object(&s, "rank1.note")->json, "1");
	assert_int_equal(s.ntensors, DCP_LEN(llama3) + 1);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

static void embeddings_of_llama2_are_cut_by_column(void **state)
{
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "torch_meta");
	for (int rank = 0; rank < 2; rank++)
		put(&tree, rank, llama2, DCP_LEN(llama2), 1);
	t_sink_load(&tree, &dir, &s);
	is(&s, "tok_embeddings.weight", "[3, 4]", "0 1 100 101 2 3 102 103 4 5 104 105");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

static void damaged_params_are_refused(void **state)
{
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "torch_meta");
	for (int rank = 0; rank < 2; rank++)
		put(&tree, rank, llama3, DCP_LEN(llama3), rank + 1);
	t_sink_load(&tree, &dir, &s);
	is(&s, "norm.weight", "[4]", "24 25 26 27");
	assert_non_null(
		strstr(t_sink_tensor(&s, "output.weight")->error, "consolidated.01.pth"));
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

static void missing_ranks_are_reported(void **state)
{
	enum dcp_match match;
	struct t_dir tree;
	struct dcp_dir dir;
	char why[256];

	(void)state;
	t_dir_make(&tree, "torch_meta");
	put(&tree, 0, llama3, DCP_LEN(llama3), 1);
	put(&tree, 2, llama3, DCP_LEN(llama3), 1);
	assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
	assert_string_equal(dcp_format_probe(&dir, &match, why, sizeof(why))->name,
			    "torch-ranks");
	assert_int_equal(match, DCP_MATCH_INCOMPLETE);
	assert_non_null(strstr(why, "consolidated.01.pth is missing"));
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_of_meta_are_joined),
		cmocka_unit_test(embeddings_of_llama2_are_cut_by_column),
		cmocka_unit_test(damaged_params_are_refused),
		cmocka_unit_test(missing_ranks_are_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
