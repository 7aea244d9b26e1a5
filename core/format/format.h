/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format: the checkpoint families that dcpfs reads, one table row each.
 *
 * A family consists of two functions. probe() looks at names only and decides whether a directory
 * is a checkpoint of the family, or holds several; load() emits every tensor and object to a sink.
 * An adapter knows the files of its family, but nothing about FUSE, SQL or other families. A new
 * family is one file in this folder and one row in formats.h.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/intern.h"

struct dcp_dir;
struct dcp_err;
struct dcp_input;
struct dcp_log;
struct dcp_sink;

typedef const struct dcp_format *const *dcp_families; /* NULL at the end */

enum dcp_match {
	DCP_MATCH_NO,
	DCP_MATCH_INCOMPLETE, /* without its commit mark: the writer is not done, or died */
	DCP_MATCH_YES,
	DCP_MATCH_MANY, /* several checkpoints: group() says which files belong together */
};

/* Size of the name of a group, including its NUL. */
#define DCP_GROUP_MAX 256

/* Optional: called from time to time during a load. @done counts up to @total. @what is NULL when
 * the load is over and its caller continues with something else. */
struct dcp_progress {
	void (*report)(void *ctx, uint64_t done, uint64_t total, const char *what);
	void *ctx;
	/* Like report(), but @done and @total are always bytes; NULL: report() is called. */
	void (*bytes)(void *ctx, uint64_t done, uint64_t total, const char *what);
};

/* Optional: opens the decoded contents of the compressed file @name of the directory for parsing.
 * Returns 0, -EBADMSG, -E2BIG or another error. */
struct dcp_unpacker {
	int (*open)(void *ctx, const char *name, struct dcp_input *out, struct dcp_err *err);
	void *ctx;
};

struct dcp_load {
	const struct dcp_dir *dir;
	const struct dcp_sink *sink;
	dcp_families formats;                /* all families, for checkpoints inside this one */
	const struct dcp_unpacker *unpack;   /* may be NULL: nothing compressed can be read */
	const struct dcp_progress *progress; /* may be NULL */
	const struct dcp_log *log;           /* may be NULL */
	unsigned depth;                      /* number of versions with parts around this one */
	bool uncommitted;                    /* committed() returned false */
	bool is_part; /* a single value has the key "": the part's name is put before keys */
};

/* A name that identifies the family of a directory in which nothing readable was found. A glob with
 * FNM_EXTMATCH. */
struct dcp_mark {
	const char *glob, *what; /* "a DeepSpeed checkpoint" */
	/* What the user can do. NULL: dcpfs reads the family, but something is missing in this
	 * directory, or the checkpoint lies deeper. */
	const char *todo;
	bool general; /* other families also have such files: used only as the last guess */
};

struct dcp_format {
	const char *name; /* stored in indexes and shown to users: never reuse a name */
	const char *what; /* for help and messages: "torch.distributed.checkpoint" */

	/* Used only if no other family matches, because such files are often plain data. Never a
	 * part of a version. */
	bool shy;

	const struct dcp_mark *marks; /* the last has no glob; NULL: none */

	/* Its parts are checkpoints of other families: probe() and load() call these families. */
	bool composite;

	/* Looks only at names and sizes: opens nothing, cannot fail. For INCOMPLETE, @why (size @n)
	 * receives one line that says what is missing. */
	enum dcp_match (*probe)(const struct dcp_dir *dir, char *why, size_t n);

	/*
	 * For a family whose probe() may return MANY: put the version to which a file of this name
	 * belongs into @version (DCP_GROUP_MAX); false: to none. Looks only at the name. Files of
	 * one version are probed and loaded together, like a directory that holds nothing else; YES
	 * and MANY then mean the same.
	 */
	bool (*group)(const char *file, char *version);

	/*
	 * Optional, for a family whose files are known by their contents: is a file that begins
	 * with @head of this family? Called if the user named the file as the source and no probe()
	 * knows its name. load() then accepts the file under any name.
	 */
	bool (*begins)(const uint8_t *head, size_t n);

