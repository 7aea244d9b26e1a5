/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version_cache: where indexes and decoded files are kept, and who may write them.
 */
#pragma once
#include <stdbool.h>

struct dcp_store_opts;
struct stat;

/*
 * Path of the index of the directory @real, whose stat is @st: the sidecar, or a name in
 * cache_dir that no other directory, version of dcpfs or schema has. *out is malloc'ed, or
 * NULL when indexes are kept in memory. -ENOMEM.
 */
int dcp_cache_path(const struct dcp_store_opts *opts, const char *name, const char *real,
		   const struct stat *st, char **out);

/* Is @name, in the directory of the index, the index itself, its lock, or one being written? */
bool dcp_cache_is_own(const char *index_path, const char *name);

/*
 * May the index open at @fd, which stands at @path, be believed? In a directory where others
 * may write too it must be ours, root's, or of the directory's owner.
 */
bool dcp_cache_trusts(const char *path, int fd);

/* Is @path a file that holds something, and no index? Building one must not replace that. */
bool dcp_cache_is_foreign(const char *path);

/* Make the directories above @path, for their owner only. */
int dcp_cache_mkdirs(const char *path);

/*
 * Be the only process that builds @path. Returns a descriptor to unlock, -EBUSY when another
 * one has been building for lock_wait_ms, -ECANCELED, or what opening the lock file gave.
 * @waited: another one was building.
 */
int dcp_cache_lock(const struct dcp_store_opts *opts, const char *path, bool *waited);
void dcp_cache_unlock(const char *path, int fd);

/* Remove what processes that died left of @path; to be called with its lock. */
void dcp_cache_sweep(const char *path);
