/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file: open files, and the cache of files that were open.
 *
 * A file is a view of a tensor, or text: an object's JSON, or a generated file. Files of a version
 * never change, so they are kept by inode and opening one again is a table lookup. Live files
 * (.dcpfs/) are made at every open and belong to that open alone; where the kernel skips OPEN,
 * a text stays for about a second, and its mtime tells when it was made.
 *
 * The cache is bounded: DCPFS_CACHE_FILES files, among them DCPFS_CACHE_MODELS models, with
 * DCPFS_CACHE_TEXT bytes of text besides that of open files. Generated text beyond a megabyte lies
 * in an unlinked file, not in private memory.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "core/store/view/view.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_cache;
struct dcpfs_file;
struct dcpfs_info;
struct dcpfs_version;

#define DCPFS_CACHE_FILES 1024
#define DCPFS_CACHE_TEXT (64u << 20)
#define DCPFS_CACHE_MODELS 8

struct dcpfs_cache *dcpfs_cache_create(void);
void dcpfs_cache_destroy(struct dcpfs *fs);

/*
 * Keep no file of @ver, which left the list, after the last close: a removed checkpoint would take
 * space on disk until other files push it out. Open files are served as before; if files of @ver
 * were @rewritten, they answer -ESTALE, and the kernel drops its pages.
 */
void dcpfs_cache_forget(struct dcpfs *fs, struct dcpfs_version *ver, bool rewritten);

/* The number of files in the cache. */
size_t dcpfs_cache_count(struct dcpfs *fs);

/* Would opening the file of inode @ino read a whole tensor? */
bool dcpfs_file_takes_long(struct dcpfs *fs, uint64_t ino);

/* A reference to the file of inode @ino. -ESTALE (the version is gone), -EISDIR, -ENOENT, or the
 * error of opening its view, in @err and in errors.json. */
int dcpfs_file_get(struct dcpfs *fs, uint64_t ino, struct dcpfs_file **out,
		   struct dcp_err *err);
/* Another reference to a file that is held. A READ takes its own: once it is answered, the reader
 * may close the file, and RELEASE may be handled before the READ has finished with it. */
void dcpfs_file_hold(struct dcpfs_file *f);
void dcpfs_file_put(struct dcpfs *fs, struct dcpfs_file *f);

/* Are the backing files still those that were indexed? Asked at open: 0, -ESTALE or -EIO. */
int dcpfs_file_check(struct dcpfs *fs, const struct dcpfs_file *f);

/* Call when a program opened the file: until every opener has closed it, its backing files stay
 * open as far as the limits allow, so that they can be read even if they are removed. */
void dcpfs_file_opened(struct dcpfs_file *f);
void dcpfs_file_closed(struct dcpfs_file *f);

/* The kernel's number for a copy of the file that it serves by itself; 0: none. */
int dcpfs_file_backing(struct dcpfs *fs, struct dcpfs_file *f);

uint64_t dcpfs_file_size(const struct dcpfs_file *f);
/* When a live file's text was made: its mtime. */
struct timespec dcpfs_file_made(const struct dcpfs_file *f);

/* The answer to a READ, and the files of parts that it points into. */
struct dcpfs_reply {
	struct dcp_reply bytes;
	uint32_t nparts;
	struct dcpfs_file *part[DCP_REPLY_FILES];
};

/* Append bytes [off, off + n), which must lie inside the file, to an empty reply that was begun
 * with n. 0, or -ESTALE, -EIO, ...: a failing read is noted in errors.json. */
int dcpfs_file_answer(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, size_t n,
		      struct dcpfs_reply *r);
/* Call if sending the reply failed because a mapped file was truncated: note the place in
 * errors.json. */
void dcpfs_reply_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
			const struct dcpfs_reply *r);
void dcpfs_reply_finish(struct dcpfs *fs, struct dcpfs_reply *r);

/* The answer to DCPFS_IOC_INFO. -ENOTTY: that kind of node has none. */
int dcpfs_file_info(struct dcpfs *fs, uint64_t ino, struct dcpfs_info *out);

/*
 * hot: small files handed to the kernel (FUSE passthrough), so that reading and mapping them costs
 * as much as for a native file and does not involve the daemon.
 *
 * The kernel can pass reads through only to a file with the same offsets, and no tensor starts
 * at offset 0 of a shard. So a file is assembled once into a copy without a name, in the cache
 * directory or else in memory; all copies together have a limit. Needs Linux 6.9, root, and
 * --passthrough; all other files are served as usual.
 *
 * A copy is used even where a file equals a whole shard: reads that are passed through cannot be
 * checked against a rewrite, and a copy without a name cannot change.
 */

struct dcpfs_hot;

/* @budget: limit of the bytes of all files together. NULL: out of memory. */
struct dcpfs_hot *dcpfs_hot_create(uint64_t budget);
void dcpfs_hot_destroy(struct dcpfs_hot *h);

/* Set the connection's /dev/fuse after the kernel agreed to pass through; -1 when it is closed. */
void dcpfs_hot_start(struct dcpfs_hot *h, int fuse_fd);

/* One copy. Zeroed: none. */
struct dcpfs_hot_copy {
	int backing_id; /* as the kernel knows it; 0: not passed through */
	uint64_t bytes;
};

typedef int (*dcpfs_hot_read)(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, void *buf,
			      size_t n);

/*
 * The kernel's number for a copy of the content of @f (@size bytes, which @read gives). The copy is
 * assembled by the first call. 0: serve the file as usual (@h NULL, no passthrough, too big, budget
 * spent, unreadable). The answer stays the same while the file is in the cache, since the kernel
 * requires it of all opens of an inode. Any thread.
 */
int dcpfs_hot_backing(struct dcpfs_hot *h, struct dcpfs *fs, struct dcpfs_file *f,
		      uint64_t size, dcpfs_hot_read read, struct dcpfs_hot_copy *copy);
/* Give the copy back. */
void dcpfs_hot_drop(struct dcpfs_hot *h, struct dcpfs_hot_copy *copy);
