/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trim: which files of the cache stay?
 *
 * A directory of the cache has files of one extension, each of which was used when its mtime says:
 * whoever takes one sets that (dcp_cache_use()). Those that were not used for some days go, and the
 * least recently used until the rest fits. Files that a writer left when it died go after a day,
 * unless their lock is held.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_CACHE_DAYS 30
#define DCP_CACHE_INDEXES (2ull << 30) /* bytes of all indexes; one has some 200 bytes a key */
#define DCP_CACHE_INDEX_EXT ".dcpx"
#define DCP_CACHE_UNPACKED_EXT ".bin"
#define DCP_CACHE_KEPT_EXT ".kept"
#define DCP_CACHE_BLOCKS_EXT ".blocks"

struct dcp_trim {
	const char *ext;  /* of the files: DCP_CACHE_INDEX_EXT, DCP_CACHE_UNPACKED_EXT */
	const char *keep; /* path of one that stays, and has just been made; NULL: none */
	uint64_t most;    /* bytes; UINT64_MAX: no limit */
	unsigned days;    /* 0: whenever they were used */
	bool counts;      /* nothing goes */
	bool all;         /* all of them go, and what writers left, however young */
	/* they have holes, which do not count; those that a process has a lock on stay */
	bool sparse;
	/* Goes the file @name in the directory @dirfd for another reason? NULL: none does. */
	bool (*goes)(void *ctx, int dirfd, const char *name);
	void *ctx;
};

struct dcp_trimmed {
	uint64_t files, bytes;   /* that stay */
	uint64_t removed, freed; /* files and bytes that went, what writers left included */
};

/* What cannot be removed stays. 0, or what opening @dir gave. */
int dcp_cache_trim(const char *dir, const struct dcp_trim *how, struct dcp_trimmed *out);

/* Make the directories above @path, accessible to their owner only. */
int dcp_cache_mkdirs(const char *path);

/* The file open at @fd is used now. */
void dcp_cache_use(int fd);
