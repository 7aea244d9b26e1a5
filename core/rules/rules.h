/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rules: present the keys of one framework as those of another.
 *
 * A text of rules maps a stream of tensors to a stream of others: names change, and tensors are
 * cut, joined and transposed. Nothing is copied: the results are boxes and strides of the same
 * stored bytes. The grammar is specified in core/rules/README.md. Rules are immutable and may be
 * used by any number of threads.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_err;
struct dcp_rules;

#define DCP_RULES_MAX_TEXT (1u << 20)
#define DCP_RULES_MAX_RULES 4096
#define DCP_RULES_MAX_PATTERN 1024  /* bytes of one pattern */
#define DCP_RULES_MAX_SOURCES 16    /* patterns on one side of a rule */
#define DCP_RULES_MAX_MARKS 64      /* lines that a preset is recognized by */
#define DCP_RULES_MAX_SLOTS 8       /* slots in one rule */
#define DCP_RULES_MAX_PIECES 262144 /* pieces of one resulting tensor */

/* Parse @n bytes of rules, called @name in messages. -EINVAL: name, line, column and what is wrong;
 * -E2BIG; -ENOMEM. */
int dcp_rules_parse(const char *text, size_t n, const char *name, struct dcp_rules **out,
		    struct dcp_err *err);
/* The rules of a preset. -ENOENT: no such name; the message names the nearest. */
int dcp_rules_preset(const char *name, struct dcp_rules **out, struct dcp_err *err);
void dcp_rules_free(struct dcp_rules *r);

const char *dcp_rules_name(const struct dcp_rules *r);
/* A hash of everything that decides the result of these rules, for caching that result. */
uint64_t dcp_rules_hash(const struct dcp_rules *r);

/* The presets in the order they are listed: the @i-th, false past the last. */
struct dcp_rules_preset {
	const char *name;
	const char *about; /* one line: which checkpoints, which models */
	const char *text;  /* the file as it ships */
};
bool dcp_rules_preset_at(size_t i, struct dcp_rules_preset *out);
bool dcp_rules_preset_named(const char *name, struct dcp_rules_preset *out);

/* The @i-th line `tie A = B`: if the model ties its embeddings, the resulting tensors @key and @of
 * are the same. False past the last. */
bool dcp_rules_tie(const struct dcp_rules *r, size_t i, const char **key, const char **of);

/* What config.json says about the model. A number is 0 if config.json does not give it. Rules refer
 * to the numbers by name. */
struct dcp_rules_config {
	char model_type[64];
	char architecture[64]; /* the first of its architectures */
	char class_name[64];   /* of diffusers */
	uint64_t heads, kv_heads, head_dim, hidden, intermediate, layers, vocab, positions;
	uint64_t experts, moe_intermediate, shared_experts, shared_intermediate;
	uint64_t dense_layers,
		moe_step;    /* the first dense_layers have no experts; every moe_step-th has */
	uint64_t mtp_layers; /* layers of multi-token prediction, after the others */
	/* of attention with low-rank projections */
	uint64_t q_rank, kv_rank, nope_dim, rope_dim, v_dim;
	uint64_t vision_heads, vision_patch; /* of the image encoder */
	/* tie_word_embeddings, attention_bias, mlp_bias: 1 or 0; -1: not in config.json */
	int tie, attention_bias, mlp_bias;
	bool quantized;
	enum dcp_dtype dtype; /* dtype of the weights; OTHER: not in config.json */
};

/* A tensor that the model should have; ndim 0: its shape is not known. */
struct dcp_rules_expected {
	const char *key; /* valid during the call */
	const char *
		/* the key in a model that was saved without its head: it lacks the prefix of the
		 * base; may be @key */
		bare;
	uint32_t ndim;
	uint64_t shape[3];
	bool optional; /* may be missing */
	bool of_expert;
};
typedef int dcp_rules_expect_fn(void *ctx, const struct dcp_rules_expected *x);

/*
 * Call @fn for every tensor that the model of @c has in its unquantized form. DCP_RULES_NONE: dcpfs
 * does not know the model; DCP_RULES_SOME: the model also has other tensors; a negative return of
 * @fn is passed on.
 */
enum { DCP_RULES_NONE, DCP_RULES_ALL, DCP_RULES_SOME };
int dcp_rules_expect(const struct dcp_rules_config *c, dcp_rules_expect_fn *fn, void *ctx);
/* May @key belong to a head (of a classifier, say) that dcp_rules_expect() does not list? */
bool dcp_rules_has_head(const struct dcp_rules_config *c, const char *key);

/* Read @out from @n bytes of config.json. Missing numbers are derived as the models derive them:
 * kv_heads from heads, head_dim from hidden. -EBADMSG, -ENOMEM. */
int dcp_rules_config_parse(const char *text, size_t n, struct dcp_rules_config *out,
			   struct dcp_err *err);

/*
 * Copy @n bytes of a config.json to @out, replacing every dtype of the model or of a part of it by
 * @to. A config of a model that names no dtype gets one; other configs do not. 1: @out has the
 * result; 0: nothing to change, or not JSON; -ENOMEM.
 */
