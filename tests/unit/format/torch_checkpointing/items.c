/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file for each item and rank: names, which files there are, what is in them.
 *
 * covers: items, read, join
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/format/torch_checkpointing/items_int.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/items.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

/* ---- golden ---- */

static unsigned told;

static void golden_version(const char *folder, const char *name, int complete)
{
	char path[256];
	struct dcp_err err = { 0 };
	enum dcp_match match;
	struct dcp_dir dir;
	struct t_sink s;
	struct dcp_load in = { .dir = &dir, .sink = &s.sink };
	const struct dcp_format *f;

	t_case(name);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	assert_int_equal(dcp_dir_open(path, &dir, NULL), 0);
	f = dcp_format_probe(&dir, &match, NULL, 0);
	assert_string_equal(f->name, "torch-checkpointing");
	assert_int_equal(match, DCP_MATCH_YES);
	t_sink_init(&s, &dir);
	if (f->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
	for (size_t i = 0; i < s.ntensors; i++)
		assert_null(s.tensor[i].error);
	if (complete)
		told += t_manifest_check(&s, folder, name, "");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

static void items_of_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("torch-checkpointing", golden_version);
	assert_int_equal(told, 86);
}

/* ---- names ---- */

static void item_names_are_known(void **state)
{
	/* clang-format off */
	static const struct {
		const char *file;
		int item; /* characters; -1: not an item's */
		bool ranked;
		uint32_t rank;
		enum dcp_items_coding coding;
	} rows[] = {
		{ "model_0.pt", 5, true, 0, DCP_ITEMS_TORCH },
		{ "lr_scheduler_1023.pth", 12, true, 1023, DCP_ITEMS_TORCH },
		{ "model_rank_3.pt", 5, true, 3, DCP_ITEMS_TORCH },
		{ "_rank_3.pt", 5, true, 3, DCP_ITEMS_TORCH },
		{ "ema_1.safetensors", 3, true, 1, DCP_ITEMS_SAFETENSORS },
		{ "config_12.json", 6, true, 12, DCP_ITEMS_JSON },
		{ "config.json", 6, false, 0, DCP_ITEMS_JSON },
		{ "model.pt", 5, false, 0, DCP_ITEMS_TORCH },
		{ "model_01.pt", 8, false, 0, DCP_ITEMS_TORCH },
		{ "model_1048576.pt", 13, false, 0, DCP_ITEMS_TORCH },
		{ "model_x1.pt", 8, false, 0, DCP_ITEMS_TORCH },
		{ "model_.pt", 6, false, 0, DCP_ITEMS_TORCH },
		{ "_0.pt", 2, false, 0, DCP_ITEMS_TORCH },
		{ "model.safetensors.index.json", -1, false, 0, 0 },
		{ "model-00001-of-00002.safetensors", -1, false, 0, 0 },
		{ "metadata.pkl", -1, false, 0, 0 },
		{ ".model_0.pt", -1, false, 0, 0 },
		{ "model_0", -1, false, 0, 0 },
		{ "README.md", -1, false, 0, 0 },
	};
	/* clang-format on */
	uint32_t rank;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_items_name n;
		bool is = dcp_items_name(rows[i].file, &n);

		t_case(rows[i].file);
		assert_int_equal(is, rows[i].item >= 0);
		if (!is)
			continue;
		assert_int_equal(n.len, rows[i].item);
		assert_int_equal(n.ranked, rows[i].ranked);
		assert_int_equal(n.rank, rows[i].rank);
		assert_int_equal(n.coding, rows[i].coding);
	}
	assert_true(dcp_items_rank_dir("rank_12", &rank) && rank == 12);
	assert_true(dcp_items_rank_dir("rank3", &rank) && rank == 3);
	assert_false(dcp_items_rank_dir("rank_", &rank));
	assert_false(dcp_items_rank_dir("ranks", &rank));
	assert_false(dcp_items_rank_dir("rank_012", &rank));
}

/* ---- files ---- */

static const int64_t first[] = { 3, 2 }, second[] = { 2, 2 };

