/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nanotron: the boxes that files of ranks say they hold are put together, or it is said why not.
 */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

#define AT "model/model/decoder/0/pp_block/attn/qkv_proj/model_weight"
#define KEY "model.decoder.0.pp_block.attn.qkv_proj.weight"
#define RANK(r) AT "_pp-rank-0-of-1_tp-rank-" r "-of-2.safetensors"
#define EXPERTS(r) AT "_pp-rank-0-of-1_tp-rank-0-of-1_exp-rank-" r "-of-2.safetensors"
#define SAYS(shape, pairs)                                                                     \
	"{\"version\":\"1.4\",\"unsharded_shape\":\"" shape                                    \
	"\",\"local_global_slices_pairs\":\"" pairs "\"}"

/* A file of bytes @bytes, rows of two, with @meta as its __metadata__. */
static void put(const struct t_dir *tree, const char *name, const char *meta, const char *bytes)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	size_t n = strlen(bytes), start = 8;
	uint64_t length;

	dcp_buf_add(&b, "\0\0\0\0\0\0\0", start);
	dcp_buf_printf(&b,
		       "{\"__metadata__\":%s,\"data\":{\"dtype\":\"U8\",\"shape\":[%zu,2],"
		       "\"data_offsets\":[0,%zu]}}",
		       meta, n / 2, n);
	length = b.n - start;
	memcpy(b.p, &length, sizeof(length));
	dcp_buf_add(&b, bytes, n);
	t_dir_put(tree, name, b.p, b.n);
}

/* clang-format off */
static const struct {
	const char *what;
	struct {
		const char *name, *meta, *bytes; /* no metadata: no safetensors file */
	} files[2];
	const char *holds, *error; /* the key */
} cases[] = {
	{ "one file", { { AT ".safetensors", "{}", "abcd" } }, "abcd", NULL },
	{ "rows", { { RANK("0"), SAYS("(4, 2)", "0,2,None|None,None,None#0,2,None|None,None,None"), "abcd" },
	  { RANK("1"), SAYS("(4, 2)", "0,2,None|None,None,None#2,4,None|None,None,None"), "efgh" } }, "abcdefgh", NULL },
	{ "columns", { { RANK("0"), SAYS("(2, 4)", "None,None,None|0,2,1#None,None,None|0,2,1"), "abcd" },
	  { RANK("1"), SAYS("(2, 4)", "None,None,None|0,2,1#None,None,None|2,4,1"), "efgh" } }, "abefcdgh", NULL },
	{ "numbers of numpy", { { RANK("0"), SAYS("(np.int64(4), 2)", "0,2,None|None,None,None#0,2,None|None,None,None"), "abcd" },
	  { RANK("1"), SAYS("(np.int64(4), 2)", "0,2,None|None,None,None#2,4,None|None,None,None"), "efgh" } }, "abcdefgh", NULL },
	{ "experts", { { EXPERTS("0"), SAYS("(4, 2)", "None,None,None|None,None,None#0,2,None|None,None,None"), "abcd" },
	  { EXPERTS("1"), SAYS("(4, 2)", "None,None,None|None,None,None#2,4,None|None,None,None"), "efgh" } }, "abcdefgh", NULL },
	{ "experts of which nothing says which they are", { { EXPERTS("0"), "{}", "abcd" }, { EXPERTS("1"), "{}", "efgh" } }, NULL, "local_global_slices_pairs" },
	{ "runs of rows in turn", { { RANK("0"), SAYS("(4, 2)", "0,1,None|None,None,None#0,1,None|None,None,None;1,2,None|None,None,None#2,3,None|None,None,None"), "abcd" },
	  { RANK("1"), SAYS("(4, 2)", "0,1,None|None,None,None#1,2,None|None,None,None;1,2,None|None,None,None#3,4,None|None,None,None"), "efgh" } }, "abefcdgh", NULL },
	{ "a rank is missing", { { RANK("0"), SAYS("(4, 2)", "0,2,None|None,None,None#0,2,None|None,None,None"), "abcd" } }, NULL,
	  "a file of another tensor-parallel rank is missing" },
	{ "a damaged file", { { RANK("0"), SAYS("(4, 2)", "0,2,None|None,None,None#0,2,None|None,None,None"), "abcd" }, { RANK("1"), NULL, "?" } }, NULL,
	  "tp-rank-1-of-2.safetensors: " },
	{ "nothing says which part it is", { { RANK("0"), "{}", "abcd" } }, NULL, "local_global_slices_pairs" },
	{ "a damaged shape", { { RANK("0"), SAYS("(4, 2, 1)", "0,2,None|None,None,None#0,2,None|None,None,None"), "abcd" } }, NULL, "unsharded_shape is damaged" },
	{ "steps", { { RANK("0"), SAYS("(4, 2)", "0,2,1|None,None,None#0,4,2|None,None,None"), "abcd" } }, NULL, "pairs are damaged" },
	{ "beyond the file", { { RANK("0"), SAYS("(4, 2)", "0,3,1|None,None,None#0,3,1|None,None,None"), "abcd" } }, NULL, "pairs are damaged" },
	{ "beyond the whole", { { RANK("0"), SAYS("(4, 2)", "0,2,1|None,None,None#3,5,1|None,None,None"), "abcd" } }, NULL, "pairs are damaged" },
	{ "boxes of two sizes", { { RANK("0"), SAYS("(4, 2)", "0,2,1|None,None,None#0,1,1|None,None,None"), "abcd" } }, NULL, "pairs are damaged" },
	{ "text that ends early", { { RANK("0"), SAYS("(4, 2)", "0,2,1|None"), "abcd" } }, NULL, "pairs are damaged" },
};
/* clang-format on */

