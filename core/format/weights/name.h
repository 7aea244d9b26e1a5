/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name: the role of a file in a Hugging Face directory, from the file's name.
 *
 *	model.safetensors                       set "model"
 *	model-00001-of-00003.safetensors        part 1 of 3 of set "model"
 *	shard-00002-model-00001-of-00003...     the same, written by one rank of DCP's writer
 *	rank-00000-of-00002.safetensors         all that one rank of dcpfs's writer has, a set by
 *	                                        itself
 *	model.safetensors.index.json            the index of set "model": which part holds which key
 *	model-rank-0-part-1.safetensors         a rank's file of vLLM's sharded_state, a set by itself
 *	model.fp16.safetensors                  set "model.fp16", a variant; diffusers also writes
 *	                                        model-00001-of-00002.fp16.safetensors
 *	model-00001.safetensors                 a part of set "model"; the number of parts is only in
 *	                                        the index (ColossalAI)
 *	pytorch_model-00001-of-00002.bin        a part by torch.save, set "pytorch_model"
 *
 * The files of one set are one model. Libraries call their sets "model", "pytorch_model",
 * "diffusion_pytorch_model", "adapter_model" or "consolidated". If a directory has a set of such a
 * name, or a config.json or a similar file, all sets in the directory belong together. In other
 * directories every set is a version by itself.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/intern.h"
#include "core/format/format.h"

struct dcp_dir;

enum dcp_weights_kind {
	DCP_WEIGHTS_OTHER,
	DCP_WEIGHTS_SAFETENSORS,
	DCP_WEIGHTS_SAFETENSORS_INDEX,
	DCP_WEIGHTS_TORCH, /* .bin */
	DCP_WEIGHTS_TORCH_INDEX,
};

struct dcp_weights_name {
	enum dcp_weights_kind kind;
	uint32_t part, nparts; /* part 1 .. nparts; both 0: the name has no part */
	char set[DCP_GROUP_MAX];
};

/* Take apart the name @file. Returns OTHER for a name that is none of the above. */
enum dcp_weights_kind dcp_weights_name(const char *file, struct dcp_weights_name *out);

/* The place of @set in the order of sets: 0 for the model itself, then sets of other names,
 * adapters and variants. Last, DCP_WEIGHTS_RANK_TWIN, come the sets that may hold the model once
 * more: "consolidated", as Mistral names it, and the files of sharded_state. */
unsigned dcp_weights_rank(const char *set);
#define DCP_WEIGHTS_RANK_TWIN 9

/* Is @set one of the files that vLLM's and SGLang's sharded_state has for each rank? */
bool dcp_weights_is_rank_part(const char *set);

/* Is @set a name that a library gives its weights? */
bool dcp_weights_is_named(const char *set);

/* The variant of @set, "fp16" for model.fp16; NULL: @set has no known variant. */
const char *dcp_weights_variant(const char *set);

/* Length of the component, the name of @set without its variant: 5 for "model" and "model.fp16".
 * Only sets with a library's name have variants. */
size_t dcp_weights_component(const char *set);

/*
 * The sets of one directory, which are one version. Variants of a set hold the same model again,
 * under the same keys, so only one is shown: the set without a variant, or else the first. A sole
 * model keeps its keys; the keys of every other set begin with the component of the set.
 */
struct dcp_weights_sets {
	struct dcp_intern all, hidden, variants, components;
	size_t nmodels;
};
/* Read the sets of @kind. Returns 0 or -ENOMEM. The caller finishes @s also after an error. */
int dcp_weights_sets_read(struct dcp_weights_sets *s, const struct dcp_dir *dir,
			  enum dcp_weights_kind kind);
/* Is @set a variant that is not shown? */
bool dcp_weights_sets_hide(const struct dcp_weights_sets *s, const char *set);
/* Does @set keep its keys, without the component in front? */
bool dcp_weights_sets_bare(const struct dcp_weights_sets *s, const char *set);
void dcp_weights_sets_finish(struct dcp_weights_sets *s);

/* Do all sets in @dir belong together, as one version? */
bool dcp_weights_is_home(const struct dcp_dir *dir);

/* Is a set of rank 0 among the files of @kind? Then a set of rank DCP_WEIGHTS_RANK_TWIN holds the
 * same model under other keys. */
bool dcp_weights_has_model(const struct dcp_dir *dir, enum dcp_weights_kind kind);

/* Do the files of @kind belong to more than one set? */
bool dcp_weights_many_sets(const struct dcp_dir *dir, enum dcp_weights_kind kind);

/* Does @dir have a file that torch.save may have written, by its extension? */
bool dcp_weights_has_torch(const struct dcp_dir *dir);

/* YES: there are files of @kind, and no part of a set is missing. INCOMPLETE: a part is missing,
 * and @why names it. NO: there are no files of @kind. */
enum dcp_match dcp_weights_check_parts(const struct dcp_dir *dir, enum dcp_weights_kind kind,
				       char *why, size_t size);

/* The name of the index file; of several, the index of the set with the lowest rank. NULL: none. */
const char *dcp_weights_index_name(const struct dcp_dir *dir, enum dcp_weights_kind index);

/*
 * index: tells which file of a set holds which key.
 *
 *	{"metadata": {"total_size": 123}, "weight_map": {key: file}}
 */

struct dcp_err;
struct dcp_json;
struct dcp_sink;

struct dcp_weights_index {
	const char *name;           /* of the index file; NULL: there is no index */
	struct dcp_json *json;      /* the whole file */
	const struct dcp_json *map; /* weight_map; NULL: none */
};

/* Emit the index file @name to the sink, then read it into @out. Fails with -EBADMSG (the file is
 * damaged), -E2BIG, or the error of opening the file. */
int dcp_weights_index_read(const struct dcp_dir *dir, const struct dcp_sink *sink,
			   const char *name, struct dcp_weights_index *out,
			   struct dcp_err *err);
void dcp_weights_index_finish(struct dcp_weights_index *ix);

/* The file that holds @key according to the index, or NULL. */
const char *dcp_weights_index_file(const struct dcp_weights_index *ix, const char *key);

/*
 * The reason why a key, which the index promises in @file (NULL: the index names no file), was not
 * found. The message is written to @err and returned. @held: the file is there and was read;
 * @broken: why the file could not be read, or NULL.
 */
const char *dcp_weights_index_excuse(const struct dcp_weights_index *ix, const char *file,
				     int held, const char *broken, struct dcp_err *err);

/*
 * extras: the files of a Hugging Face directory beside the weights.
 *
 *	config.json, tokenizer.json, ...   emitted as sidecars
 *	optimizer.pt, scheduler.pt, ...    files of torch.save; their keys get the file's name
 *	                                   in front: optimizer.state.0.exp_avg
 *	consolidated.safetensors, ...      the same weights once more, or nothing dcpfs reads:
 *	                                   the fact "left_out" names them
 */

struct dcp_load;

/* Is it a file that belongs to a model but holds no weights? By name. */
bool dcp_weights_is_sidecar(const char *name);

/* May it hold weights? By name. */
bool dcp_weights_may_be(const char *name);

/* Emit all of @in's directory except files for which @shown is true. A broken file is emitted as an
 * object with its error. 0, -ENOMEM or the error of the sink. */
int dcp_weights_emit_rest(const struct dcp_load *in, bool (*shown)(void *ctx, const char *name),
			  void *ctx);
