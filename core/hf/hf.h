/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: a version as a Hugging Face model, for hf/ of a mount, export and the loader: its tensors
 * under the names that rules give them, and the files beside its weights.
 *
 * It is a version of its own: the same stored files, and a second index over them that the
 * rules made, kept in the cache beside the first. What cannot be mapped is in it, too: keys that
 * match no rule are objects of the type "unmapped" whose error says so, and tensors that cannot
 * be made carry their error. Its facts: "rules", the dtype that all were "cast" to, or would
 * be, were they not "kept" as codes and scales, "kept_by" a key or file that says so, and how many
 * keys of the source were "mapped", "dropped", "unmatched", "collisions" and "failed".
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/model/dtype.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/store/version/version.h"

struct dcp_files_opts;
struct dcp_rules;
struct dcp_rules_config;
struct dcp_view;

struct dcp_hf_opts {
	const struct dcp_rules *rules; /* NULL: the rules that fit the family and config.json */
	/* Only keys that begin with it and a dot, both removed; where none does, those with it
	 * inside that the rules call {from}; NULL: all. */
	const char *part;
	const char
		*assets; /* a directory to look for config.json and tokenizer first, or NULL */
	const struct dcp_rules_config *config; /* instead of what assets say, or NULL */
	enum dcp_dtype cast;                   /* as dcp_rules_source */
	const char *source, *where;            /* of the version, as it was found */
	bool even_none;                        /* succeed even if the rules select no key */
};

/* Returns as dcp_version_open(); -ENOKEY: no key begins with the part, or the rules make
 * nothing of any. @base must outlive the result; @how and @opts only the call. */
int dcp_hf_open(struct dcp_version *base, const struct dcp_hf_opts *how,
		const struct dcp_store_opts *opts, struct dcp_version **out,
		struct dcp_err *err);

/* 1: keys begin with @part and a dot; 0: they have it between dots; -ENOKEY: neither, and @err
 * has how they do begin. */
int dcp_hf_part(struct dcp_version *base, const char *part, struct dcp_err *err);

/*
 * 1: what loads the model, or the adapter, cannot do without a file that would neither be found
 * nor made, and @out says so, in one line without its end; 0: nothing is missing; -errno. Of
 * @how only where to look.
 */
int dcp_hf_ask_config(struct dcp_version *base, const struct dcp_hf_opts *how,
		      struct dcp_buf *out);

/* ---- what such a version has; of any other it is nothing ---- */

/* What its config.json says; NULL: there is none. */
const struct dcp_rules_config *dcp_hf_config(const struct dcp_version *v);

/* What names of its weights begin with: "diffusion_pytorch_model" where config.json is of
 * diffusers; an adapter's kind has its own, and is one file alone. */
const char *dcp_hf_stem(const struct dcp_version *v);

/* Tensors that the model ties to others and that have the same bytes: they may be left out of its
 * files. How many there are; is row @id one? */
size_t dcp_hf_ntied(const struct dcp_version *v);
bool dcp_hf_is_tied(const struct dcp_version *v, int64_t id);

/* A kind of adapter, whose weights are added to those of a model that lies elsewhere, by the
 * program that loads it. Constants. */
struct dcp_adapter {
	const char *stem; /* what the name of its one file begins with */
	const char
		*config; /* the file that the program cannot do without; NULL: it asks none */
	const char *loader; /* the program; NULL: not known */
	const char *use;    /* lines of Markdown: how it is loaded */
};

/* The kind that it is; NULL: it is none. All of its keys begin as PEFT's do or are low-rank
 * weights, or adapter_config.json stands for config.json. */
const struct dcp_adapter *dcp_hf_adapter(const struct dcp_version *v);

/* ---- the files of its weights ---- */

/*
 * Tensors are in natural order of their names, in model.safetensors or in several files of a size
 * at most (more if a single tensor is larger); an adapter is always one file; without tensors there
 * is no file. Within a file, tensors with larger elements come first where alignment needs it.
 */
struct dcp_hf_weights {
	int64_t *row;  /* row ids of the shown tensors, file by file */
	size_t *first; /* index in row of each file's first tensor; and the number of all */
	size_t nfiles;
	uint64_t nbytes; /* of all tensors shown */
};

/* Finish @out in any case. */
int dcp_hf_weights_plan(struct dcp_version *v, uint64_t size, struct dcp_hf_weights *out);
void dcp_hf_weights_finish(struct dcp_hf_weights *w);

/* The name of file number @n, as "model-00001-of-00012.safetensors" (dcp_hf_stem()); after the last
 * one, the name of the index of files. */
