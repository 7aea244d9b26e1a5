/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face's weights by torch.save, and what lies beside weights of either container.
 * covers: files, name
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/format/formats.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

static int load(const char *path, struct dcp_dir *dir, struct t_sink *s, struct dcp_err *err)
{
	const struct dcp_format *format = NULL;

	return t_sink_open(s, path, dir, &format, err);
}

/* ---- real ones ---- */

static void check_version(const char *folder, const char *name, int complete)
{
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_sink s;
	char path[256];

	print_message("           %s\n", name);
	assert_true(complete);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", folder, name);
	if (load(path, &dir, &s, &err) < 0)
		fail_msg("%s", err.msg);
	assert_true(t_manifest_check(&s, folder, name, "") > 0);
	if (strcmp(name, "gpt2-tied") == 0) /* what lies beside it, a version of the manifest */
		assert_int_equal(
			t_manifest_check(&s, folder, "gpt2-tied/optimizer.pt", "optimizer."),
			48);
	t_sink_close(&s, &dir);
}

static void bin_golden_files_are_read(void **state)
{
	(void)state;
	t_manifest_each("hf-bin", check_version);
}

/* ---- made here ---- */

/* A dict of byte tensors: "a=xyz b=w" is a of 3 bytes and b of 1. NULL: no torch.save at all.
 */
static void put_torch(const struct t_dir *tree, const char *name, const char *text)
{
	struct dcp_buf pickle = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	char copy[128], *save = NULL;
	int64_t key = 0;

	if (!text) {
		t_dir_text(tree, name, "no checkpoint at all");
		return;
	}
	t_pk_start(&pickle);
	t_pk_dict(&pickle);
	t_pk_mark(&pickle);
	snprintf(copy, sizeof(copy), "%s", text);
	for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save), key++) {
		char *value = strchr(p, '=') + 1, record[24];
		int64_t n = (int64_t)strlen(value), one = 1;

		value[-1] = '\0';
		snprintf(record, sizeof(record), "%d", (int)key);
		t_pk_str(&pickle, p);
		t_pk_tensor(&pickle, "ByteStorage", record, n, 0, &n, &one, 1);
		snprintf(record, sizeof(record), "archive/data/%d", (int)key);
		t_zip_add(&z, record, value, (size_t)n);
	}
	t_pk_setitems(&pickle);
	t_pk_stop(&pickle);
	t_zip_add(&z, "archive/data.pkl", pickle.p, pickle.n);
	t_zip_end(&z);
	t_dir_put(tree, name, z.b.p, z.b.n);
	t_zip_free(&z);
	dcp_buf_finish(&pickle);
}

enum { MAX_FILES = 5 };
#define PART(i) "pytorch_model-0000" i "-of-00002.bin"
#define INDEX "pytorch_model.bin.index.json"

