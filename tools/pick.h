/* SPDX-License-Identifier: Apache-2.0 */
/* pick: SOURCE, VERSION and KEY of the command line, found by core/checkpoint. Functions that
 * return an exit code have printed the error. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/checkpoint/checkpoint.h"
#include "core/model/dtype.h"
#include "core/store/cache/cache.h"
#include "tools/cmd.h"
#include "tools/out.h"

/* hf: options of verbs that show a version as a Hugging Face model. */

struct dcp_buf;
struct dcp_jsonw;
struct dcp_rules;
struct dcp_rules_config;
struct dcp_version;

struct hf_opts {
	bool on;
	const char *rules, *assets;
	const char *part;
	int dtype;    /* in hf_dtypes */
	bool implied; /* another option implies @dtype, and reports what it cannot convert */
	const char *config; /* path of config.json, instead of the file that is found */
	bool even_none;     /* no error if the rules fit no key */
	bool partial;       /* no error if the tensors are not those of config.json */
};

/* Choices of --hf-dtype, NULL-ended; the first leaves tensors as they are. */
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
	.help = "directory of config.json and tokenizer; default: found"

#define HF_OPT_FROM(type, member)                                                              \
	.name = "hf-from", .arg = "PART", .kind = OPT_TEXT,                                    \
	.off = offsetof(type, member.part),                                                    \
	.help = "only keys that begin with PART and a dot: ema"
#define HF_OPT_DTYPE(type, member)                                                             \
	.name = "hf-dtype", .arg = "TYPE", .kind = OPT_CHOICE, .choices = hf_dtypes,           \
	.off = offsetof(type, member.dtype),                                                   \
	.help = "f32, bf16 or f16; also --hf-from, --hf-shard-size"

/* The rules called @text: a preset, or those of a file; *out is NULL when @text is. */
enum cmd_exit hf_rules(const char *text, struct dcp_rules **out);

/* Is a Hugging Face model asked for? Naming rules or other --hf options implies it. */
bool hf_is_wanted(const struct hf_opts *o);

/* Describe the model of mapped @v: the prefix of its keys, other keys, and why it cannot be loaded;
 * in JSON "prefix", "others", "problem". Empty parts are left out. */
void hf_put_model(struct dcp_version *v, struct dcp_buf *b);
void hf_put_model_json(struct dcp_version *v, struct dcp_jsonw *w);

/*
 * Is mapped @v the model of its config.json? CMD_NO after printing for @verb which tensors are
 * missing, have another shape, or are foreign; --partial accepts these. If the user named rules,
 * all names may differ.
 */
enum cmd_exit hf_check(struct dcp_version *v, const struct hf_opts *o, const char *verb,
		       bool quiet);

struct dcp_layout;
struct dcp_layouts;

/* The options of pick; verbs have it as their member pick. */
struct pick_opts {
	const char *index;
	uint64_t cache_limit;
	bool no_cache;
	struct hf_opts hf;
};

/* The options when none is given. */
extern const struct pick_opts pick_plain;

struct pick {
	struct dcp_checkpoint ck;
	struct dcp_arena arena;
	struct progress progress;
	char *cache;
	bool casts;                      /* --hf-dtype was given */
	struct dcp_rules *rules;         /* of --hf-rules, or NULL */
	struct dcp_rules_config *config; /* of --config, or NULL */
};

/* Scan @source and make ready to open its versions; a path inside a mount of dcpfs means the source
 * behind it. @rebuild: build indexes anew. */
enum cmd_exit pick_source(struct pick *p, const char *source, const struct pick_opts *opts,
			  bool rebuild);
void pick_finish(struct pick *p);

/* Keep bytes from servers in the directory @cache, as the options say. */
void pick_keep(const char *cache, const struct pick_opts *opts);

/* Is @source a path, or a URL that can be read? CMD_USAGE for another URL, after saying how to
 * mount it. */
enum cmd_exit pick_path(const char *source);

/* Say that the index of the version cannot be read, which gave @rc. */
enum cmd_exit pick_unreadable(const struct pick *p, int rc);

/* Say that one index file cannot hold several versions. */
enum cmd_exit pick_one_index(const char *source);

/* If @source, which is not a checkpoint, lies in a mount of dcpfs, print which source is
 * mounted. */
void pick_hint_mount(const char *source);

/* Open the version called @name; NULL or "latest": the newest complete version that opens, with a
 * line on stderr when a newer version was passed over. */
enum cmd_exit pick_version(struct pick *p, const char *name);

/* pick_source() and pick_version() for the operands of PICK_OPERANDS. */
enum cmd_exit pick_open(struct pick *p, const struct opt_args *args,
			const struct pick_opts *opts);

/* Find the layout @word: a file, a layout beside SOURCE or in the user's directory, or a built-in
 * layout. *@all, NULL at first, collects the layouts and owns *@out. @word NULL: none. */
enum cmd_exit pick_layout(const struct pick *p, const char *word, struct dcp_layouts **all,
			  const struct dcp_layout **out);

/* Find the row of @word: a key, a file's stem, or a file's name with its extension. Text lives in
 * @arena. CMD_NO after naming the nearest key. */
enum cmd_exit pick_key(struct pick *p, const char *word, struct dcp_arena *arena,
		       enum dcp_row_kind *kind, struct dcp_row *row);

