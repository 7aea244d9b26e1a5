/* SPDX-License-Identifier: Apache-2.0 */
/* covers: fs/ino, fs/stats, fs/errors, fs/ops, checkpoint/mounts */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/checkpoint/mounts.h"
#include "core/model/name.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/ops.h"
#include "fs/tree/tree.h"

static struct dcpfs fs = { .nodes = dcpfs_nodes };

static void inode_numbers_are_unpacked(void **state)
{
	static const struct dcpfs_ino inos[] = {
		{ 0, DCPFS_ROOT, 0 },
		{ 0, DCPFS_STATUS, 0 },
		{ 1, DCPFS_VERSION, 0 },
		{ (1u << DCPFS_SLOT_BITS) - 1, DCPFS_OBJECT, DCPFS_ROW_MAX },
	};

	(void)state;
	assert_int_equal(dcpfs_ino_pack(0, DCPFS_ROOT, 0), 1);
	for (size_t i = 0; i < DCP_LEN(inos); i++) {
		uint64_t ino = dcpfs_ino_pack(inos[i].slot, inos[i].kind, inos[i].row);
		struct dcpfs_ino back = dcpfs_ino_unpack(ino);

		assert_int_equal(back.slot, inos[i].slot);
		assert_int_equal(back.kind, inos[i].kind);
		assert_int_equal(back.row, inos[i].row);
	}
	assert_null(dcpfs_node(&fs, dcpfs_ino_unpack(UINT64_MAX).kind));
}

/* Every kind sits in its own row, under a directory, and can be found from there. */
static void every_node_is_reachable(void **state)
{
	(void)state;
	for (unsigned k = 0; k < DCPFS_KIND_COUNT; k++) {
		const struct dcpfs_node *n = dcpfs_node(&fs, (enum dcpfs_kind)k);

		assert_int_equal(n->kind, k);
		assert_int_equal(dcpfs_node(&fs, n->parent)->type, DCPFS_DIR);
		if (n->name)
			assert_ptr_equal(dcpfs_child(&fs, n->parent,
						     (enum dcpfs_slots)(n->slots & -n->slots),
						     n->name),
					 n);
		else
			assert_true(
				k == DCPFS_ROOT || k == DCPFS_VERSION || k == DCPFS_LAYOUT ||
				k == DCPFS_FILES_SUB || k == DCPFS_SIDECAR ||
				k == DCPFS_HF_INDEX || k == DCPFS_HF_MADE || k == DCPFS_TAG ||
				n->parent == DCPFS_BLOB_DIR || k == DCPFS_BY_KEY ||
				k == DCPFS_BY_KEY_LINK || dcpfs_rows_of((enum dcpfs_kind)k));
	}
	assert_null(dcpfs_child(&fs, DCPFS_ROOT, DCPFS_IN_VERSION, "npy"));
	assert_null(dcpfs_child_at(&fs, DCPFS_NPY_DIR, DCPFS_IN_VERSION, 0));
	assert_int_equal(dcpfs_child_dirs(&fs, DCPFS_VERSION, DCPFS_IN_VERSION), 8);
	assert_int_equal(dcpfs_child_dirs(&fs, DCPFS_VERSION, DCPFS_IN_RANK), 4);
	assert_null(dcpfs_child(&fs, DCPFS_VERSION, DCPFS_IN_RANK, "shard"));
	assert_null(dcpfs_child(&fs, DCPFS_VERSION, DCPFS_IN_VERSION, "model.safetensors"));
	assert_int_equal(dcpfs_child_dirs(&fs, DCPFS_VERSION, DCPFS_IN_HF), 0);
	assert_non_null(dcpfs_child(&fs, DCPFS_VERSION, DCPFS_IN_HF, "shard")); /* not listed */
	assert_null(dcpfs_child(&fs, DCPFS_VERSION, DCPFS_IN_HF, "hf"));
	assert_null(dcpfs_child(&fs, DCPFS_VERSION, DCPFS_IN_HF, "npy"));
}

/* What is not fixed is found and listed by functions of the row, and each link leads somewhere. */
static void every_kind_has_its_functions(void **state)
{
	(void)state;
	for (const struct dcpfs_node *n = dcpfs_nodes; n < dcpfs_nodes + DCPFS_KIND_COUNT;
	     n++) {
		t_case(n->name ? n->name : "no fixed name");
		assert_int_equal(n->type == DCPFS_LINK, n->readlink != NULL);
		assert_true(n->type == DCPFS_DIR || (!n->lookup && !n->list));
		assert_true(n->lookup || !n->list);
		if (dcpfs_rows_in(n->kind))
			assert_string_equal(dcpfs_rows_in(n->kind)->name, n->name);
		if (!n->name && n->kind != DCPFS_ROOT)
			assert_non_null(dcpfs_nodes[n->parent].lookup);
	}
}

static bool emit_none(void *ctx, const char *name, const struct stat *st, uint64_t position)
{
	(void)ctx;
	(void)st;
	fail_msg("%s at %llu", name, (unsigned long long)position);
	return false;
}

