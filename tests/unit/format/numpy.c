/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numpy's files: those that numpy and MLX wrote, which directories hold a model of them, and
 * what can be wrong with one array among others.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "core/store/version/version.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

static int load(const char *path, struct dcp_dir *dir, struct t_sink *s, struct dcp_err *err)
{
	const struct dcp_format *format = &dcp_format_numpy;

	return t_sink_open(s, path, dir, &format, err);
}

static void check_version(const char *folder, const char *name, int complete)
{
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_sink s;
	char path[256];

	print_message("           %s\n", name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%.*s", folder,
		 (int)strcspn(name, "@"), name);
	if (load(path, &dir, &s, &err) < 0)
		fail_msg("%s", err.msg);
	assert_true(t_manifest_check(&s, folder, name, "") >= 14);
	assert_string_equal(t_sink_fact(&s, "framework"), "numpy");
	t_sink_close(&s, &dir);
}

static void numpy_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("numpy", check_version);
}

/* Names, one a word; a directory ends in '/'. */
static enum dcp_match probe(const char *names)
{
	struct dcp_dirent e[16] = { { 0 } };
	struct dcp_dir dir = { .path = "", .entries = e };
	enum dcp_match match;
	char text[256], *rest = text;
	const struct dcp_format *f;

	snprintf(text, sizeof(text), "%s", names);
	for (char *w; (w = strsep(&rest, " "));) {
		size_t n = strlen(w);

		e[dir.n].is_dir = w[n - 1] == '/';
		w[n - e[dir.n].is_dir] = '\0';
		e[dir.n++].name = w;
	}
	f = dcp_format_probe(&dir, &match, NULL, 0);
	return f == &dcp_format_numpy ? match : DCP_MATCH_NO;
}

static void numpy_directories_are_read(void **state)
{
	static const struct {
		const char *names;
		enum dcp_match match;
	} cases[] = {
		{ "a.npy b.npy", DCP_MATCH_YES },
		{ "README.md a.npy", DCP_MATCH_YES },
		{ "step_1.npz step_2.npz", DCP_MATCH_MANY },
		{ "vit_b.npz vit_l.npz", DCP_MATCH_MANY },
		{ "config.json weights.npz", DCP_MATCH_YES },
		{ "config.json tokenizer/ weights.npz", DCP_MATCH_YES },
		{ "config.json weights.00.npz weights.01.npz", DCP_MATCH_YES },
		{ "opt_state.npz params.npz", DCP_MATCH_YES },
		/* data and plots beside something else */
		{ "checkpoints/ loss.npy", DCP_MATCH_NO },
		{ "checkpoints/ config.json stats.npz", DCP_MATCH_NO },
		{ "loss.npy model.pt", DCP_MATCH_NO },
		{ "model.safetensors weights.npz", DCP_MATCH_NO },
		{ ".hidden.npy x.txt", DCP_MATCH_NO },
		{ "x.npy.gz x.npz.gz", DCP_MATCH_NO },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		t_case(cases[i].names);
		assert_int_equal(probe(cases[i].names), cases[i].match);
	}
}

