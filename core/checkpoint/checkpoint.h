/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint: which SOURCE, VERSION and KEY a caller means, for the verbs, libdcpload and Python
 * alike.
 *
 * A path in a mount of dcpfs stands for what is mounted there: the root for all versions, a
 * version's directory for that version, VERSION/shard/LAYOUT/RANK for what one rank holds. Any
 * other path is a SOURCE itself.
 *
 *	dcp_checkpoint_find()  what the path stands for
 *	dcp_checkpoint_scan()  the versions that lie there
 *	dcp_checkpoint_open()  the version that is meant, mapped by rules where that is asked for
 *	dcp_checkpoint_key()   the row of a key of it
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/hf/hf.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"

struct dcp_err;
struct dcp_layouts;
struct dcp_log;

struct dcp_checkpoint {
	/* Set by the caller before dcp_checkpoint_open(). */
	struct dcp_arena *arena; /* for the texts below; set before dcp_checkpoint_find() */
	struct dcp_store_opts store;
	bool mapped;            /* versions are shown as @map says */
	struct dcp_hf_opts map; /* its source and where are filled in here */

	/* What the path stands for. The caller may change these before dcp_checkpoint_scan(). */
	const char *source;   /* the directory or file that is scanned */
	const char *mount;    /* root of the mount whose versions these must be, or NULL */
	const char *wanted;   /* the version that the path names, or NULL */
	const char *layout;   /* of a rank's directory, or NULL */
	uint32_t layout_rank; /* the rank of that directory */

	struct dcp_scan scan;
	const struct dcp_found
		*found;   /* the version that was chosen, also when it does not open */
	const char *name; /* of the version that is open, to be said */
	struct dcp_version *v;
	struct dcp_version *base; /* of which @v shows other keys, or NULL */
	const char *passed;       /* why a newer version was not taken, or NULL */
};

/*
 * Fill in what @path stands for; nothing is opened. A path below a version of a mount, other than a
 * rank's directory, is a SOURCE itself. -EINVAL: it names no rank's directory, but begins like one.
 */
int dcp_checkpoint_find(struct dcp_checkpoint *ck, const char *path, struct dcp_err *err);

/* As dcp_scan(). */
int dcp_checkpoint_scan(struct dcp_checkpoint *ck, struct dcp_err *err);

/*
 * Open the version called @name; NULL: ck->wanted; where that is NULL, too, or "latest", the newest
 * complete version that opens, and ck->passed says why a newer version was not taken.
 *
 * As long as ck->found is NULL, -ENOENT, -ENOTUNIQ: no version has this name, several have this
 * number; -EINVAL: no version, or not this one, is complete; -EACCES: it may not be looked into.
 * Afterwards as dcp_version_open() and dcp_hf_open(); -ESTALE also: the mount shows other
 * files. The versions stay scanned.
 */
int dcp_checkpoint_open(struct dcp_checkpoint *ck, const char *name, struct dcp_err *err);

/*
 * The layouts of the source that was scanned and those in @user_dir, with the layout of @file,
 * which may be NULL. As dcp_layouts_create(). (A mount, which is no struct dcp_checkpoint, makes
 * its own.)
 */
int dcp_checkpoint_layouts(const struct dcp_checkpoint *ck, const char *file,
			   const char *user_dir, const struct dcp_log *log,
			   struct dcp_layouts **out, struct dcp_err *err);

/* Close the version, and forget the scan. The arena is the caller's. */
void dcp_checkpoint_close(struct dcp_checkpoint *ck);

/* Of what is open: the same wherever the same files are. */
uint64_t dcp_checkpoint_generation(const struct dcp_checkpoint *ck);

/* ---- keys ---- */

typedef int dcp_row_fn(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row);

/*
 * Call @fn with every row of a kind in id order, or of both kinds, tensors first; what it returns
 * other than 0 ends the walk.
 */
int dcp_each_row(struct dcp_index *ix, enum dcp_row_kind kind, dcp_row_fn *fn, void *ctx);
int dcp_all_rows(struct dcp_index *ix, dcp_row_fn *fn, void *ctx);

enum dcp_key_kinds { DCP_ANY_KEY, DCP_TENSOR_KEY, DCP_OBJECT_KEY };

/* Say that no key of these kinds is called @word, and which is the nearest. Returns -ENOENT. */
int dcp_checkpoint_no_key(struct dcp_checkpoint *ck, enum dcp_key_kinds kinds, const char *word,
			  struct dcp_err *err);

/*
 * The row of @word: a key, or, of any kind, also a file's stem or a file's name with its extension.
 * The row's text lives in @arena. -ENOENT as dcp_checkpoint_no_key(); what the index gives comes
 * without a message.
 */
int dcp_checkpoint_key(struct dcp_checkpoint *ck, enum dcp_key_kinds kinds, const char *word,
		       struct dcp_arena *arena, enum dcp_row_kind *kind, struct dcp_row *row,
		       struct dcp_err *err);