/* What lies beside the items' files, and names that are told once. */
static void files_beside_items_are_emitted(void **state)
{
	static const char json[] =
		"{\"a\": 1, \"b\": {\"c\": [1, \" \\\" \"], \"d\": {}},\n \"e\": 1.5}";
	const struct t_titem_local rank2[] = { { "w", t_titem_numbers, first, 2 } };
	struct t_dir tree;
	struct t_titem_loaded got;

	(void)state;
	t_dir_make(&tree, "torch_items");
	t_titem_put_sound(&tree);
	t_dir_text(&tree, "config_1.json", json);
	t_dir_text(&tree, "shared.json", "[]");
	t_dir_text(&tree, "wrong_0.json", "{\"a\":}");
	t_dir_text(&tree, "vocab.bytes", "x");
	t_dir_text(&tree, "model.safetensors.index.json", "{}");
	t_dir_text(&tree, "model-00001-of-00001.safetensors", "?");
	t_titem_put_torch(&tree, "rank_1/extra.pt", rank2, 1);
	t_titem_put_torch(&tree, "model_2.pt", rank2, 1); /* of an older save */
	t_titem_load(&got, &tree);
	assert_int_equal(got.rc, 0);
	assert_int_equal(got.s.ntensors, 3);
	t_titem_sound(&got, "rank1.extra.w");
	assert_string_equal(t_sink_object(&got.s, "rank1.config.a")->type, "int");
	assert_string_equal(t_sink_object(&got.s, "rank1.config.e")->json, "1.5");
	assert_string_equal(t_sink_object(&got.s, "rank1.config.b.c")->json, "[1,\" \\\" \"]");
	assert_int_equal(t_sink_object(&got.s, "rank1.config.b.c")->npath, 4);
	assert_null(t_sink_object(&got.s, "rank1.config.b.d"));
	assert_string_equal(t_sink_object(&got.s, "shared")->json, "[]");
	t_titem_broken(&got, "rank0.wrong", "wrong_0.json: ");
	assert_string_equal(t_sink_fact(&got.s, "ranks"), "2");
	assert_string_equal(t_sink_fact(&got.s, "version"), "2.0");
	assert_string_equal(t_sink_fact(&got.s, "left_out"), "model.safetensors.index.json");
	t_titem_unload(&got);
	t_dir_remove(&tree);
}

/* Of a group that a rank is not in nothing is said; two groups are parts of one tensor. */
static void items_are_grouped(void **state)
{
	static const int64_t one[] = { 1 }, rank0[] = { 0 }, rank1[] = { 1 };
	static const int64_t top[] = { 0, 0, 0, 0, 3, 2 }, bottom[] = { 3, 0, 0, 0, 2, 2 };
	struct t_titem tensors[] = { t_titem_w, t_titem_w, t_titem_b };
	const struct t_titem_meta m = { "model", false, 2, tensors, 3, t_titem_default, 2 };
	struct t_dir tree;
	struct t_titem_loaded got;

	(void)state;
	t_dir_make(&tree, "torch_items");
	t_titem_put_sound(&tree);
	for (int i = 0; i < 2; i++) {
		tensors[i].type = "default_tensor_v1";
		tensors[i].mesh = one;
		tensors[i].nboxes = 1;
		tensors[i].ranks = i ? rank1 : rank0;
		tensors[i].boxes = i ? bottom : top;
	}
	tensors[2].mesh = one;
	tensors[2].ranks = rank0;
	t_titem_put_meta(&tree, &m);
	t_titem_load(&got, &tree);
	assert_int_equal(got.rc, 0);
	t_titem_sound(&got, "model.w");
	assert_int_equal(t_sink_tensor(&got.s, "model.w")->npieces, 2);
	t_titem_sound(&got, "model.b");
	t_titem_sound(&got, "rank1.model.b");
	t_titem_unload(&got);
	t_dir_remove(&tree);
}