/* Arrays beside checkpoints of others are no versions and no parts. */
static void arrays_beside_others_are_no_versions(void **state)
{
	static const struct {
		const char *files, *versions;
	} cases[] = {
		{ "a/w.npy b/w.npy", "a b" },
		{ "a_9/w.npy s_1/model.safetensors", "s_1" },
		{ "a_9/w.npz s_1/model.safetensors s_2/model.safetensors", "s_1 s_2" },
		{ "config.json step-9/w.npy model.safetensors", "run" },
		{ "config.json weights.npz step-9/w.npy", "run step-9" },
		{ "loss.npy optimizer.pt scheduler.pt", "optimizer.pt scheduler.pt" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char text[256], got[256] = "", *rest = text;
		struct dcp_err err = { 0 };
		struct dcp_scan scan;
		struct t_dir d;

		t_case(cases[i].files);
		t_dir_make(&d, "numpy");
		snprintf(text, sizeof(text), "%s", cases[i].files);
		for (char *w; (w = strsep(&rest, " "));) {
			char name[256];

			snprintf(name, sizeof(name), "run/%s", w);
			t_dir_text(&d, name, "{}");
		}
		if (dcp_scan(t_dir_path(&d, "run"), &scan, &err) < 0)
			fail_msg("%s", err.msg);
		for (size_t k = 0; k < scan.n; k++) {
			size_t n = strlen(got);

			snprintf(got + n, sizeof(got) - n, "%s%s", k ? " " : "",
				 scan.found[k].name);
		}
		assert_string_equal(got, cases[i].versions);
		dcp_scan_finish(&scan);
		t_dir_remove(&d);
	}
}

/* ---- one array among others ---- */

static void put_array(struct dcp_buf *b, const char *descr, const char *shape, size_t n)
{
	dcp_auto_buf struct dcp_buf dict = DCP_BUF_INIT;
	uint8_t len[2];

	dcp_buf_reset(b);
	dcp_buf_printf(&dict, "{'descr': %s, 'fortran_order': False, 'shape': (%s), }\n", descr,
		       shape);
	dcp_store_le16(len, (uint16_t)dict.n);
	dcp_buf_add(b, "\x93NUMPY\x01\x00", 8);
	dcp_buf_add(b, len, 2);
	dcp_buf_add(b, dict.p, dict.n);
	for (size_t i = 0; i < n; i++)
		dcp_buf_add(b, &(char){ (char)i }, 1);
}

static const struct {
	const char *key, *descr;
	size_t n; /* bytes of data; three elements are said to be there */
	const char *says;
} arrays[] = {
	{ "good", "'<i4'", 12, NULL },
	{ "short", "'<i4'", 11, "bytes are not as many" },
	{ "long", "'<i4'", 13, "bytes are not as many" },
	{ "objects", "'|O'", 40, "an array of Python objects (dtype O), which is a pickle" },
	{ "records", "[('a', '<i4'), ('b', '<f8')]", 36, "an array of records" },
	{ "dates", "'>M8[s]'", 24, "big-endian elements of a type" },
	{ "text", "'<U2'", 24, NULL },
	{ "damaged", "'<x4'", 12, "has another form than" },
};

/* Why the key cannot be read, or NULL. */
static const char *error_of(const struct t_sink *s, const char *prefix, const char *name)
{
	char key[64];
	const struct dcp_tensor *t;
	const struct dcp_object *o;

	snprintf(key, sizeof(key), "%s%s", prefix, name);
	t = t_sink_tensor(s, key);
	o = t_sink_object(s, key);
	assert_true(!t != !o);
	return t ? t->error : o->error;
}

static void check_arrays(const struct t_sink *s, const char *prefix)
{
	for (size_t i = 0; i < DCP_LEN(arrays); i++) {
		const char *error;

		t_case(arrays[i].key);
		error = error_of(s, prefix, arrays[i].key);
		assert_int_equal(!error, !arrays[i].says);
		if (error && !strstr(error, arrays[i].says))
			fail_msg("%s", error);
	}
}

static void broken_arrays_are_reported(void **state)
{
	struct t_zip z = { 0 };
	struct t_dir d;
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&d, "numpy");
	for (size_t i = 0; i < DCP_LEN(arrays); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		char name[64];

		put_array(&b, arrays[i].descr, "3,", arrays[i].n);
		snprintf(name, sizeof(name), "%s.npy", arrays[i].key);
		t_zip_add(&z, name, b.p, b.n);
		snprintf(name, sizeof(name), "npy/%s.npy", arrays[i].key);
		t_dir_put(&d, name, b.p, b.n);
	}
	t_zip_add(&z, "notes.txt", "x", 1);
	t_zip_end(&z);
	t_dir_put(&d, "npz/a.npz", z.b.p, z.b.n);
	t_dir_put(&d, "two/a.npz", z.b.p, z.b.n);
	t_dir_put(&d, "two/cut.npz", z.b.p, z.b.n - 30);
	t_dir_put(&d, "two/weights.npz", z.b.p, z.b.n);
	t_zip_free(&z);
	for (size_t i = 0; i < 2; i++) {
		if (load(t_dir_path(&d, i ? "npz" : "npy"), &dir, &s, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(s.ntensors + s.nobjects, DCP_LEN(arrays));
		check_arrays(&s, "");
		t_sink_close(&s, &dir);
	}
	if (load(t_dir_path(&d, "two"), &dir, &s, &err) < 0)
		fail_msg("%s", err.msg);
	check_arrays(&s, "");
	check_arrays(&s, "a.");
	assert_non_null(
		strstr(error_of(&s, "", "cut"), "cut.npz: no end-of-central-directory"));
	t_sink_close(&s, &dir);
	assert_int_equal(load(t_dir_path(&d, "two/cut.npz"), &dir, &s, &err), -EBADMSG);
	t_assert_says(&err, "cut.npz: no end-of-central-directory");
	t_sink_close(&s, &dir);
	t_dir_remove(&d);
}

/* A compressed member whose header does not come out, and one that is encrypted. */
static void unreadable_members_are_reported(void **state)
{
	static const struct {
		const char *what;
		uint16_t method, flags;
		const char *says;
	} cases[] = {
		{ "no deflate", 8, 0, "deflate" },
		{ "bzip2", 12, 0, "encrypted, or compressed in a way" },
		{ "encrypted", 0, 1, "encrypted, or compressed in a way" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct t_zip z = { 0 };
		struct t_dir d;
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_sink s;

		t_case(cases[i].what);
		t_zip_add(&z, "a.npy", "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
		t_zip_end(&z);
		t_zip_poke(&z, z.local[0] + 8, 2, cases[i].method);
		t_zip_poke(&z, z.entry[0] + 10, 2, cases[i].method);
		t_zip_poke(&z, z.local[0] + 6, 2, cases[i].flags);
		t_zip_poke(&z, z.entry[0] + 8, 2, cases[i].flags);
		t_dir_make(&d, "numpy");
		t_dir_put(&d, "x.npz", z.b.p, z.b.n);
		if (load(t_dir_path(&d, "x.npz"), &dir, &s, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(s.ntensors + s.nobjects, 1);
		if (!strstr(error_of(&s, "", "a"), cases[i].says))
			fail_msg("%s", error_of(&s, "", "a"));
		t_sink_close(&s, &dir);
		t_dir_remove(&d);
		t_zip_free(&z);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numpy_golden_files_are_read),
		cmocka_unit_test(numpy_directories_are_read),
		cmocka_unit_test(arrays_beside_others_are_no_versions),
		cmocka_unit_test(broken_arrays_are_reported),
		cmocka_unit_test(unreadable_members_are_reported),
	};
	return cmocka_run_group_tests_name("numpy", tests, NULL, NULL);
}
