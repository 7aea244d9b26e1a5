/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a metadata.pkl says: both versions, every way of building its dicts, and its limits.
 * covers: read
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/torch_checkpointing/items_int.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "tests/unit/t/format/items.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"

static const int64_t shape[] = { 5, 2 }, mesh[] = { 2, 2 }, ranks[] = { 6, 4, 5, 7 };
static const char *const placed[] = { "T0/2", "S0" };

static int read_file(struct dcp_items_meta *m, const char *dir, struct dcp_err *err)
{
	struct dcp_input input;
	struct dcp_dir d;
	int rc;

	assert_int_equal(dcp_dir_open(dir, &d, NULL), 0);
	assert_int_equal(dcp_dir_input(&d, "metadata.pkl", &input, NULL), 0);
	rc = dcp_items_meta_read(m, &input.src, err);
	dcp_input_close(&input);
	dcp_dir_close(&d);
	return rc;
}

static void every_version_of_metadata_is_read(void **state)
{
	static const struct t_titem tensors[] = {
		{ .path = "[\"layers\",0,\"w\"]",
		  .dtype = "torch.bfloat16",
		  .shape = shape,
		  .ndim = 2,
		  .mesh = mesh,
		  .placed = placed,
		  .nmesh = 2,
		  .ranks = ranks },
		{ .path = "[]",
		  .shape = shape,
		  .ndim = 2,
		  .mesh = mesh,
		  .placed = placed,
		  .nmesh = 2,
		  .ranks = ranks },
	};
	static const struct t_titem_file files[] = {
		{ 4, "x/4.safetensors", "SafetensorsSerialization" },
		{ 3, "3.json", "JsonSerialization" },
		{ 5, NULL, NULL },
	};

	(void)state;
	for (int flat = 0; flat < 2; flat++) {
		const struct t_titem_meta put = { "model", flat, 8, tensors, 2, files, 3 };
		const struct dcp_items_entry *e;
		const struct dcp_items_group *g;
		const struct dcp_items_item *item;
		struct dcp_items_meta m;
		struct dcp_err err = { 0 };
		struct t_dir tree;

		t_case(flat ? "version 1.0" : "version 2.0");
		t_dir_make(&tree, "torch_items_meta");
		t_titem_put_meta(&tree, &put);
		if (read_file(&m, tree.root, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(m.world, 8);
		assert_string_equal(m.version, flat ? "" : "2.0");
		assert_int_equal(dcp_items_nentries(&m), 2);
		e = dcp_items_find(&m, "model.layers.0.w");
		assert_non_null(e);
		assert_null(e->error);
		assert_int_equal(e->npath, 4);
		assert_string_equal(e->path[0], "model");
		assert_string_equal(e->path[2], "0");
		assert_null(dcp_items_group_of(e, 0));
		g = dcp_items_group_of(e, 6);
		assert_non_null(g);
		assert_null(g->error);
		assert_string_equal(g->dtype, "bfloat16");
		assert_int_equal(g->nplace, 2);
		assert_int_equal(g->place[0].kind, DCP_TORCH_PLACEMENT_STRIDED);
		assert_int_equal(g->place[0].factor, 2);
		assert_int_equal(g->place[1].n, 2);
		assert_int_equal(dcp_items_list_find(g->mesh, 6)->at, 0);
		assert_int_equal(dcp_items_list_find(g->mesh, 7)->at, 3);
		/* one list for all that are equal */
		assert_ptr_equal(g->mesh, g->ranks);
		assert_ptr_equal(g->mesh, dcp_items_find(&m, "model")->first->mesh);
		item = (const struct dcp_items_item *)(const void *)m.items.p;
		assert_string_equal(item->name, "model");
		assert_int_equal(item->nlayouts, 3);
		assert_string_equal(dcp_items_layout_of(item, 4)->path, "x/4.safetensors");
		assert_int_equal(dcp_items_layout_of(item, 4)->coding, DCP_ITEMS_SAFETENSORS);
		assert_int_equal(dcp_items_layout_of(item, 3)->coding, DCP_ITEMS_JSON);
		assert_null(dcp_items_layout_of(item, 5)->path);
		assert_null(dcp_items_layout_of(item, 0));
		dcp_items_meta_finish(&m);
		t_dir_remove(&tree);
	}
}

static void real_metadata_is_read(void **state)
{
	static const struct {
		const char *dir, *key;
		size_t n;
		uint64_t world;
	} rows[] = {
		{ "1-fsdp", "model.layers.w1", 10, 4 },
		{ "3-fsdp2-tp", "model.1.weight", 3, 4 },
		{ "4-stages", "model.stage1.tiny", 9, 4 },
		{ "8-version-1.0", "model.buffers.0", 6, 2 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_items_meta m;
		struct dcp_err err = { 0 };
		char path[200];

		t_case(rows[i].dir);
		snprintf(path, sizeof(path), "tests/golden/torch-checkpointing/ckpt/%s",
			 rows[i].dir);
		if (read_file(&m, path, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(dcp_items_nentries(&m), rows[i].n);
		assert_int_equal(m.world, rows[i].world);
		assert_non_null(dcp_items_find(&m, rows[i].key));
		dcp_items_meta_finish(&m);
	}
}

/* {"metadata": {item: {"nested_path_to_metadata": X}}, "world_size": 1}, X by the caller. */
static void around(struct dcp_buf *b, const char *item, bool before)
{
	if (before) {
		t_pk_start(b);
		t_pk_dict(b);
		t_pk_mark(b);
		t_pk_str(b, "metadata");
		t_pk_dict(b);
		t_pk_mark(b);
		t_pk_str(b, item);
		t_pk_dict(b);
		t_pk_mark(b);
		t_pk_str(b, "nested_path_to_metadata");
		return;
	}
	t_pk_setitems(b);
	t_pk_setitems(b);
	t_pk_str(b, "world_size");
	t_pk_int(b, 1);
	t_pk_setitems(b);
	t_pk_stop(b);
}

static int read_bytes(struct dcp_items_meta *m, const struct dcp_buf *b, struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(b->p, b->n);

	return dcp_items_meta_read(m, &src, err);
}

/* A dict that comes finished (opcode DICT) is not seen by the hook. */
static void finished_dicts_are_read(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_items_meta m;
	struct dcp_err err = { 0 };

	(void)state;
	around(&b, "model", true);
	t_pk_mark(&b);
	t_pk_str(&b, "[\"w\"]");
	t_pk_list(&b);
	dcp_buf_str(&b, "d");
	around(&b, "model", false);
	if (read_bytes(&m, &b, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(dcp_items_nentries(&m), 1);
	assert_string_equal(dcp_items_entry(&m, 0)->key, "model.w");
	assert_null(dcp_items_entry(&m, 0)->first);
	dcp_items_meta_finish(&m);
}

/* Items called like the fields of the file are items. */
static void items_may_be_named_like_fields(void **state)
{
	static const char *const items[] = { "metadata", "nested_path_to_metadata", "",
					     "world_size" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(items); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_items_meta m;
		struct dcp_err err = { 0 };
		char key[80];

		t_case(items[i]);
		around(&b, items[i], true);
		t_pk_dict(&b);
		t_pk_mark(&b);
		t_pk_str(&b, "[\"w\"]");
		t_pk_list(&b);
		t_pk_setitems(&b);
		around(&b, items[i], false);
		if (read_bytes(&m, &b, &err) < 0)
			fail_msg("%s", err.msg);
		snprintf(key, sizeof(key), "%s.w", items[i]);
		assert_non_null(dcp_items_find(&m, key));
		dcp_items_meta_finish(&m);
	}
}

/* A few kilobytes that say a long list of ranks again and again. */
static void metadata_bombs_are_refused(void **state)
{
	enum { RANKS = 1 << 16, GROUPS = 1 << 15 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_items_meta m;
	struct dcp_err err = { 0 };

	(void)state;
	around(&b, "model", true);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "[\"w\"]");
	t_pk_list(&b);
	t_pk_mark(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "ranks");
	t_pk_mark(&b);
	for (int i = 0; i < RANKS; i++)
		t_pk_int(&b, i);
	t_pk_tuple(&b);
	t_pk_setitems(&b);
	t_pk_put(&b, 1);
	for (int i = 1; i < GROUPS; i++)
		t_pk_get(&b, 1);
	t_pk_appends(&b);
	t_pk_setitems(&b);
	around(&b, "model", false);
	assert_int_equal(read_bytes(&m, &b, &err), -E2BIG);
	t_assert_says(&err, "add up to more than");
	dcp_items_meta_finish(&m);
}

/* Whatever byte is damaged, nothing but an answer comes of it. */
static void damaged_metadata_is_refused(void **state)
{
	size_t n, read = 0;
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	FILE *f = fopen("tests/golden/torch-checkpointing/ckpt/4-stages/metadata.pkl", "rb");
	char text[4096];

	(void)state;
	assert_non_null(f);
	while ((n = fread(text, 1, sizeof(text), f)) > 0)
		dcp_buf_add(&b, text, n);
	fclose(f);
	for (size_t i = 0; i < b.n; i++) {
		const char was = b.p[i];

		for (int bit = 0; bit < 8; bit += 3) {
			struct dcp_items_meta m;

			b.p[i] = (char)(was ^ 1 << bit);
			read += read_bytes(&m, &b, NULL) == 0;
			dcp_items_meta_finish(&m);
		}
		b.p[i] = was;
	}
	assert_true(read > 0 && read < 3 * b.n);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_version_of_metadata_is_read),
		cmocka_unit_test(real_metadata_is_read),
		cmocka_unit_test(items_may_be_named_like_fields),
		cmocka_unit_test(finished_dicts_are_read),
		cmocka_unit_test(metadata_bombs_are_refused),
		cmocka_unit_test(damaged_metadata_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