struct dcp_buf;
int dcp_rules_config_retype(const char *text, size_t n, enum dcp_dtype to, struct dcp_buf *out);

/*
 * Is the tensor @key a low-rank weight of a LoRA, under any of the names that programs use (YES);
 * something stored beside such weights, as its alpha or the state of an optimizer (BESIDE); or
 * neither (NO)?
 */
enum dcp_lora { DCP_LORA_NO, DCP_LORA_BESIDE, DCP_LORA_YES };
enum dcp_lora dcp_rules_lora(const char *key);

/* Members of adapter_config.json that rules ask for. */
#define DCP_RULES_ADAPTER_WORDS 5
extern const char *const dcp_rules_adapter_words[DCP_RULES_ADAPTER_WORDS];

/* The source of a mapping: tensors, by their number in the index. */
struct dcp_rules_source {
	/* Call @fn once for every key. A negative return of @fn is passed on. */
	int (*list)(void *ctx, int (*fn)(void *fn_ctx, uint64_t number, const char *key),
		    void *fn_ctx, struct dcp_err *err);
	/* One tensor with its pieces, in @arena. */
	int (*tensor)(void *ctx, uint64_t number, struct dcp_arena *arena,
		      struct dcp_tensor *out, struct dcp_err *err);
	void *ctx;
	const struct dcp_file_id *files; /* what pieces refer to, by number */
	size_t nfiles;
	const struct dcp_rules_config *config; /* NULL: there is none */
	/* the framework that wrote the source, "paddle"; NULL: not known */
	const char *framework;
	/* the order of rows, in the words of qkv(), if the source states it; or NULL */
	const char *qkv_order;
	/* Which part to map if keys contain the names of several parts, for instance of adapters;
	 * NULL: "default", or the only part. */
	const char *part;
	/* The value in adapter_config.json of each of dcp_rules_adapter_words: a text, true, false
	 * or null. NULL: any other value, or no such file. */
	const char *adapter[DCP_RULES_ADAPTER_WORDS];
	bool placed;         /* dcp_rules_place() knows where the model is */
	enum dcp_dtype cast; /* target dtype of F64, F32, F16 and BF16; OTHER: unchanged */
};

/* The dtype of that name in cast() and --hf-dtype: "bf16", "float32"; OTHER: unknown name. */
enum dcp_dtype dcp_rules_dtype(const char *name, size_t n);

enum dcp_rules_what {
	/* @key of the source matches no rule and is left out; @text: the nearest rule */
	DCP_RULES_UNMATCHED,
	DCP_RULES_COLLISION, /* @key would be made twice: it is broken */
	DCP_RULES_FAILED,    /* @key cannot be made: it is broken */
	DCP_RULES_UNUSED,    /* no key matches the rule in @line */
};

/* How many keys became what; say() is called for single keys, and may be NULL. */
struct dcp_rules_report {
	void (*say)(void *ctx, enum dcp_rules_what what, const char *key, unsigned line,
		    const char *text);
	void *ctx;
	uint64_t mapped;  /* resulting keys without an error */
	uint64_t dropped; /* keys of the source that a rule drops */
	uint64_t unmatched, collisions, failed, unused;
};

/* Where the tensors of the model of config.json are. */
struct dcp_rules_place {
	struct dcp_buf
		prefix; /* text: the prefix of their keys, including its last dot or slash */
	struct dcp_buf
		others; /* prefixes of other, similar models: texts, each ending in NUL */
};

/*
 * Find the prefix below which the keys are those of the model of @from->config: prefixes that do
 * not name a copy of a model come first, and among them the prefix with the most keys of the model.
 * 1; 0: there is no such prefix, or dcpfs does not know the model; -ENOMEM, or the error of the
 * source. Finish @out in any case.
 */
int dcp_rules_find_place(const struct dcp_rules_source *from, struct dcp_rules_place *out,
			 struct dcp_err *err);
void dcp_rules_place_finish(struct dcp_rules_place *p);
/* Does @key lie below the prefix and belong to that model, not to one of the others or to an
 * optimizer? */
bool dcp_rules_is_placed(const struct dcp_rules_place *p, const char *key);

/* Which preset do these keys (and the model_type of the config, if any) need? The first whose `has`
 * and `lacks` lines they satisfy; otherwise "hf". A negative return is the source's. */
int dcp_rules_detect(const struct dcp_rules_source *from, struct dcp_rules_preset *out,
		     struct dcp_err *err);

/*
 * Emit the resulting tensors to @to, in the order of their first source keys, and the files that
 * they need; the caller emits objects and facts. A key that cannot be made is emitted with its
 * error. @report may be NULL. Negative: the source, the sink or memory failed; -ENOKEY: no key of
 * the source has @part. Nothing is emitted twice.
 */
int dcp_rules_map(const struct dcp_rules *r, const struct dcp_rules_source *from,
		  const struct dcp_sink *to, struct dcp_rules_report *report,
		  struct dcp_err *err);