/* clang-format off */
static const struct {
	const char *what;
	struct {
		const char *name, *text; /* a name that ends in json is written as it stands */
	} files[MAX_FILES];
	int rc;
	const char *says; /* of a refusal */
	/* "key=bytes", "key!part of its error": all that is told, with ";" between */
	const char *keys;
} cases[] = {
	{ "one file", { { "pytorch_model.bin", "a=xy b.c=z" } }, 0, NULL, "a=xy;b.c=z" },
	{ "two parts", { { PART("1"), "a=x" }, { PART("2"), "b=y" } }, 0, NULL, "a=x;b=y" },
	{ "an index that is right", { { PART("1"), "a=x" }, { PART("2"), "b=y" }, { INDEX, "{\"weight_map\":{\"a\":\"" PART("1") "\",\"b\":\"" PART("2") "\"}}" } }, 0, NULL, "a=x;b=y" },
	{ "a key in both, and an index that decides", { { PART("1"), "a=x b=1" }, { PART("2"), "b=y" }, { INDEX, "{\"weight_map\":{\"a\":\"" PART("1") "\",\"b\":\"" PART("2") "\"}}" } }, 0, NULL, "a=x;b=y" },
	{ "a key that its file has not", { { PART("1"), "a=x" }, { PART("2"), "b=y" }, { INDEX, "{\"weight_map\":{\"c\":\"" PART("2") "\"}}" } }, 0, NULL, "a=x;b=y;c!which does not hold it" },
	{ "a file that is not there", { { "pytorch_model.bin", "a=x" }, { INDEX, "{\"weight_map\":{\"c\":\"x.bin\"}}" } }, 0, NULL, "a=x;c!x.bin, which is missing" },
	{ "a file somewhere else", { { "pytorch_model.bin", "a=x" }, { INDEX, "{\"weight_map\":{\"c\":\"../pytorch_model.bin\"}}" } }, 0, NULL, "a=x;c!files in other directories are not opened" },
	{ "no file at all", { { "pytorch_model.bin", "a=x" }, { INDEX, "{\"weight_map\":{\"c\":[]}}" } }, 0, NULL, "a=x;c!names no file" },
	{ "a broken part, and whose keys it held", { { PART("1"), NULL }, { PART("2"), "b=y" }, { INDEX, "{\"weight_map\":{\"a\":\"" PART("1") "\",\"b\":\"" PART("2") "\"}}" } }, 0, NULL, "b=y;a!" PART("1") ": not a torch.save" },
	{ "a broken part, and no other has its tensors", { { PART("1"), NULL }, { PART("2"), "b=y" } }, 0, NULL, "b=y;" PART("1") "!not a torch.save" },
	{ "every part is broken", { { PART("1"), NULL }, { PART("2"), NULL } }, -EBADMSG, PART("2") ": not a torch.save", NULL },
	{ "a broken index", { { "pytorch_model.bin", "a=x" }, { INDEX, "{" } }, -EBADMSG, INDEX ": ", NULL },
	{ "an index of other form", { { "pytorch_model.bin", "a=x" }, { INDEX, "[]" } }, -EBADMSG, "no weight_map", NULL },
	{ "a variant is left out", { { "pytorch_model.bin", "a=xx b=yy" }, { "pytorch_model.fp16.bin", "a=x b=y" } }, 0, NULL, "a=xx;b=yy" },
	{ "one by itself is the model", { { "pytorch_model.fp16.bin", "a=x b=y" } }, 0, NULL, "a=x;b=y" },
	{ "a promise of a second model", { { "pytorch_model.bin", "a=xx" }, { "pytorch_model_1.bin", "a=x" }, { "pytorch_model_1.bin.index.json", "{\"weight_map\":{\"b\":\"y.bin\"}}" } }, 0, NULL, "pytorch_model.a=xx;pytorch_model_1.a=x;pytorch_model_1.b!y.bin, which is missing" },
	{ "an adapter goes below its name", { { "adapter_model.bin", "lora.a=x" }, { "pytorch_model.bin", "a=y" } }, 0, NULL, "a=y;adapter_model.lora.a=x" },
	{ "the optimizer", { { "pytorch_model.bin", "a=x" }, { "optimizer.pt", "a=y" }, { "random_states_0.pkl", "s=z" } }, 0, NULL, "a=x;optimizer.a=y;random_states_0.s=z" },
	{ "one that is broken", { { "pytorch_model.bin", "a=x" }, { "optimizer.pt", NULL } }, 0, NULL, "a=x;optimizer!optimizer.pt: not a torch.save" },
	{ "a .bin of another program", { { "pytorch_model.bin", "a=x" }, { "openvino_model.bin", NULL } }, 0, NULL, "a=x" },
};
/* clang-format on */

/* One of the keys as cases[] spells it. */
static void check_key(const struct t_sink *s, char *want)
{
	char *mark = want + strcspn(want, "=!");
	bool broken = *mark == '!';
	const struct dcp_tensor *t;
	struct dcp_err err = { 0 };
	char *got;
	size_t n;

	*mark++ = '\0';
	t = t_sink_tensor(s, want);
	if (broken) {
		const struct dcp_object *o = t_sink_object(s, want);
		const char *error = t ? t->error : o ? o->error : NULL;

		if (!error || !strstr(error, mark))
			fail_msg("%s: \"%s\" does not say \"%s\"", want, error ? error : "",
				 mark);
		return;
	}
	if (!t)
		fail_msg("%s was not told", want);
	got = t_sink_read(s, t, &n, &err);
	if (!got)
		fail_msg("%s: %s", want, err.msg);
	assert_int_equal(n, strlen(mark));
	assert_memory_equal(got, mark, n);
	free(got);
}

static void check_keys(const struct t_sink *s, const char *keys)
{
	char copy[512], *save = NULL;
	size_t n = 0;

	snprintf(copy, sizeof(copy), "%s", keys);
	for (char *p = strtok_r(copy, ";", &save); p; p = strtok_r(NULL, ";", &save), n++)
		check_key(s, p);
	assert_int_equal(s->ntensors + s->nobjects, n);
}

