/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes several checkpoints one version, and what happens to their keys.
 *
 * covers: names
 */
#include "tests/unit/t.h"

#include <sys/stat.h>
#include <unistd.h>

#include "core/format/format.h"
#include "core/format/formats.h"
#include "core/format/parts/parts.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/manifest.h"
#include "tests/unit/t/parse/dir.h"
#include "tests/unit/t/parse/zip.h"
#include "tests/unit/t/sink.h"

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
	assert_string_equal(f->name, "parts");
	t_sink_init(&s, &dir);
	if (f->load(&(struct dcp_load){ .dir = &dir, .formats = dcp_formats, .sink = &s.sink },
		    &err) < 0)
		fail_msg("%s", err.msg);
	t_manifest_check(&s, folder, name, "");
	assert_non_null(t_sink_fact(&s, "parts"));
	t_sink_finish(&s);
	dcp_dir_close(&dir);
}

static void golden_parts_are_read(void **state)
{
	(void)state;
	t_manifest_each("parts", golden_version);
}

/* torch.save({keys[0]: tensor, ..., "n": (tensor, 1)}) with one storage. */
static void put_state(const struct t_dir *tree, const char *file, const char *keys)
{
	static const int64_t shape[] = { 3 }, stride[] = { 1 };
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	char copy[256], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", keys);
	t_pk_start(&b);
	t_pk_dict(&b);
	t_pk_mark(&b);
	for (char *k = strtok_r(copy, " ", &save); k; k = strtok_r(NULL, " ", &save)) {
		t_pk_str(&b, k);
		if (*k == 'n') {
			t_pk_mark(&b);
			t_pk_tensor(&b, "ByteStorage", "0", 3, 0, shape, stride, 1);
			t_pk_int(&b, 1);
			t_pk_tuple(&b);
		} else {
			t_pk_tensor(&b, "ByteStorage", "0", 3, 0, shape, stride, 1);
		}
	}
	t_pk_setitems(&b);
	t_pk_stop(&b);
	t_zip_add(&z, "archive/data.pkl", b.p, b.n);
	t_zip_add(&z, "archive/data/0", "abc", 3);
	t_zip_end(&z);
	t_dir_put(tree, file, z.b.p, z.b.n);
	t_zip_free(&z);
}

static int load(const struct t_dir *tree, struct t_sink *s, struct dcp_dir *dir,
		struct dcp_err *err)
{
	enum dcp_match match;
	const struct dcp_format *f;

	assert_int_equal(dcp_dir_open(tree->root, dir, NULL), 0);
	f = dcp_format_probe(dir, &match, NULL, 0);
	assert_non_null(f);
	assert_string_equal(f->name, "parts");
	t_sink_init(s, dir);
	return f->load(
		&(struct dcp_load){ .dir = dir, .formats = dcp_formats, .sink = &s->sink },
		err);
}

