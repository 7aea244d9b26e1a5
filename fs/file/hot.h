/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hot: small files handed to the kernel (FUSE passthrough), so that reading and mapping them
 * costs what a native file costs and the daemon sees nothing of it.
 *
 * The kernel can pass reads through only to a file with the same offsets, and no tensor starts
 * at offset 0 of a shard. So a file is assembled once into a copy without a name, in the cache
 * directory or else in memory; all copies together have a limit. Needs Linux 6.9, root, and
 * --passthrough; all other files are served as usual.
 *
 * A copy is used even where a file equals a whole shard: reads that are passed through cannot be
 * checked against a rewrite, and a copy without a name cannot change.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcpfs;
struct dcpfs_file;
struct dcpfs_hot;

/* @budget: bytes all files together may take. NULL: out of memory. */
struct dcpfs_hot *dcpfs_hot_create(uint64_t budget);
void dcpfs_hot_destroy(struct dcpfs_hot *h);

/* The connection's /dev/fuse, once it was asked to pass through; -1 when it is closed. */
void dcpfs_hot_start(struct dcpfs_hot *h, int fuse_fd);

/* One copy. Zeroed: none. */
struct dcpfs_hot_copy {
	int backing_id; /* as the kernel knows it; 0: not passed through */
	uint64_t bytes;
};

typedef int (*dcpfs_hot_read)(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, void *buf,
			      size_t n);

/*
 * The kernel's number for the content of @f, @size bytes that @read gives, assembled now if it
 * was not before; 0: serve it as usual (@h NULL, no passthrough, too big, budget spent,
 * unreadable). The answer stays the same while the file is in the cache, since the kernel
 * requires it of all opens of an inode. Any thread.
 */
int dcpfs_hot_backing(struct dcpfs_hot *h, struct dcpfs *fs, struct dcpfs_file *f,
		      uint64_t size, dcpfs_hot_read read, struct dcpfs_hot_copy *copy);
/* Give the copy back. */
void dcpfs_hot_drop(struct dcpfs_hot *h, struct dcpfs_hot_copy *copy);
