/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version_int: what the files of version share.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/base/buf.h"
#include "core/base/intern.h"
#include "core/model/dtype.h"
#include "core/model/tensor.h"
#include "core/store/version/assets.h"
#include "core/store/version/version.h"

struct dcp_dir;
struct dcp_dirent;
struct dcp_index;
struct dcp_index_writer;
struct dcp_rules_config;
struct dcp_unpack;

/* What a mapped version has beside its index. */
struct dcp_mapped {
	struct dcp_assets assets;
	struct dcp_buf made;               /* struct dcp_made */
	struct dcp_buf tied;               /* int64_t: ids */
	struct dcp_rules_config *config;   /* NULL: there is none */
	const struct dcp_adapter *adapter; /* NULL: it is none */
};

/* ---- mapped.c ---- */

/* The config.json, or the like, that its loader misses; NULL: nothing. Append that to @out. */
const char *dcp_mapped_config(const struct dcp_mapped *m);
void dcp_mapped_ask(const struct dcp_mapped *m, const char *name, struct dcp_buf *out);

struct dcp_version {
	char *name, *index_path; /* index_path NULL: in memory */
	const struct dcp_format *format;
	struct dcp_site at;
	struct dcp_index *index;
	struct dcp_unpack *unpack;
	struct dcp_files *files;
	struct dcp_torch_frames *frames;
	int64_t commit_ns;
	uint64_t generation;
	bool broken; /* as dcp_version_is_broken() says */
	bool built;
	struct dcp_mapped
		*mapped; /* NULL: it is not; else its place and files are its base's */
};

/* ---- scan.c ---- */

/* mtime of the format's commit file, or of the newest file of @dir. */
int64_t dcp_commit_time(const struct dcp_dir *dir, const struct dcp_format *format);

/* ---- names.c ---- */

/* Sort what was found, no two by one name. -ENOMEM. */
int dcp_scan_part_names(struct dcp_scan *scan);

/* Find the tags of what was found in @dir. -ENOMEM. */
int dcp_scan_tags(struct dcp_scan *scan, const struct dcp_dir *dir);

/* Is the file a text that names something else in @dir? Then it is a link, in effect. */
bool dcp_is_text_link(const struct dcp_dir *dir, const struct dcp_dirent *e);

/* What @source leads to when it is such a text, or would be with ".symlink" after it; else
 * itself. Freed by the caller. -ENOMEM. */
int dcp_source_resolve(const char *source, char **out);

/* ---- hint.c ---- */

/* Is @dir of a family that dcpfs does not read, by its names? Then what it is: in @why. */
bool dcp_scan_family(const struct dcp_dir *dir, char *why, size_t n);

/* Say in @err why @dir is not a checkpoint, and the nearest thing to one. Returns -EINVAL. */
int dcp_scan_explain(const struct dcp_dir *dir, struct dcp_err *err);
/* Of a file: -EINVAL, when it is a part of a checkpoint, or by its name of a family that dcpfs
 * knows and does not read; 0: neither. */
int dcp_scan_explain_part(const struct dcp_dir *dir, struct dcp_err *err);

/* Is the entry a link to a directory that is not inside @dir? What is said of it then. */
bool dcp_scan_leads_out(const struct dcp_dir *dir, const struct dcp_dirent *e);
#define DCP_SCAN_LEADS_OUT                                                                     \
	"it is a link out of the source, which is not followed: give what it leads to"

/* ---- beside.c: what lies in a version's directory beside its data ---- */

/* Emit it as sidecars, but for what @w knows. 0 or what the sink gave. */
int dcp_emit_beside(const struct dcp_dir *dir, const struct dcp_sink *sink,
		    const struct dcp_index_writer *w);

/* ---- open.c: an index, from the cache or built into it ---- */

/* A sink in front of @to that fails with -ECANCELED as soon as @opts say so: an adapter looks
 * at nothing but what its sink returns, and emits something every few microseconds. */
struct dcp_sink dcp_stopping_sink(const struct dcp_sink *to, const struct dcp_store_opts *opts);

struct dcp_build {
	const char *name; /* of the version, for messages */
	const struct dcp_store_opts *opts;
	char *path; /* of the file; the caller's to free; NULL: in memory, also if it must be */
	struct dcp_index *index; /* the result */
	bool built;              /* and not found */
	bool said;               /* what is wrong with the cache */
	/* May what the cache has be used? As dcp_fresh_check(). */
	int (*check)(void *ctx, struct dcp_index *ix, bool just_built, struct dcp_err *err);
	/* Emit to a new one all that is in it. */
	int (*emit)(void *ctx, struct dcp_index_writer *w, struct dcp_err *err);
	void *ctx;
};

/* Is it there already? Then it is the result. */
bool dcp_build_cached(struct dcp_build *b);
/* Make it, unless another process did that meanwhile. -ECANCELED, or what emit returned. */
int dcp_build_index(struct dcp_build *b, struct dcp_err *err);

/* ---- fresh.c: is an index still true? ---- */

/* Hash of the names in @dir, those of the index left out. */
uint64_t dcp_fresh_names(const struct dcp_dir *dir, const char *index_path);

/* Do the files look as recorded? 0, or -ESTALE naming the first that does not. */
int dcp_fresh_files(const struct dcp_site *at, const struct dcp_file_id *ids, size_t n,
		    struct dcp_err *err);

/*
 * May @ix, found in the cache, be used for @dir? 0, -ESTALE or -EBADMSG. @just_built: another
 * process finished it while this one waited, so it is as good as one made here.
 */
int dcp_fresh_check(struct dcp_index *ix, const struct dcp_dir *dir,
		    const struct dcp_format *format, const char *index_path, bool just_built,
		    struct dcp_err *err);

/*
 * made: files of a Hugging Face directory that no file is, made of what the checkpoint keeps in
 * its objects.
 */

struct dcp_assets;
struct dcp_buf;
struct dcp_made;

/*
 * Append to @made (struct dcp_made) those that there are: of Composer, the config.json,
 * tokenizer and adapter of its Hugging Face model, which are that model's own; a config.json
 * that is inferred from Megatron's arguments (core/rules/infer.c), or from torchtitan's job
 * config in @a. Files in @a come first, and a tokenizer is of one origin: where any of its
 * files is in @a none is made. The text of config.json, wherever it is from, is in @a then. 0;
 * -ENOMEM, or the index cannot be read.
 */
int dcp_made_find(struct dcp_index *ix, struct dcp_assets *a, struct dcp_buf *made);
/* The config.json in @a with another dtype, unless it names none (dcp_rules_config_retype). 0,
 * -ENOMEM. */
int dcp_made_retype(struct dcp_assets *a, enum dcp_dtype to, struct dcp_buf *made);

/* ---- composer.c: the list of files that are made ---- */

/* @text is taken, and empty then, also on failure. @from is borrowed. 0, -ENOMEM. */
int dcp_made_add(struct dcp_buf *made, const char *name, const char *from,
		 struct dcp_buf *text);
/* NULL: there is none. */
struct dcp_made *dcp_made_named(const struct dcp_buf *made, const char *name);
void dcp_made_finish(struct dcp_buf *made);
void dcp_made_forget(struct dcp_made *m); /* what it has; it stays in the list */

/* ---- composer.c ---- */

int dcp_composer_files(struct dcp_index *ix, struct dcp_buf *made);