/* All items of a rank in one file, as before there were files for each. */
static void states_in_one_file_are_read(void **state)
{
	struct t_dir tree;
	struct t_titem_loaded got;

	(void)state;
	t_dir_make(&tree, "torch_items");
	t_titem_put_sound(&tree);
	for (int r = 0; r < 2; r++) {
		dcp_auto_buf struct dcp_buf p = DCP_BUF_INIT;
		const int64_t *local = r ? second : first, stride[] = { 2, 1 };
		struct t_zip z = { .torch = true };
		char name[40];

		snprintf(name, sizeof(name), "model_%d.pt", r);
		t_dir_delete(&tree, name);
		t_pk_start(&p);
		t_pk_dict(&p);
		t_pk_mark(&p);
		t_pk_str(&p, "model");
		t_pk_dict(&p);
		t_pk_mark(&p);
		t_pk_str(&p, "w");
		t_pk_tensor(&p, "FloatStorage", "0", local[0] * 2, 0, local, stride, 2);
		t_pk_setitems(&p);
		t_pk_str(&p, "step");
		t_pk_int(&p, 7);
		t_pk_setitems(&p);
		t_pk_stop(&p);
		t_zip_add(&z, "archive/data.pkl", p.p, p.n);
		t_zip_add(&z, "archive/data/0", t_titem_numbers, (size_t)local[0] * 8);
		t_zip_end(&z);
		snprintf(name, sizeof(name), "checkpoint_%d.pt", r);
		t_dir_put(&tree, name, z.b.p, z.b.n);
		t_zip_free(&z);
	}
	t_titem_load(&got, &tree);
	assert_int_equal(got.rc, 0);
	t_titem_sound(&got, "model.w");
	assert_string_equal(t_sink_object(&got.s, "rank1.step")->json, "7");
	t_titem_broken(&got, "model.b", "has no such tensor");
	t_titem_unload(&got);
	t_dir_remove(&tree);
}

/* Tied tensors are one, also when they are put together from several files. */
static void tied_items_are_aliases(void **state)
{
	static const int64_t stride[] = { 2, 1 };
	struct t_titem tensors[] = { t_titem_w, t_titem_w };
	const struct t_titem_meta m = { "model", false, 2, tensors, 2, t_titem_default, 2 };
	struct t_dir tree;
	struct t_titem_loaded got;

	(void)state;
	tensors[1].path = "[\"head\"]";
	t_dir_make(&tree, "torch_items");
	t_titem_put_meta(&tree, &m);
	for (int r = 0; r < 2; r++) {
		dcp_auto_buf struct dcp_buf p = DCP_BUF_INIT;
		const int64_t *local = r ? second : first;
		struct t_zip z = { .torch = true };

		t_pk_start(&p);
		t_pk_dict(&p);
		t_pk_mark(&p);
		for (int i = 0; i < 2; i++) {
			t_pk_str(&p, i ? "head" : "w");
			t_pk_tensor(&p, "FloatStorage", "0", local[0] * 2, 0, local, stride, 2);
		}
		t_pk_setitems(&p);
		t_pk_stop(&p);
		t_zip_add(&z, "archive/data.pkl", p.p, p.n);
		t_zip_add(&z, "archive/data/0", t_titem_numbers, (size_t)local[0] * 8);
		t_zip_end(&z);
		t_dir_put(&tree, r ? "model_1.pt" : "model_0.pt", z.b.p, z.b.n);
		t_zip_free(&z);
	}
	t_titem_load(&got, &tree);
	assert_int_equal(got.rc, 0);
	t_titem_sound(&got, "model.w");
	assert_null(t_sink_tensor(&got.s, "model.w")->alias_of);
	assert_string_equal(t_sink_tensor(&got.s, "model.head")->alias_of, "model.w");
	t_titem_unload(&got);
	t_dir_remove(&tree);
}

/* Every call to the sink may fail, and its code comes back. */
static void failures_of_the_sink_are_returned(void **state)
{
	struct t_dir tree;
	int rc = -ENOSPC;

	(void)state;
	t_dir_make(&tree, "torch_items");
	t_titem_put_sound(&tree);
	t_dir_text(&tree, "config_1.json", "{\"a\": {\"b\": 1}}");
	t_dir_text(&tree, "vocab.bytes", "x");
	for (size_t at = 1; rc != 0; at++) {
		struct dcp_dir dir;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };
		enum dcp_match match;

		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&s, &dir);
		s.fail_at = at;
		rc = dcp_format_probe(&dir, &match, NULL, 0)->load(&in, NULL);
		assert_true(rc == 0 || rc == -ENOSPC);
		assert_int_equal(rc, s.calls >= at ? -ENOSPC : 0);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
	}
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(items_of_golden_files_are_read),
		cmocka_unit_test(item_names_are_known),
		cmocka_unit_test(files_beside_items_are_emitted),
		cmocka_unit_test(items_are_grouped),
		cmocka_unit_test(states_in_one_file_are_read),
		cmocka_unit_test(tied_items_are_aliases),
		cmocka_unit_test(failures_of_the_sink_are_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
