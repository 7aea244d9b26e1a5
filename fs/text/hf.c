/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/hf/hf.h"
#include "core/parse/json.h"
#include "core/rules/rules.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "fs/fs.h"
#include "fs/versions/versions.h"

enum { MAX_NAMED = 200 };

/* ---- model.safetensors.index.json ---- */

struct listing {
	struct dcpfs_spool *spool;
	struct dcp_jsonw w;
	char file[DCP_SAFETENSORS_NAME];
};

static int put_key(void *ctx, struct dcp_row *row)
{
	struct listing *l = ctx;

	dcp_jsonw_put_str(&l->w, row->key, l->file);
	return dcpfs_spool_flush(l->spool, false);
}

int dcpfs_hf_weight_map(const struct dcpfs_version *ver, struct dcpfs_spool *s,
			struct dcp_err *err)
{
	struct listing l = { .spool = s };
	int rc = 0;

	dcp_safetensors_begin_index(&l.w, &s->buf, ver->hf->weights.nbytes);
	for (size_t n = 0; rc == 0 && n < ver->hf->weights.nfiles; n++) {
		dcp_hf_weights_name(dcpfs_opened(ver), &ver->hf->weights, n, l.file);
		rc = dcp_hf_weights_rows(dcpfs_opened(ver), &ver->hf->weights, n, put_key, &l);
	}
	return dcp_err_say(err, rc ? rc : dcp_safetensors_end_index(&l.w));
}

int dcpfs_hf_made(const struct dcpfs_version *ver, uint64_t i, struct dcpfs_spool *s)
{
	struct dcp_hf_file f;

	if (!dcp_hf_next_file(dcpfs_opened(ver), &i, &f) || !f.made)
		return -ENOENT;
	return dcp_buf_add(&s->buf, f.made->text.p, f.made->text.n);
}

/* ---- README.md ---- */

static const char *fact_of(const struct dcpfs_version *ver, const char *name)
{
	const char *value = dcp_index_meta(dcpfs_index(ver), name);

	return value ? value : "0";
}

/* Is there a file of this kind beside the weights, or made by dcpfs? */
static bool has_file(const struct dcpfs_version *ver, const char *glob)
{
	return dcp_hf_has_file(dcpfs_opened(ver), glob);
}

static void put_made(const struct dcp_made *made, const struct dcp_assets *a, const char *dtype,
		     struct dcp_buf *b)
{
	if (!made->from)
		dcp_buf_printf(b, "- of that `config.json` the dtype is changed to %s\n",
			       dtype);
	else
		dcp_buf_printf(b, "- `%s`: no file, but %s: `%s%s`.%s\n", made->name,
			       made->from == a->job ? "inferred from torchtitan's job config"
			       : strcmp(made->name, "config.json") == 0
				       ? "inferred from what the checkpoint keeps of its model"
				       : "as the checkpoint keeps it",
			       made->from == a->job ? "" : "objects/", made->from,
			       strcmp(made->name, "config.json") == 0 ? " Compare it." : "");
}

/* A key between backticks. */
static const char *code_of(const char *key, char out[512])
{
	snprintf(out, 512, "%s", key);
	dcp_printable(out, 512);
	for (char *p = out; (p = strchr(p, '`'));)
		*p = '\'';
	return out;
}

/* Does the version's own data lie below the directory? */
static bool is_read(const struct dcpfs_version *ver, const char *dir)
{
	size_t n, length = strlen(dir);
	const struct dcp_file_id *id = dcp_index_files(dcpfs_index(ver), &n);
	bool is = false;

	for (size_t i = 0; !is && i < n; i++)
		is = !id[i].shown && strncmp(id[i].name, dir, length) == 0 &&
		     id[i].name[length] == '/';
	return is;
}

static void put_left(const struct dcpfs_version *ver, const struct dcp_assets *a,
		     struct dcp_buf *b)
{
	char name[512];

	if (a->pipeline)
		dcp_buf_str(b, "- left out: `model_index.json`, which is of a pipeline of "
			       "several models. Its parts are versions of\n  their own; what "
			       "is here is none of them.\n");
	for (size_t i = 0; i < a->left.n; i += strlen(a->left.p + i) + 1)
		if (!is_read(ver, a->left.p + i))
			dcp_buf_printf(b, "- left out: the directory `%s/`\n",
				       code_of(a->left.p + i, name));
}

