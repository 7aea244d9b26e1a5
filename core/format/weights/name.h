/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name: what is a file of a Hugging Face directory, by its name?
 *
 *	model.safetensors                       set "model"
 *	model-00001-of-00003.safetensors        part 1 of 3 of it
 *	shard-00002-model-00001-of-00003...     the same, of one rank of DCP's writer
 *	rank-00000-of-00002.safetensors         what one rank of dcpfs's writer has, a set by itself
 *	model.safetensors.index.json            its index: which part holds which key
 *	model-rank-0-part-1.safetensors         a rank's file of vLLM's sharded_state, a set by itself
 *	model.fp16.safetensors                  set "model.fp16", a variant; diffusers also writes
 *	                                        model-00001-of-00002.fp16.safetensors
 *	model-00001.safetensors                 a part of it, of how many is in the index (ColossalAI)
 *	pytorch_model-00001-of-00002.bin        the same by torch.save, set "pytorch_model"
 *
 * Files of one set are one model. Libraries call theirs "model", "pytorch_model",
 * "diffusion_pytorch_model", "adapter_model" or "consolidated"; a set called so, or a
 * config.json and its like, says that all that lies in the directory belongs together.
 * Elsewhere every set is a version by itself.
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
	uint32_t part, nparts; /* part 1 .. nparts, or 0 of 0: all of it */
	char set[DCP_GROUP_MAX];
};

/* OTHER when the name is none of the above. */
enum dcp_weights_kind dcp_weights_name(const char *file, struct dcp_weights_name *out);

/* The order of a set among others: 0 the model itself, then sets of other names, adapters,
 * variants, and the model once more as Mistral names it. */
unsigned dcp_weights_rank(const char *set);
#define DCP_WEIGHTS_RANK_TWIN 9

/* One of the files that vLLM's and SGLang's sharded_state has of each rank? */
bool dcp_weights_is_rank_part(const char *set);

/* Does a library call its weights so? */
bool dcp_weights_is_named(const char *set);

/* "fp16" of model.fp16, a variant of a library's weights; NULL: none. */
const char *dcp_weights_variant(const char *set);

/* Length of the name of @set without the variant of a library's weights: 5 for both "model" and
 * "model.fp16". */
size_t dcp_weights_component(const char *set);

/*
 * The sets of one directory, which are one version. Variants of a set are the same model once
 * more, under the same keys: the one without a variant is shown, or else the first. The model
 * keeps its keys when it is the only one; those of every other set have its component in front.
 */
struct dcp_weights_sets {
	struct dcp_intern all, hidden, variants, components;
	size_t nmodels;
};
/* -ENOMEM. To be finished in any case. */
int dcp_weights_sets_read(struct dcp_weights_sets *s, const struct dcp_dir *dir,
			  enum dcp_weights_kind kind);
bool dcp_weights_sets_hide(const struct dcp_weights_sets *s, const char *set);
bool dcp_weights_sets_bare(const struct dcp_weights_sets *s, const char *set);
void dcp_weights_sets_finish(struct dcp_weights_sets *s);

/* Does all of @dir belong together? */
bool dcp_weights_is_home(const struct dcp_dir *dir);

/* Is a set of rank 0 among the files of @kind? Then one of rank DCP_WEIGHTS_RANK_TWIN is the same
 * model under other names. */
bool dcp_weights_has_model(const struct dcp_dir *dir, enum dcp_weights_kind kind);

/* Are the files of @kind of more than one set? */
bool dcp_weights_many_sets(const struct dcp_dir *dir, enum dcp_weights_kind kind);

/* Is a file in @dir that torch.save may have written, by its name? */
bool dcp_weights_has_torch(const struct dcp_dir *dir);

/* YES when files of @kind are there and no part of a set is missing, INCOMPLETE with what is
 * in @why, or NO. */
enum dcp_match dcp_weights_check_parts(const struct dcp_dir *dir, enum dcp_weights_kind kind,
				       char *why, size_t size);

/* The index of the first set by rank that has one, or NULL. */
const char *dcp_weights_index_name(const struct dcp_dir *dir, enum dcp_weights_kind index);

/*
 * index: which file of a set holds which key?
 *
 *	{"metadata": {"total_size": 123}, "weight_map": {key: file}}
 */

struct dcp_dir;
struct dcp_err;
struct dcp_json;
struct dcp_sink;

struct dcp_weights_index {
	const char *name;           /* of the index file; NULL: there is none */
	struct dcp_json *json;      /* all of it */
	const struct dcp_json *map; /* weight_map; NULL: none */
};

/* Emit the file @name to the sink, then read it. A damaged one is a failure: -EBADMSG,
 * -E2BIG, or what opening it gave. */
int dcp_weights_index_read(const struct dcp_dir *dir, const struct dcp_sink *sink,
			   const char *name, struct dcp_weights_index *out,
			   struct dcp_err *err);
/* The same, and nothing is emitted. */
void dcp_weights_index_finish(struct dcp_weights_index *ix);

/* The file that holds @key as the index says it, or NULL. */
const char *dcp_weights_index_file(const struct dcp_weights_index *ix, const char *key);

/*
 * Why @key, which the index promises in @file (NULL: it names none), was not found: in @err,
 * and as the message returned. @held: the file is there and was read, @broken: why not.
 */
const char *dcp_weights_index_excuse(const struct dcp_weights_index *ix, const char *file,
				     int held, const char *broken, struct dcp_err *err);

/*
 * extras: what lies in a Hugging Face directory beside the weights.
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

/*
 * Emit all of @in's directory except files for which @shown is true. 0, -ENOMEM or what the sink
 * gave: a file that is broken is emitted as an object with its error.
 */
int dcp_weights_emit_rest(const struct dcp_load *in, bool (*shown)(void *ctx, const char *name),
			  void *ctx);
