/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trim: deletes old files of the cache.
 *
 * A directory of the cache has files of one extension. The mtime of a file is the time of its last
 * use, which every user of the file sets (dcp_cache_use()). Files that were not used for some days
 * are deleted, then the least recently used files until the rest fits. Files that a dead writer
 * left are deleted after a day, unless their lock is held.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_CACHE_DAYS 30
/* bytes of all indexes; an index has some 200 bytes a key */
#define DCP_CACHE_INDEXES (2ull << 30)
#define DCP_CACHE_INDEX_EXT ".dcpx"
#define DCP_CACHE_UNPACKED_EXT ".bin"
#define DCP_CACHE_KEPT_EXT ".kept"
#define DCP_CACHE_BLOCKS_EXT ".blocks"

struct dcp_trim {
	const char *ext;  /* of the files: DCP_CACHE_INDEX_EXT, DCP_CACHE_UNPACKED_EXT */
	const char *keep; /* path of a file that was just made and must stay; NULL: none */
	uint64_t most;    /* bytes; UINT64_MAX: no limit */
	unsigned days;    /* delete files unused for this many days; 0: of any age */
	bool counts;      /* only count */
	bool all;         /* delete all files, and leftovers of writers of any age */
	/* holes of files do not count; files that a process has locked stay */
	bool sparse;
	/* Should the file @name in the directory @dirfd be deleted for another reason? NULL: no
	 * file should. */
	bool (*goes)(void *ctx, int dirfd, const char *name);
	void *ctx;
};

struct dcp_trimmed {
	uint64_t files, bytes;   /* that remain */
	uint64_t removed, freed; /* files and bytes deleted, leftovers of writers included */
};

/* Files that cannot be deleted stay. 0, or the error of opening @dir. */
int dcp_cache_trim(const char *dir, const struct dcp_trim *how, struct dcp_trimmed *out);

/* Make the directories above @path, accessible to their owner only. */
int dcp_cache_mkdirs(const char *path);

/* Record a use of the file that is open at @fd. */
void dcp_cache_use(int fd);
