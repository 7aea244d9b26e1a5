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
/* The first whose place is after @place (0: of all), a reference; NULL: there is none. A
 * walk returns every name that stays in the list exactly once, whatever else is added or
 * removed. */
struct dcpfs_version *dcpfs_version_behind(struct dcpfs *fs, uint64_t place);
/* Slot of the newest complete version; 0: there is none. */
uint32_t dcpfs_latest(struct dcpfs *fs);
struct dcpfs_version *dcpfs_version_hold(struct dcpfs_version *ver);
void dcpfs_version_put(struct dcpfs_version *ver);

/*
 * Look at the source again: versions that came, went, were completed or rewritten. What is new
 * is for the opener to open. One that was refused for a temporary reason (descriptors, memory,
 * files that changed just then) counts as new again, each time after twice the delay.
 * One thread at a time (the watcher, or whoever creates the mount). @seen as for
 * dcp_scan_seen(). 1: the list changed, 0: not. -errno: the source could not be looked at, or not
 * all of it; the list stays as it was, and errors.json says why.
 */
int dcpfs_versions_refresh(struct dcpfs *fs, struct dcp_seen *seen, struct dcp_err *err);

/* Did files change of a version that is being read? Called by the same thread. @calls is
 * increased by the number of files. */
bool dcpfs_versions_went_stale(struct dcpfs *fs, uint64_t *calls);

/* Let the watcher look at the source now: files changed, or there are new ones to watch. From any
 * thread. */
void dcpfs_versions_suspect(struct dcpfs *fs);

/* Point latest to the newest that was opened, or was there at the start and is not refused.
 * fs->lock is held for writing. */
void dcpfs_versions_choose_latest(struct dcpfs *fs);