/* What a key is called is a matter of its own file, whatever others hold. */
static void components_are_emitted(void **state)
{
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "parts");
	put_state(&tree, "model.pt", "w own n model.deep.x");
	put_state(&tree, "optimizer.pt", "w lr n deep.x");
	put_state(&tree, "scheduler/a.pt", "deep.x");
	t_dir_text(&tree, "trainer_state.json", "{}");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);

	t_case("the only model keeps its keys");
	assert_non_null(t_sink_tensor(&s, "w"));
	assert_non_null(t_sink_tensor(&s, "own"));
	assert_non_null(t_sink_tensor(&s, "model.deep.x"));

	t_case("everything else has its name in front");
	assert_non_null(t_sink_tensor(&s, "optimizer.w"));
	assert_string_equal(t_sink_tensor(&s, "optimizer.w")->path[1], "w");
	assert_non_null(t_sink_tensor(&s, "optimizer.lr"));
	assert_non_null(t_sink_tensor(&s, "scheduler.deep.x"));
	assert_string_equal(t_sink_object(&s, "trainer_state")->path[0], "trainer_state");

	t_case("what refers to a key names it as it is told");
	assert_string_equal(t_sink_tensor(&s, "own")->alias_of, "w");
	assert_string_equal(t_sink_tensor(&s, "optimizer.lr")->alias_of, "optimizer.w");
	assert_string_equal(t_sink_tensor(&s, "optimizer.n.0")->alias_of, "optimizer.w");
	assert_string_equal(t_sink_object(&s, "optimizer.n.1")->json, "1");
	t_sink_finish(&s);
	dcp_dir_close(&dir);

	t_case("so have several models");
	put_state(&tree, "model/a.pt", "v");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);
	assert_non_null(t_sink_tensor(&s, "model.v"));
	assert_non_null(t_sink_tensor(&s, "model_2.w"));
	assert_null(t_sink_tensor(&s, "v"));
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* One rank or two: names of one form. A file of one value has no name but its own. */
static void ranks_of_parts_are_known(void **state)
{
	static const char *const files[] = { "random_states_0.pkl", "random_states_1.pkl" };

	(void)state;
	for (size_t world = 1; world <= 2; world++) {
		struct dcp_err err = { 0 };
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;

		t_case(world == 1 ? "one rank" : "two ranks");
		t_dir_make(&tree, "parts");
		put_state(&tree, "model_world_size_1_rank_0.pt", "w");
		put_state(&tree, "extra_state_world_size_1_rank_0.pt", "rng");
		for (size_t i = 0; i < world; i++)
			put_state(&tree, files[i], "cpu");
		t_dir_put(&tree, "custom_checkpoint_0.pkl", "\x80\2K\5.", 5);
		assert_int_equal(load(&tree, &s, &dir, &err), 0);
		assert_non_null(t_sink_tensor(&s, "w"));
		assert_non_null(t_sink_tensor(&s, "random_states_0.cpu"));
		assert_non_null(t_sink_tensor(&s, "extra_state.rank0.rng"));
		assert_string_equal(t_sink_object(&s, "custom_checkpoint_0")->json, "5");
		assert_int_equal(t_sink_object(&s, "custom_checkpoint_0")->npath, 1);
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* A trainer that has torch's names, but not torch. */
static void plain_pickles_are_parts(void **state)
{
	static const char seed[] = "\x80\2}X\4\0\0\0seedK\5s.", zip[] = "PK\3\4 cut short";
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "parts");
	t_dir_put(&tree, "model_state.tp00.pdparams", seed, sizeof(seed) - 1);
	t_dir_put(&tree, "optimizer.tp00.pdopt", seed, sizeof(seed) - 1);
	t_dir_put(&tree, "scheduler.pdparams", seed, sizeof(seed) - 1);
	t_dir_put(&tree, "rng_state_2.pth", seed, sizeof(seed) - 1);
	t_dir_put(&tree, "scaler.pt", zip, sizeof(zip) - 1);
	t_dir_text(&tree, "training_args.bin", "not a pickle");
	t_dir_text(&tree, "config.json", "{}");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);
	assert_string_equal(t_sink_object(&s, "seed")->json, "5");
	assert_string_equal(t_sink_object(&s, "optimizer.seed")->json, "5");
	assert_string_equal(t_sink_object(&s, "scheduler.seed")->json, "5");
	assert_string_equal(t_sink_object(&s, "rng_state_2.seed")->json, "5");
	t_case("what is neither says what torch's reader does");
	assert_non_null(strstr(t_sink_object(&s, "scaler")->error, "scaler.pt: "));
	assert_non_null(
		strstr(t_sink_object(&s, "training_args")->error, "training_args.bin: "));
	t_sink_finish(&s);
	dcp_dir_close(&dir);

	t_case("a group of another name: its files are versions");
	t_dir_put(&tree, "ema.pdparams", seed, sizeof(seed) - 1);
	assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
	assert_int_equal(dcp_parts_probe(dcp_formats, &dir, NULL, 0), DCP_MATCH_NO);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* clang-format off */
static const struct {
	const char *what;
	const char *states; /* files of torch.save, each with its key behind ":" */
	const char *texts;
	const char *parts; /* NULL: another family's, or several versions */
	const char *keys, *sidecars;
	const char *at; /* the directory in the tree that is the version */
} homes[] = {
	{ "a pipeline", "unet/diffusion_pytorch_model.bin:w vae/diffusion_pytorch_model.bin:v",
	  "model_index.json unet/config.json scheduler/scheduler_config.json",
	  "unet: hf-bin, vae: hf-bin", "unet.w vae.v",
	  "unet/config.json model_index.json scheduler/scheduler_config.json" },
	{ "of one model", "unet/diffusion_pytorch_model.bin:w", "model_index.json", "unet: hf-bin", "w",
	  "model_index.json" },
	{ "one model, but no pipeline", "unet/diffusion_pytorch_model.bin:w", "README.md", NULL, NULL, NULL },
	{ "while it trains",
	  "unet/diffusion_pytorch_model.bin:w ema/pytorch_model.bin:w optimizer.bin:lr",
	  "random_states_0.pkl", "ema: hf-bin, unet: hf-bin, optimizer: torch-save, random_states_0: pickle", "ema.w unet.w optimizer.lr",
	  "" },
	{ "no other files make a model's directory a part",
	  "unet/diffusion_pytorch_model.bin:w ema/pytorch_model.bin:w data.pt:lr", "", NULL, NULL, NULL },
	{ "modules", "pytorch_model.bin:w 2_Dense/pytorch_model.bin:d", "modules.json 1_Pooling/config.json",
	  "2_Dense: hf-bin, model: hf-bin", "w 2_Dense.d", "modules.json" },
	{ "adapters", "adapter_model.bin:w second/adapter_model.bin:d other/pytorch_model.bin:x",
	  "adapter_config.json second/adapter_config.json", "second: hf-bin, model: hf-bin", "w second.d",
	  "second/adapter_config.json adapter_config.json" },
	{ "a step whose model lies two levels below, and a file beside it",
	  "step_10/policy/weights/pytorch_model.bin:w step_10/train_dataloader.pt:d step_10/best.ckpt:b", "",
	  "policy: parts, best: torch-save, train_dataloader: torch-save", "w train_dataloader.d best.b", "", "step_10" },
	{ "and nothing beside it", "step_10/policy/weights/pytorch_model.bin:w", "", "policy: parts", "w", "", "step_10" },
	{ "by names of the tables", "global_step_5/actor/model/pytorch_model.bin:w global_step_5/a.pth:d", "",
	  "actor: parts, a: torch-save", "w a.d", "", "global_step_5" },
	{ "two roles", "step_10/policy/weights/pytorch_model.bin:w step_10/value/model/pytorch_model.bin:v step_10/a.bin:d", "",
	  "policy: parts, value: parts, a: torch-save", "policy.w value.v a.d", "", "step_10" },
	{ "beside a model", "step_10/policy/weights/pytorch_model.bin:w step_10/copy/pytorch_model.bin:v step_10/pytorch_model.bin:m", "",
	  "policy: parts, model: hf-bin", "m policy.w", "", "step_10" },
	{ "ColossalAI", "modeling/pytorch_model-00001.bin:w modeling/pytorch_model-00002.bin:v optimizer/pytorch_optim-00001.bin:o",
	  "", "modeling: hf-bin, optimizer: torch-save", "w v optimizer.o", "" },
	{ "a directory by no such name is several versions", "best/policy/weights/pytorch_model.bin:w best/a.pt:d", "",
	  NULL, NULL, NULL, "best" },
	{ "but for state files beside one such directory", "final/llm/pytorch_model.bin:w final/optimizer.pt:d final/a.pt:e", "",
	  "llm: hf-bin, a: torch-save, optimizer: torch-save", "w optimizer.d a.e", "", "final" },
	{ "of several, and of the best, the name is a version's",
	  "run/best/pytorch_model.bin:w run/optimizer.pt:d run/a.pt:e", "", "a: torch-save, optimizer: torch-save", "e optimizer.d", "", "run" },
	{ "a number alone is a step's", "10/llm/pytorch_model.bin:w 10/a.pt:e", "", "llm: hf-bin, a: torch-save", "w a.e", "", "10" },
	{ "files beside a directory that is a version", "weights/pytorch_model.bin:w a.pt:d b.pt:e", "",
	  "weights: hf-bin, a: torch-save, b: torch-save", "w a.d b.e", "" },
	{ "numbered saves are versions", "adapter_model.bin:w checkpoint-5/adapter_model.bin:d",
	  "adapter_config.json checkpoint-5/adapter_config.json", NULL, NULL, NULL },
};
/* clang-format on */

static void put_home(const struct t_dir *tree, size_t i)
{
	char copy[256], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", homes[i].states);
	for (char *f = strtok_r(copy, " ", &save); f; f = strtok_r(NULL, " ", &save)) {
		char *key = strchr(f, ':');

		*key++ = '\0';
		put_state(tree, f, key);
	}
	snprintf(copy, sizeof(copy), "%s", homes[i].texts);
	for (char *f = strtok_r(copy, " ", &save); f; f = strtok_r(NULL, " ", &save))
		t_dir_text(tree, f, "{}");
}

static void check_home(const struct t_sink *s, size_t i)
{
	char got[256] = "", *save = NULL;

	for (size_t k = 0; k < s->nfacts; k++)
		if (strcmp(s->fact[k].name, "sidecar") == 0)
			snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s",
				 *got ? " " : "", s->fact[k].value);
	assert_string_equal(got, homes[i].sidecars);
	assert_string_equal(t_sink_fact(s, "parts"), homes[i].parts);
	snprintf(got, sizeof(got), "%s", homes[i].keys);
	for (char *key = strtok_r(got, " ", &save); key; key = strtok_r(NULL, " ", &save))
		if (!t_sink_tensor(s, key))
			fail_msg("no %s", key);
}

