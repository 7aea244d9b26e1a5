/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint: which SOURCE, VERSION and KEY a caller means, for the verbs, libdcpload and Python
 * alike.
 *
 * A path in a mount of dcpfs stands for what is mounted there: the root for all versions, a
 * version's directory for that version, VERSION/shard/LAYOUT/RANK for the part of a rank. Any other
 * path is a SOURCE itself.
 *
 *	dcp_checkpoint_find()  the source that the path stands for
 *	dcp_checkpoint_scan()  the versions that lie there
 *	dcp_checkpoint_open()  the chosen version, mapped by rules if the caller asks for it
 *	dcp_checkpoint_key()   the row of a key of that version
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
	bool mapped; /* show versions as @map says */
	/* dcp_checkpoint_open() fills in map.source and map.where */
	struct dcp_hf_opts map;

	/* What the path stands for. The caller may change these before dcp_checkpoint_scan(). */
	const char *source;   /* the directory or file that is scanned */
	const char *mount;    /* root of the mount that must show these versions, or NULL */
	const char *wanted;   /* the version that the path names, or NULL */
	const char *layout;   /* the layout, if the path names a rank's directory, or NULL */
	uint32_t layout_rank; /* the rank of that directory */

	struct dcp_scan scan;
	const struct dcp_found *found; /* the chosen version, set even if it does not open */
	const char *name;              /* name of the open version, for messages */
	struct dcp_version *v;
	struct dcp_version
		*base;      /* the version whose files @v shows under other keys, or NULL */
	const char *passed; /* why a newer version was skipped, or NULL */
};

/*
 * Fill in what @path stands for; nothing is opened. A path below a version of a mount, other than a
 * rank's directory, is a SOURCE itself. -EINVAL: @path begins like a rank's directory but does not
 * name one.
 */
int dcp_checkpoint_find(struct dcp_checkpoint *ck, const char *path, struct dcp_err *err);

/* As dcp_scan(). */
int dcp_checkpoint_scan(struct dcp_checkpoint *ck, struct dcp_err *err);

/*
 * Open the version called @name (NULL: ck->wanted). If the name is "latest", or both are NULL, open
 * the newest complete version that opens; ck->passed then says why a newer version was skipped.
 *
 * Errors before a version is chosen (ck->found is NULL): -ENOENT: no version has this name;
 * -ENOTUNIQ: several versions have this number; -EINVAL: no version is complete, or the named
 * version is not; -EACCES: the directory of the version may not be read. Errors after that are
 * those of dcp_version_open() and dcp_hf_open(); -ESTALE also means that the mount shows other
 * files. The scan stays valid.
 */
int dcp_checkpoint_open(struct dcp_checkpoint *ck, const char *name, struct dcp_err *err);

/*
 * Create the table of layouts: those of the scanned source, those in @user_dir, and the layout of
 * @file (may be NULL). Returns as dcp_layouts_create(). (A mount has no struct dcp_checkpoint and
 * creates its own table.)
 */
int dcp_checkpoint_layouts(const struct dcp_checkpoint *ck, const char *file,
			   const char *user_dir, const struct dcp_log *log,
			   struct dcp_layouts **out, struct dcp_err *err);

/* Close the version, and forget the scan. The arena is the caller's. */
void dcp_checkpoint_close(struct dcp_checkpoint *ck);

/* The generation of the open version (dcp_version_generation()): equal for equal stored files,
 * whether the version is mapped or not. */
uint64_t dcp_checkpoint_generation(const struct dcp_checkpoint *ck);

/* ---- keys ---- */

typedef int dcp_row_fn(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row);

/* Call @fn with every row of a kind in id order, or of both kinds, tensors first. A non-zero return
 * of @fn ends the walk. */
int dcp_each_row(struct dcp_index *ix, enum dcp_row_kind kind, dcp_row_fn *fn, void *ctx);
int dcp_all_rows(struct dcp_index *ix, dcp_row_fn *fn, void *ctx);

enum dcp_key_kinds { DCP_ANY_KEY, DCP_TENSOR_KEY, DCP_OBJECT_KEY };

/* Write to @err that no key of these kinds is called @word, and which key is nearest. Returns
 * -ENOENT. */
int dcp_checkpoint_no_key(struct dcp_checkpoint *ck, enum dcp_key_kinds kinds, const char *word,
			  struct dcp_err *err);

/*
 * Find the row of @word, which is a key. With DCP_ANY_KEY, @word may also be the stem of a file, or
 * a file name with its extension. The row's text lives in @arena. -ENOENT as
 * dcp_checkpoint_no_key(); errors of the index are returned without a message.
 */
int dcp_checkpoint_key(struct dcp_checkpoint *ck, enum dcp_key_kinds kinds, const char *word,
		       struct dcp_arena *arena, enum dcp_row_kind *kind, struct dcp_row *row,
		       struct dcp_err *err);