	/*
	 * Optional, for a family whose versions are committed by a mark beside the version: was
	 * @version, a directory in @above, committed? With @above NULL, the directory above is not
	 * known, and the answer is yes. A version that probe() finds INCOMPLETE but that was
	 * committed is damaged, and is loaded as far as possible. Opens only small files of @above.
	 */
	bool (*committed)(const struct dcp_dir *above, const char *version);

	/* True if a data file describes only its own keys. Then reading a key needs permission
	 * only for the files of the key and the files without data. */
	bool apart;

	/* The file whose mtime is the commit time of the version, or NULL: the newest file. */
	const char *(*commit_file)(const struct dcp_dir *dir);

	/* Emit all tensors and objects to the sink, a broken one with its error. A negative result
	 * means that nothing of the checkpoint can be shown. @err need not be set for -ENOMEM. */
	int (*load)(const struct dcp_load *in, struct dcp_err *err);
};

/* Emit the object @name with the error @why in place of a value: an unreadable file or part. */
int dcp_emit_broken(const struct dcp_sink *sink, const char *name, const char *why);

/*
 * Emit the __metadata__ of @st, the header of @file. Members that say which parts of tensors a rank
 * (of DCP's writer or of dcpfs) put into this file are left out, because they would be wrong for
 * any other file.
 */
struct dcp_safetensors;
int dcp_emit_metadata(const struct dcp_sink *sink, const char *file,
		      const struct dcp_safetensors *st);

/* Emit a fact about the version, unless @rc is already a failure or the text is empty. Returns @rc,
 * -ENOMEM or the error of the sink. */
int dcp_emit_fact(const struct dcp_sink *sink, int rc, const char *name, const char *fmt, ...)
	DCP_PRINTF(4, 5);

/* Report the progress of the load if in->progress is set. */
void dcp_load_progress(const struct dcp_load *in, uint64_t done, uint64_t total,
		       const char *what);

/* All families in the order in which they are probed, NULL at the end. */
extern const struct dcp_format *const dcp_formats[];

/* The marks of families that dcpfs does not read; the last has no glob. */
extern const struct dcp_mark dcp_foreign[];

/* The first family of @all, except @but, whose probe() returns YES for @dir, or else the first with
 * INCOMPLETE or MANY; NULL: no family knows @dir. */
const struct dcp_format *dcp_format_probe_in(dcp_families all, const struct dcp_format *but,
					     const struct dcp_dir *dir, enum dcp_match *match,
					     char *why, size_t n);

static inline const struct dcp_format *
dcp_format_probe(const struct dcp_dir *dir, enum dcp_match *match, char *why, size_t n)
{
	return dcp_format_probe_in(dcp_formats, NULL, dir, match, why, n);
}

/* The family of the single file in @dir, by its first bytes; NULL: no family knows the file, or it
 * cannot be read. */
const struct dcp_format *dcp_format_by_content(dcp_families all, const struct dcp_dir *dir);

/* Make @out a directory of those files of @dir that are in the group @group of @format. -ENOMEM,
 * -EMFILE. */
int dcp_format_group(const struct dcp_format *format, const struct dcp_dir *dir,
		     const char *group, struct dcp_dir *out);

/* groups: which files of a directory are versions, or parts of a version? */

struct dcp_dirent;

struct dcp_group {
	const struct dcp_format *format;
	uint32_t name; /* in names */
};

struct dcp_groups {
	const struct dcp_group *at;
	size_t n;
	struct dcp_intern names;
	struct dcp_buf list; /* struct dcp_group */
};

/*
 * List the groups of the files of @dir, each once. A file is in the group of the first family of
 * @all that returns MANY or YES and whose group() accepts the file. Links usually name other files
 * of @dir, so they count only if no other file is in a group; files for which @is_text_link (may
 * be NULL) is true never count. @g is empty before the call; the caller finishes it in any case.
 * -ENOMEM.
 */
int dcp_groups_list(dcp_families all, const struct dcp_dir *dir,
		    bool (*is_text_link)(const struct dcp_dir *, const struct dcp_dirent *),
		    struct dcp_groups *g);
void dcp_groups_finish(struct dcp_groups *g);
