/* SPDX-License-Identifier: Apache-2.0 */
/*
 * versions: the list of versions of a mount (versions.c), and keeping it true while the source
 * changes (refresh.c).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

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
