/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Composer: its names and states, what stands in its archives, and the directory of its newer
 * interface.
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/format.h"
#include "core/format/torch/torch.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"
#include "core/store/version/version.h"
#include "tests/unit/t/format/composer.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/model/same.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/source.h"
#include "tests/unit/t/parse/tar.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

/* ---- names ---- */

static void composer_file_names_are_known(void **state)
{
	static const struct {
		const char *file, *save; /* NULL: not Composer's */
		uint64_t rank;
	} cases[] = {
		{ "ep1-ba6-rank0.pt", "ep1-ba6-rank0.pt", 0 },
		{ "ep1-ba6-rank13.pt", "ep1-ba6-rank0.pt", 13 },
		{ "ba6-rank2.pt", "ba6-rank0.pt", 2 },
		{ "ep0-ba2-rank1.pt.tar", "ep0-ba2-rank0.pt.tar", 1 },
		{ "ep0-ba2-rank1.tar.gz", "ep0-ba2-rank0.tar.gz", 1 },
		{ "my-run_ba12_x-rank3.tgz", "my-run_ba12_x-rank0.tgz", 3 },
		{ "ep1-ba6-rank007.pt", "ep1-ba6-rank0.pt", 7 },
		{ "latest-rank0.pt", NULL, 0 },
		{ "ep1-ba6.pt", NULL, 0 },
		{ "ep1-ba6-rank.pt", NULL, 0 },
		{ "ep1-ba6-rank0", NULL, 0 },
		{ "rank0-ba6.pt", NULL, 0 },
		{ "abba6-rank0.pt", NULL, 0 },
		{ "ba-rank0.pt", NULL, 0 },
		{ "ba6-frank0.pt", NULL, 0 },
		{ "ba6-rank12345678901.pt", NULL, 0 },
		{ "model.pt", NULL, 0 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		char save[DCP_GROUP_MAX] = "";
		uint64_t rank = 99;
		bool is = dcp_composer_name(cases[i].file, save, &rank);

		t_case(cases[i].file);
		assert_int_equal(is, cases[i].save != NULL);
		if (is) {
			assert_string_equal(save, cases[i].save);
			assert_int_equal(rank, cases[i].rank);
		}
	}
}

/* ---- states ---- */

static void put_pair(struct dcp_buf *b, const char *key)
{
	t_pk_str(b, key);
	t_pk_int(b, 1);
}

static void composer_states_are_recognised(void **state)
{
	static const struct {
		const char *what;
		const char *inner[3], *outer[3]; /* keys of "state", and beside it */
		bool is;
	} cases[] = {
		{ "a save", { "model", "timestamp" }, { "rng" }, true },
		{ "only weights", { "model", "metadata" }, { NULL }, true },
		{ "a model of another program", { "model" }, { NULL }, false },
		{ "with more beside it", { "model", "run_name" }, { "rng", "epoch" }, false },
		{ "an optimizer", { "step", "exp_avg" }, { "param_groups" }, false },
		{ "empty", { NULL }, { NULL }, false },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct t_zip z = { .torch = true };
		struct dcp_torch *t;
		struct dcp_source src;

		t_case(cases[i].what);
		t_pk_start(&b);
		t_pk_dict(&b);
		t_pk_mark(&b);
		t_pk_str(&b, "state");
		t_pk_dict(&b);
		t_pk_mark(&b);
		for (size_t k = 0; k < 3 && cases[i].inner[k]; k++)
			put_pair(&b, cases[i].inner[k]);
		t_pk_setitems(&b);
		for (size_t k = 0; k < 3 && cases[i].outer[k]; k++)
			put_pair(&b, cases[i].outer[k]);
		t_pk_setitems(&b);
		t_pk_stop(&b);
		t_zip_add(&z, "archive/data.pkl", b.p, b.n);
		t_zip_end(&z);
		src = dcp_source_mem(z.b.p, z.b.n);
		assert_int_equal(dcp_torch_open(&src, 0, &t, NULL), 0);
		assert_int_equal(dcp_composer_is_state(t), cases[i].is);
		dcp_torch_close(t);
		t_zip_free(&z);
	}
}

/* ---- loading ---- */

struct opened {
	struct t_sink s;
	struct dcp_dir dir;
	struct dcp_err err;
	int rc;
};

static void load(struct opened *o, const char *path)
{
	enum dcp_match match;
	struct dcp_load in = { .dir = &o->dir, .formats = dcp_formats, .sink = &o->s.sink };
	const struct dcp_format *format;

	*o = (struct opened){ .rc = 0 };
	assert_int_equal(dcp_dir_open(path, &o->dir, NULL), 0);
	t_sink_init(&o->s, &o->dir);
	format = dcp_format_probe(&o->dir, &match, NULL, 0);
	assert_string_equal(format->name, "composer");
	o->rc = format->load(&in, &o->err);
}

static void finish(struct opened *o)
{
	t_sink_finish(&o->s);
	dcp_dir_close(&o->dir);
}

/* ---- what Composer itself wrote ---- */

/* Files that can be read without decoding them; the others are in tests/mount/golden.py. */
static void check_golden(const char *folder, const char *name, int complete)
{
	struct opened o = { .rc = 0 };
	struct dcp_load in = { .dir = &o.dir, .formats = dcp_formats, .sink = &o.s.sink };
	const char *dot = strrchr(name, '.');
	enum dcp_match match;
	char path[256];

	(void)complete;
	if (dot && strcmp(dot, ".pt") != 0 && strcmp(dot, ".tar") != 0)
		return;
	t_case(name);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	assert_int_equal(dcp_dir_open(path, &o.dir, NULL), 0);
	t_sink_init(&o.s, &o.dir);
	if (dcp_format_probe(&o.dir, &match, NULL, 0)->load(&in, &o.err) < 0)
		fail_msg("%s", o.err.msg);
	assert_true(t_manifest_check(&o.s, folder, name, "") >= 16);
	finish(&o);
}

static void composer_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("composer", check_golden);
	t_manifest_each("composer-sharded", check_golden);
}

