/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items that are not what the metadata of their checkpoint says, and tensors that are not shown as
 * they are stored.
 * covers: view
 */
#include "tests/unit/t.h"

#include "core/hf/hf.h"
#include "core/parse/torch/torch.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t/format/dcp.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"

/*
 * A torch.save of three bytes for each of @rows rows, in the shape @shape, and metadata that says
 * [@rows, 3]. @align: of the storage in the item; 0: as torch aligns it.
 */
static void put_item(const struct t_dir *tree, int64_t rows, const int64_t *shape, size_t ndim,
		     uint32_t align)
{
	static const char bytes[] = "abcdefghijklmnopqrstuvwxyz";
	const int64_t said[] = { rows, 3 }, chunk[] = { 0, 0, rows, 3 };
	dcp_auto_buf struct dcp_buf item = DCP_BUF_INIT, meta = DCP_BUF_INIT;
	const int64_t stride[] = { ndim > 1 ? shape[1] : 1, 1 };
	struct t_zip z = { .torch = true, .align = align };

	t_pk_start(&item);
	t_pk_tensor(&item, "ByteStorage", "0", 3 * rows, 0, shape, stride, ndim);
	t_pk_stop(&item);
	t_zip_add(&z, "archive/data.pkl", item.p, item.n);
	t_zip_add(&z, "archive/data/0", bytes, 3 * (size_t)rows);
	t_zip_end(&z);
	t_dir_put(tree, "__0_0.distcp", z.b.p, z.b.n);
	t_dcp_begin(&meta);
	t_dcp_section(&meta, "state_dict_metadata");
	t_dcp_tensor(&meta, "w", "uint8", 2, said, 1, chunk);
	t_dcp_end_section(&meta);
	t_dcp_section(&meta, "storage_data");
	t_dcp_stored(&meta, "w", 2, chunk, "__0_0.distcp", 0, (int64_t)z.b.n);
	t_dcp_end_section(&meta);
	t_dcp_end(&meta);
	t_dir_put(tree, ".metadata", meta.p, meta.n);
	t_zip_free(&z);
}

/* Open the tensor of the only version there, which is its first row. */
static int open_first(const struct t_dir *tree, struct dcp_err *err)
{
	struct dcp_store_opts opts = { 0 };
	struct dcp_view *view = NULL;
	struct dcp_version *v;
	struct dcp_scan scan;
	int rc;

	assert_int_equal(dcp_scan(tree->root, &scan, err), 0);
	assert_int_equal(dcp_version_open(tree->root, &scan.found[0], &opts, &v, err), 0);
	rc = dcp_view_open(v, 1, DCP_AS_RAW, NULL, &view, err);
	dcp_view_close(view);
	dcp_version_close(v);
	dcp_scan_finish(&scan);
	return rc;
}

