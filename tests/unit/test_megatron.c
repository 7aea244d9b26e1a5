/* SPDX-License-Identifier: Apache-2.0 */
/* megatron: torch_dist checkpoints, flattened shards, and what is refused. */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/parse/dir.h"
#include "core/store/index.h"
#include "core/store/version.h"
#include "core/store/view.h"
#include "tests/unit/t_dcp.h"
#include "tests/unit/t_dir.h"
#include "tests/unit/t_manifest.h"
#include "tests/unit/t_sink.h"
#include "tests/unit/t_torch.h"
#include "tests/unit/t_zip.h"

static void golden_version(const char *folder, const char *name, int complete)
{
	char path[256];
	struct dcp_err err = { 0 };
	enum dcp_match match;
	const struct dcp_format *f;
	struct dcp_dir dir;
	struct t_sink s;

	t_case(name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	assert_int_equal(dcp_dir_open(path, &dir, NULL), 0);
	f = dcp_format_probe(&dir, &match, NULL, 0);
	assert_string_equal(f->name, "megatron");
	t_sink_init(&s, &dir);
	if (f->load(&(struct dcp_load){ .dir = &dir, .sink = &s.sink }, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(t_manifest_check(&s, folder, name, ""), 29);
	assert_string_equal(s.fact[0].name, "framework"); /* the first told counts */
	assert_string_equal(s.fact[0].value, "megatron-core");
	assert_string_equal(f->commit_file(&dir), "metadata.json");
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

static void golden(void **state)
{
	(void)state;
	t_manifest_each("megatron-dist", golden_version);
	t_manifest_each("megatron-dist-012", golden_version);
}

static int load(const struct t_dir *tree, struct t_sink *s, struct dcp_dir *dir,
		struct dcp_err *err)
{
	enum dcp_match match;
	const struct dcp_format *f;

	assert_int_equal(dcp_dir_open(tree->root, dir, NULL), 0);
	f = dcp_format_probe(dir, &match, NULL, 0);
	assert_string_equal(f->name, "megatron");
	t_sink_init(s, dir);
	return f->load(&(struct dcp_load){ .dir = dir, .sink = &s->sink }, err);
}

static void refused(void **state)
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
		struct dcp_err err = { 0 };
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;

		t_case(rows[i].what);
		t_dir_make(&tree, "megatron");
		t_dir_text(&tree, "metadata.json", rows[i].mark);
		t_dir_text(&tree, "decoder.weight/.zarray", "{}");
		assert_int_equal(load(&tree, &s, &dir, &err), rows[i].code);
		t_assert_says(&err, rows[i].says);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
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

static void flattened(void **state)
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
		struct dcp_err err = { 0 };
		const struct dcp_tensor *t;
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;
		float *got;
		size_t n;

		t_case(rows[i].what);
		t_dir_make(&tree, "megatron");
		put_flat(&tree, rows[i].shape, rows[i].ndim, rows[i].width, 0);
		if (load(&tree, &s, &dir, &err) < 0)
			fail_msg("%s", err.msg);
		t = t_sink_tensor(&s, "optimizer.state.exp_avg.w");
		if (rows[i].says) {
			assert_non_null(t->error);
			if (!strstr(t->error, rows[i].says))
				fail_msg("%s", t->error);
		} else {
			got = (float *)(void *)t_sink_read(&s, t, &n, &err);
			if (!got)
				fail_msg("%s", err.msg);
			assert_int_equal(n, 24 * sizeof(float));
			for (int r = 0; r < 4; r++)
				for (int c = 0; c < 6; c++) {
					int block = r / 2 * 2 + c / 3, e = r % 2 * 3 + c % 3;

					assert_true(got[6 * r + c] == (float)(6 * block + e));
				}
			free(got);
		}
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* An item that holds another number of elements is found when it is opened. */
static void lying_item(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden),
		cmocka_unit_test(refused),
		cmocka_unit_test(flattened),
		cmocka_unit_test(lying_item),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