static void put_assets(const struct dcpfs_version *ver, struct dcp_buf *b)
{
	const struct dcp_assets *a = dcp_hf_assets(dcpfs_opened(ver));
	const char *cast = dcp_index_meta(dcpfs_index(ver), "cast");
	const struct dcp_adapter *adapter = dcp_hf_adapter(dcpfs_opened(ver));
	const char *name = adapter ? adapter->config : "config.json";
	bool config = !name || has_file(ver, name);
	const struct dcp_rules_config *c = dcp_hf_config(dcpfs_opened(ver));
	/* the model needs a tokenizer */
	bool words = !adapter && (!c || (c->vocab && !c->class_name[0]));
	struct dcp_hf_file f;

	dcp_buf_printf(b, "## Beside the weights\n\n");
	for (size_t i = 0; i < a->n; i++)
		dcp_buf_printf(b, "- `%s` from `%s/%s`\n", a->at[i].name,
			       a->root[a->at[i].root].path, dcp_asset_id(a, i)->name);
	for (size_t i = 0; dcp_hf_next_file(dcpfs_opened(ver), &i, &f) && f.made;)
		put_made(f.made, a, cast ? cast : "", b);
	if (!config)
		dcp_buf_printf(b, "- missing: `%s`. Without it %s cannot load this%s.\n", name,
			       adapter ? adapter->loader : "transformers and vLLM",
			       adapter ? " adapter" : "");
	if (words && !has_file(ver, "tokenizer.json") && !has_file(ver, "*tokenizer.model") &&
	    !has_file(ver, "vocab*") && !has_file(ver, "*.tiktoken"))
		dcp_buf_str(b, "- missing: a tokenizer (`tokenizer.json` or "
			       "`tokenizer.model`)\n");
	put_left(ver, a, b);
	if (!config || (words && !has_file(ver, "tokenizer*")))
		dcp_buf_str(b, "\nWhat is missing is taken from a directory that has it: "
			       "`dcpfs mount --hf-assets DIR`.\n");
	dcp_buf_str(b, "\n");
}

struct shown {
	struct dcp_buf *out;
	uint64_t n;
};

static int put_failed(void *ctx, const struct dcp_row *row, const char *why)
{
	struct shown *t = ctx;
	char key[512];

	dcp_buf_printf(t->out, "- `%s`: %s\n", code_of(row->key, key),
		       why ? why : "it cannot be read");
	return ++t->n == MAX_NAMED;
}

/* List the keys that failed, tensors that cannot be read and keys without a rule, each with the
 * reason. */
static int put_all_failed(const struct dcpfs_version *ver, struct dcpfs_spool *s)
{
	uint64_t broken = dcp_index_counts(dcpfs_index(ver))->broken;
	struct shown named = { .out = &s->buf };
	int rc;

	if (!broken)
		return 0;
	dcp_buf_str(&s->buf, "## Keys that could not be mapped\n\n");
	rc = dcpfs_describe_broken(dcpfs_opened(ver), DCP_ROW_TENSOR, put_failed, &named);
	if (rc == 0)
		rc = dcpfs_describe_broken(dcpfs_opened(ver), DCP_ROW_OBJECT, put_failed,
					   &named);
	if (named.n < broken)
		dcp_buf_printf(&s->buf, "- and %llu more: `.dcpfs/errors.json` of the mount\n",
			       (unsigned long long)(broken - named.n));
	dcp_buf_str(&s->buf, "\n");
	return DCP_MIN(rc, 0);
}

static void put_difference(void *ctx, const char *what, const char *key, const char *text)
{
	struct shown *t = ctx;
	char name[512];

	if (t->n++ < MAX_NAMED)
		dcp_buf_printf(t->out, "- %s: `%s`: %s\n", what, code_of(key, name), text);
}

/* List rules of the user that matched no key. A preset is left out, since it has rules for several
 * models. */