/* Whose directory it is decides whether models in directories below are parts. */
static void families_decide_on_model_parts(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(homes); i++) {
		const struct dcp_format *f;
		struct dcp_err err = { 0 };
		enum dcp_match match;
		struct t_dir tree;
		struct dcp_dir dir;
		struct t_sink s;

		t_case(homes[i].what);
		t_dir_make(&tree, "parts");
		put_home(&tree, i);
		assert_int_equal(
			dcp_dir_open(homes[i].at ? t_dir_path(&tree, homes[i].at) : tree.root,
				     &dir, NULL),
			0);
		f = dcp_format_probe(&dir, &match, NULL, 0);
		assert_int_equal(f && strcmp(f->name, "parts") == 0, homes[i].parts != NULL);
		t_sink_init(&s, &dir);
		if (homes[i].parts) {
			assert_int_equal(match, DCP_MATCH_YES);
			if (f->load(&(struct dcp_load){ .dir = &dir,
							.formats = dcp_formats,
							.sink = &s.sink },
				    &err) < 0)
				fail_msg("%s", err.msg);
			check_home(&s, i);
		}
		t_sink_finish(&s);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

/* A part that cannot be read is told; when none can, there is nothing. */
static void broken_parts_are_reported(void **state)
{
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "parts");
	put_state(&tree, "model.pt", "w");
	t_dir_text(&tree, "optimizer.pt", "not a checkpoint");
	t_dir_text(&tree, "trainer_state.json", "{\"loss\": NaN}");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);
	assert_non_null(t_sink_tensor(&s, "w"));
	assert_non_null(strstr(t_sink_object(&s, "optimizer")->error, "optimizer.pt: "));
	assert_string_equal(t_sink_fact(&s, "sidecar"), "trainer_state.json");
	t_sink_finish(&s);
	dcp_dir_close(&dir);

	t_dir_text(&tree, "model.pt", "not one either");
	t_dir_delete(&tree, "trainer_state.json");
	assert_true(load(&tree, &s, &dir, &err) < 0);
	assert_true(err.msg[0]);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* The sink's failures come through, whichever call it is. */
