/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rules: the keys of one framework as those of another.
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
#define DCP_RULES_MAX_PATTERN 1024  /* bytes of one */
#define DCP_RULES_MAX_SOURCES 16    /* patterns on one side of a rule */
#define DCP_RULES_MAX_MARKS 64      /* lines that a preset is recognized by */
#define DCP_RULES_MAX_SLOTS 8       /* of one rule */
#define DCP_RULES_MAX_PIECES 262144 /* of one tensor that comes out */

/*
 * Parse @n bytes of rules, called @name in messages. -EINVAL: name, line, column and what is
 * wrong; -E2BIG; -ENOMEM.
 */
int dcp_rules_parse(const char *text, size_t n, const char *name, struct dcp_rules **out,
		    struct dcp_err *err);
/* The rules of a preset. -ENOENT: no such name; the message names the nearest. */
int dcp_rules_preset(const char *name, struct dcp_rules **out, struct dcp_err *err);
void dcp_rules_free(struct dcp_rules *r);

const char *dcp_rules_name(const struct dcp_rules *r);
/* A hash of everything that decides what comes out, for caching what these rules made. */
uint64_t dcp_rules_hash(const struct dcp_rules *r);

/* The presets in the order they are listed: the @i-th, false past the last. */
struct dcp_rules_preset {
	const char *name;
	const char *about; /* one line: which checkpoints, which models */
	const char *text;  /* the file as it ships */
};
bool dcp_rules_preset_at(size_t i, struct dcp_rules_preset *out);
bool dcp_rules_preset_named(const char *name, struct dcp_rules_preset *out);

/*
 * `tie A = B`, the @i-th: the tensors that come out as @key and @of are one where the model ties
 * its embeddings. False past the last.
 */
bool dcp_rules_tie(const struct dcp_rules *r, size_t i, const char **key, const char **of);

/* What config.json says of the model; 0 where it does not. Rules call these by name. */
struct dcp_rules_config {
	char model_type[64];
	char architecture[64]; /* the first of its architectures */
	char class_name[64];   /* of diffusers */
	uint64_t heads, kv_heads, head_dim, hidden, intermediate, layers, vocab, positions;
	uint64_t experts, moe_intermediate, shared_experts, shared_intermediate;
	uint64_t dense_layers,
		moe_step;    /* the first dense_layers have no experts; every moe_step-th has */
	uint64_t mtp_layers; /* of multi-token prediction, after the others */
	uint64_t q_rank, kv_rank, nope_dim, rope_dim, v_dim; /* of attention with low ranks */
	uint64_t vision_heads, vision_patch;                 /* of the encoder of pictures */
	/* tie_word_embeddings, attention_bias, mlp_bias: 1, 0; -1 where it does not say */
	int tie, attention_bias, mlp_bias;
	bool quantized;
	enum dcp_dtype dtype; /* of its numbers; OTHER: it does not say */
};

/* A tensor that a model has; ndim 0: its shape is not known. */
struct dcp_rules_expected {
	const char *key; /* for the call */
	const char *
		/* in a model without its head, which is no member of another there; may be @key */
		bare;
	uint32_t ndim;
	uint64_t shape[3];
	bool optional; /* may be missing */
	bool of_expert;
};
typedef int dcp_rules_expect_fn(void *ctx, const struct dcp_rules_expected *x);

/*
 * Call @fn for every tensor that a model of @c has, were it not quantized. DCP_RULES_NONE: the
 * model is not known here; DCP_RULES_SOME: it has others, too; a negative return of @fn is
 * passed on.
 */
enum { DCP_RULES_NONE, DCP_RULES_ALL, DCP_RULES_SOME };
int dcp_rules_expect(const struct dcp_rules_config *c, dcp_rules_expect_fn *fn, void *ctx);
/* May @key be of the head of such a model, which is not among these: a classifier? */
bool dcp_rules_has_head(const struct dcp_rules_config *c, const char *key);

/* Read it from @n bytes of config.json. What is missing is derived from the rest as the models
 * do: kv_heads from heads, head_dim from hidden. -EBADMSG, -ENOMEM. */
int dcp_rules_config_parse(const char *text, size_t n, struct dcp_rules_config *out,
			   struct dcp_err *err);

