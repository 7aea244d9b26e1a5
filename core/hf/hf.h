/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: a version as a Hugging Face model, for hf/ of a mount, export and the loader: its tensors
 * under the names that rules give them, and the files beside its weights.
 *
 * The result is a version of its own: the same stored files with a second index, which the rules
 * made and which is kept in the cache beside the first. The second index also lists what cannot be
 * mapped: a key that matches no rule becomes an object of type "unmapped" with an error, and a
 * tensor that cannot be made carries its error. Facts in that index: "rules"; how many keys of the
 * source were "mapped", "dropped", "unmatched", "collisions" and "failed"; and "cast", the dtype
 * that all tensors were cast to. Codes and scales are not cast: then "kept" is the requested dtype,
 * and "kept_by" the key or file that shows them.
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
	/*
	 * Map only the keys that begin with this prefix and a dot, and remove both. If no key does,
	 * map the keys in which this name stands where the rules have {from}. NULL: map all keys.
	 */
	const char *part;
	const char
		*assets; /* a directory to look for config.json and tokenizer first, or NULL */
	/* used instead of the config.json of the assets, or NULL */
	const struct dcp_rules_config *config;
	enum dcp_dtype cast;        /* as dcp_rules_source */
	const char *source, *where; /* where the version was found */
	bool even_none;             /* succeed even if the rules select no key */
};

/* Returns as dcp_version_open(); -ENOKEY: no key begins with the part, or the rules map no key.
 * @base must outlive the result; @how and @opts need to live only for the call. */
int dcp_hf_open(struct dcp_version *base, const struct dcp_hf_opts *how,
		const struct dcp_store_opts *opts, struct dcp_version **out,
		struct dcp_err *err);

/* How do keys contain @part? 1: some begin with @part and a dot; 0: some have @part as another
 * component between dots; -ENOKEY: none has it, and @err lists how keys begin. */
int dcp_hf_part(struct dcp_version *base, const char *part, struct dcp_err *err);

/*
 * Is a file missing without which the model or adapter cannot be loaded? 1: yes, the file can be
 * neither found nor made, and @out receives a one-line message without a newline; 0: nothing is
 * missing; -errno. Of @how only the places to search are used.
 */
int dcp_hf_ask_config(struct dcp_version *base, const struct dcp_hf_opts *how,
		      struct dcp_buf *out);

/* ---- properties of a mapped version; other versions have none of them ---- */

/* The content of its config.json; NULL: the version has none. */
const struct dcp_rules_config *dcp_hf_config(const struct dcp_version *v);

/* The stem of the names of its weight files: "diffusion_pytorch_model" if config.json is that of a
 * diffusers model. Each kind of adapter has its own stem, and a single file. */
const char *dcp_hf_stem(const struct dcp_version *v);

/* Tied tensors: the model ties them to others with the same bytes, so they may be left out of its
 * files. Returns their number; dcp_hf_is_tied(): is row @id one of them? */
size_t dcp_hf_ntied(const struct dcp_version *v);
bool dcp_hf_is_tied(const struct dcp_version *v, int64_t id);

/* A kind of adapter. The program that loads an adapter adds its weights to those of a model that is
 * stored elsewhere. Constants. */
struct dcp_adapter {
	const char *stem;   /* the stem of its only weight file */
	const char *config; /* the file that the program requires; NULL: none */
	const char *loader; /* the program; NULL: not known */
	const char *use;    /* lines of Markdown: how to load it */
};

/*
 * The kind of adapter that @v is; NULL: @v is not an adapter. A version is an adapter if all of its
 * keys begin as PEFT's do or are low-rank weights, or if it has adapter_config.json in place of
 * config.json.
 */
const struct dcp_adapter *dcp_hf_adapter(const struct dcp_version *v);

/* ---- the files of its weights ---- */

/*
 * Tensors are in natural order of their names, in model.safetensors or in several files of limited
 * size (more if a single tensor is larger); an adapter is always one file; without tensors there is
 * no file. Within a file, tensors with larger elements come first where alignment needs it.
 */
