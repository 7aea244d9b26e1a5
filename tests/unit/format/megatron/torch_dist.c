/* SPDX-License-Identifier: Apache-2.0 */
/* megatron: torch_dist checkpoints, flattened shards, parts of objects, and what is refused. */
#include "tests/unit/t.h"

#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t/format/dcp.h"
#include "tests/unit/t/format/megatron.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/zip.h"

static void golden_version(const char *folder, const char *name, int complete)
{
	struct t_megatron m;
	char path[256];

	t_case(name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	if (t_megatron_load(&m, path, "megatron") < 0)
		fail_msg("%s", m.err.msg);
	assert_int_equal(t_manifest_check(&m.s, folder, name, ""), 29);
	assert_string_equal(m.s.fact[0].name, "framework"); /* the first told counts */
	assert_string_equal(m.s.fact[0].value, "megatron-core");
	t_megatron_close(&m);
}

static void torch_dist_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("megatron-dist", golden_version);
	t_manifest_each("megatron-dist-012", golden_version);
}

static void bad_torch_dist_is_refused(void **state)
{
	/* clang-format off */
	static const struct {
		const char *what, *mark;
		int code;
		const char *says;
	} rows[] = {
		{ "the zarr backend", "{\"sharded_backend\": \"zarr\", \"sharded_backend_version\": 1}",
		  -ENOTSUP, "Megatron's zarr backend is not supported: load it with megatron-core" },
		{ "another backend, in zarr's shape", "{\"sharded_backend\": \"new\"}", -ENOTSUP,
		  "new checkpoint without .metadata" },
		{ "no JSON", "{", -EBADMSG, "metadata.json: " },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct t_dir tree;
		struct t_megatron m;

		t_case(rows[i].what);
		t_dir_make(&tree, "megatron");
		t_dir_text(&tree, "metadata.json", rows[i].mark);
		t_dir_text(&tree, "decoder.weight/.zarray", "{}");
		assert_int_equal(t_megatron_load(&m, tree.root, "megatron"), rows[i].code);
		t_assert_says(&m.err, rows[i].says);
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/* ---- flattened shards ---- */

/* A torch.save item of the floats [@from, @from + @n); returns its length. */
static size_t put_item(struct dcp_buf *file, uint64_t from, int64_t n)
{
	static const int64_t one[] = { 1, 1 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, data = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	int64_t shape[] = { 1, n };
	size_t len;

	for (int64_t i = 0; i < n; i++) {
		float v = (float)(from + (uint64_t)i);

		dcp_buf_add(&data, &v, sizeof(v));
	}
	t_pk_start(&b);
	t_pk_tensor(&b, "FloatStorage", "0", n, 0, shape, (int64_t[]){ n, one[1] }, 2);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/data/0", data.p, data.n);
	t_zip_end(&z);
	dcp_buf_add(file, z.b.p, z.b.n);
	len = z.b.n;
	t_zip_free(&z);
	return len;
}

/*
 * A [4, 6] tensor of 2 x 2 blocks of 2 x 3, each cut into runs of 4 and 2: element e of block b
 * is 6 * b + e. @shape: what mcore_data says it is. @too_many: elements that one item has more.
 */
static void put_flat(const struct t_dir *tree, const int64_t *shape, uint32_t ndim,
		     int64_t width, int64_t too_many)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, data = DCP_BUF_INIT;
	const int64_t grid[] = { 2, 2, 6 };
	int64_t chunks[8 * 6], at[8], len[8];
	const char *key = "optimizer.state.exp_avg.w";

	for (int i = 0; i < 8; i++) {
		const int64_t lo = i % 2 ? 4 : 0, n = i % 2 ? 2 : 4;
		const int64_t box[] = { i / 4, i / 2 % 2, lo, width, 1, n };

		memcpy(chunks + 6 * i, box, sizeof(box));
		at[i] = (int64_t)data.n;
		len[i] = (int64_t)put_item(&data, (uint64_t)(6 * (i / 2) + lo),
					   n + (i == 3 ? too_many : 0));
	}
	t_dir_put(tree, "__0_0.distcp", data.p, data.n);
	t_dcp_begin(&b);
	t_dcp_section(&b, "state_dict_metadata");
	t_dcp_tensor(&b, key, "float32", 3, grid, 8, chunks);
	t_dcp_end_section(&b);
	t_dcp_section(&b, "storage_data");
	for (int i = 0; i < 8; i++)
		t_dcp_stored(&b, key, 3, chunks + 6 * i, "__0_0.distcp", at[i], len[i]);
	t_dcp_end_section(&b);
	t_dcp_section(&b, "mcore_data");
	t_dcp_true_shape(&b, key, ndim, shape);
	t_dcp_end_section(&b);
	t_dcp_end(&b);
	t_dir_put(tree, ".metadata", b.p, b.n);
	t_dir_text(tree, "metadata.json", "{\"sharded_backend\": \"torch_dist\"}");
}

static void flattened_tensors_are_joined(void **state)
{
	/* clang-format off */
	static const struct {
		const char *what;
		int64_t shape[4];
		uint32_t ndim;
		int64_t width; /* blocks a chunk spans */
		const char *says;
	} rows[] = {
		{ "blocks of 2 x 3", { 4, 6 }, 2, 1, NULL },
		{ "no whole blocks", { 5, 6 }, 2, 1, "not a grid of blocks" },
		{ "blocks of another size", { 4, 8 }, 2, 1, "not a grid of blocks" },
		{ "as many dimensions as stored", { 4, 6, 1 }, 3, 1, "not a grid of blocks" },
		{ "no dimensions", { 0 }, 0, 1, "not a grid of blocks" },
		{ "chunks of two blocks", { 4, 6 }, 2, 2, "a chunk of several blocks" },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		const char *key = "optimizer.state.exp_avg.w";
		struct t_dir tree;
		struct t_megatron m;
		float want[24];

		for (int r = 0; r < 4; r++)
			for (int c = 0; c < 6; c++)
				want[6 * r + c] =
					(float)(6 * (r / 2 * 2 + c / 3) + r % 2 * 3 + c % 3);
		t_case(rows[i].what);
		t_dir_make(&tree, "megatron");
		put_flat(&tree, rows[i].shape, rows[i].ndim, rows[i].width, 0);
		if (t_megatron_load(&m, tree.root, "megatron") < 0)
			fail_msg("%s", m.err.msg);
		if (!rows[i].says)
			t_megatron_check(&m, key, want, rows[i].shape, rows[i].ndim);
		else if (!strstr(t_megatron_error(&m, key), rows[i].says))
			fail_msg("%s", t_megatron_error(&m, key));
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/* An item that holds another number of elements is found when it is opened. */
static void items_of_wrong_size_are_refused(void **state)
{
	static const int64_t shape[] = { 4, 6 };
	struct dcp_store_opts opts = { 0 };
	struct dcp_err err = { 0 };
	struct dcp_version *v;
	struct dcp_view *view;
	struct dcp_arena arena;
	struct dcp_scan scan;
	struct dcp_row row;
	struct t_dir tree;

	(void)state;
	dcp_arena_init(&arena, 1 << 20);
	for (int more = 0; more < 2; more++) {
		t_dir_make(&tree, "megatron");
		put_flat(&tree, shape, 2, 1, more);
		assert_int_equal(dcp_scan(tree.root, &scan, &err), 0);
		assert_int_equal(dcp_version_open(tree.root, &scan.found[0], &opts, &v, &err),
				 0);
		assert_int_equal(dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR,
						  "optimizer.state.exp_avg.w", &arena, &row),
				 0);
		assert_false(row.broken);
		assert_int_equal(dcp_view_open(v, row.id, DCP_AS_RAW, NULL, &view, &err),
				 more ? -EBADMSG : 0);
		if (more)
			t_assert_says(&err,
				      "stored tensor has shape [1, 3], the metadata says 2 "
				      "elements in a row");
		else
			dcp_view_close(view);
		dcp_version_close(v);
		dcp_scan_finish(&scan);
		t_dir_remove(&tree);
	}
	dcp_arena_finish(&arena);
}

/* ---- sharded objects ---- */

/* [{"seed": @seed, "state": a tensor of four bytes}]; returns its length. */
static size_t put_object(struct dcp_buf *file, int64_t seed)
{
	static const int64_t shape[] = { 4 }, stride[] = { 1 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	size_t len;

	t_pk_start(&b);
	t_pk_list(&b);
	t_pk_mark(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "seed");
	t_pk_int(&b, seed);
	t_pk_str(&b, "state");
	t_pk_tensor(&b, "ByteStorage", "0", 4, 0, shape, stride, 1);
	t_pk_setitems(&b);
	t_pk_appends(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/data/0", "abcd", 4);
	t_zip_end(&z);
	dcp_buf_add(file, z.b.p, z.b.n);
	len = z.b.n;
	t_zip_free(&z);
	return len;
}

/* A checkpoint of nothing but objects, each the number of its key. */
static void put_objects(const struct t_dir *tree, const char *const *keys)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, data = DCP_BUF_INIT;
	int64_t at[16], len[16];
	size_t n = 0;

	for (; keys[n]; n++) {
		at[n] = (int64_t)data.n;
		len[n] = (int64_t)put_object(&data, (int64_t)n);
	}
	t_dir_put(tree, "__0_0.distcp", data.p, data.n);
	t_dcp_begin(&b);
	t_dcp_section(&b, "state_dict_metadata");
	for (size_t i = 0; i < n; i++)
		t_dcp_bytes(&b, keys[i]);
	t_dcp_end_section(&b);
	t_dcp_section(&b, "storage_data");
	for (size_t i = 0; i < n; i++)
		t_dcp_stored(&b, keys[i], 0, NULL, "__0_0.distcp", at[i], len[i]);
	t_dcp_end_section(&b);
	t_dcp_end(&b);
	t_dir_put(tree, ".metadata", b.p, b.n);
	t_dir_text(tree, "metadata.json", "{\"sharded_backend\": \"torch_dist\"}");
}

static void missing_object_shards_are_reported(void **state)
{
	/* clang-format off */
	static const struct {
		const char *what;
		const char *keys[8];
		const char *key, *json; /* one that is told */
		const char *lost;       /* one that should be there; NULL: none */
		size_t nlost;
	} rows[] = {
		{ "all parts", { "r/shard_0_2", "r/shard_1_2" }, "r/shard_1_2", "{\"seed\":1,", NULL, 0 },
		{ "one of them is not there", { "r/shard_0.0_2.2", "r/shard_1.1_2.2", "r/shard_1.0_2.2" },
		  "r/shard_1.0_2.2", "{\"seed\":2,", "r/shard_0.1_2.2", 1 },
		{ "most are not there", { "r/shard_999_1000" }, "r/shard_999_1000", "{\"seed\":0,", "r/shard_255_1000", 256 },
		{ "a shape of more than can be", { "r/shard_0.0_99999999999999999.99999999999999999" },
		  "r/shard_0.0_99999999999999999.99999999999999999", "{", "r/shard_0.256_99999999999999999.99999999999999999", 256 },
		{ "the same key in two shapes", { "r/shard_0_1", "r/shard_0_2" }, "r/shard_0_1", "{\"seed\":0,", "r/shard_1_2", 1 },
		{ "a shape without its last number", { "e/shard_0.1_2" }, "e/shard_0.1_2", "{\"seed\":0,", NULL, 0 },
		{ "no offset", { "e/shard__2" }, "e/shard__2", "[{\"seed\":0,", NULL, 0 },
		{ "an offset outside", { "e/shard_2_2" }, "e/shard_2_2", "[{\"seed\":0,", NULL, 0 },
		{ "another name", { "e/shard_1_2x" }, "e/shard_1_2x", "[{\"seed\":0,", NULL, 0 },
		{ "what all have in common", { "common_state/shard_0_1", "r/shard_0_1" }, "seed", "0", NULL, 0 },
		{ "something else that is called so", { "common_state/x/shard_0_1" }, "common_state/x/shard_0_1", "{\"seed\":0,", NULL, 0 },
	};
	/* clang-format on */

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		const struct dcp_object *o;
		struct t_dir tree;
		struct t_megatron m;
		size_t nlost = 0;

		t_case(rows[i].what);
		t_dir_make(&tree, "megatron");
		put_objects(&tree, rows[i].keys);
		if (t_megatron_load(&m, tree.root, "megatron") < 0)
			fail_msg("%s", m.err.msg);
		o = t_sink_object(&m.s, rows[i].key);
		assert_non_null(o);
		assert_non_null(o->json);
		if (strncmp(o->json, rows[i].json, strlen(rows[i].json)) != 0)
			fail_msg("%s", o->json);
		for (size_t k = 0; k < m.s.nobjects; k++)
			nlost += m.s.object[k].error != NULL;
		assert_int_equal(nlost, rows[i].nlost);
		if (rows[i].lost)
			assert_non_null(strstr(t_megatron_error(&m, rows[i].lost),
					       "a rank did not save it"));
		t_megatron_close(&m);
		t_dir_remove(&tree);
	}
}

/* Tensors inside a part are below its name; those that all have in common, by their own. */
static void tensors_inside_objects_are_named(void **state)
{
	static const char *const keys[] = { "common_state/shard_0_1", "r/shard_0_2", NULL };
	struct t_dir tree;
	struct t_megatron m;

	(void)state;
	t_dir_make(&tree, "megatron");
	put_objects(&tree, keys);
	assert_int_equal(t_megatron_load(&m, tree.root, "megatron"), 0);
	assert_null(t_megatron_error(&m, "state"));
	assert_null(t_megatron_error(&m, "r/shard_0_2.state"));
	assert_int_equal(m.s.ntensors, 2);
	assert_null(t_sink_object(&m.s, "common_state/shard_0_1"));
	assert_string_equal(t_sink_object(&m.s, "r/shard_0_2")->json,
			    "{\"seed\":1,\"state\":{\"$tensor\":\"r/shard_0_2.state\"}}");
	t_megatron_close(&m);
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(torch_dist_golden_files_are_read),
		cmocka_unit_test(bad_torch_dist_is_refused),
		cmocka_unit_test(flattened_tensors_are_joined),
		cmocka_unit_test(items_of_wrong_size_are_refused),
		cmocka_unit_test(missing_object_shards_are_reported),
		cmocka_unit_test(tensors_inside_objects_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
