/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hf: options of verbs that show a version as a Hugging Face model.
 */
#pragma once
#include <stdbool.h>

#include "core/model/dtype.h"
#include "tools/cmd.h"

struct dcp_buf;
struct dcp_jsonw;
struct dcp_rules;
struct dcp_rules_config;
struct dcp_version;

struct hf_opts {
	bool on;
	const char *rules, *assets;
	const char *part;
	int dtype;          /* in hf_dtypes */
	bool implied;       /* by another option, which itself says what it cannot convert */
	const char *config; /* path of config.json, instead of the file that is found */
	bool even_none;     /* rules that no key fits are not an error */
	bool partial;       /* what is not the model of its config.json is not an error */
};

/* Of --hf-dtype, NULL-ended; the first leaves tensors as they are. */
extern const char *const hf_dtypes[];
enum dcp_dtype hf_dtype(const struct hf_opts *o);

/* Rows of option tables; @type has the member. */
#define HF_OPT_RULES(type, member)                                                             \
	.name = "hf-rules", .arg = "RULES", .kind = OPT_TEXT, .what = OPT_RULES,               \
	.off = offsetof(type, member.rules),                                                   \
	.help = "names of hf/ by a file or preset (dcpfs rules list)"
#define HF_OPT_ASSETS(type, member)                                                            \
	.name = "hf-assets", .arg = "DIR", .kind = OPT_TEXT, .what = OPT_DIR,                  \
	.off = offsetof(type, member.assets),                                                  \
	.help = "its config.json and tokenizer; default: found"

#define HF_OPT_FROM(type, member)                                                              \
	.name = "hf-from", .arg = "PART", .kind = OPT_TEXT,                                    \
	.off = offsetof(type, member.part),                                                    \
	.help = "of keys that begin with PART and a dot: ema"
#define HF_OPT_DTYPE(type, member)                                                             \
	.name = "hf-dtype", .arg = "TYPE", .kind = OPT_CHOICE, .choices = hf_dtypes,           \
	.off = offsetof(type, member.dtype),                                                   \
	.help = "f32, bf16 or f16; also --hf-from, --hf-shard-size"

/* The rules called @text: a preset, or those of a file; *out is NULL when @text is. */
enum cmd_exit hf_rules(const char *text, struct dcp_rules **out);

/* What the config.json of --config says, or NULL. */
enum cmd_exit hf_config(const struct hf_opts *o, struct dcp_rules_config **out);

/* Is it asked for? Who says by which rules, or with what, means it. */
bool hf_is_wanted(const struct hf_opts *o);

/*
 * Where the model was found among the keys of mapped @v, what else was there, and why it is no
 * model that can be loaded; in JSON "prefix", "others", "problem". Nothing of what there is nothing
 * to say of.
 */
void hf_put_model(struct dcp_version *v, struct dcp_buf *b);
void hf_put_model_json(struct dcp_version *v, struct dcp_jsonw *w);

/*
 * May what mapped @v has be taken for the model of its config.json? CMD_NO, after saying for @verb
 * which of its tensors are not there, are not of this shape, or are foreign, and not with
 * --partial. With rules that were named it may have other names for all of them.
 */
enum cmd_exit hf_check(struct dcp_version *v, const struct hf_opts *o, const char *verb,
		       bool quiet);
