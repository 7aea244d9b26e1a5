/* SPDX-License-Identifier: Apache-2.0 */
/* The streaming hash behind a digest, and the bytes that go into one; digests of whole tensors
 * are tested by tests/cli. */
#include "tests/unit/t.h"

#include "core/base/hash.h"
#include "core/format/format.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"

/* As xxHash's own program tells them. */
static const struct {
	const char *text;
	uint64_t high, low;
} known[] = {
	{ "", 0x99aa06d3014798d8u, 0x6001c324468d497fu },
	{ "abc", 0x06b05ab6733a6185u, 0x78af5f94892f3950u },
};

static void digests_agree_with_xxh3_128(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(known); i++) {
		struct dcp_hash128 *h = dcp_hash128_new();
		uint64_t out[2];

		t_case(known[i].text);
		assert_non_null(h);
		for (const char *p = known[i].text; *p; p++)
			dcp_hash128_add(h, p, 1);
		dcp_hash128_end(h, out);
		assert_int_equal(out[0], known[i].high);
		assert_int_equal(out[1], known[i].low);
	}
	assert_int_equal(DCP_DIGEST_TEXT, 2 * 32 + 1); /* SHA-256 is longer */
}

static struct dcp_version *open_version(const char *source, bool no_map)
{
	const struct dcp_store_opts opts = { .no_map = no_map };
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };
	struct dcp_scan scan;

	assert_int_equal(dcp_scan(source, &scan, &err), 0);
	if (dcp_version_open(source, &scan.found[0], &opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	dcp_scan_finish(&scan);
	return v;
}

static struct dcp_view *open_raw(struct dcp_version *v, const char *key)
{
	struct dcp_view *view = NULL;
	struct dcp_arena arena;
	struct dcp_row row;

	dcp_arena_init(&arena, 1 << 20);
	assert_int_equal(
		dcp_index_by_key(dcp_version_index(v), DCP_ROW_TENSOR, key, &arena, &row), 0);
	assert_int_equal(dcp_view_open(v, row.id, DCP_AS_RAW, NULL, &view, NULL), 0);
	dcp_arena_finish(&arena);
	return view;
}

/* torch.save on a big-endian machine, of a dtype that has no number here. */
static void big_endian_codes_are_swapped(void **state)
{
	static const int64_t shape[] = { 2 }, stride[] = { 1 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	struct dcp_version *v;
	struct dcp_view *view;
	struct t_dir dir;
	char got[8];

	(void)state;
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	t_pk_str(&b, "codes");
	t_pk_tensor(&b, "QInt32Storage", "0", 2, 0, shape, stride, 1);
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/byteorder", "big", 3);
	t_zip_add(&z, "archive/data/0", "ABCDabcd", 8);
	t_zip_end(&z);
	t_dir_make(&dir, "digest");
	t_dir_put(&dir, "big.pt", z.b.p, z.b.n);
	for (int no_map = 0; no_map < 2; no_map++) {
		v = open_version(t_dir_path(&dir, "big.pt"), no_map);
		view = open_raw(v, "codes");
		assert_int_equal(dcp_view_read(view, 0, got, sizeof(got)), 0);
		assert_memory_equal(got, "DCBAdcba", sizeof(got));
		dcp_view_close(view);
		dcp_version_close(v);
	}
	t_zip_free(&z);
	t_dir_remove(&dir);
}

static void add_told(void *ctx, uint64_t done, uint64_t total, const char *what)
{
	uint64_t *last = ctx;

	assert_true(done > *last && done <= total);
	assert_string_equal(what, "layer.weight");
	*last = done;
}

static void digests_report_progress(void **state)
{
	struct dcp_version *v = open_version("tests/golden/hostile/base", false);
	struct dcp_view *view = open_raw(v, "layer.weight");
	uint64_t last = 0;
	const struct dcp_progress progress = { add_told, &last };
	char text[DCP_DIGEST_TEXT], quietly[DCP_DIGEST_TEXT];

	(void)state;
	assert_int_equal(dcp_digest(view, DCP_DIGEST_XXH3, &progress, text, NULL), 0);
	assert_int_equal(last, dcp_view_size(view));
	assert_int_equal(dcp_digest(view, DCP_DIGEST_XXH3, NULL, quietly, NULL), 0);
	assert_string_equal(text, quietly);
	dcp_view_close(view);
	dcp_version_close(v);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(digests_agree_with_xxh3_128),
		cmocka_unit_test(big_endian_codes_are_swapped),
		cmocka_unit_test(digests_report_progress),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
