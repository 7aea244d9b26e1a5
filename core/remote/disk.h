/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk: a cache on disk of bytes of remote files, shared with later readers in this and other
 * processes.
 *
 * Each file on a server has one sparse file, remote/<its id>.blocks in the cache directory:
 *
 *	the cached bytes, at their own offsets
 *	at the next multiple of 4096 after the size, a head:
 *	16 bytes "dcpfs blocks 2\n\0"
 *	 8 bytes each, little-endian: the id (2), the size, bytes of a block, hash of the above
 *	64 bytes for each block: up to four cached parts, 16 bytes each: begin and end (32
 *	         bits each; 0 0: none), and the XXH3 of the part and its place
 *
 * The id is a hash of the server, the name and the tag, so different contents have different files.
 * A part whose hash does not match (after a crash, a fault of the disk, a concurrent write by
 * another process) counts as missing and is requested again. So writes need no order and no fsync;
 * only a part that grows is changed under a lock.
 *
 * All files together stay below the limit, and leave 5 % of the file system free: the least
 * recently used files are deleted, except for files in use. If that is not enough, nothing more is
 * cached.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_DISK_BLOCK (256u << 10)
#define DCP_DISK_MOST (32ull << 30)

/* Cache in the directory @cache, at most @most bytes (0: DCP_DISK_MOST). NULL: nothing is cached.
 * Any thread; affects later reads. */
void dcp_disk_use(const char *cache, uint64_t most);
/* Disable the cache, whatever dcp_disk_use() says before or after. */
void dcp_disk_never(void);

/*
 * Bytes since this process began: @written to the cache; @refused, which could not be cached; @hit,
 * which were read from the cache. @used: size of all files at the last scan, plus the bytes that
 * this process has written since; @most: the limit (0: nothing is cached).
 */
struct dcp_disk_counts {
	uint64_t written, refused, hit, used, most;
};
struct dcp_disk_counts dcp_disk_counted(void);
/* Count bytes that are not cached because their file has no reliable identity. */
void dcp_disk_refuse(uint64_t n);

/* The cache of one remote file, while the file is read. */
struct dcp_disk {
	uint64_t id[2], size;
	int fd;      /* -1: nothing is cached of it so far */
	bool failed; /* its cache file cannot be created */
	bool used;   /* something was read or written */
};

/* False: the cache is disabled. */
bool dcp_disk_open(struct dcp_disk *d, const uint64_t id[2], uint64_t size);
void dcp_disk_close(struct dcp_disk *d);
/* Read at most @n cached bytes at @off. *p points into @block, which has room for DCP_DISK_BLOCK.
 * Returns the number of bytes; 0: they are not cached. */
size_t dcp_disk_read(struct dcp_disk *d, uint64_t off, uint64_t n, char *block, const char **p);
/* Cache bytes [@lo, @hi) of block @number. They are at these offsets of @block, whose other bytes
 * may be overwritten. A failure is not reported. */
void dcp_disk_write(struct dcp_disk *d, uint64_t number, uint32_t lo, uint32_t hi, char *block);
/* Drop the blocks that contain bytes of [@off, @off + @n), because the bytes may be wrong. */
void dcp_disk_forget(struct dcp_disk *d, uint64_t off, uint64_t n);
