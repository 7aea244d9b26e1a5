/* SPDX-License-Identifier: Apache-2.0 */
/*
 * versions: the list of versions of a mount (versions.c), and keeping it true while the source
 * changes (refresh.c).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/rights.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/store/version/assets.h"

struct dcp_err;
struct dcp_seen;
struct dcpfs;
struct dcpfs_version;

/* A reference; NULL: there is none. */
struct dcpfs_version *dcpfs_version_by_name(struct dcpfs *fs, const char *name);
/*
 * The first version whose place is after @place (0: the very first), a reference; or NULL. A
 * walk by this returns every name that stays in the list exactly once, whatever is added or
 * removed meanwhile.
 */
struct dcpfs_version *dcpfs_version_behind(struct dcpfs *fs, uint64_t place);
/* Slot of the newest complete version, or 0. */
uint32_t dcpfs_latest(struct dcpfs *fs);
struct dcpfs_version *dcpfs_version_hold(struct dcpfs_version *ver);
void dcpfs_version_put(struct dcpfs_version *ver);

/*
 * Scan the source again for versions that were added, removed, completed or rewritten; the
 * opener opens new ones. A version that was refused for a temporary reason (descriptors,
 * memory, files that changed just then) counts as new again, each time after twice the delay.
 * Called by one thread at a time: the one that creates the mount, then the watcher. @seen as
 * for dcp_scan_seen(). Returns 1 if the list changed, else 0; -errno if the source could not be
 * scanned completely: then the list is unchanged, and errors.json has the reason.
 */
int dcpfs_versions_refresh(struct dcpfs *fs, struct dcp_seen *seen, struct dcp_err *err);

/*
 * Have files of a version that is being read changed? Watcher's thread only. The number of
 * examined files is added to @calls.
 */
bool dcpfs_versions_went_stale(struct dcpfs *fs, uint64_t *calls);

/*
 * Make the watcher scan the source now, because files changed or new ones must be watched. Any
 * thread.
 */
void dcpfs_versions_suspect(struct dcpfs *fs);

/*
 * Point latest to the newest version that was opened, or was listed at the start and is not
 * refused. Call with fs->lock held for writing.
 */
void dcpfs_versions_choose_latest(struct dcpfs *fs);

/*
 * watch: a thread that notices changes of the source and refreshes the list of versions. It is
 * woken by inotify and by a timer: seldom, or every few seconds where inotify does not see
 * every change.
 */

struct dcpfs_watch;

/* 0 or -errno. */
int dcpfs_watch_start(struct dcpfs *fs, struct dcpfs_watch **out);
/* End and join the thread. Accepts NULL. */
void dcpfs_watch_stop(struct dcpfs_watch *w);

/*
 * hf: a version as a Hugging Face model directory, with its own slot. The slot is a struct
 * dcpfs_version over a mapped version (core/store/version/mapped.h), made when hf/ is looked up
 * and mapped when it is entered. It is kept among the ranks of the version
 * (fs/versions/ranks.h), and goes with the version. Tensors are in natural order of their
 * names, in model.safetensors or in several files of at most opts.hf_shard_size bytes (more if
 * a single tensor is larger); an adapter is always one file; without tensors there is no file.
 * Within a file, tensors with larger elements come first where alignment needs it.
 */

struct dcp_grants;
struct dcpfs_ino;

#define DCPFS_HF_SHARD_SIZE 5000000000u

struct dcpfs_hf {
	int64_t *row;  /* row ids of the shown tensors, file by file */
	size_t *first; /* index in row of each file's first tensor; and the number of all */
	size_t nfiles;
	uint64_t nbytes; /* of all tensors shown */
	/* with allow_other: rights of each root; and of the way to --hf-assets */
	struct dcp_grants *grants[DCP_ASSET_ROOTS + 1];
	struct dcp_rights common; /* to read what describes all keys */
};

/* Map @ver, a slot of hf/ whose version is open. Call in one thread at a time. */
int dcpfs_hf_open(struct dcpfs *fs, struct dcpfs_version *ver, bool (*stop)(void *ctx),
		  struct dcp_err *err);
void dcpfs_hf_free(struct dcpfs_hf *hf);

/*
 * The name of model file number @n, as "model-00001-of-00012.safetensors" (dcp_version_stem());
 * after the last one, the name of the index of model files.
 */
void dcpfs_hf_name(const struct dcpfs_version *ver, uint64_t n,
		   char name[DCP_SAFETENSORS_NAME]);

/*
 * Call @fn for the tensors of model file number @n, in their order. -ENOENT: no such file; a
 * negative return of @fn is passed on.
 */
struct dcp_row;
int dcpfs_hf_rows(const struct dcpfs_version *ver, uint64_t n,
		  int (*fn)(void *ctx, struct dcp_row *row), void *ctx);

/*
 * The rights of node @i of hf/, or of a rank below it; @search: those to enter it, if it is a
 * directory.
 */
struct dcp_rights dcpfs_hf_rights(const struct dcpfs_version *ver, const struct dcpfs_ino *i,
				  struct dcp_rights *search);
