/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hot: small files handed to the kernel (FUSE passthrough), so that reading and mapping them
 * costs what a native file costs and the daemon sees nothing of it.
 *
 * The kernel can pass reads through to another file only from offset 0, unshifted, and no
 * tensor lies so in a shard. So a file is assembled once into a nameless copy, in the cache
 * directory or else in memory; what all of these take together has a limit. Needs Linux 6.9,
 * root, and --passthrough; everything else goes on as ever.
 *
 * Not for identity with a shard on disk: bytes passed through cannot be checked against a
 * rewrite any more, a copy without a name cannot change.
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

typedef int (*dcpfs_hot_read)(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
			      void *buf, size_t n);

/*
 * The kernel's number for the content of @f, @size bytes that @read gives, assembled now if it was not; 0: serve it as usual
 * (@h NULL, no passthrough, too big, budget spent, unreadable). The same answer as long as the
 * file is in the cache: the kernel wants all opens of an inode alike. Any thread.
 */
int dcpfs_hot_backing(struct dcpfs_hot *h, struct dcpfs *fs, const struct dcpfs_file *f,
		      uint64_t size, dcpfs_hot_read read, struct dcpfs_hot_copy *copy);
/* Give the copy back. */
void dcpfs_hot_drop(struct dcpfs_hot *h, struct dcpfs_hot_copy *copy);