static void put_unused(const struct dcpfs_version *ver, struct dcp_buf *b)
{
	const char *lines = dcp_index_meta(dcpfs_index(ver), "unused");
	struct dcp_rules_preset p;

	if (lines && !dcp_rules_preset_named(fact_of(ver, "rules"), &p))
		dcp_buf_printf(b, "No key fits the rule%s in line%s %s.\n\n",
			       strchr(lines, ' ') ? "s" : "", strchr(lines, ' ') ? "s" : "",
			       lines);
}

/* List entries of __metadata__ on which the files of the source differ. */
static void put_lost(const struct dcpfs_version *ver, struct dcp_buf *b)
{
	const char *text = dcp_index_meta(dcpfs_index(ver), "metadata_lost");
	dcp_auto_json struct dcp_json *list = NULL;

	if (!text || dcp_json_parse(text, strlen(text), &list, NULL) < 0)
		return;
	for (size_t i = 0; i < dcp_json_len(list); i++) {
		const struct dcp_json *lost = dcp_json_at(list, i);
		const char *name = dcp_json_str(dcp_json_get(lost, "name"));
		char shown[512], why[1024];

		snprintf(why, sizeof(why), "%s", dcp_json_str(dcp_json_get(lost, "why")) ?: "");
		dcp_printable(why, sizeof(why));
		dcp_buf_printf(b, "- lost: `%s`: %s\n", code_of(name ?: "", shown), why);
	}
	dcp_buf_str(b, "\n");
}

/* Compare the tensors with those of the model that config.json names. */
static int put_model(const struct dcpfs_version *ver, struct dcp_buf *b, struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf list = DCP_BUF_INIT;
	struct shown shown = { .out = &list };
	struct dcp_expected x = { .say = put_difference, .ctx = &shown };
	int rc = dcp_hf_expect(dcpfs_opened(ver), &x, err);

	if (rc == 0 && x.family)
		dcp_buf_printf(b,
			       "Shapes of `%s` are not known: not checked against "
			       "config.json.\n\n",
			       x.family);
	if (rc <= 0)
		return rc;
	dcp_buf_printf(b,
		       "## Against config.json\n\n%llu tensors; %llu missing, %llu of another "
		       "shape, %llu that the model does not have.\n",
		       (unsigned long long)x.tensors, (unsigned long long)x.missing,
		       (unsigned long long)x.misshaped, (unsigned long long)x.foreign);
	if (x.retyped)
		dcp_buf_printf(b, "%llu are not %s as config.json says: `--hf-dtype`.\n",
			       (unsigned long long)x.retyped, dcp_dtype_info(x.dtype)->torch);
	dcp_buf_printf(b, "\n%s%s", list.n ? list.p : "", list.n ? "\n" : "");
	return dcp_buf_error(&list);
}

static void put_weights(const struct dcpfs *fs, const struct dcpfs_version *ver,
			struct dcp_buf *b)
{
	const struct dcp_hf_weights *hf = &ver->hf->weights;
	const char *cast = dcp_index_meta(dcpfs_index(ver), "cast");
	const char *rules = fact_of(ver, "rules");
	struct dcp_rules_preset preset;
	bool ships = dcp_rules_preset_named(rules, &preset);
	unsigned long long n = hf->first[hf->nfiles];

