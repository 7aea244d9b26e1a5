/* SPDX-License-Identifier: Apache-2.0 */
/* hf_int: declarations that the files of hf share. */
#pragma once
#include "core/hf/hf.h"

struct dcp_index;

struct dcp_hf {
	struct dcp_derived derived; /* first */
	struct dcp_assets assets;
	struct dcp_buf made;               /* struct dcp_made */
	struct dcp_buf tied;               /* int64_t: ids */
	struct dcp_rules_config *config;   /* NULL: none */
	const struct dcp_adapter *adapter; /* NULL: not an adapter */
};

/* Create an empty struct; NULL: out of memory. */
struct dcp_hf *dcp_hf_create(void);
/* Find the files beside the weights of @base; @files NULL: only search, open no table of files. */
int dcp_hf_find_assets(struct dcp_version *base, const struct dcp_hf_opts *how,
		       const struct dcp_files_opts *files, struct dcp_hf *hf,
		       struct dcp_err *err);
/* NULL: @v is not a mapped version. */
const struct dcp_hf *dcp_hf_of(const struct dcp_version *v);

/* The name of the file (config.json or the like) that the loader requires and that is missing;
 * NULL: nothing is missing. */
const char *dcp_hf_missing(const struct dcp_hf *hf);
void dcp_hf_ask(const struct dcp_hf *hf, const char *name, struct dcp_buf *out);

/* ---- assets.c ---- */

/* Finish @out in any case. -ENOMEM, or an error if the directory that the user named cannot be
 * opened; the others may be missing. */
int dcp_assets_find(const struct dcp_asset_from *from, const struct dcp_files_opts *how,
		    struct dcp_assets *out, struct dcp_err *err);
/* Append the text of the file shown as @name, or nothing if there is no readable file. */
void dcp_assets_read(const struct dcp_assets *a, const char *name, struct dcp_buf *out);
/* Append the text of the job config, or nothing if there is no readable one. */
void dcp_assets_read_job(const struct dcp_assets *a, struct dcp_buf *out);
/* Is there a file shown as @name? */
bool dcp_assets_has(const struct dcp_assets *a, const char *name);
/* Remove the file shown as @name from the assets. */
void dcp_assets_drop(struct dcp_assets *a, const char *name);
void dcp_assets_finish(struct dcp_assets *a);
/* Repeat the search. -ESTALE: it finds other files than before. */
int dcp_assets_check(const struct dcp_assets *a, struct dcp_err *err);

/* ---- adapters ---- */

/*
 * Find the kind of adapter by the keys of @ix and the files beside the weights. Returns 1 and sets
 * *@out (NULL: not an adapter); -errno. Low-rank weights make an adapter only if no other weights
 * lie with them. Exception: a model wrapped by PEFT has its adapter among the weights of the model;
 * if @wrapped, one adapter key among those at a few places, from the first to the last, is enough.
 */
int dcp_adapter_find(struct dcp_index *ix, const struct dcp_assets *assets, bool wrapped,
		     const struct dcp_adapter **out);

/* ---- made.c: files made from objects of the checkpoint, where no real file exists ---- */

/*
 * Append to @made (struct dcp_made) every file that can be made: from a Composer checkpoint, the
 * config.json, tokenizer and adapter files of the Hugging Face model, which Composer keeps
 * unchanged; a config.json inferred from Megatron's arguments, or from torchtitan's job config in
 * @a. Files in @a win, and files of a tokenizer are never mixed: if @a has any of them, none is
 * made. Afterwards @a has the text of config.json, wherever it comes from. 0; -ENOMEM, or the error
 * of the index.
 */
int dcp_made_find(struct dcp_index *ix, struct dcp_assets *a, struct dcp_buf *made);
/* Append the config.json in @a with the dtype @to, unless it names no dtype
 * (dcp_rules_config_retype). 0, -ENOMEM. */
int dcp_made_retype(struct dcp_assets *a, enum dcp_dtype to, struct dcp_buf *made);
/* The file called @name; NULL: there is none. */
struct dcp_made *dcp_made_named(const struct dcp_buf *made, const char *name);
void dcp_made_finish(struct dcp_buf *made);

/*
 * Write to @out the config.json of a model that Megatron trained with the arguments in @n bytes of
 * JSON, in the form in which objects show them. 1; 0: dcpfs does not know the model; -ENOMEM. If
 * the result is not 1, the content of @out is meaningless.
 */
int dcp_made_megatron(const char *json, size_t n, struct dcp_buf *out);
/* The same, from a job config written by torchtitan. */
int dcp_made_torchtitan(const char *json, size_t n, struct dcp_buf *out);
