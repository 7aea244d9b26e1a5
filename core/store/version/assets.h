/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assets: the files that make weights a Hugging Face model: config.json, a tokenizer, code.
 *
 * They are looked for in a directory that the user names, in the version's, and in those above
 * that up to SOURCE: in each itself, and in the directories below it that trainers use:
 * huggingface/, hf_assets/, hf_ckpt/, actor/huggingface/, model/.hf_metadata/. Where all these
 * have no config.json, the one directory inside the version that holds its files and a config
 * naming a model (step_3/policy/weights/) is it. Of several files of one name the first found
 * counts. Of a directory beside such files those that modules.json names
 * (sentence-transformers: 1_Pooling/, 2_Dense/) go along with all that is in them, and
 * additional_chat_templates/. What lies above the version counts only beside a config.json that
 * names a model, or an adapter_config.json that names a kind of adapter. torchtitan's job config
 * is looked for in the directories themselves. Nothing outside of these directories is opened.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"

struct dcp_err;
struct dcp_files;
struct dcp_files_opts;
struct dcp_index;

/* Where to look. */
struct dcp_asset_from {
	const char *extra;  /* named by the user; NULL: nothing */
	const char *source; /* as for dcp_version_open(); not searched when it is itself the
			       version */
	const char *where;  /* the version's directory below it */
	const struct dcp_site *at; /* the same, open */
	const struct dcp_index
		*index; /* the version's, which names its files; outlives the assets */
};

/* A directory that files are opened below. */
struct dcp_asset_root {
	const char *path;
	struct dcp_site place;
	struct dcp_file_id *id; /* names count from here */
	size_t n;
	struct dcp_files *files;
};

struct dcp_asset {
	const char *name; /* as it is shown: also "1_Pooling/config.json" */
	uint32_t root, number;
};

enum { DCP_ASSET_ROOTS = 3 };

struct dcp_assets {
	struct dcp_asset_root root[DCP_ASSET_ROOTS];
	size_t nroots;
	struct dcp_asset *at;
	size_t n;
	struct dcp_buf config; /* the text of config.json; empty: there is no readable one */
	const char *job;       /* a job config of torchtitan, from root[job_root] on; or NULL */
	uint32_t job_root;
	/* a model_index.json lies there, of which the weights are no part; it is left out */
	bool pipeline;
	struct dcp_buf
		left; /* directories beside them that are left out: texts, each with its NUL */
	struct dcp_asset_dir { /* those that were looked into */
		uint32_t root;
		const char *path; /* from the root on; "." is itself */
	} * dir;
	size_t ndirs;
	struct dcp_asset_from from;
	struct dcp_arena arena;
};

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

/* Are the files unchanged, and none was added that would be one of them? 0 or -ESTALE. */
int dcp_assets_check(const struct dcp_assets *a, struct dcp_err *err);

const struct dcp_file_id *dcp_asset_id(const struct dcp_assets *a, size_t i);