struct dcp_hf_weights {
	int64_t *row; /* row ids of the shown tensors, file by file */
	/* index in row of each file's first tensor; at the end the number of all tensors */
	size_t *first;
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

/* A file of the directory that is made. It replaces a file of the same name that lies beside the
 * weights. */
struct dcp_made {
	char *name;
	/*
	 * What the file is made from: objects whose keys begin with this text, or torchtitan's job
	 * config, by its path. NULL: the file is the config.json beside the weights, with the dtype
	 * that all tensors were cast to.
	 */
	const char *from;
	struct dcp_buf text;
};

/* What config.json is inferred from if the checkpoint has no such file. NULL: the file exists, or
 * there is no config.json at all. */
const char *dcp_hf_inferred(const struct dcp_version *v);

/*
 * Assets: the files that make weights a Hugging Face model: config.json, a tokenizer, code.
 *
 * They are looked for in the directory that the user names, the version's directory, and those
 * above it up to SOURCE; in each of these also in the subdirectories that trainers use:
 * huggingface/, hf_assets/, hf_ckpt/, actor/huggingface/, model/.hf_metadata/. If none of these has
 * a config.json, assets are taken from the directory inside the version that holds files of the
 * version and a config naming a model (step_3/policy/weights/), provided that there is only one. Of
 * several files with one name the first found wins. Two kinds of directories beside such files are
 * included with all their content: those that modules.json names (sentence-transformers:
 * 1_Pooling/, 2_Dense/), and additional_chat_templates/. Files above the version count only beside
 * a config.json that names a model, or an adapter_config.json that names a kind of adapter.
 * torchtitan's job config is searched in the directories themselves. Nothing outside of these
 * directories is opened.
 */
struct dcp_asset {
	const char
		*name; /* the name shown, perhaps with a directory: "1_Pooling/config.json" */
	uint32_t root, number;
};

enum { DCP_ASSET_ROOTS = 3 };

struct dcp_assets {
	struct dcp_beside root[DCP_ASSET_ROOTS];
	size_t nroots;
	struct dcp_asset *at;
	size_t n;
	/* the text of config.json; empty: there is no readable config.json */
	struct dcp_buf config;
	const char *job; /* a job config of torchtitan, from root[job_root] on; or NULL */
	uint32_t job_root;
	/* a model_index.json was found, but the weights are no part of its pipeline: it is left
	 * out */
	bool pipeline;
	/* directories beside the assets that are left out: names, each ending in NUL */
	struct dcp_buf left;
	struct dcp_asset_dir { /* the directories that were searched */
		uint32_t root;
		const char *path; /* relative to the root; ".": the root itself */
	} * dir;
	size_t ndirs;
	struct dcp_asset_from {    /* where to look */
		const char *extra; /* the directory that the user named; NULL: none */
		/* as for dcp_version_open(); not searched if the source itself is the version */
		const char *source;
		const char *where;         /* the version's directory, relative to source */
		const struct dcp_site *at; /* the version's directory, open */
		/* the version's index, which names its files; must outlive the assets */
		const struct dcp_index *index;
	} from;
	struct dcp_arena arena;
};

/* NULL: @v is not a mapped version. */
const struct dcp_assets *dcp_hf_assets(const struct dcp_version *v);
const struct dcp_file_id *dcp_asset_id(const struct dcp_assets *a, size_t i);
/* Open a view of the whole file of asset number @i of @v. -ENOENT: @v has fewer assets; else as
 * dcp_view_open(). */
int dcp_hf_open_asset(struct dcp_version *v, size_t i, struct dcp_view **out,
		      struct dcp_err *err);

/* A file that is shown beside the weights: an asset, or a file that is made. */
struct dcp_hf_file {
	const char *name;
	uint64_t size;
	const struct dcp_made *made; /* NULL: the file is an asset */
	size_t number; /* index among the files that are made, or among the assets */
};

/* Get the file at position *@i or the next shown file after it, and set *@i to the position behind
 * that file. Files that are made come first. False: no file is left. */
bool dcp_hf_next_file(const struct dcp_version *v, size_t *i, struct dcp_hf_file *out);
/* Does the glob @name match any of these files? */
bool dcp_hf_has_file(const struct dcp_version *v, const char *name);

/* ---- is it the model of its config.json? ---- */

struct dcp_expected {
	uint64_t tensors; /* number of tensors in the model */
	uint64_t needed;  /* number of tensors that may not be missing */
	uint64_t missing, misshaped,
		foreign;  /* foreign: tensors that the model does not have */
	uint64_t retyped; /* floating-point tensors with another dtype than config.json says */
	enum dcp_dtype dtype; /* the dtype in config.json; OTHER: not given */
	const char *family;   /* model_type of config.json, owned by @v; NULL: not given */
	/* Called for each difference except a dtype: @what is "missing", "shape" or "foreign". May
	 * be NULL. */
	void (*say)(void *ctx, const char *what, const char *key, const char *text);
	void *ctx;
};

/*
 * Compare the tensors of @v with those of the model of config.json. 1: compared. 2: compared, but
 * dcpfs knows only some tensors of this model. 0: not compared, because there is no config.json,
 * dcpfs does not know its family, or @v is an adapter for that model. A tensor that exists but
 * cannot be read does not count as missing.
 */
int dcp_hf_expect(struct dcp_version *v, struct dcp_expected *x, struct dcp_err *err);

/*
 * Append to @out, as one line without a newline, why @v cannot be loaded as a model. DCP_WHOLE:
 * nothing is known to be wrong, and nothing is appended; DCP_NO_CONFIG: config.json (for an
 * adapter: its config file) is missing; DCP_MISFIT: the tensors of @v differ from those of the
 * model of config.json; DCP_OTHER_NAMES: @v has none of that model's tensors. -errno.
 */
enum dcp_fit { DCP_WHOLE, DCP_NO_CONFIG, DCP_MISFIT, DCP_OTHER_NAMES };
int dcp_hf_fit(struct dcp_version *v, struct dcp_buf *out, struct dcp_err *err);

/*
 * quantized: which tensors of a version are quantized, that is, codes that represent numbers only
 * together with their scales?
 *
 *	P.weight (8-bit floats or integers, packed fours)  P.weight_scale_inv, P.scale, P.SCB, ...
 *	P.weight                                           P.weight.absmax, P.weight._scale
 *	P.qweight, P.weight_packed, P.gate_up_proj_blocks  P.scales, P.weight_scale, P.gate_up_proj_scales
 *
 * Keys and dtypes decide: a tensor is a code if its elements have few bits and a tensor named like
 * a scale lies in the same module or below its key. If config.json or a similar file says that the
 * model is quantized, all tensors with elements of few bits are codes. Tensors of 16 bits and more
 * in other modules are plain numbers.
 */

struct dcp_err;
struct dcp_index;
struct dcp_quantized;
struct dcp_version;

/* Examine @v and @base (the version that @v shows under other keys, or NULL). *out NULL: nothing is
 * quantized. The caller frees *out. -ENOMEM, or the error of the index. */
int dcp_quantized_find(const struct dcp_version *v, const struct dcp_version *base,
		       struct dcp_quantized **out, struct dcp_err *err);
void dcp_quantized_free(struct dcp_quantized *q);

/* The key or the file name that shows that the version is quantized. */
const char *dcp_quantized_by(const struct dcp_quantized *q);
/* Is @row a code or a scale? Returns the key or file name that shows it; NULL: the elements are
 * plain numbers. @q may be NULL. */
const char *dcp_quantized_row(const struct dcp_quantized *q, const struct dcp_row *row);

/* Fail with -ENOTSUP: @row may not be converted; @by is the result of dcp_quantized_row(). */
int dcp_quantized_refuse(const struct dcp_row *row, const char *by, struct dcp_err *err);