/*
 * The @n bytes of a config.json with @to wherever it names the dtype of a model or of a part of
 * it, and unchanged otherwise. A model's that names none gets one; another's does not. 1: in
 * @out; 0: it stays as it is, or is no JSON;
 * -ENOMEM.
 */
struct dcp_buf;
int dcp_rules_config_retype(const char *text, size_t n, enum dcp_dtype to, struct dcp_buf *out);

/* Is the tensor @key a low-rank weight, as a LoRA has them, by any of the names that programs
 * give them; something that stands beside such weights (its alpha, what optimizers keep); or
 * neither? */
enum dcp_lora { DCP_LORA_NO, DCP_LORA_BESIDE, DCP_LORA_YES };
enum dcp_lora dcp_rules_lora(const char *key);

/* Members of adapter_config.json that rules ask for. */
#define DCP_RULES_ADAPTER_WORDS 5
extern const char *const dcp_rules_adapter_words[DCP_RULES_ADAPTER_WORDS];

/* What is mapped: tensors by number, as their index has them. */
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
	const char *framework;                 /* that wrote it, "paddle"; NULL: not known */
	const char
		*qkv_order; /* of rows, as qkv() calls it, where the source says so; or NULL */
	/* Of several parts whose name stands inside of keys, as that of an adapter does, the
	 * one to take; NULL: "default", or the only one. */
	const char *part;
	/* What adapter_config.json says of each of dcp_rules_adapter_words: a text, true, false
	 * or null; NULL: anything else, or there is no such file. */
	const char *adapter[DCP_RULES_ADAPTER_WORDS];
	bool placed;         /* dcp_rules_place() knows where the model is */
	enum dcp_dtype cast; /* F64, F32, F16 and BF16 come out as this; OTHER: as they are */
};

/* The dtype that cast() and --hf-dtype call so: "bf16", "float32"; OTHER: not known. */
enum dcp_dtype dcp_rules_dtype(const char *name, size_t n);

enum dcp_rules_what {
	/* @key of the source matches no rule and is left out; @text: the nearest rule */
	DCP_RULES_UNMATCHED,
	DCP_RULES_COLLISION, /* @key would be made twice: it is broken */
	DCP_RULES_FAILED,    /* @key cannot be made: it is broken */
	DCP_RULES_UNUSED,    /* no key matches the rule in @line */
};

/* What became of the keys, and a function to call for single ones; say may be NULL. */
struct dcp_rules_report {
	void (*say)(void *ctx, enum dcp_rules_what what, const char *key, unsigned line,
		    const char *text);
	void *ctx;
	uint64_t mapped;  /* keys that came out whole */
	uint64_t dropped; /* keys of the source that a rule drops */
	uint64_t unmatched, collisions, failed, unused;
};

/* Where the tensors of the model of config.json are. */
struct dcp_rules_place {
	struct dcp_buf
		prefix; /* text: what their keys begin with, its last dot or slash included */
	struct dcp_buf
		others; /* what those of others like them begin with: texts, each with its NUL */
};

/*
 * Find below which prefix keys are those of the model of @from->config: the one with most of
 * them, and of several that of a model that is trained, not of a copy. 1; 0: there is none, or
 * the model is not known here;
 * -ENOMEM, or the source's. Finish @out in any case.
 */
int dcp_rules_find_place(const struct dcp_rules_source *from, struct dcp_rules_place *out,
			 struct dcp_err *err);
void dcp_rules_place_finish(struct dcp_rules_place *p);
/* Is @key, below the prefix, of that model: not one of the others', nor an optimizer's? */
bool dcp_rules_is_placed(const struct dcp_rules_place *p, const char *key);

/*
 * Which preset do these keys, and the model_type of the config if there is one, need? The first
 * whose `has` and `lacks` lines they satisfy; otherwise "hf". A negative return is the source's.
 */
int dcp_rules_detect(const struct dcp_rules_source *from, struct dcp_rules_preset *out,
		     struct dcp_err *err);

/*
 * Emit to @to what comes out, in the order of the first source key of each, and the files that it
 * needs; objects and facts are left to the caller. A key that cannot be made is emitted with its
 * error. @report may be NULL. Negative: the source, the sink or memory failed; -ENOKEY: no key
 * of the source has @part. Nothing is emitted twice.
 */
int dcp_rules_map(const struct dcp_rules *r, const struct dcp_rules_source *from,
		  const struct dcp_sink *to, struct dcp_rules_report *report,
		  struct dcp_err *err);
