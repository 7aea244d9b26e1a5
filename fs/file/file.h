/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file: what an open file is, and the cache of files that were open.
 *
 * A file is a view of a tensor, or text: an object's JSON, or something generated. Files
 * of a version never change, so they are kept by inode and opening one again is a table lookup.
 * Live files (.dcpfs/) are made at every open and belong to that open alone; where the
 * kernel skips OPEN, their text stays until the second is over, and their mtime says so.
 *
 * The cache is bounded: DCPFS_CACHE_FILES files, among them DCPFS_CACHE_MODELS models, with
 * DCPFS_CACHE_TEXT bytes of text besides what is open. Generated text beyond a megabyte lies in an
 * unlinked file, not in private memory.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "core/store/view/reply.h"
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
 * @ver left the list: keep none of its files after their last close, or a removed checkpoint
 * would take space on disk until other files push it out. Open ones are served as before, unless
 * its files were @rewritten: then they answer -ESTALE, and the kernel drops what it cached.
 */
void dcpfs_cache_forget(struct dcpfs *fs, struct dcpfs_version *ver, bool rewritten);

/* Files that it has. */
size_t dcpfs_cache_count(struct dcpfs *fs);

/* Would opening the file of inode @ino read a whole tensor? */
bool dcpfs_file_takes_long(struct dcpfs *fs, uint64_t ino);

/*
 * A reference to the file of inode @ino. -ESTALE (the version is gone), -EISDIR,
 * -ENOENT, or what opening its view gave, described in @err and noted in errors.json.
 */
int dcpfs_file_get(struct dcpfs *fs, uint64_t ino, struct dcpfs_file **out,
		   struct dcp_err *err);
/* Another reference to a file that is held. A READ takes its own: once it is answered, the reader
 * may close the file, and RELEASE may be handled before the READ has finished with it. */
void dcpfs_file_hold(struct dcpfs_file *f);
void dcpfs_file_put(struct dcpfs *fs, struct dcpfs_file *f);

/* Are its backing files still the ones that were indexed? Asked at open: 0, -ESTALE or -EIO. */
int dcpfs_file_check(struct dcpfs *fs, const struct dcpfs_file *f);

/* It was opened: until every opener has closed it, its backing files stay open as far as the
 * limits allow, so that they can be read even when they are removed. */
void dcpfs_file_opened(struct dcpfs_file *f);
void dcpfs_file_closed(struct dcpfs_file *f);

/* Note in errors.json that reading @f at @off gave @rc; returns @rc. */
int dcpfs_file_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, int rc);

/* The kernel's number for a copy of the file that it serves by itself (fs/file/hot.h); 0: none. */
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

/*
 * Append bytes [off, off + n), which must lie inside the file, to an empty reply that was begun
 * with n. 0, or -ESTALE, -EIO, ...: a failing read is noted in errors.json.
 */
int dcpfs_file_answer(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, size_t n,
		      struct dcpfs_reply *r);
/* Its bytes could not be read when they were sent, since a file was cut under its mapping: note
 * where. */
void dcpfs_reply_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
			const struct dcpfs_reply *r);
void dcpfs_reply_finish(struct dcpfs *fs, struct dcpfs_reply *r);

/* The answer to DCPFS_IOC_INFO. -ENOTTY: that kind of node has none. */
int dcpfs_file_info(struct dcpfs *fs, uint64_t ino, struct dcpfs_info *out);