static void failures_of_the_sink_are_returned(void **state)
{
	struct t_dir tree;
	size_t failed = 0;

	(void)state;
	t_dir_make(&tree, "parts");
	put_state(&tree, "model.pt", "w n");
	put_state(&tree, "optimizer.pt", "w");
	t_dir_text(&tree, "trainer_state.json", "{}");
	for (size_t at = 1; at < 30; at++) {
		enum dcp_match match;
		struct dcp_err err = { 0 };
		struct dcp_dir dir;
		struct t_sink s;
		int rc;

		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		t_sink_init(&s, &dir);
		s.fail_at = at;
		rc = dcp_format_probe(&dir, &match, NULL, 0)
			     ->load(&(struct dcp_load){ .dir = &dir,
							.formats = dcp_formats,
							.sink = &s.sink },
				    &err);
		assert_int_equal(rc, s.calls >= at ? -ENOSPC : 0);
		failed += rc < 0;
		t_sink_finish(&s);
		dcp_dir_close(&dir);
	}
	assert_true(failed > 5);
	t_dir_remove(&tree);
}

/* Links that lead round are no parts, and directories as deep as one likes cost nothing. */
static void circles_of_links_are_refused(void **state)
{
	char name[4096] = "";
	struct dcp_err err = { 0 };
	struct t_dir tree;
	struct dcp_dir dir;
	struct t_sink s;

	(void)state;
	t_dir_make(&tree, "parts");
	put_state(&tree, "model.pt", "w");
	put_state(&tree, "optimizer.pt", "lr");
	assert_int_equal(symlinkat(".", tree.fd, "actor"), 0);
	for (int i = 0; i < 30; i++)
		strcat(name, "critic/");
	strcat(name, "optimizer.pt");
	put_state(&tree, name, "deepest");
	put_state(&tree, "critic/model.pt", "c0");
	put_state(&tree, "critic/critic/model.pt", "c1");
	put_state(&tree, "critic/critic/critic/model.pt", "c2");
	put_state(&tree, "critic/critic/critic/optimizer.pt", "c3");
	assert_int_equal(load(&tree, &s, &dir, &err), 0);
	assert_non_null(t_sink_tensor(&s, "model.w"));
	assert_non_null(t_sink_tensor(&s, "optimizer.lr"));
	assert_null(t_sink_tensor(&s, "deepest"));
	assert_true(s.nfiles < 10);
	t_sink_finish(&s);
	dcp_dir_close(&dir);
	t_dir_remove(&tree);
}

/* Parts are known by their names; two of the same name are told apart. */
static void parts_are_listed(void **state)
{
	struct dcp_parts p;
	struct dcp_dir dir;

	(void)state;
	dcp_parts_init(&p, 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(dcp_dir_open("tests/golden/parts", &dir, NULL), 0);
		assert_int_equal(
			dcp_parts_add(&p, "model", "", DCP_PART_MODEL, &dcp_part_json, &dir),
			0);
	}
	assert_int_equal(dcp_parts_n(&p), 3);
	assert_string_equal(dcp_parts_at(&p, 0)->name, "model");
	assert_string_equal(dcp_parts_at(&p, 2)->name, "model_3");
	dcp_parts_finish(&p);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_parts_are_read),
		cmocka_unit_test(components_are_emitted),
		cmocka_unit_test(ranks_of_parts_are_known),
		cmocka_unit_test(plain_pickles_are_parts),
		cmocka_unit_test(broken_parts_are_reported),
		cmocka_unit_test(failures_of_the_sink_are_returned),
		cmocka_unit_test(circles_of_links_are_refused),
		cmocka_unit_test(parts_are_listed),
		cmocka_unit_test(families_decide_on_model_parts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