/* ---- versions of a directory ---- */

static void composer_versions_are_grouped(void **state)
{
	static const struct {
		const char *what, *files[6], *found;
	} cases[] = {
		{ "saves of one file",
		  { "ep0-ba2-rank0.pt", "ep1-ba10-rank0.pt", "ep1-ba4-rank0.pt" },
		  "ep0-ba2-rank0.pt ep1-ba4-rank0.pt ep1-ba10-rank0.pt" },
		{ "a file a rank",
		  { "ba2-rank0.pt", "ba2-rank1.pt", "ba4-rank0.pt", "ba4-rank1.pt" },
		  "ba2-rank0.pt ba4-rank0.pt" },
		{ "the link as a text",
		  { "ep0-ba2-rank0.pt", "ep1-ba4-rank0.pt", "latest-rank0.pt=ep1-ba4-rank0.pt",
		    "latest-rank0.pt.symlink=run/ep1-ba4-rank0.pt" },
		  "ep0-ba2-rank0.pt ep1-ba4-rank0.pt" },
		{ "every container beside the others",
		  { "ep0-ba2-rank0.pt", "ep0-ba2-rank0.pt.gz", "ep0-ba2-rank0.tar.zst",
		    "other.pt" },
		  "other.pt ep0-ba2-rank0.tar.zst ep0-ba2-rank0.pt.gz ep0-ba2-rank0.pt" },
		{ "what only looks compressed",
		  { "ep0-ba2-rank0.pt", "notes.gz", "x.txt.zst" },
		  "." },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_scan scan;
		struct dcp_err err = { 0 };
		struct t_dir to;
		char got[512] = "";

		t_case(cases[i].what);
		t_dir_make(&to, "composer");
		for (size_t k = 0; k < 6 && cases[i].files[k]; k++) {
			char name[64];
			const char *text = strchr(cases[i].files[k], '=');

			snprintf(name, sizeof(name), "%.*s",
				 (int)strcspn(cases[i].files[k], "="), cases[i].files[k]);
			t_dir_text(&to, name, text ? text + 1 : "x");
		}
		if (dcp_scan(to.root, &scan, &err) < 0)
			fail_msg("%s", err.msg);
		for (size_t k = 0; k < scan.n; k++) {
			size_t n = strlen(got);

			snprintf(got + n, sizeof(got) - n, "%s%s", k ? " " : "",
				 scan.found[k].name);
		}
		if (*cases[i].found == '.') /* one alone is called as its directory */
			assert_int_equal(scan.n, 1);
		else
			assert_string_equal(got, cases[i].found);
		dcp_scan_finish(&scan);
		t_dir_remove(&to);
	}
}

/* ---- directories ---- */