/* Numbers that a file handle may hold, though no lookup gave them. */
static void nodes_without_a_version_are_gone(void **state)
{
	(void)state;
	for (unsigned k = 0; k < DCPFS_KIND_COUNT; k++) {
		uint64_t ino = dcpfs_ino_pack(0, (enum dcpfs_kind)k, 1), child;
		struct stat st;

		if (!dcpfs_is_of_version(&fs, &dcpfs_nodes[k]))
			continue;
		t_case(dcpfs_nodes[k].name ? dcpfs_nodes[k].name : "no fixed name");
		assert_int_equal(dcpfs_getattr(&fs, ino, &st), -ENOENT);
		assert_int_equal(dcpfs_lookup(&fs, ino, "x", &child, &st), -ENOENT);
		assert_int_equal(dcpfs_lookup(&fs, ino, "..", &child, &st), -ENOENT);
		assert_int_equal(dcpfs_readdir(&fs, ino, 0, true, emit_none, NULL), -ENOENT);
	}
}

/* clang-format off */
static const struct {
	const char *name, *extension, *stem;
} stems[] = {
	{ "a.b.npy", ".npy", "a.b" },
	{ "%.json", ".json", "%" },
	{ ".npy", ".npy", NULL },
	{ "a.npz", ".npy", NULL },
	{ "", ".npy", NULL },
};
/* clang-format on */

static void extensions_are_cut_off(void **state)
{
	char stem[DCP_NAME_MAX + 1], longest[DCP_NAME_MAX + 16];

	(void)state;
	for (size_t i = 0; i < DCP_LEN(stems); i++) {
		t_case(stems[i].name);
		assert_int_equal(dcpfs_stem(stems[i].name, stems[i].extension, stem),
				 stems[i].stem != NULL);
		if (stems[i].stem)
			assert_string_equal(stem, stems[i].stem);
	}
	memset(longest, 'x', sizeof(longest));
	strcpy(longest + DCP_NAME_MAX, ".bin");
	assert_true(dcpfs_stem(longest, ".bin", stem));
	strcpy(longest + DCP_NAME_MAX + 1, ".bin");
	assert_false(dcpfs_stem(longest, ".bin", stem));
}

static void errors_are_counted_once_a_key(void **state)
{
	struct dcpfs_errors *e = dcpfs_errors_create(NULL);
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_jsonw w;

	(void)state;
	dcpfs_errors_add(e, "v1", "k", NULL, "first");
	dcpfs_errors_add(e, "v1", "k", NULL, "second");
	dcpfs_errors_add(e, "v1", NULL, NULL, "whole");
	dcp_jsonw_init(&w, &b, false);
	dcp_jsonw_array(&w);
	dcpfs_errors_write(e, &w);
	dcp_jsonw_end(&w);
	assert_string_equal(
		b.p, "[{\"version\":\"v1\",\"key\":\"k\",\"error\":\"second\",\"count\":2},"
		     "{\"version\":\"v1\",\"key\":null,\"error\":\"whole\",\"count\":1}]");
	for (int i = 0; i < DCPFS_ERRORS_MAX + 10; i++) {
		char key[16];

		snprintf(key, sizeof(key), "%d", i);
		dcpfs_errors_add(e, "v", key, NULL, "x");
	}
	dcpfs_errors_destroy(e);
}

/* What healed goes, and with a version that left all of it. */
static void errors_are_forgotten(void **state)
{
	struct dcpfs_errors *e = dcpfs_errors_create(NULL);
	const struct dcpfs_fault here = { 7, 4096 };
	struct dcpfs_fault at;

	(void)state;
	assert_false(dcpfs_errors_count(e));
	dcpfs_errors_add(e, "v1", "k", &here, "first");
	dcpfs_errors_add(e, "v1", "l", NULL, "second");
	dcpfs_errors_add(e, "v1", NULL, NULL, "whole");
	dcpfs_errors_add(e, "v2", "k", NULL, "other");
	assert_true(dcpfs_errors_find(e, "v1", "k", &at));
	assert_int_equal(at.ino, 7);
	assert_int_equal(at.off, 4096);
	assert_true(dcpfs_errors_find(e, "v1", "l", &at));
	assert_true(at.off == DCPFS_NO_OFFSET);
	dcpfs_errors_forget(e, "v1", "k");
	assert_false(dcpfs_errors_find(e, "v1", "k", &at));
	assert_true(dcpfs_errors_find(e, "v1", NULL, &at));
	assert_true(dcpfs_errors_find(e, "v2", "k", &at));
	dcpfs_errors_forget(e, "v1", NULL);
	assert_false(dcpfs_errors_find(e, "v1", "l", &at));
	assert_false(dcpfs_errors_find(e, "v1", NULL, &at));
	assert_true(dcpfs_errors_count(e));
	dcpfs_errors_forget(e, "v2", NULL);
	assert_false(dcpfs_errors_count(e));
	dcpfs_errors_destroy(e);
}

