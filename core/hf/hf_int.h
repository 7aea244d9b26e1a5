/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf_int: what the files of hf share.
 */
#pragma once
#include "core/hf/hf.h"

struct dcp_index;

struct dcp_hf {
	struct dcp_derived derived; /* first */
	struct dcp_assets assets;
	struct dcp_buf made;               /* struct dcp_made */
	struct dcp_buf tied;               /* int64_t: ids */
	struct dcp_rules_config *config;   /* NULL: there is none */
	const struct dcp_adapter *adapter; /* NULL: it is none */
};

/* Empty; NULL: no memory. */
struct dcp_hf *dcp_hf_create(void);
/* Find the files beside the weights of @base; @files NULL: only to look. */
int dcp_hf_find_assets(struct dcp_version *base, const struct dcp_hf_opts *how,
		       const struct dcp_files_opts *files, struct dcp_hf *hf,
		       struct dcp_err *err);
/* NULL: @v is none. */
const struct dcp_hf *dcp_hf_of(const struct dcp_version *v);

/* The config.json, or the like, that its loader misses; NULL: nothing. Append that to @out. */
const char *dcp_hf_missing(const struct dcp_hf *hf);
void dcp_hf_ask(const struct dcp_hf *hf, const char *name, struct dcp_buf *out);

/* ---- assets.c ---- */

/* Finish @out in any case. -ENOMEM, or an error if the directory that the user named cannot be
 * opened; the others may be missing. */
int dcp_assets_find(const struct dcp_asset_from *from, const struct dcp_files_opts *how,
		    struct dcp_assets *out, struct dcp_err *err);
/* Append the text of the file shown as @name; nothing: there is none that can be read. */
void dcp_assets_read(const struct dcp_assets *a, const char *name, struct dcp_buf *out);
/* Append the text of the job config; nothing: there is none that can be read. */
void dcp_assets_read_job(const struct dcp_assets *a, struct dcp_buf *out);
/* Is there a file shown as @name? */
bool dcp_assets_has(const struct dcp_assets *a, const char *name);
/* Show no file as @name. */
void dcp_assets_drop(struct dcp_assets *a, const char *name);
void dcp_assets_finish(struct dcp_assets *a);
/* -ESTALE: the search finds other files than before. */
int dcp_assets_check(const struct dcp_assets *a, struct dcp_err *err);

/* ---- adapter.c ---- */

/*
 * The kind that the keys of @ix and the files beside them say: 1 and *@out, which is NULL where
 * it is no adapter; -errno. Low-rank weights count only where no other weights are with them;
 * of a model that PEFT wraps, which has its adapter among the model's weights, one of the first
 * keys is enough if @wrapped.
 */
int dcp_adapter_find(struct dcp_index *ix, const struct dcp_assets *assets, bool wrapped,
		     const struct dcp_adapter **out);

/* ---- made.c: files that no file is, made of what the checkpoint keeps in its objects ---- */

/*
 * Append to @made (struct dcp_made) those that there are: of Composer, the config.json,
 * tokenizer and adapter of its Hugging Face model, which are that model's own; a config.json
 * that is inferred from Megatron's arguments, or from torchtitan's job config in @a. Files in @a
 * come first, and a tokenizer is of one origin: where any of its files is in @a none is made. The
 * text of config.json, wherever it is from, is in @a then. 0; -ENOMEM, or the index cannot be
 * read.
 */
int dcp_made_find(struct dcp_index *ix, struct dcp_assets *a, struct dcp_buf *made);
/* The config.json in @a with another dtype, unless it names none (dcp_rules_config_retype). 0,
 * -ENOMEM. */
int dcp_made_retype(struct dcp_assets *a, enum dcp_dtype to, struct dcp_buf *made);
/* NULL: there is none. */
struct dcp_made *dcp_made_named(const struct dcp_buf *made, const char *name);
void dcp_made_finish(struct dcp_buf *made);

/*
 * A config.json for what Megatron trained by the arguments in @n bytes of JSON, as objects show
 * them, in @out. 1; 0: the model is not one that is known here; -ENOMEM. Where that is not 1,
 * what @out holds is of no use.
 */
int dcp_made_megatron(const char *json, size_t n, struct dcp_buf *out);
/* The same from a job config that torchtitan wrote. */
int dcp_made_torchtitan(const char *json, size_t n, struct dcp_buf *out);