static void put_copy(const struct t_dir *to, const char *name, const char *from)
{
	size_t n;
	char *p = t_file(from, &n);

	t_dir_put(to, name, p, n);
	free(p);
}

static void put_tree(const struct t_dir *to, const char *name, const char *from)
{
	struct dcp_dir d;

	assert_int_equal(dcp_dir_open(from, &d, NULL), 0);
	for (size_t i = 0; i < d.n; i++) {
		char a[256], b[256];

		snprintf(a, sizeof(a), "%s/%s", name, d.entries[i].name);
		snprintf(b, sizeof(b), "%s/%s", from, d.entries[i].name);
		put_copy(to, a, b);
	}
	dcp_dir_close(&d);
}

static const char tp[] = "tests/golden/dcp-tp-fsdp/ckpt/tp";
static const char list_pt[] = "tests/golden/torch-save/ckpt/list.pt";

static void same_as(struct dcp_version *v, const char *source, const char *prefix)
{
	struct dcp_version *plain = t_open_version(source, NULL, NULL);

	assert_true(t_same(plain, v, prefix) >= 2);
	dcp_version_close(plain);
}

static void the_newer_interface_is_read(void **state)
{
	struct dcp_version *v;
	struct opened o;
	struct t_dir to;

	(void)state;
	t_dir_make(&to, "composer");
	put_copy(&to, "ep1/model/model.pt", list_pt);
	put_tree(&to, "ep1/optim", tp);
	t_dir_text(&to, "ep1/composer_metadata.json", " {\"composer_version\": \"0.32\"}\n");
	t_dir_text(&to, "ep1/resumption.pkl",
		   "(dVrng\n(lsVtimestamp\n(dVepoch\nI1\nsVwct\ncdatetime\ntimedelta\n"
		   "(I0\nI2\nI500000\ntRssVbetas\n(F0.5\nI2\nls.");
	v = t_open_version(t_dir_path(&to, "ep1"), NULL, NULL);
	same_as(v, list_pt, "model.");
	same_as(v, tp, "optim.");
	dcp_version_close(v);
	load(&o, t_dir_path(&to, "ep1"));
	assert_int_equal(o.rc, 0);
	assert_string_equal(t_sink_object(&o.s, "composer_metadata")->json,
			    "{\"composer_version\": \"0.32\"}");
	assert_string_equal(t_sink_object(&o.s, "resumption.timestamp.epoch")->json, "1");
	assert_string_equal(t_sink_object(&o.s, "resumption.timestamp.wct")->json, "2.5");
	assert_string_equal(t_sink_object(&o.s, "resumption.betas.1")->json, "2");
	assert_string_equal(t_sink_object(&o.s, "resumption.rng")->json, "[]");
	finish(&o);

	t_case("each part may be damaged");
	t_dir_text(&to, "ep1/composer_metadata.json", "{");
	t_dir_text(&to, "ep1/resumption.pkl", "what is this");
	t_dir_text(&to, "ep1/model/model.pt", "what is this");
	load(&o, t_dir_path(&to, "ep1"));
	assert_int_equal(o.rc, 0);
	assert_non_null(t_sink_object(&o.s, "composer_metadata")->error);
	assert_non_null(t_sink_object(&o.s, "resumption")->error);
	assert_non_null(
		strstr(t_sink_object(&o.s, "model")->error, "model.pt: not a torch.save"));
	assert_true(o.s.ntensors > 10);
	finish(&o);

	t_case("nothing left");
	t_dir_text(&to, "ep1/optim/.metadata", "what is this");
	load(&o, t_dir_path(&to, "ep1"));
	assert_true(o.rc < 0);
	t_assert_says(&o.err, ".metadata");
	finish(&o);
	t_dir_remove(&to);
}