static void boxes_of_ranks_are_put_together(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const struct dcp_tensor *t;
		dcp_auto_free char *bytes = NULL;
		struct dcp_err err = { 0 };
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;
		size_t n = 0;

		t_case(cases[i].what);
		t_dir_make(&tree, "test_nanotron");
		for (int k = 0; k < 2 && cases[i].files[k].name; k++)
			if (cases[i].files[k].meta)
				put(&tree, cases[i].files[k].name, cases[i].files[k].meta,
				    cases[i].files[k].bytes);
			else
				t_dir_text(&tree, cases[i].files[k].name, "no checkpoint");
		t_sink_load(&tree, &dir, &s);
		t = t_sink_tensor(&s, KEY);
		assert_non_null(t);
		assert_int_equal(t->npath, 7);
		assert_string_equal(t->path[2], "0");
		if (!!t->error != !!cases[i].error ||
		    (t->error && !strstr(t->error, cases[i].error)))
			fail_msg("%s", t->error ? t->error : "no error");
		if (cases[i].holds) {
			bytes = t_sink_read(&s, t, &n, &err);
			assert_non_null(bytes);
			assert_int_equal(n, strlen(cases[i].holds));
			assert_memory_equal(bytes, cases[i].holds, n);
		}
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

static void the_config_says_how_rotary_embeddings_lie(void **state)
{
	static const struct {
		const char *config, *framework;
	} all[] = {
		{ NULL, "nanotron of unknown rotary order" },
		{ "{}", "nanotron-interleaved" },
		{ "{\"rope_interleaved\":true}", "nanotron-interleaved" },
		{ "{\"rope_interleaved\":false}", "nanotron" },
		{ "{\"rope_interleaved\":", "nanotron of unknown rotary order" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(all); i++) {
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;

		t_dir_make(&tree, "test_nanotron");
		put(&tree, AT ".safetensors", "{}", "ab");
		if (all[i].config)
			t_dir_text(&tree, "model_config.json", all[i].config);
		t_dir_text(&tree, "optimizer/damaged.pt", "no checkpoint");
		t_sink_load(&tree, &dir, &s);
		assert_string_equal(t_sink_fact(&s, "framework"), all[i].framework);
		assert_non_null(t_sink_object(&s, "optimizer/damaged.pt")->error);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(boxes_of_ranks_are_put_together),
		cmocka_unit_test(the_config_says_how_rotary_embeddings_lie),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