static void stored_shapes_are_compared(void **state)
{
	static const struct {
		int64_t shape[2];
		size_t ndim;
		const char *says; /* NULL: it can be read */
	} cases[] = {
		{ { 2, 3 }, 2, NULL },
		{ { 3, 2 }, 2, "stored tensor has shape [3, 2], the metadata says [2, 3]" },
		{ { 2, 2 }, 2, "stored tensor has shape [2, 2], the metadata says [2, 3]" },
		{ { 6 }, 1, "stored tensor has shape [6], the metadata says [2, 3]" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_err err = { 0 };
		struct t_dir tree;

		t_case(cases[i].says ? cases[i].says : "as the metadata says");
		t_dir_make(&tree, "locate");
		put_item(&tree, 2, cases[i].shape, cases[i].ndim, 0);
		assert_int_equal(open_first(&tree, &err), cases[i].says ? -EBADMSG : 0);
		if (cases[i].says)
			t_assert_says(&err, cases[i].says);
		t_dir_remove(&tree);
	}
}

static int one_run(void *ctx, const struct dcp_strided *d, uint32_t file)
{
	(void)d;
	(void)file;
	++*(int *)ctx;
	return 0;
}

/* Bytes of a tensor that a rule casts lie nowhere as they are shown. */
static void cast_tensors_are_located(void **state)
{
	static const char *const rules[] = { "layer.weight -> w\n",
					     "layer.weight -> w : cast(f16)\n" };
	static const char source[] = "tests/golden/hostile/base";
	struct dcp_store_opts opts = { 0 };
	struct dcp_version *base;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;

	(void)state;
	assert_int_equal(dcp_scan(source, &scan, &err), 0);
	assert_int_equal(dcp_version_open(source, &scan.found[0], &opts, &base, &err), 0);
	dcp_scan_finish(&scan);
	for (int cast = 0; cast < 2; cast++) {
		struct dcp_hf_opts how = { .source = source, .where = "base" };
		struct dcp_rules *r;
		struct dcp_version *v;
		struct dcp_view *view;
		struct dcp_arena arena;
		struct dcp_row row;
		int runs = 0;

		t_case(rules[cast]);
		assert_int_equal(
			dcp_rules_parse(rules[cast], strlen(rules[cast]), "x", &r, &err), 0);
		how.rules = r;
		assert_int_equal(dcp_hf_open(base, &how, &opts, &v, &err), 0);
		dcp_arena_init(&arena, 1 << 20);
		assert_int_equal(dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR, "w",
						  &arena, &row),
				 0);
		assert_int_equal(dcp_view_open(v, row.id, DCP_AS_RAW, NULL, &view, &err), 0);
		dcp_arena_finish(&arena);
		assert_int_equal(dcp_view_strided(view, one_run, &runs), cast ? -ENOTSUP : 0);
		assert_int_equal(runs > 0, !cast);
		dcp_view_close(view);
		dcp_version_close(v);
		dcp_rules_free(r);
	}
	dcp_version_close(base);
}

/* An item whose head is too long to be kept is parsed once for all pieces that a rule cuts. */
static void pieces_of_one_item_are_located_by_one_parse(void **state)
{
	static const char rules[] = "w -> w : split(0, 2) order(1, 0) concat(0)\n",
			  want[] = "mnopqrstuvwxabcdefghijkl";
	static const int64_t shape[] = { 8, 3 };
	struct dcp_hf_opts how = { .where = "" };
	struct dcp_store_opts opts = { 0 };
	struct dcp_version *base, *v;
	struct dcp_torch_frames *f;
	struct dcp_view *view;
	struct dcp_rules *r;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;
	struct t_dir tree;
	uint64_t parsed;
	char got[24];
	int runs = 0;

	(void)state;
	dcp_guard_enable(); /* so that files are mapped */
	t_dir_make(&tree, "locate");
	put_item(&tree, 8, shape, 2, 4096);
	assert_int_equal(dcp_scan(tree.root, &scan, &err), 0);
	assert_int_equal(dcp_version_open(tree.root, &scan.found[0], &opts, &base, &err), 0);
	dcp_scan_finish(&scan);
	assert_int_equal(dcp_rules_parse(rules, strlen(rules), "x", &r, &err), 0);
	how.rules = r;
	how.source = tree.root;
	if (dcp_hf_open(base, &how, &opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	f = dcp_version_frames(v);
	parsed = dcp_torch_frames_parsed(f);
	if (dcp_view_open(v, 1, DCP_AS_RAW, NULL, &view, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(dcp_torch_frames_parsed(f), parsed + 1);
	assert_int_equal(dcp_torch_frames_hits(f), 0);
	assert_int_equal(dcp_view_strided(view, one_run, &runs), 0);
	assert_int_equal(runs, 2);
	assert_int_equal(dcp_view_read(view, 0, got, sizeof(got)), 0);
	assert_memory_equal(got, want, sizeof(got));
	dcp_view_close(view);
	dcp_version_close(v);
	dcp_version_close(base);
	dcp_rules_free(r);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stored_shapes_are_compared),
		cmocka_unit_test(cast_tensors_are_located),
		cmocka_unit_test(pieces_of_one_item_are_located_by_one_parse),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
