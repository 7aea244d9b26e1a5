/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random saves of every generation, protocol and cut, several in a directory, against the
 * values they were made of.
 * covers: dist, key, model/geometry/tiling
 */
#include "tests/unit/t.h"

#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/view.h"
#include "tests/unit/t/format/paddle_world.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/sink.h"

/* What cannot be done: text of protocol 2 must stay whole. */
static bool may_fail(const struct t_paddle_world *w, const struct dcp_tensor *t)
{
	return w->protocol == 2 && strstr(t->error, "encoded as a whole");
}

static void check_told(const struct t_paddle_world *w, const struct t_sink *s)
{
	assert_int_equal(s->ntensors, T_PW_KEYS);
	for (unsigned k = 0; k < T_PW_KEYS; k++) {
		const struct t_pw_tensor *want = &w->t[k];
		const struct dcp_tensor *t = t_sink_tensor(s, want->key);
		struct dcp_err err = { 0 };
		size_t n;
		char *bytes;

		if (t->error && may_fail(w, t))
			continue;
		assert_int_equal(t->ndim, want->ndim);
		assert_string_equal(t->dtype_name,
				    w->generation == 'A' && want->type->size == 1 &&
						    want->type->name[0] == 'F'
					    ? "I8" /* nothing says that they are floats */
					    : want->type->name);
		for (uint32_t d = 0; d < t->ndim; d++)
			assert_int_equal(t->shape[d], want->shape[d]);
		assert_int_equal(t->npath, w->generation == 'A' ? 1 : 2);
		bytes = t_sink_read(s, t, &n, &err);
		if (!bytes)
			fail_msg("%c %s: %s", w->generation, t->key, err.msg);
		assert_int_equal(n, want->n * want->type->size);
		assert_memory_equal(bytes, want->bytes, n);
		free(bytes);
	}
}

static bool is_of(void *uid, const struct dcp_dirent *e)
{
	char group[DCP_GROUP_MAX];

	return dcp_format_paddle_dist.group(e->name, group) && strcmp(group, uid) == 0;
}

/* Two saves in a directory, each a version. */
static void random_checkpoints_are_read(void **state)
{
	static struct t_paddle_world w[2];
	static const unsigned uids[] = { 1, 12 };

	(void)state;
	for (int round = 0; round < T_ROUNDS(200); round++) {
		enum dcp_match match;
		struct t_dir tree;
		struct dcp_dir all;

		t_dir_make(&tree, "paddle");
		for (int i = 0; i < 2; i++)
			t_paddle_world(&w[i], &tree, uids[i]);
		assert_int_equal(dcp_dir_open(tree.root, &all, NULL), 0);
		assert_string_equal(dcp_format_probe(&all, &match, NULL, 0)->name,
				    "paddle-dist");
		assert_int_equal(match, DCP_MATCH_MANY);
		for (int i = 0; i < 2; i++) {
			struct dcp_err err = { 0 };
			struct dcp_dir dir;
			struct t_sink s;
			struct dcp_load in = { .dir = &dir, .sink = &s.sink };
			char uid[8];

			snprintf(uid, sizeof(uid), "%u", uids[i]);
			assert_int_equal(dcp_dir_only(&all, is_of, uid, &dir), 0);
			t_sink_init(&s, &dir);
			if (dcp_format_paddle_dist.load(&in, &err) < 0)
				fail_msg("round %d: %s", round, err.msg);
			check_told(&w[i], &s);
			t_sink_finish(&s);
			dcp_dir_close(&dir);
		}
		dcp_dir_close(&all);
		t_dir_remove(&tree);
	}
}

/* ---- through index and view ---- */

/* Text of protocol 2 is decoded at first use; runs and cut boxes are found. */
static void random_checkpoints_are_read_through_views(void **state)
{
	static struct t_paddle_world w;

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct dcp_store_opts opts = { .no_map = round & 1 };
		struct dcp_err err = { 0 };
		struct dcp_version *v;
		struct dcp_scan scan;
		struct t_dir tree;

		t_dir_make(&tree, "paddle");
		t_paddle_world(&w, &tree, 3);
		assert_int_equal(dcp_scan(tree.root, &scan, &err), 0);
		assert_int_equal(scan.n, 1);
		if (dcp_version_open(tree.root, &scan.found[0], &opts, &v, &err) < 0)
			fail_msg("%s", err.msg);
		for (unsigned k = 0; k < T_PW_KEYS; k++) {
			const struct t_pw_tensor *want = &w.t[k];
			uint64_t size = want->n * want->type->size;
			char *got = malloc(size);
			struct dcp_arena arena;
			struct dcp_view *view;
			struct dcp_row row;

			dcp_arena_init(&arena, 1 << 20);
			assert_int_equal(dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR,
							  want->key, &arena, &row),
					 0);
			if (!row.broken) {
				if (dcp_view_open(v, row.id, DCP_AS_RAW, NULL, &view, &err) < 0)
					fail_msg("%s: %s", want->key, err.msg);
				assert_int_equal(dcp_view_size(view), size);
				assert_int_equal(dcp_view_read(view, 0, got, size), 0);
				assert_memory_equal(got, want->bytes, size);
				dcp_view_close(view);
			} else {
				assert_int_equal(w.protocol, 2);
			}
			dcp_arena_finish(&arena);
			free(got);
		}
		dcp_version_close(v);
		dcp_scan_finish(&scan);
		t_dir_remove(&tree);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_checkpoints_are_read),
		cmocka_unit_test(random_checkpoints_are_read_through_views),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
