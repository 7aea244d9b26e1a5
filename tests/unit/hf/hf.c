/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version under the names of a model, and the files that belong to it.
 *
 * covers: map, store/version/open
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/base/arena.h"
#include "core/hf/hf.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "tests/unit/t/version.h"

static struct dcp_rules *rules_of(const char *text)
{
	struct dcp_rules *r = NULL;
	struct dcp_err err = { 0 };

	if (dcp_rules_parse(text, strlen(text), "test", &r, &err) < 0)
		fail_msg("%s", err.msg);
	return r;
}

static struct dcp_version *map_from(struct t_version *p, struct dcp_version *base,
				    const struct dcp_rules *rules, const char *assets,
				    const char *source, const char *where)
{
	const struct dcp_hf_opts how = {
		.rules = rules, .assets = assets, .source = source, .where = where
	};
	struct dcp_version *v = NULL;
	struct dcp_err err = { 0 };

	if (dcp_hf_open(base, &how, &p->opts, &v, &err) < 0)
		fail_msg("%s", err.msg);
	return v;
}

static struct dcp_version *map(struct t_version *p, struct dcp_version *base,
			       const struct dcp_rules *rules, const char *assets)
{
	return map_from(p, base, rules, assets, p->source, "step-1");
}

static const char *error_of(struct dcp_version *v, enum dcp_row_kind kind, const char *key)
{
	struct dcp_index *ix = dcp_version_index(v);
	static char text[256];
	struct dcp_arena arena;
	struct dcp_tensor t = { 0 };
	struct dcp_object o = { 0 };
	struct dcp_row row;
	const char *error;

	dcp_arena_init(&arena, 1 << 20);
	t_case(key);
	assert_int_equal(dcp_index_by_key(ix, kind, key, &arena, &row), 0);
	if (kind == DCP_ROW_TENSOR)
		assert_int_equal(dcp_index_tensor(ix, row.id, &arena, &t, NULL), 0);
	else
		assert_int_equal(dcp_index_object(ix, row.id, &arena, &o, NULL), 0);
	error = kind == DCP_ROW_TENSOR ? t.error : o.error;
	snprintf(text, sizeof(text), "%s", error ? error : "");
	dcp_arena_finish(&arena);
	return text;
}

static void renamed_versions_share_their_files(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *base = t_version_open(p);
	struct dcp_rules *r = rules_of("x -> model.x\nz -> model.z\n");
	struct dcp_version *v = map(p, base, r, NULL);
	struct dcp_index *ix = dcp_version_index(v);
	struct dcp_arena arena;
	struct dcp_tensor t;
	struct dcp_row row;

	dcp_arena_init(&arena, 1 << 20);
	assert_ptr_equal(dcp_version_files(v), dcp_version_files(base));
	assert_int_equal(dcp_version_place(v)->fd, dcp_version_place(base)->fd);
	assert_int_not_equal(dcp_version_generation(v), dcp_version_generation(base));
	assert_int_equal(dcp_index_by_key(ix, DCP_ROW_TENSOR, "model.x", &arena, &row), 0);
	assert_int_equal(dcp_index_tensor(ix, row.id, &arena, &t, NULL), 0);
	assert_int_equal(t.pieces[0].nbytes, 60);
	assert_int_equal(dcp_index_by_key(ix, DCP_ROW_TENSOR, "x", &arena, &row), -ENOENT);
	assert_string_not_equal(error_of(v, DCP_ROW_TENSOR, "model.z"), "");
	assert_string_not_equal(error_of(v, DCP_ROW_OBJECT, "y"), "");
	assert_string_equal(dcp_index_meta(ix, "unmatched"), "1");
	assert_string_equal(dcp_index_meta(ix, "rules"), "test");
	assert_string_equal(dcp_index_meta(ix, "format"), "fake");
	assert_int_equal(dcp_version_check(v, NULL), 0);
	dcp_arena_finish(&arena);
	dcp_version_close(v);
	t_version_check(base); /* what it lent is there */
	dcp_version_close(base);
	dcp_rules_free(r);
}

static void note_difference(void *ctx, const char *what, const char *key, const char *text)
{
	dcp_buf_printf(ctx, "%s %s: %s\n", what, key, text);
}

