/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of safetensors files: what DCP's HuggingFaceStorageWriter leaves, and what
 * Hugging Face's own save_pretrained() does.
 *
 *	*.safetensors                        whole tensors, or shards with DCP_SHARDING_INFO
 *	<model>.safetensors.index.json       which file holds which key; only with whole tensors
 *	sharded/<shard>.safetensors          read only when no file stands beside it: a
 *	                                     consolidated save keeps its shards there
 *
 * Nothing commits such a save. Names of the form <model>-<i>-of-<n> say how many there should
 * be, in all ranks' files (shard-<rank>-<model>-<i>-of-<n>) together.
 *
 * Files of one model are a set (name.h). A directory that belongs together is one version
 * and may hold several sets: the model keeps its keys when it is the only one, those of every
 * other set have its name in front (adapter_model.<key>). The same model once more is left out,
 * as a variant (the fact "variant" says which one is shown) or under Mistral's names
 * (consolidated*.safetensors beside model*.safetensors). Without a sign that all belongs
 * together each set is a version: a folder of downloaded models.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/format/hf/extras.h"
#include "core/format/hf/safetensors_int.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/json.h"
#include "core/parse/magic.h"

/* ---- which directories ---- */

/* Do its files have nothing to do with each other? */
static bool is_loose(const struct dcp_dir *dir)
{
	return (dcp_hf_many_sets(dir, DCP_HF_SAFETENSORS) || dcp_hf_has_torch(dir)) &&
	       !dcp_hf_is_home(dir);
}

/*
 * A file of a rank, where no model stands beside it: what it holds has the names that vLLM gives to
 * tensors which it fused and cut, and would pass for a model. NULL: there is none.
 */
static const char *rank_part(const struct dcp_dir *dir)
{
	struct dcp_hf_name name;

	if (dcp_hf_has_model(dir, DCP_HF_SAFETENSORS))
		return NULL;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir &&
		    dcp_hf_name(dir->entries[i].name, &name) == DCP_HF_SAFETENSORS &&
		    dcp_hf_is_rank_part(name.set))
			return dir->entries[i].name;
	return NULL;
}

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	const char *index = dcp_hf_index_name(dir, DCP_HF_SAFETENSORS_INDEX);
	const char *part = rank_part(dir);
	enum dcp_match match, sharded_match;
	dcp_auto_dir struct dcp_dir sharded = { 0 };

	if (part) {
		snprintf(why, n,
			 "%s is of vLLM's sharded_state: what one rank holds of tensors that "
			 "vLLM "
			 "fused and cut, which dcpfs does not put together; vLLM loads it "
			 "(load_format sharded_state)",
			 part);
		return DCP_MATCH_INCOMPLETE;
	}
	match = dcp_hf_check_parts(dir, DCP_HF_SAFETENSORS, why, n);
	if (match != DCP_MATCH_NO)
		return is_loose(dir) ? DCP_MATCH_MANY : match;
	if (index) {
		snprintf(why, n, "%s is there, but no safetensors file", index);
		match = DCP_MATCH_INCOMPLETE;
	}
	if (!dcp_dir_has_dir(dir, "sharded") ||
	    dcp_dir_open_at(dir, "sharded", &sharded, NULL) < 0)
		return match;
	sharded_match = dcp_hf_check_parts(&sharded, DCP_HF_SAFETENSORS, why, n);
	return sharded_match == DCP_MATCH_NO ? match : sharded_match;
}

static bool group(const char *file, char *version)
{
	enum { ROOM = DCP_GROUP_MAX - sizeof(".safetensors") };
	struct dcp_hf_name name;

	if (dcp_hf_name(file, &name) != DCP_HF_SAFETENSORS &&
	    name.kind != DCP_HF_SAFETENSORS_INDEX)
		return false;
	snprintf(version, DCP_GROUP_MAX, "%.*s.safetensors", (int)ROOM, name.set);
	return true;
}

static bool begins(const uint8_t *head, size_t n)
{
	return dcp_magic_is_safetensors(head, n);
}

static const char *commit_file(const struct dcp_dir *dir)
{
	return dcp_hf_index_name(dir, DCP_HF_SAFETENSORS_INDEX);
}

/* ---- which files ---- */

static int list_files(struct dcp_hf *h, struct dcp_err *err)
{
	dcp_auto_dir struct dcp_dir sharded = { 0 };
	int rc = dcp_hf_add_files(h, h->in->dir, "", DCP_HF_SAFETENSORS);

	if (rc == 0 && h->nfiles == 0) {
		rc = dcp_dir_open_at(h->in->dir, "sharded", &sharded, err);
		if (rc < 0)
			return rc;
		rc = dcp_hf_add_files(h, &sharded, "sharded/", DCP_HF_SAFETENSORS);
	}
	if (rc == 0 && h->nfiles == 0)
		return dcp_fail(err, -ENOENT, "no safetensors file");
	return rc;
}

static int read_all(struct dcp_hf *h, struct dcp_err *err)
{
	int rc = list_files(h, err);

	if (rc == 0)
		rc = dcp_hf_make_sets(h);
	if (rc == 0)
		rc = dcp_hf_read_indexes(h, h->in->dir, DCP_HF_SAFETENSORS_INDEX, true, err);
	for (uint32_t i = 0; i < h->nfiles && rc == 0; i++) {
		rc = h->files[i].left_over ? 0 : dcp_hf_read(h, i, err);
		dcp_load_progress(h->in, i + 1, h->nfiles, "files");
	}
	for (uint32_t i = 0; i < h->nsets && rc == 0; i++)
		rc = dcp_hf_add_set(h, i);
	return rc;
}

