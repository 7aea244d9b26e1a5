/* SPDX-License-Identifier: Apache-2.0 */
/* cache: where indexes and decoded files are kept, and who may write them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_store_opts;
struct dcp_file_id;

/*
 * Path of the index of the directory @real, whose identity is @id: the sidecar, or a name in
 * cache_dir that differs for every directory, version of dcpfs and schema. *out is malloc'ed, or
 * NULL when indexes are kept in memory. -ENOMEM.
 */
int dcp_cache_path(const struct dcp_store_opts *opts, const char *name, const char *real,
		   const struct dcp_file_id *id, char **out);

/* Is @name, a file in the directory of the index, the index itself, its lock, or an index that is
 * being written? */
bool dcp_cache_is_own(const char *index_path, const char *name);

/* May the index @path, open at @fd, be trusted? If other users may write to its directory, it must
 * belong to this user, to root, or to the owner of the directory. */
bool dcp_cache_trusts(const char *path, int fd);

/* Is @path a file that is neither empty nor an index? Such a file must not be replaced by a new
 * index. */
bool dcp_cache_is_foreign(const char *path);

/*
 * Become the only process that builds @path. Returns a descriptor for dcp_cache_unlock(), -EBUSY
 * when another process was still building it after lock_wait_ms, -ECANCELED, or the error of
 * opening the lock file. @waited: another process held the lock before.
 */
int dcp_cache_lock(const struct dcp_store_opts *opts, const char *path, bool *waited);
void dcp_cache_unlock(const char *path, int fd);

/* Remove temporary files of @path left by processes that died. Call with the lock of @path held. */
void dcp_cache_sweep(const char *path);

/*
 * kept: results of reading all of a version (its statistics, say), stored beside its index and
 * valid as long as its files do not change.
 *
 * Such a file has the extension DCP_CACHE_KEPT_EXT. It consists of a header, which records the
 * state of the version's files and the release of dcpfs, and the bytes. If anything differs or is
 * damaged, the file counts as missing.
 */

struct dcp_buf;
struct dcp_version;

/* Read the kept bytes called @name ("stats") of @v into @out. -ENOENT: nothing is kept; -ENOMEM. */
int dcp_kept_read(const struct dcp_version *v, const char *name, struct dcp_buf *out);

/* Keep bytes. If the index is in memory, or the file cannot be written, nothing is kept, which is
 * no error because nothing depends on it. */
void dcp_kept_write(const struct dcp_version *v, const char *name, const void *p, size_t n);

/* Kept bytes in the form of records of one size, one for each tensor, in the order of the row ids.
 * Every record begins with this head. */
struct dcp_kept_head {
	int64_t id;
	uint64_t key;  /* hash of the key */
	uint64_t done; /* 0: the record is empty */
};

/* Read the records called @name, of @size bytes each; @out is empty if none are kept. -ENOMEM. */
int dcp_kept_records(const struct dcp_version *v, const char *name, size_t size,
		     struct dcp_buf *out);
/* The record of row @id, whose key is @key; NULL: there is none. */
const void *dcp_kept_at(const struct dcp_buf *all, size_t size, int64_t id, const char *key);
/* Set the record of the row to @record and fill its head. -ENOMEM. */
int dcp_kept_put(struct dcp_buf *all, size_t size, int64_t id, const char *key,
		 const void *record);
/* Keep the records in @all. Records that other processes kept meanwhile are preserved, and are
 * added to @all where it had none. -ENOMEM. */
int dcp_kept_share(const struct dcp_version *v, const char *name, size_t size,
		   struct dcp_buf *all);

/*
 * unpack: the decoded content of compressed files, each decoded once.
 *
 * The decoded content lies in the cache directory as unpacked/<name>-<hash>.bin, followed by a
 * record of which file it was made from (device, inode, size, mtime, ctime), when, and the
 * content's hash. The decoded file is used while the compressed file is unchanged. It is made again
 * if it is damaged, belongs to another user, or was made within two seconds of the last change of
 * the compressed file. The hash is compared when an index is built.
 *
 * Limits. One file: DCP_UNPACK_RATIO times its compressed size plus DCP_UNPACK_SLACK, and at most
 * DCP_UNPACK_MOST. All files together: when a file is added, others are removed, least recently
 * used first, until the rest fits in cache_limit (by default DCP_UNPACK_CACHE). Files unused for
 * DCP_CACHE_DAYS are always removed. Without a cache, or when it is full, decoded bytes are kept in
 * memory, at most DCP_UNPACK_MEMORY for one version.
 *
 * Only one thread of one process decodes a file at a time; other threads and processes that need
 * the file wait. Safe from any thread.
 */

struct dcp_err;
struct dcp_blob;
struct dcp_site;
struct dcp_unpack;

#define DCP_UNPACK_RATIO 1024u /* about the most gzip can reach; real data rarely exceeds 3 */
#define DCP_UNPACK_SLACK (64ull << 20)
#define DCP_UNPACK_MOST (1ull << 40)
#define DCP_UNPACK_MEMORY (4ull << 30)
#define DCP_UNPACK_CACHE (32ull << 30)

/* The state of decoding for one version. The log and stop_ctx of @opts must outlive @out; progress
 * is reported until dcp_unpack_settle(). -ENOMEM. */
int dcp_unpack_create(const struct dcp_store_opts *opts, struct dcp_unpack **out);
void dcp_unpack_destroy(struct dcp_unpack *u);

/* Call when the index is built: from now on no progress is reported, no hashes are checked, and no
 * descriptors of files in the cache are kept. */
void dcp_unpack_settle(struct dcp_unpack *u);

/*
 * The content of the compressed file @name below @at, as a blob of which only the first @size bytes
 * count. @source (may be NULL) receives the compressed file's identity and @size; its name is not
 * set. -EBADMSG (damaged, or not compressed), -E2BIG (a limit), -ESTALE (the file changed
 * meanwhile), -ENOSPC, -ENOMEM, or as dcp_site_open().
 */
int dcp_unpack_open(struct dcp_unpack *u, const struct dcp_site *at, const char *name,
		    struct dcp_blob *out, uint64_t *size, struct dcp_file_id *source,
		    struct dcp_err *err);

/*
 * A decoded file in the cache directory, for unpack.c and its test:
 *
 *	the content
 *	16 bytes "dcpfs unpacked 1"
 *	 8 bytes each, little-endian: bytes of content; size, dev, ino, mtime_ns, ctime_ns of
 *	         the compressed file; when decoding began, by the clock of the cache's file
 *	         system; hash of the content; hash of the record up to here
 */

#define DCP_UNPACK_RECORD 88

/* Write the record after @size bytes of content, and sync the file to disk. */
int dcp_unpack_seal(int fd, const struct dcp_file_id *source, uint64_t size, int64_t began_ns);
