/* SPDX-License-Identifier: Apache-2.0 */
/* versions: the list of versions of a mount (versions.c), and keeping it true while the source
 * changes (refresh.c). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/hf/hf.h"
#include "core/model/rights.h"
#include "core/store/view/view.h"

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

/* Have files of a version that is being read changed? Watcher's thread only. The number of examined
 * files is added to @calls. */
bool dcpfs_versions_went_stale(struct dcpfs *fs, uint64_t *calls);

/* Make the watcher scan the source now, because files changed or new ones must be watched. Any
 * thread. */
void dcpfs_versions_suspect(struct dcpfs *fs);

/* Point latest to the newest version that was opened, or was listed at the start and is not
 * refused. Call with fs->lock held for writing. */
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
 * dcpfs_version over a mapped version (core/hf/hf.h), made when hf/ is looked up
 * and mapped when it is entered. It is kept among the ranks of the version
 * (fs/versions/versions.h), and goes with the version.
 */

struct dcp_grants;
struct dcpfs_ino;

#define DCPFS_HF_SHARD_SIZE 5000000000u

struct dcpfs_hf {
	struct dcp_hf_weights weights; /* in files of opts.hf_shard_size bytes */
	/* with allow_other: rights of each root; and of the way to --hf-assets */
	struct dcp_grants *grants[DCP_ASSET_ROOTS + 1];
	struct dcp_rights common; /* rights to files that describe all keys */
};

/* Map @ver, a slot of hf/ whose version is open. Call in one thread at a time. */
int dcpfs_hf_open(struct dcpfs *fs, struct dcpfs_version *ver, bool (*stop)(void *ctx),
		  struct dcp_err *err);

/* The rights of node @i of hf/, or of a rank below it; @search: those to enter it, if it is a
 * directory. */
struct dcp_rights dcpfs_hf_rights(const struct dcpfs_version *ver, const struct dcpfs_ino *i,
				  struct dcp_rights *search);

/*
 * opener: opens versions: a requested version at once, the others in the background, newest
 * first. A cached index opens in milliseconds, so the requesting thread opens it. Building an
 * index can take minutes. Two builder threads do that, one of them only for requests, so a
 * request waits only for its own version and for versions requested before. A requesting thread
 * only waits, and can be released at any time.
 */

struct dcp_progress;
struct dcpfs_opener;

struct dcpfs_opener *dcpfs_opener_create(void);
/* Call after dcpfs_opener_stop(). Accepts NULL. */
void dcpfs_opener_destroy(struct dcpfs_opener *o);

/* Begin to open the listed versions. @progress reports the first build; may be NULL. 0 or
 * -errno. */
int dcpfs_opener_start(struct dcpfs *fs, const struct dcp_progress *progress);
/* The list changed. */
void dcpfs_opener_wake(struct dcpfs *fs);
/*
 * Release all waiters, cancel builds, and join the threads. False: a thread is still at work
 * after @ms (parsing cannot be cancelled) and was detached; everything it uses must stay until
 * the process ends.
 */
bool dcpfs_opener_stop(struct dcpfs *fs, unsigned ms);

/* Wait up to @ms until a version is opened. Returns the code and message of the newest version if
 * all are refused by then, else 0. */
int dcpfs_opener_first(struct dcpfs *fs, unsigned ms, struct dcp_err *err);

/* Open the index of @ver if it is not open yet, which may take as long as building it. Returns 0,
 * or the code of the refusal with its message in @err; the same every time. */
int dcpfs_version_open(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err);

/*
 * rights: the rights of users in a mount that other users may enter (allow_other).
 *
 * The kernel decides by the owner, group and mode shown, so these never let in a user whom the
 * source keeps out: they are the intersection (core/model/rights.h) of the rights of everything
 * that a node's bytes or names come from.
 *
 *	MNT, .dcpfs/, tags/, config.json, stats    the way to SOURCE, and listing it
 *	a version, shard/, a layout, a rank        the same of the version's directory
 *	a tensor                                   the files of its pieces, and files without pieces;
 *	                                           all files, if they name each other's keys
 *	npy/ raw/ safetensors/                     listed with the rights to all data; entered
 *	                                           with those to files without pieces
 *	objects, files that describe all keys      all files of the version but sidecars
 *	layout.json                                the same, and the layout's file
 *	files/, and each in it                     their directories; that file
 *	hf/                                        listed with the rights to all data and the
 *	                                           directories of its assets; entered as the version
 *	files in it, and in ranks below it         all files of the version, and config.json
 *	an asset                                   that file
 *	blobs                                      as the file they are about
 *	by-key/, status.json                       all files of all versions that are open
 *	errors.json, incomplete.json, log          the user who mounts: a file that cannot be
 *	                                           read tells nothing about rights
 *
 * The rights are determined when a version is opened. When they change, the version becomes another
 * version with its own inodes, so that nothing in the kernel's cache applies to it; open files stay
 * open.
 *
 * Without allow_other the kernel lets in only the user who mounts. Then no rights are determined
 * here, and everything shows the mode of SOURCE.
 */