static void slabs_come_back(void **state)
{
	const size_t most = 1 << 20,
		     sizes[] = { 1, DCPFS_SLAB_SHORT, DCPFS_SLAB_SHORT + 1, most };
	struct dcpfs_slabs *s = dcpfs_slabs_create(most);
	void *a[4], *b;

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		a[i] = dcpfs_slab_take(s, sizes[i]);
		assert_non_null(a[i]);
		assert_int_equal((uintptr_t)a[i] % 4096, 0);
		memset(a[i], 1, sizes[i]);
		for (size_t k = 0; k < i; k++)
			assert_ptr_not_equal(a[i], a[k]);
	}
	for (size_t i = 0; i < 4; i++)
		dcpfs_slab_give(s, a[i], sizes[i]);
	/* the last given back first, and none for replies of the other size */
	assert_ptr_equal(dcpfs_slab_take(s, 4096), a[1]);
	assert_ptr_equal(dcpfs_slab_take(s, 4096), a[0]);
	assert_ptr_equal(dcpfs_slab_take(s, most), a[3]);
	b = dcpfs_slab_take(s, 4096);
	assert_true(b && b != a[2]);
	dcpfs_slab_give(s, a[0], 4096);
	dcpfs_slab_give(s, a[1], 4096);
	dcpfs_slab_give(s, a[3], most);
	dcpfs_slab_give(s, b, 4096);
	dcpfs_slabs_destroy(s);
}

static void stats_name_every_counter(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcpfs_stats stats = { .io = { .fetched = 77 } };
	int lines = 0;

	(void)state;
	dcpfs_count(&stats, DCPFS_STAT_READ_BYTES, 4096);
	dcpfs_stats_text(&stats, &b);
	for (const char *p = b.p; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines,
			 DCPFS_STAT_COUNT + sizeof(stats.io) / sizeof(stats.io.mapped) + 3);
	assert_non_null(strstr(b.p, "\nhttp_requests 0\n"));
	assert_non_null(strstr(b.p, "\nread_bytes 4096\n"));
	assert_non_null(strstr(b.p, "\nio_fetched 77\n"));
	assert_null(strstr(b.p, "(null)"));
}

static void metrics_count_times_and_answers(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcpfs_stats stats = { 0 };
	struct dcpfs_timer slow = dcpfs_timer_start(&stats, DCPFS_STAT_READ);
	const struct dcpfs_gauges g = { .source = "a\"b\\c\nd", .release = "1" };

	(void)state;
	slow.from -= 3000000000; /* 3 s ago */
	dcpfs_timer_end(&slow);
	assert_int_equal(dcpfs_answer(&stats, -ENOENT), ENOENT);
	assert_int_equal(dcpfs_answer(&stats, -ENOTSUP), EIO);
	assert_int_equal(dcpfs_answer(&stats, -EXDEV), EIO);
	dcpfs_stats_metrics(&stats, &g, &b);
	assert_non_null(strstr(b.p, "{version=\"1\",source=\"a\\\"b\\\\c\\nd\"} 1\n"));
	assert_non_null(strstr(b.p, "_bucket{op=\"read\",le=\"2.5\"} 0\n"));
	assert_non_null(strstr(b.p, "_bucket{op=\"read\",le=\"5.0\"} 1\n"));
	assert_non_null(strstr(b.p, "_bucket{op=\"read\",le=\"+Inf\"} 1\n"));
	assert_non_null(strstr(b.p, "_sum{op=\"read\"} 3.0"));
	assert_non_null(strstr(b.p, "_count{op=\"open\"} 0\n"));
	assert_non_null(strstr(b.p, "{error=\"ENOENT\"} 1\n"));
	assert_non_null(strstr(b.p, "{error=\"EIO\"} 2\n"));
	assert_null(strstr(b.p, "(null)"));
	assert_string_equal(b.p + b.n - 7, "\n# EOF\n");
}

/* What lies below another file system's mount is in none of ours. */
static void mounts_of_others_are_not_ours(void **state)
{
	char path[] = "/proc/self/fd";
	struct dcp_mount m;
	const char *rest;

	(void)state;
	assert_false(dcp_mounts_around(path, &m, &rest));
	assert_string_equal(path, "/proc/self/fd");
	assert_int_equal(dcp_mounts_find("/proc", &m), 1);
	assert_string_equal(m.fstype, "proc");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(inode_numbers_are_unpacked),
		cmocka_unit_test(every_node_is_reachable),
		cmocka_unit_test(every_kind_has_its_functions),
		cmocka_unit_test(nodes_without_a_version_are_gone),
		cmocka_unit_test(extensions_are_cut_off),
		cmocka_unit_test(errors_are_counted_once_a_key),
		cmocka_unit_test(errors_are_forgotten),
		cmocka_unit_test(slabs_come_back),
		cmocka_unit_test(stats_name_every_counter),
		cmocka_unit_test(metrics_count_times_and_answers),
		cmocka_unit_test(mounts_of_others_are_not_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