static void keys_are_compared_with_the_model(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *base = t_version_open(p);
	struct dcp_rules *r =
		rules_of("x -> model.embed_tokens.weight\nz -> model.norn.weight\n");
	struct dcp_version *v = map(p, base, r, NULL);
	dcp_auto_buf struct dcp_buf told = DCP_BUF_INIT;
	struct dcp_expected x = { .say = note_difference, .ctx = &told };

	assert_int_equal(dcp_hf_expect(v, &x, NULL), 0);
	dcp_version_close(v);
	t_dir_text(&p->dir, "run/step-1/config.json",
		   "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 3, "
		   "\"vocab_size\": 7, \"tie_word_embeddings\": true}");
	v = map(p, base, r, NULL);
	assert_int_equal(dcp_hf_expect(v, &x, NULL), 1);
	assert_int_equal(x.tensors, 12);
	assert_int_equal(x.missing, 10); /* all but embeddings, of both that may be tied */
	assert_int_equal(x.misshaped, 1);
	assert_int_equal(x.foreign, 1);
	dcp_buf_add(&told, "", 1);
	assert_non_null(strstr(told.p, "missing model.norm.weight: it is not there, nearest is "
				       "model.norn.weight\n"));
	assert_non_null(strstr(told.p, " where config.json has [7, 3]\n"));
	dcp_version_close(v);
	t_case("whose numbers lie packed in others");
	t_dir_text(&p->dir, "run/step-1/config.json",
		   "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 3, "
		   "\"vocab_size\": 7, \"quantization_config\": {}}");
	v = map(p, base, r, NULL);
	x.misshaped = 0;
	assert_int_equal(dcp_hf_expect(v, &x, NULL), 1);
	assert_int_equal(x.misshaped, 0);
	dcp_version_close(v);
	dcp_version_close(base);
	dcp_rules_free(r);
}

/* Built again when the rules, the model or the index it was made from are others. */
static void renamed_versions_are_cached(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *base = t_version_open(p), *v;
	struct dcp_rules *one = rules_of("* -> *\n"), *two = rules_of("* -> m.*\n");
	static const struct {
		const char *what;
		bool second, config, rebuild, built;
	} rows[] = {
		{ "the first time", false, false, false, true },
		{ "the second time", false, false, false, false },
		{ "other rules", true, false, false, true },
		{ "and again", true, false, false, false },
		{ "the first are there still", false, false, false, false },
		{ "another model", false, true, false, true },
		{ "another index below it", false, true, true, true },
	};

	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		t_case(rows[i].what);
		if (rows[i].config)
			t_dir_text(&p->dir, "run/step-1/config.json",
				   "{\"model_type\": \"llama\"}");
		if (rows[i].rebuild) {
			dcp_version_close(base);
			p->opts.rebuild = true;
			base = t_version_open(p);
			p->opts.rebuild = false;
		}
		v = map(p, base, rows[i].second ? two : one, NULL);
		assert_int_equal(dcp_version_was_built(v), rows[i].built);
		assert_non_null(dcp_version_index_path(v));
		dcp_version_close(v);
	}
	dcp_version_close(base);
	dcp_rules_free(one);
	dcp_rules_free(two);
	assert_int_equal(p->warnings, 0);
}

/* Left out only where config.json says so and the bytes are the same. */
static void tied_tensors_are_known(void **state)
{
	struct t_version *p = *state;
	struct dcp_rules *r = rules_of("* -> *\ntie head = emb\ntie other = emb\n");
	static const struct {
		const char *config;
		size_t n;
	} rows[] = {
		{ "{\"tie_word_embeddings\": true}", 1 },
		{ "{\"tie_word_embeddings\": false}", 0 },
		{ "{}", 0 },
	};

	t_dir_text(&p->dir, "run/step-1/COMMIT",
		   "emb a.shard 0 60\nhead a.shard 0 60\nother b.shard 0 60\n");
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_version *base = t_version_open(p), *v;

		t_case(rows[i].config);
		t_dir_text(&p->dir, "run/step-1/config.json", rows[i].config);
		v = map(p, base, r, NULL);
		assert_int_equal(dcp_hf_ntied(v), rows[i].n);
		assert_int_equal(dcp_hf_is_tied(v, 2), rows[i].n != 0);
		assert_false(dcp_hf_is_tied(v, 1));
		dcp_version_close(v);
		dcp_version_close(base);
	}
	dcp_rules_free(r);
}

static void parts_are_found_by_name(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *base;
	static const struct {
		const char *part;
		int want;
	} rows[] = {
		{ "ema", 1 },   { "em", -ENOKEY }, { "w", 0 }, /* a name inside */
		{ "net.a", 1 }, { "a", 0 },        { "et", -ENOKEY }, { "a.", -ENOKEY },
	};

	t_dir_text(&p->dir, "run/step-1/COMMIT",
		   "ema.w a.shard 0 60\nnet.a.w a.shard 0 60\nw b.shard 0 60\n");
	base = t_version_open(p);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_err err = { 0 };

		t_case(rows[i].part);
		assert_int_equal(dcp_hf_part(base, rows[i].part, &err), rows[i].want);
	}
	dcp_version_close(base);
}