struct dcp_version;

/* Read the rights to the files of @ver, before @v is published in it. -ENOMEM. */
int dcpfs_rights_open(struct dcpfs_version *ver, struct dcp_version *v);

/* Set owner, group and permission bits of node @ino in @st. @ver: the version of its slot, or
 * NULL. */
void dcpfs_rights_show(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       struct stat *st);

/*
 * ranks: one rank of a layout over a version, with its own slot. A rank is a struct
 * dcpfs_version that shares the index of its version and cuts every tensor by its layout. It
 * takes a few hundred bytes, is made when its directory is entered, not when the directory is
 * listed, and computes its parts row by row. Ranks with open files are kept, and
 * DCPFS_RANKS_KEPT others; the least recently used go first, and a lookup makes them again,
 * with another inode. All ranks of a version go with the version. This module gives slots to
 * versions and to ranks.
 */

struct dcp_arena;
struct dcp_cut;
struct dcp_row;
struct dcp_view;
struct dcp_named_layout;
struct dcpfs_ranks;

#define DCPFS_RANKS_KEPT (1u << 16)

struct dcpfs_ranks *dcpfs_ranks_create(void);
void dcpfs_ranks_destroy(struct dcpfs_ranks *t);

/* A slot for a version or rank with this hash: the slot that the hash names, so that a remount
 * finds the same, or the next unused one. */
uint32_t dcpfs_slot_take(struct dcpfs *fs, uint64_t hash);

/* How often the slot was given in this mount, modulo 256: the generation of its inodes. */
uint8_t dcpfs_slot_generation(const struct dcpfs *fs, uint32_t slot);

/* A reference to rank @rank of @layout over @ver; @layout NULL: hf/ of @ver.
 * -ENOENT (no such rank), -ENOMEM. */
int dcpfs_rank_get(struct dcpfs *fs, struct dcpfs_version *ver,
		   const struct dcp_named_layout *layout, uint32_t rank,
		   struct dcpfs_version **out);

/* The slot that the rank has, or would have if it were entered now: for listings. */
uint32_t dcpfs_rank_slot(struct dcpfs *fs, const struct dcpfs_version *ver,
			 const struct dcp_named_layout *layout, uint32_t rank);

/* A reference to hf/ of @ver; NULL: hf/ was not looked up yet. */
struct dcpfs_version *dcpfs_hf_find(struct dcpfs *fs, const struct dcpfs_version *ver);

/* A reference to the version or rank of a slot; NULL: gone. */
struct dcpfs_version *dcpfs_version_by_slot(struct dcpfs *fs, uint32_t slot);

/* Name of the version in @slot into @buf, or -ESTALE. */
int dcpfs_slot_name(struct dcpfs *fs, uint64_t slot, char *buf, size_t size);

/* Take all ranks of @ver, which left the list, out of the table, and call @forget for each. */
void dcpfs_ranks_forget(struct dcpfs *fs, struct dcpfs_version *ver, bool rewritten,
			void (*forget)(struct dcpfs *fs, struct dcpfs_version *rank,
				       bool rewritten));

/*
 * Cut the tensor @row to the part that @ver holds (all of it, if @ver is a version, not a
 * rank): sets shape and size of @row, and @cut (in @arena) unless NULL. Returns 1; 0 if @ver
 * holds nothing of it, so it is not shown; negative if the layout cannot cut it, described in
 * @err.
 */
int dcpfs_rank_cut(const struct dcpfs_version *ver, struct dcp_row *row,
		   struct dcp_arena *arena, struct dcp_cut *cut, struct dcp_err *err);

/* Open the part of tensor row @id that @ver holds. -ENOENT: no part; otherwise as
 * dcp_view_open(). */
int dcpfs_rank_view(const struct dcpfs_version *ver, int64_t id, enum dcp_as as,
		    struct dcp_view **out, struct dcp_err *err);

/* Can the part @cut of @row be read, as far as the index knows? 0, or why not in @err. A rank may
 * hold only sound parts of a tensor with damaged files. */
int dcpfs_rank_can_read(const struct dcpfs_version *ver, const struct dcp_row *row,
			const struct dcp_cut *cut, struct dcp_err *err);

/* Is the object @key part of it? */
bool dcpfs_rank_has_object(const struct dcpfs_version *ver, const char *key);
