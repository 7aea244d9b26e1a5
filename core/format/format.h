/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format: the checkpoint families dcpfs reads, one table row each.
 *
 * A family is two functions. probe() looks at names only and says whether a directory is
 * one of its checkpoints, or holds several; load() emits every tensor and object to a sink. An
 * adapter knows its layout and nothing about FUSE, SQL or other families. A new family is one
 * file here and one row in formats.h.
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
	DCP_MATCH_INCOMPLETE, /* one of ours, but its commit mark is missing: still being
				 written, or died */
	DCP_MATCH_YES,
	DCP_MATCH_MANY, /* its files are checkpoints by themselves: group() says which go
			   together */
};

/* Room for the name of a group, its NUL included. */
#define DCP_GROUP_MAX 256

/* Optional: called now and then during a load. @done counts up to @total. @what is NULL when it
 * is over and its caller goes on with something else. */
struct dcp_progress {
	void (*report)(void *ctx, uint64_t done, uint64_t total, const char *what);
	void *ctx;
	/*
	 * As report() where what is counted are bytes, whatever is counted otherwise; NULL: report.
	 */
	void (*bytes)(void *ctx, uint64_t done, uint64_t total, const char *what);
};

/* Optional: what the compressed file @name of the directory decodes to, opened to be parsed.
 * -EBADMSG, -E2BIG and the like. */
struct dcp_unpacker {
	int (*open)(void *ctx, const char *name, struct dcp_input *out, struct dcp_err *err);
	void *ctx;
};

struct dcp_load {
	const struct dcp_dir *dir;
	const struct dcp_sink *sink;
	dcp_families formats;                /* all families, for what is inside this one */
	const struct dcp_unpacker *unpack;   /* may be NULL: nothing compressed can be read */
	const struct dcp_progress *progress; /* may be NULL */
	const struct dcp_log *log;           /* may be NULL */
	unsigned depth;                      /* versions of several parts that it is within */
	bool uncommitted;                    /* committed() said no */
	bool is_part; /* the part's name is put before all keys: a file that is one value has "" */
};

/*
 * The name of an entry by which a family is known where nothing of it was found that can be read. A
 * glob with FNM_EXTMATCH.
 */
struct dcp_mark {
	const char *glob, *what; /* "a DeepSpeed checkpoint" */
	const char *
		/* NULL: dcpfs reads the family, but something is missing here, or it lies deeper */
		todo;
	bool general; /* other families have such files, too: the worst guess */
};

struct dcp_format {
	const char *name; /* kept in indexes and shown to people: never reuse one */
	const char *what; /* for help and messages: "torch.distributed.checkpoint" */

	/*
	 * Used only if no other family matches, because such files are often plain data. Never a
	 * part of a version.
	 */
	bool shy;

	const struct dcp_mark *marks; /* the last has no glob; NULL: none */

	/* Its parts are checkpoints of other families: probe() and load() call those. */
	bool composite;

	/*
	 * Names and sizes only: opens nothing, cannot fail. For INCOMPLETE, @why (size @n)
	 * receives what is missing, one line.
	 */
	enum dcp_match (*probe)(const struct dcp_dir *dir, char *why, size_t n);

	/*
	 * Of a family whose probe may say MANY: the version that a file of this name is, or
	 * is a part of, into @version (DCP_GROUP_MAX); false: none. Names only. Files of
	 * equal versions are probed and loaded together, as a directory that holds nothing
	 * else; YES and MANY then mean the same.
	 */
	bool (*group)(const char *file, char *version);

	/*
	 * Optional, of a family that is known by what is in a file: does one that begins with
	 * @head look like ours? Asked of a file that the user named as the source and that no
	 * probe() knows by its name. load() then takes it under any name.
	 */
	bool (*begins)(const uint8_t *head, size_t n);

	/*
	 * Optional, of a family whose versions are committed by a mark beside them: was @version, a
	 * directory in @above, committed? @above NULL: its surroundings are not known, so yes. What
	 * is INCOMPLETE by its names but committed is damaged, and is loaded as far as it goes.
	 * Opens small files of @above at most.
	 */
	bool (*committed)(const struct dcp_dir *above, const char *version);

	/* True if a data file describes only its own keys. Then reading a key needs permission
	 * only for the files of the key and the files without data. */
	bool apart;

	/* The file whose mtime is the commit time of the version, or NULL: the newest file. */
	const char *(*commit_file)(const struct dcp_dir *dir);

	/*
	 * Emit everything to the sink. A tensor or object that is broken is emitted with its
	 * error; a negative return means that nothing of the checkpoint can be shown. -ENOMEM
	 * says itself: @err need not.
	 */
	int (*load)(const struct dcp_load *in, struct dcp_err *err);
};

/* Emit the object @name with an error in place of a value: a file or a part that cannot be read. */
int dcp_emit_broken(const struct dcp_sink *sink, const char *name, const char *why);

/*
 * Emit what @st, the header of @file, says in __metadata__. What it says of that file alone, and so
 * would be wrong of any other, is left out: which parts of tensors a rank of DCP's writer or of
 * dcpfs put into it.
 */
struct dcp_safetensors;
int dcp_emit_metadata(const struct dcp_sink *sink, const char *file,
		      const struct dcp_safetensors *st);

/*
 * Unless @rc is a failure already, emit a fact about the version; an empty one is none. Returns
 * @rc, -ENOMEM or what the sink gave.
 */
int dcp_emit_fact(const struct dcp_sink *sink, int rc, const char *name, const char *fmt, ...)
	DCP_PRINTF(4, 5);

/* Report how far the load is, if the caller of the load asked for it. */
void dcp_load_progress(const struct dcp_load *in, uint64_t done, uint64_t total,
		       const char *what);

/* In probe order, NULL at the end. */
extern const struct dcp_format *const dcp_formats[];

/* Of families that are not read; the last has no glob. */
extern const struct dcp_mark dcp_foreign[];

/* The first family of @all except @but that says YES to @dir, or else the first that says
 * INCOMPLETE or MANY; NULL: none knows it. */
const struct dcp_format *dcp_format_probe_in(dcp_families all, const struct dcp_format *but,
					     const struct dcp_dir *dir, enum dcp_match *match,
					     char *why, size_t n);

static inline const struct dcp_format *
dcp_format_probe(const struct dcp_dir *dir, enum dcp_match *match, char *why, size_t n)
{
	return dcp_format_probe_in(dcp_formats, NULL, dir, match, why, n);
}

/* The family of the file that @dir is, by its first bytes; NULL: no family knows it, or it
 * cannot be read. */
const struct dcp_format *dcp_format_by_content(dcp_families all, const struct dcp_dir *dir);

/* The files of @dir that are of the group @group of @format. -ENOMEM, -EMFILE. */
int dcp_format_group(const struct dcp_format *format, const struct dcp_dir *dir,
		     const char *group, struct dcp_dir *out);

/*
 * groups: which files of a directory are versions, or parts of one, by themselves?
 */

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
 * The groups that families of @all see in the files of @dir, each once: those of the first family
 * that says MANY or YES and claims the file. Links, and files for which @is_text_link (may be NULL)
 * is true, name what is there anyway: links count when there is nothing else. @g is empty before,
 * to be finished in any case. -ENOMEM.
 */
int dcp_groups_list(dcp_families all, const struct dcp_dir *dir,
		    bool (*is_text_link)(const struct dcp_dir *, const struct dcp_dirent *),
		    struct dcp_groups *g);
void dcp_groups_finish(struct dcp_groups *g);