/* The keys of @word: the key that pick_key() finds, or else all keys that match @word as a pattern.
 * CMD_NO when there is none. */
struct pick_keys {
	const char *pattern; /* NULL: one key, the row */
	enum dcp_row_kind kind;
	struct dcp_row row;
	uint64_t tensors, objects; /* how many of each */
};

enum cmd_exit pick_keys(struct pick *p, const char *word, struct dcp_arena *arena,
			struct pick_keys *out);

/* Call @fn with each key, tensors first. A result other than 0 ends the walk. */
int pick_keys_each(struct pick *p, const struct pick_keys *keys, dcp_row_fn *fn, void *ctx);

/* Print that there is no key @word, and the nearest key. CMD_NO. */
enum cmd_exit pick_no_key(struct pick *p, const char *word);
/* Print that no @what ("key") matches @pattern. */
enum cmd_exit pick_no_match(const struct pick *p, const char *pattern, const char *what);

/* Verbs that read take SOURCE and VERSION as operands, and VERSION also as an option, which scripts
 * can put anywhere. */
enum { PICK_SOURCE, PICK_VERSION, PICK_KEY };
#define PICK_OPERANDS                                                                          \
	{ "SOURCE", false, OPT_SOURCE },                                                       \
	{                                                                                      \
		"VERSION", true, OPT_VERSION                                                   \
	}
#define PICK_VERSION_ROW                                                                       \
	.name = "version", .arg = "V", .kind = OPT_OPERAND, .what = OPT_VERSION,               \
	.help = "VERSION: a name, the number in it, or latest (default)"
#define PICK_OPT_VERSION                                                                       \
	{                                                                                      \
		PICK_VERSION_ROW                                                               \
	}

/* Rows of the option tables of verbs that read. @type has the member. */
#define PICK_INDEX_ROW(type)                                                                   \
	.name = "index", .arg = "FILE", .kind = OPT_TEXT, .what = OPT_FILE,                    \
	.off = offsetof(type, pick.index),                                                     \
	.help = "keep the index of a single checkpoint in FILE"
#define PICK_CACHE_ROW(type)                                                                   \
	.name = "cache-limit", .arg = "N", .kind = OPT_SIZE,                                   \
	.off = offsetof(type, pick.cache_limit), .def = DCP_UNPACK_CACHE,                      \
	.help = "bytes kept of archives, servers (--no-cache: none)"
#define PICK_NO_CACHE_ROW(type)                                                                \
	.name = "no-cache", .off = offsetof(type, pick.no_cache), .hidden = true,              \
	.help = "keep nothing on a disk of what is read from servers"
#define PICK_OPTS(type)                                                                        \
	{ PICK_INDEX_ROW(type) }, { PICK_CACHE_ROW(type) },                                    \
	{                                                                                      \
		PICK_NO_CACHE_ROW(type)                                                        \
	}
/* Options of verbs that show a version as hf/ of a mount does. */
#define PICK_OPTS_HF(type)                                                                     \
	{ .name = "hf",                                                                        \
	  .off = offsetof(type, pick.hf.on),                                                   \
	  .help = "as hf/: --hf-rules, --hf-assets, --hf-dtype, --partial" },                  \
		{ HF_OPT_RULES(type, pick.hf), .hidden = true },                               \
		{ HF_OPT_ASSETS(type, pick.hf), .hidden = true },                              \
		{ HF_OPT_FROM(type, pick.hf), .hidden = true },                                \
	{                                                                                      \
		HF_OPT_DTYPE(type, pick.hf), .hidden = true                                    \
	}
#define PICK_OPT_PARTIAL(type)                                                                 \
	{                                                                                      \
		.name = "partial", .off = offsetof(type, pick.hf.partial), .hidden = true,     \
		.help = "with --hf, also what is not the model of its config.json"             \
	}
/* All options of verbs that read a version. */
#define PICK_OPTS_READ(type)                                                                   \
	PICK_OPT_VERSION, PICK_OPTS(type), PICK_OPTS_HF(type), PICK_OPT_PARTIAL(type)
#define PICK_OPT_FORM(type, word, value, says)                                                 \
	{                                                                                      \
		.name = word, .kind = OPT_FORM, .off = offsetof(type, form), .def = value,     \
		.help = says                                                                   \
	}
#define PICK_OPT_JSON(type) PICK_OPT_FORM(type, "json", OUT_JSON, "print JSON")
#define PICK_OPT_TSV(type)                                                                     \
	PICK_OPT_FORM(type, "tsv", OUT_TSV, "print tab-separated values, with their names")
/* Of verbs that print rows. */
#define PICK_OPTS_ROWS(type) PICK_OPT_JSON(type), PICK_OPT_TSV(type)
/* A drawing, into the file that the member file names. */
#define PICK_OPT_SVG(type, says)                                                               \
	{                                                                                      \
		.name = "svg", .kind = OPT_FORM, .off = offsetof(type, form), .def = OUT_SVG,  \
		.ext = ".svg", .file = offsetof(type, file), .help = says                      \
	}
/* CMD_USAGE: @file is NULL, and standard output is a terminal. */
enum cmd_exit pick_check_drawing(const char *verb, const char *file);
