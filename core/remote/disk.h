/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk: bytes of files on servers, kept on a disk for later readers, in this process and others.
 *
 * Each file on a server has one sparse file, remote/<its id>.blocks in the cache directory:
 *
 *	the bytes that are known, at their own offsets
 *	at the next multiple of 4096, a head:
 *	16 bytes "dcpfs blocks 2\n\0"
 *	 8 bytes each, little-endian: the id (2), the size, bytes of a block, hash of the head so far
 *	64 bytes for each block: up to four parts of it that are there, 16 bytes each: begin and end in the block (32
 *	         bits each; 0 0: none), and the XXH3 of the part and of where it lies
 *
 * The id is a hash of the server, the name and the tag, so that another content has another file. A
 * part whose hash does not match (a crash, a disk's fault, a write by another process at the same
 * moment) is not there: it is asked for again. So writers need no order, and nothing is
 * synchronised; only a part that grows is changed under a lock.
 *
 * All together stay below the limit, and leave 5 % of the file system free: the files that were
 * used least recently go, but none that is being read or written. Where that is not enough, nothing
 * more is kept.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_DISK_BLOCK (256u << 10)
#define DCP_DISK_MOST (32ull << 30)

/*
 * Keep in the directory @cache, at most @most bytes (0: DCP_DISK_MOST). NULL: nothing is kept. Any
 * thread; it holds for what is read from then on.
 */
void dcp_disk_use(const char *cache, uint64_t most);
/* Nothing is kept, whatever dcp_disk_use() says before or after. */
void dcp_disk_never(void);

/*
 * Bytes, since this process began: that were written; that could not be kept; that were read from
 * what was kept. And the bytes that all files have together, at the last look and written by this
 * process since then, of so many at most (0: nothing is kept).
 */
struct dcp_disk_counts {
	uint64_t written, refused, hit, used, most;
};
struct dcp_disk_counts dcp_disk_counted(void);
/* Count bytes that are not kept as their file cannot be told from others. */
void dcp_disk_refuse(uint64_t n);

/* What is kept of one file, while it is read. */
struct dcp_disk {
	uint64_t id[2], size;
	int fd;      /* -1: nothing is kept of it so far */
	bool failed; /* no file can be made for it */
	bool used;   /* something was read or written */
};

/* False: nothing is kept of any file. */
bool dcp_disk_open(struct dcp_disk *d, const uint64_t id[2], uint64_t size);
void dcp_disk_close(struct dcp_disk *d);
/*
 * Bytes at @off, at most @n: *p is in @block, which has room for DCP_DISK_BLOCK. How many; 0: those
 * are not there.
 */
size_t dcp_disk_read(struct dcp_disk *d, uint64_t off, uint64_t n, char *block, const char **p);
/*
 * Keep the bytes @lo to @hi of block @number. They lie at these places of @block, whose other bytes
 * may be overwritten. If they cannot be kept, they are not.
 */
void dcp_disk_write(struct dcp_disk *d, uint64_t number, uint32_t lo, uint32_t hi, char *block);
/* Blocks with bytes of @off to @off + @n, which may be wrong, are not kept any more. */
void dcp_disk_forget(struct dcp_disk *d, uint64_t off, uint64_t n);