static void made_bin_files_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_dir tree;
		struct t_sink s;

		t_case(cases[i].what);
		t_dir_make(&tree, "torch_bin");
		for (size_t k = 0; k < MAX_FILES && cases[i].files[k].name; k++) {
			const char *name = cases[i].files[k].name;

			if (strstr(name, ".json"))
				t_dir_text(&tree, name, cases[i].files[k].text);
			else
				put_torch(&tree, name, cases[i].files[k].text);
		}
		assert_int_equal(load(tree.root, &dir, &s, &err), cases[i].rc);
		if (cases[i].rc < 0)
			t_assert_says(&err, cases[i].says);
		else
			check_keys(&s, cases[i].keys);
		t_sink_close(&s, &dir);
		t_dir_remove(&tree);
	}
}

/* ---- beside the weights ---- */

static size_t facts(const struct t_sink *s, const char *name, const char *value)
{
	size_t n = 0;

	for (size_t i = 0; i < s->nfacts; i++)
		n += strcmp(s->fact[i].name, name) == 0 && strcmp(s->fact[i].value, value) == 0;
	return n;
}

static void known_files_beside_are_sidecars(void **state)
{
	static const char *const sidecars[] = { "config.json",     "tokenizer.json",
						"tokenizer.model", "merges.txt",
						"README.md",       "LICENSE",
						"modeling_x.py",   "chat_template.jinja" };
	static const char *const left_out[] = { "flax_model.msgpack", "tf_model.h5",
						"consolidated.00.pth", "rust_model.ot" };
	static const char *const silent[] = { ".gitattributes", "events.out", "image.png" };
	struct dcp_err err = { 0 };
	struct dcp_dir dir;
	struct t_dir tree;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "torch_bin");
	put_torch(&tree, "pytorch_model.bin", "a=x");
	t_dir_text(&tree, INDEX, "{\"weight_map\":{\"a\":\"pytorch_model.bin\"}}");
	for (size_t i = 0; i < DCP_LEN(sidecars); i++)
		t_dir_text(&tree, sidecars[i], "{}");
	for (size_t i = 0; i < DCP_LEN(left_out); i++)
		t_dir_text(&tree, left_out[i], "weights");
	for (size_t i = 0; i < DCP_LEN(silent); i++)
		t_dir_text(&tree, silent[i], "x");
	t_dir_sub(&tree, "onnx");
	if (load(tree.root, &dir, &s, &err) < 0)
		fail_msg("%s", err.msg);
	for (size_t i = 0; i < DCP_LEN(sidecars); i++) {
		t_case(sidecars[i]);
		assert_int_equal(facts(&s, "sidecar", sidecars[i]), 1);
	}
	for (size_t i = 0; i < DCP_LEN(left_out); i++) {
		t_case(left_out[i]);
		assert_int_equal(facts(&s, "left_out", left_out[i]), 1);
	}
	for (size_t i = 0; i < DCP_LEN(silent); i++) {
		t_case(silent[i]);
		assert_int_equal(facts(&s, "left_out", silent[i]), 0);
		assert_int_equal(facts(&s, "sidecar", silent[i]), 0);
	}
	assert_int_equal(facts(&s, "sidecar", INDEX), 0);
	assert_int_equal(s.ntensors, 1);
	t_sink_close(&s, &dir);
	t_dir_remove(&tree);
}

static void failures_of_the_sink_are_returned(void **state)
{
	struct t_dir tree;
	bool done = false;

	(void)state;
	t_dir_make(&tree, "torch_bin");
	put_torch(&tree, "pytorch_model.bin", "a=x");
	put_torch(&tree, "pytorch_model_1.bin", "a=x");
	put_torch(&tree, "optimizer.pt", "m=x");
	t_dir_text(&tree, INDEX, "{\"weight_map\":{\"b\":\"x.bin\"}}");
	t_dir_text(&tree, "config.json", "{}");
	for (size_t at = 1; !done; at++) {
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_sink s;
		struct dcp_load in = { .dir = &dir, .formats = dcp_formats, .sink = &s.sink };
		int rc;

		assert_int_equal(dcp_dir_open(tree.root, &dir, &err), 0);
		t_sink_init(&s, &dir);
		s.fail_at = at;
		rc = dcp_format_torch_bin.load(&in, &err);
		done = s.calls < at;
		assert_int_equal(rc, done ? 0 : -ENOSPC);
		assert_true(done || s.calls == at);
		t_sink_close(&s, &dir);
	}
	t_dir_remove(&tree);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bin_golden_files_are_read),
		cmocka_unit_test(made_bin_files_are_read),
		cmocka_unit_test(known_files_beside_are_sidecars),
		cmocka_unit_test(failures_of_the_sink_are_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