/* ---- deltas ---- */

static bool is_true(const char *text)
{
	return text && strcasecmp(text, "false") != 0 && strcmp(text, "0") != 0 && *text;
}

/* How it changes another version, in the words of its metadata; NULL: it does not. */
static const char *delta_encoding(const char *said)
{
	static const char *const whole[] = { "", "none", "full" };

	for (size_t i = 0; said && i < DCP_LEN(whole); i++)
		if (strcasecmp(said, whole[i]) == 0)
			return NULL;
	return said;
}

static int fail_delta(const char *file, const char *encoding, const char *base,
		      struct dcp_err *err)
{
	return dcp_fail(
		err, -ENOTSUP,
		"%s says that it is a delta (%.60s) of %s%.100s: changes, not the weights of "
		"a model, and dcpfs does not apply them yet",
		file, encoding, base ? "version " : "another version", base ? base : "");
}

/* What is saved between whole models: only what changed since another version. */
static int refuse_deltas(const struct dcp_hf *h, struct dcp_err *err)
{
	for (size_t i = 0; i < h->nsets; i++) {
		const struct dcp_hf_index *ix = &h->sets[i].index;
		const struct dcp_json *meta = dcp_json_get(ix->json, "metadata");
		const char *how =
			delta_encoding(dcp_json_str(dcp_json_get(meta, "delta_encoding")));

		if (how)
			return fail_delta(ix->name, how,
					  dcp_json_str(dcp_json_get(meta, "base_version")),
					  err);
	}
	for (size_t i = 0; i < h->nfiles; i++) {
		const struct dcp_safetensors *st = &h->files[i].header;
		const char *how = delta_encoding(dcp_safetensors_meta(st, "delta_encoding"));

		if (!how && is_true(dcp_safetensors_meta(st, "sparse")))
			how = "sparse: indices and values";
		if (how)
			return fail_delta(h->files[i].name, how,
					  dcp_safetensors_meta(st, "base_version"), err);
	}
	return 0;
}

/* ---- load ---- */

/* Of the first file that has __metadata__; or NULL. */
static const struct dcp_safetensors *with_metadata(const struct dcp_hf *h)
{
	for (size_t i = 0; i < h->nfiles; i++)
		if (h->files[i].header.nmeta)
			return &h->files[i].header;
	return NULL;
}

/*
 * The framework that wrote it; NULL: not known. Paddle's own merging writes no metadata, with
 * linear weights as Paddle has them; other programs write none either, with linear weights as torch
 * has them. PaddleFormers writes format np, and so does numpy, for arrays of any origin.
 */
static const char *framework(const struct dcp_hf *h)
{
	const struct dcp_safetensors *st = with_metadata(h);
	const char *format = st ? dcp_safetensors_meta(st, "format") : NULL;

	if (h->dcp)
		return "torch";
	if (!st || (format && strcmp(format, "np") == 0))
		return NULL;
	return format && strcmp(format, "pd") == 0 ? "paddle" : "safetensors";
}

static int emit_facts(struct dcp_hf *h)
{
	const struct dcp_sink *sink = h->in->sink;
	const char *from = framework(h);
	int rc = dcp_emit_fact(sink, 0, "framework", "%s", from ? from : "");

	rc = dcp_emit_fact(sink, rc, "world_files", "%zu", h->nfiles);
	for (size_t i = 0; i < h->nfiles && rc == 0; i++)
		rc = dcp_emit_metadata(sink, h->files[i].name, &h->files[i].header);
	for (size_t i = 0; i < h->nsets && rc == 0; i++)
		if (dcp_hf_variant(h->sets[i].name))
			rc = dcp_emit_meta(sink, "variant", dcp_hf_variant(h->sets[i].name));
	for (size_t i = 0; i < h->nfiles && rc == 0; i++) {
		const struct dcp_hf_file *f = &h->files[i];
		const char *why = f->error ? f->error : f->cut;

		if (!why)
			continue;
		dcp_log(h->in->log, DCP_LOG_WARN, "%s", why);
		rc = dcp_emit_meta(sink, "broken_file", why);
	}
	return rc;
}

static bool is_shown(void *ctx, const char *name)
{
	return dcp_hf_find_file(ctx, name) != NULL;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct dcp_hf h = { .in = in };
	int rc;

	dcp_arena_init(&h.arena, DCP_HF_MEMORY);
	rc = read_all(&h, err);
	if (rc == 0)
		rc = refuse_deltas(&h, err);
	if (rc == 0)
		rc = dcp_hf_emit(&h);
	if (rc == 0)
		rc = dcp_hf_emit_rest(in, is_shown, &h);
	if (rc == 0)
		rc = emit_facts(&h);
	dcp_hf_finish(&h);
	return rc;
}

const struct dcp_format dcp_format_torch_hf = {
	.name = "safetensors",
	.what = "safetensors files (Hugging Face, or DCP's HuggingFaceStorageWriter)",
	.probe = probe,
	.group = group,
	.begins = begins,
	.apart = true,
	.commit_file = commit_file,
	.load = load,
	.marks =
		(const struct dcp_mark[]){
			{ "@(*.safetensors|*.safetensors.index.json)",
			  "a directory of safetensors files", .general = true },
			{ 0 },
		},
};