/* In the archives of a DeepSpeed run: the state, and any family below deepspeed/. */
static void deepspeed_beside_a_state_is_read(void **state)
{
	struct t_composer_rank k = { .ranks = 1, .rows = 4 };
	struct t_tar t = { .n = 0 }, t1 = { .gnu = true };
	struct dcp_version *v;
	struct opened o;
	struct t_dir to;
	struct t_zip z;
	size_t n;
	char *p, why[512];

	(void)state;
	t_dir_make(&to, "composer");
	t_composer_rank(&z, &k);
	t_tar_add(&t, "composer_states.pt", z.b.p, z.b.n);
	p = t_file("tests/golden/dcp-tp-fsdp/ckpt/tp/.metadata", &n);
	t_tar_add(&t, "deepspeed/.metadata", p, n);
	free(p);
	for (int r = 0; r < 4; r++) {
		char from[128], name[64];

		snprintf(from, sizeof(from), "%s/__%d_0.distcp", tp, r);
		snprintf(name, sizeof(name), "deepspeed/__%d_0.distcp", r);
		p = t_file(from, &n);
		t_tar_add(r % 2 ? &t1 : &t, name, p, n);
		free(p);
	}
	t_tar_end(&t);
	t_tar_end(&t1);
	t_dir_put(&to, "ep0-ba2-rank0.pt.tar", t.b.p, t.b.n);
	t_dir_put(&to, "ep0-ba2-rank1.pt.tar", t1.b.p, t1.b.n);
	v = t_open_version(to.root, NULL, NULL);
	same_as(v, tp, "deepspeed.");
	p = t_tensor_bytes(v, "state.model.w", &n, why);
	assert_int_equal(n, 32);
	assert_true(((float *)(void *)p)[2] == 10);
	free(p);
	dcp_version_close(v);

	t_case("unpacked by hand");
	t_dir_put(&to, "dir/composer_states.pt", z.b.p, z.b.n);
	put_tree(&to, "dir/deepspeed", tp);
	v = t_open_version(t_dir_path(&to, "dir"), NULL, NULL);
	same_as(v, tp, "deepspeed.");
	dcp_version_close(v);

	t_case("what is beside it is unknown");
	t_dir_put(&to, "odd/composer_states.pt", z.b.p, z.b.n);
	t_dir_text(&to, "odd/deepspeed/x", "");
	load(&o, t_dir_path(&to, "odd"));
	assert_int_equal(o.rc, 0);
	assert_null(t_sink_tensor(&o.s, "state.model.w")->error);
	assert_non_null(strstr(t_sink_object(&o.s, "deepspeed")->error, "holds no checkpoint"));
	finish(&o);
	dcp_buf_finish(&t.b);
	dcp_buf_finish(&t1.b);
	t_zip_free(&z);
	t_dir_remove(&to);
}

/* The archives as Composer writes them: its state is in the first, DeepSpeed's files in each.
 */
static void archives_of_deepspeed_runs_are_read(void **state)
{
	static const char *const files[][2] = {
		{ "mp_rank_00_model_states.pt",
		  "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt" },
		{ "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", NULL },
		{ "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", NULL },
	};
	static const char step[] = "tests/golden/deepspeed-z1/ckpt/global_step10";
	struct t_composer_rank k = { .ranks = 1, .rows = 4 };
	struct dcp_version *v;
	struct t_dir to;
	struct t_zip z;
	size_t n;
	char *p, why[512];

	(void)state;
	t_dir_make(&to, "composer");
	t_composer_rank(&z, &k);
	for (size_t r = 0; r < DCP_LEN(files); r++) {
		struct t_tar t = { .gnu = true };
		char name[128];

		if (r == 0)
			t_tar_add(&t, "composer_states.pt", z.b.p, z.b.n);
		for (size_t i = 0; i < 2 && files[r][i]; i++) {
			snprintf(name, sizeof(name), "%s/%s", step, files[r][i]);
			p = t_file(name, &n);
			snprintf(name, sizeof(name), "deepspeed/%s", files[r][i]);
			t_tar_add(&t, name, p, n);
			free(p);
		}
		t_tar_end(&t);
		snprintf(name, sizeof(name), "ep0-ba2-rank%zu.pt.tar", r);
		t_dir_put(&to, name, t.b.p, t.b.n);
		dcp_buf_finish(&t.b);
	}
	v = t_open_version(to.root, NULL, NULL);
	same_as(v, step, "deepspeed.");
	p = t_tensor_bytes(v, "state.model.w", &n, why);
	assert_int_equal(n, 32);
	free(p);
	dcp_version_close(v);
	t_zip_free(&z);
	t_dir_remove(&to);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(composer_file_names_are_known),
		cmocka_unit_test(composer_states_are_recognised),
		cmocka_unit_test(composer_golden_files_are_read),
		cmocka_unit_test(composer_versions_are_grouped),
		cmocka_unit_test(the_newer_interface_is_read),
		cmocka_unit_test(deepspeed_beside_a_state_is_read),
		cmocka_unit_test(archives_of_deepspeed_runs_are_read),
	};

	return cmocka_run_group_tests_name("composer", tests, NULL, NULL);
}