void dcp_hf_weights_name(const struct dcp_version *v, const struct dcp_hf_weights *w, size_t n,
			 char name[DCP_SAFETENSORS_NAME]);

/* Call @fn for the tensors of file number @n, in their order. -ENOENT: no such file; a negative
 * return of @fn is passed on. */
struct dcp_row;
int dcp_hf_weights_rows(const struct dcp_version *v, const struct dcp_hf_weights *w, size_t n,
			int (*fn)(void *ctx, struct dcp_row *row), void *ctx);

/* ---- the files beside its weights ---- */

/* A file of the directory that is made. It takes the place of one of that name that lies beside the
 * weights. */
struct dcp_made {
	char *name;
	/* What it is made of: objects whose keys begin so, or torchtitan's job config, by its
	 * path. NULL: the config.json beside the weights, with the dtype that all were cast
	 * to. */
	const char *from;
	struct dcp_buf text;
};

/* What its config.json is made of where no file is one. NULL: a file is, or there is none. */
const char *dcp_hf_inferred(const struct dcp_version *v);

/*
 * Assets: the files that make weights a Hugging Face model: config.json, a tokenizer, code.
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
struct dcp_asset {
	const char *name; /* as it is shown: also "1_Pooling/config.json" */
	uint32_t root, number;
};

enum { DCP_ASSET_ROOTS = 3 };

struct dcp_assets {
	struct dcp_beside root[DCP_ASSET_ROOTS];
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
	struct dcp_asset_from {            /* where to look */
		const char *extra;         /* named by the user; NULL: nothing */
		const char *source;        /* as for dcp_version_open(); not searched when it is
				       itself the version */
		const char *where;         /* the version's directory below it */
		const struct dcp_site *at; /* the same, open */
		const struct dcp_index
			*index; /* the version's, which names its files; outlives the assets */
	} from;
	struct dcp_arena arena;
};

/* NULL: @v is no such version. */
const struct dcp_assets *dcp_hf_assets(const struct dcp_version *v);
const struct dcp_file_id *dcp_asset_id(const struct dcp_assets *a, size_t i);
/* All of asset number @i of @v. -ENOENT: there are fewer; else as dcp_view_open(). */
int dcp_hf_open_asset(struct dcp_version *v, size_t i, struct dcp_view **out,
		      struct dcp_err *err);

/* Of all these together: what is shown as @name. */
struct dcp_hf_file {
	const char *name;
	uint64_t size;
	const struct dcp_made *made; /* NULL: it lies there */
	size_t number;               /* among the made, or the assets */
};

/* The file at place *@i, or the next one, and *@i is then the place behind it; those that are made
 * come first. False: there are no more. */
bool dcp_hf_next_file(const struct dcp_version *v, size_t *i, struct dcp_hf_file *out);
/* Does the glob @name fit any of them? */
bool dcp_hf_has_file(const struct dcp_version *v, const char *name);

/* ---- is it the model of its config.json? ---- */

struct dcp_expected {
	uint64_t tensors;                     /* that the model has */
	uint64_t needed;                      /* of the tensors that may not be missing */
	uint64_t missing, misshaped, foreign; /* foreign: the model has no such tensor */
	uint64_t retyped;     /* floating-point, but of another type than config.json says */
	enum dcp_dtype dtype; /* the type config.json says; OTHER: it says none */
	const char *family;   /* model_type of config.json, of @v; NULL: there is none */
	/* Called for each but the retyped: @what is "missing", "shape" or "foreign". May be
	 * NULL. */
	void (*say)(void *ctx, const char *what, const char *key, const char *text);
	void *ctx;
};

/*
 * 1: compared. 2: the same, but only some tensors of the model are known here. 0: there is no
 * config.json, its family is not known here, or @v is an adapter to that model. A tensor that
 * is there but cannot be read does not count as missing.
 */
int dcp_hf_expect(struct dcp_version *v, struct dcp_expected *x, struct dcp_err *err);

/*
 * Append to @out, in one line without its end, why @v is no model that can be loaded.
 * DCP_WHOLE: nothing is known to be wrong, and nothing is appended; DCP_NO_CONFIG: there is no
 * config.json, or an adapter's; DCP_MISFIT: its tensors are not those of the model of config.json,
 * DCP_OTHER_NAMES: it has none of them. -errno.
 */
enum dcp_fit { DCP_WHOLE, DCP_NO_CONFIG, DCP_MISFIT, DCP_OTHER_NAMES };
int dcp_hf_fit(struct dcp_version *v, struct dcp_buf *out, struct dcp_err *err);