static const char *find(const struct dcp_assets *a, const char *name)
{
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->at[i].name, name) == 0)
			return dcp_asset_id(a, i)->name;
	return "none";
}

static void files_of_the_model_are_found(void **state)
{
	struct t_version *p = *state;
	struct dcp_version *base, *v;
	const struct dcp_assets *a;

	t_dir_text(&p->dir, "run/step-1/hf_assets/vocab.json", "{}");
	t_dir_text(&p->dir, "run/step-1/vocab.json", "{}");
	t_dir_text(&p->dir, "run/huggingface/tokenizer.json", "{}");
	t_dir_text(&p->dir, "run/huggingface/README.md", "theirs");
	t_dir_text(&p->dir, "run/generation_config.json", "{}");
	t_dir_text(&p->dir, "secret.json", "{}");
	assert_int_equal(symlinkat("../../secret.json", p->dir.fd, "run/step-1/s.json"), 0);
	base = t_version_open(p);
	v = map(p, base, NULL, NULL);
	a = dcp_hf_assets(v);
	assert_string_equal(find(a, "vocab.json"), "vocab.json");
	assert_string_equal(find(a, "tokenizer.json"), "huggingface/tokenizer.json");
	assert_string_equal(find(a, "README.md"), "none");
	assert_string_equal(find(a, "s.json"), "none");
	assert_string_equal(find(a, "generation_config.json"), "none");
	assert_int_equal(dcp_version_check(v, NULL), 0);
	dcp_version_close(v);
	t_case("in a directory between SOURCE and the version");
	v = map_from(p, base, NULL, NULL, p->dir.root, "run/step-1");
	assert_string_equal(find(dcp_hf_assets(v), "tokenizer.json"),
			    "run/huggingface/tokenizer.json");
	dcp_version_close(v);
	v = map(p, base, NULL, NULL);
	t_case("one more");
	t_dir_text(&p->dir, "run/hf_ckpt/merges.txt", "{}");
	assert_int_equal(dcp_version_check(v, NULL), -ESTALE);
	dcp_version_close(v);
	t_case("an adapter in SOURCE itself");
	t_dir_text(&p->dir, "run/adapter_config.json", "{\"r\": 4}");
	v = map(p, base, NULL, NULL);
	assert_string_equal(find(dcp_hf_assets(v), "adapter_config.json"), "none");
	dcp_version_close(v);
	t_dir_text(&p->dir, "run/adapter_config.json", "{\"peft_type\": \"LORA\"}");
	v = map(p, base, NULL, NULL);
	assert_string_equal(find(dcp_hf_assets(v), "adapter_config.json"),
			    "adapter_config.json");
	dcp_version_close(v);
	assert_int_equal(unlinkat(p->dir.fd, "run/adapter_config.json", 0), 0);
	t_case("a model in SOURCE itself");
	t_dir_text(&p->dir, "run/config.json", "{\"architectures\": [\"X\"]}");
	v = map(p, base, NULL, NULL);
	a = dcp_hf_assets(v);
	assert_string_equal(find(a, "generation_config.json"), "generation_config.json");
	assert_int_equal(a->config.n, strlen("{\"architectures\": [\"X\"]}"));
	assert_int_equal(dcp_version_check(v, NULL), 0);
	t_dir_touch(&p->dir, "run/config.json", 1000000000);
	assert_int_equal(dcp_version_check(v, NULL), -ESTALE);
	assert_int_equal(dcp_version_check(base, NULL), 0);
	dcp_version_close(v);
	t_case("a directory the user named");
	v = map(p, base, NULL, t_dir_path(&p->dir, "run/huggingface"));
	assert_string_equal(find(dcp_hf_assets(v), "tokenizer.json"), "tokenizer.json");
	dcp_version_close(v);
	dcp_version_close(base);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(keys_are_compared_with_the_model,
						t_version_setup, t_version_teardown),
		cmocka_unit_test_setup_teardown(renamed_versions_share_their_files,
						t_version_setup, t_version_teardown),
		cmocka_unit_test_setup_teardown(renamed_versions_are_cached, t_version_setup,
						t_version_teardown),
		cmocka_unit_test_setup_teardown(tied_tensors_are_known, t_version_setup,
						t_version_teardown),
		cmocka_unit_test_setup_teardown(parts_are_found_by_name, t_version_setup,
						t_version_teardown),
		cmocka_unit_test_setup_teardown(files_of_the_model_are_found, t_version_setup,
						t_version_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