	dcp_buf_printf(b,
		       "%llu tensor%s (%llu bytes) in %zu file%s, read from %s by dcpfs %s.\n"
		       "%s those of `%s`.\n\n",
		       n, dcp_s(n), (unsigned long long)hf->nbytes, hf->nfiles,
		       dcp_s(hf->nfiles), dcp_version_format(dcpfs_opened(ver))->what,
		       DCP_RELEASE,
		       cast ? "Nothing was copied: the numbers are"
			    : "Nothing was converted or copied: the bytes are",
		       fs->opts.source);
	if (dcp_index_meta(dcpfs_index(ver), "part"))
		dcp_buf_printf(b, "Only keys that begin with `%s.` were taken.\n\n",
			       fact_of(ver, "part"));
	if (dcp_index_meta(dcpfs_index(ver), "prefix"))
		dcp_buf_printf(b, "The model of `config.json` is what lies below `%s`.\n\n",
			       fact_of(ver, "prefix"));
	if (dcp_index_meta(dcpfs_index(ver), "others"))
		dcp_buf_printf(b,
			       "Left out are others, below: `%s`. `dcpfs mount "
			       "--hf-from PART` takes one of them.\n\n",
			       fact_of(ver, "others"));
	if (cast)
		dcp_buf_printf(
			b, "Those in floating point are cast to %s while they are read.\n\n",
			cast);
	if (dcp_index_meta(dcpfs_index(ver), "kept"))
		dcp_buf_printf(b,
			       "Not cast to %s: the model is quantized, by `%s`: codes and "
			       "scales mean numbers only together.\n\n",
			       fact_of(ver, "kept"), fact_of(ver, "kept_by"));
	dcp_buf_printf(
		b,
		"## Weights\n\n"
		"| | |\n| --- | --- |\n"
		"| rules | `%s`%s%s%s |\n"
		"| keys mapped | %s |\n"
		"| left out by the rules: optimizer state, averaged weights (`--hf-from ema` "
		"takes those under `ema.`) and the like | %s |\n"
		"| left out because no rule fits | %s |\n"
		"| wanted by two keys, or failed | %llu |\n"
		"| left out because tied to another | %zu |\n\n",
		rules, ships ? ": `dcpfs rules show " : "", ships ? rules : "",
		ships ? "`" : "", fact_of(ver, "mapped"), fact_of(ver, "dropped"),
		fact_of(ver, "unmatched"),
		(unsigned long long)(dcp_index_meta_number(dcpfs_index(ver), "collisions") +
				     dcp_index_meta_number(dcpfs_index(ver), "failed")),
		dcp_hf_ntied(dcpfs_opened(ver)));
	put_unused(ver, b);
	put_lost(ver, b);
	if (dcp_index_meta(dcpfs_index(ver), "inferred"))
		dcp_buf_printf(b, "Note: %s.\n\n", fact_of(ver, "inferred"));
}

/* Write how to load the model, depending on the kind of its config.json. */
static void put_use(const struct dcpfs_version *ver, struct dcp_buf *b)
{
	static const char from[] = ".from_pretrained(\"<this directory>\")";
	const struct dcp_rules_config *c = dcp_hf_config(dcpfs_opened(ver));
	const struct dcp_adapter *adapter = dcp_hf_adapter(dcpfs_opened(ver));
	char name[512];

	if (adapter)
		dcp_buf_printf(b, "An adapter, without the model that it is for:\n\n%s\n",
			       adapter->use);
	else if (c && c->class_name[0])
		dcp_buf_printf(b, "    diffusers.AutoModel%s    # %s\n\n", from,
			       code_of(c->class_name, name));
	else if (has_file(ver, "modules.json"))
		dcp_buf_str(b, "    sentence_transformers.SentenceTransformer(\"<this "
			       "directory>\")\n\n");
	else if (!c || strstr(c->architecture, "CausalLM") ||
		 strstr(c->architecture, "LMHeadModel"))
		dcp_buf_printf(b,
			       "    AutoModelForCausalLM%s\n"
			       "    vllm serve <this directory>\n\n",
			       from);
	else
		dcp_buf_printf(b, "    transformers.%s%s\n\n",
			       c->architecture[0] ? code_of(c->architecture, name)
						  : "AutoModel",
			       from);
}

int dcpfs_hf_readme(const struct dcpfs *fs, const struct dcpfs_version *ver,
		    struct dcpfs_spool *s, struct dcp_err *err)
{
	int rc = dcp_hf_fit(dcpfs_opened(ver), &s->buf, err);

	if (rc < 0)
		return rc;
	dcp_buf_printf(&s->buf, "%s# %s\n\n", rc ? "\n\n" : "", ver->of->name);
	put_weights(fs, ver, &s->buf);
	put_assets(ver, &s->buf);
	rc = put_model(ver, &s->buf, err);
	if (rc == 0)
		rc = put_all_failed(ver, s);
	dcp_buf_str(&s->buf, "## Use\n\n");
	put_use(ver, &s->buf);
	dcp_buf_str(&s->buf, "`shard/LAYOUT/RANK/` below this directory has what a rank of a "
			     "parallel job holds (`shard/tp4:llama/0`);\nit is not listed, so "
			     "that copying the directory copies the model.\n");
	return dcp_err_say(err, rc);
}
