/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What five releases of Paddle wrote; which files are a version.
 * covers: dist
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "core/store/version/version.h"
#include "tests/unit/t/format/paddle.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

/* ---- goldens ---- */

static bool same_group(void *ctx, const struct dcp_dirent *e)
{
	char group[DCP_GROUP_MAX];

	return dcp_format_paddle_dist.group(e->name, group) && strcmp(group, ctx) == 0;
}

static void paddle_dist_golden_files_are_read(void **state)
{
	static const struct {
		const char *folder, *version, *below; /* below ckpt */
		unsigned tensors;
		const char *generation, *ranks;
	} rows[] = {
		{ "paddle-dist", "0", "", 57, "C", "4" },
		{ "paddle-dist", "1", "", 13, "C", "4" },
		{ "paddle-dist", "2", "", 5, "C", "4" },
		{ "paddle-dist-26", "0", "", 17, "A", "2" },
		{ "paddle-dist-26", "1", "", 4, "A", "2" },
		{ "paddle-dist-30", "0", "", 47, "B", "4" },
		{ "paddle-dist-30", "1", "", 12, "B", "2" },
		{ "paddle-dist-32", "0", "", 17, "C", "3" },
		{ "paddle-dist-32", "7", "", 12, "C", "3" },
		{ "paddle-dist-32st", "0", "0", 11, "C", "2" },
		{ "paddle-dist-flat", "0", "", 12, "C", "3" },
		{ "paddle-dist-flat", "1", "", 12, "C", "3" },
		{ "paddle-dist-st", "4", "4", 13, "C", "3" },
		{ "paddle-dist-stale", "same-cut", "same-cut", 2, "C", "2" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_dir all, dir;
		enum dcp_match match;
		struct dcp_err err = { 0 };
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };
		const struct dcp_format *format;
		char path[128];

		t_case(rows[i].folder);
		snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", rows[i].folder,
			 rows[i].below);
		assert_int_equal(dcp_dir_open(path, &all, NULL), 0);
		format = dcp_format_probe(&all, &match, NULL, 0);
		assert_string_equal(format->name, "paddle-dist");
		assert_int_equal(match, *rows[i].below ? DCP_MATCH_YES : DCP_MATCH_MANY);
		if (*rows[i].below)
			assert_int_equal(dcp_dir_open(path, &dir, NULL), 0);
		else
			assert_int_equal(dcp_dir_only(&all, same_group,
						      (void *)(uintptr_t)rows[i].version, &dir),
					 0);
		t_sink_init(&s, &dir);
		if (format->load(&in, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(t_manifest_check(&s, rows[i].folder, rows[i].version, ""),
				 rows[i].tensors);
		assert_string_equal(t_sink_fact(&s, "framework"), "paddle");
		assert_string_equal(t_sink_fact(&s, "metadata_generation"), rows[i].generation);
		if (strcmp(rows[i].folder, "paddle-dist-30") != 0)
			assert_string_equal(t_sink_fact(&s, "ranks"), rows[i].ranks);
		assert_null(t_sink_fact(&s, "warning"));
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		dcp_dir_close(&all);
	}
}

/* ---- versions ---- */

/* 1 is not 11; 9 comes before 10; an id without metadata is still being saved. */
static void ids_are_versions(void **state)
{
	static const char *const names[] = { "1", "2", "9", "10", "11" };
	struct dcp_scan scan;
	struct t_dir tree;

	(void)state;
	t_dir_make(&tree, "paddle");
	t_paddle_put(&tree, "", 11, "eleven");
	t_paddle_put(&tree, "", 1, "one");
	t_paddle_put(&tree, "", 10, "ten");
	t_paddle_put(&tree, "", 9, "nine");
	t_dir_put(&tree, "0_2.distcp", "x", 1);
	assert_int_equal(dcp_scan(tree.root, &scan, NULL), 0);
	assert_int_equal(scan.n, DCP_LEN(names));
	for (size_t i = 0; i < scan.n; i++) {
		assert_string_equal(scan.found[i].name, names[i]);
		assert_int_equal(scan.found[i].complete, i != 1);
	}
	dcp_scan_finish(&scan);
	t_dir_remove(&tree);
}

static void load_dir(const struct t_dir *tree, struct dcp_dir *dir, struct t_sink *s,
		     const char *format)
{
	struct dcp_load in = { .dir = dir, .sink = &s->sink };
	const struct dcp_format *f;
	struct dcp_err err = { 0 };
	enum dcp_match match;

	assert_int_equal(dcp_dir_open(tree->root, dir, NULL), 0);
	t_sink_init(s, dir);
	f = dcp_format_probe(dir, &match, NULL, 0);
	assert_non_null(f);
	assert_string_equal(f->name, format);
	assert_int_equal(match, DCP_MATCH_YES);
	if (f->load(&in, &err) < 0)
		fail_msg("%s", err.msg);
}

/* Metadata of several ranks about data files of one id is one checkpoint. */
static void metadata_of_ranks_is_joined(void **state)
{
	struct t_pd_piece p = { .key = "w",
				.dtype = "float32",
				.ndim = 1,
				.len = { 1 },
				.shape = { 2 },
				.replica = -1 };
	const struct dcp_tensor *t;
	struct dcp_dir dir;
	struct t_dir tree;
	struct t_sink s;
	char *bytes;
	size_t n;

	(void)state;
	t_dir_make(&tree, "paddle");
	for (unsigned r = 0; r < 2; r++) {
		struct dcp_buf meta = DCP_BUF_INIT, data = DCP_BUF_INIT;
		char file[32], name[32];
		float v = 1.5f + (float)r;

		snprintf(file, sizeof(file), "%u_0.distcp", r);
		snprintf(name, sizeof(name), "%u.metadata", r);
		p.file = file;
		p.lo[0] = r;
		t_paddle_meta(&meta, 'A', &p, 1);
		t_paddle_open(&data, 3);
		t_paddle_array(&data, "w", "f4", 1, p.len, &v, sizeof(v));
		t_paddle_close(&data);
		t_dir_put(&tree, file, data.p, data.n);
		t_dir_put(&tree, name, meta.p, meta.n);
		dcp_buf_finish(&meta);
		dcp_buf_finish(&data);
	}
	load_dir(&tree, &dir, &s, "paddle-dist");
	assert_int_equal(s.ntensors, 1);
	t = t_sink_tensor(&s, "w");
	bytes = t_sink_read(&s, t, &n, NULL);
	assert_non_null(bytes);
	assert_memory_equal(bytes, ((float[]){ 1.5f, 2.5f }), 8);
	free(bytes);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* A sink that fails ends the load with its code, wherever it does. */
static void failures_of_the_sink_are_returned(void **state)
{
	size_t at = 1;
	bool done = false;

	(void)state;
	for (; !done; at++) {
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_dir tree;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .sink = &s.sink };
		int rc;

		t_dir_make(&tree, "paddle");
		t_paddle_put(&tree, "", 0, "w");
		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&s, &dir);
		s.fail_at = at;
		rc = dcp_format_paddle_dist.load(&in, &err);
		done = rc == 0;
		assert_true(done || rc == -ENOSPC);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
	assert_true(at > 6);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paddle_dist_golden_files_are_read),
		cmocka_unit_test(ids_are_versions),
		cmocka_unit_test(metadata_of_ranks_is_joined),
		cmocka_unit_test(failures_of_the_sink_are_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
