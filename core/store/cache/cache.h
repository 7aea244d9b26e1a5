/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache: where indexes and decoded files are kept, and who may write them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_store_opts;
struct dcp_file_id;

/*
 * Path of the index of the directory @real, which is @id: the sidecar, or a name in
 * cache_dir that no other directory, version of dcpfs or schema has. *out is malloc'ed, or
 * NULL when indexes are kept in memory. -ENOMEM.
 */
int dcp_cache_path(const struct dcp_store_opts *opts, const char *name, const char *real,
		   const struct dcp_file_id *id, char **out);

/* Is @name, in the directory of the index, the index itself, its lock, or one being written? */
bool dcp_cache_is_own(const char *index_path, const char *name);

/*
 * May the index open at @fd, whose path is @path, be trusted? In a directory that others may
 * write to, it must belong to this user, to root, or to the directory's owner.
 */
bool dcp_cache_trusts(const char *path, int fd);

/* Is @path a file that is neither empty nor an index? Building one must not replace it. */
bool dcp_cache_is_foreign(const char *path);

/*
 * Become the only process that builds @path. Returns a descriptor for dcp_cache_unlock(), -EBUSY
 * when another process was still building it after lock_wait_ms, -ECANCELED, or what opening the
 * lock file gave. @waited: another process was building it.
 */
int dcp_cache_lock(const struct dcp_store_opts *opts, const char *path, bool *waited);
void dcp_cache_unlock(const char *path, int fd);

/* Remove temporary files of @path that processes left when they died; call with its lock held. */
void dcp_cache_sweep(const char *path);

/*
 * kept: what was found out about a version by reading all of it, beside its index, for as long
 * as its files do not change.
 *
 * A file has the extension DCP_CACHE_KEPT_EXT, and in it a header, which says of which files of
 * the version and by which release of dcpfs it was made, and the bytes. Any difference, and
 * damage, means that there is none.
 */

struct dcp_buf;
struct dcp_version;

/* The bytes called @name ("stats") of @v into @out. -ENOENT: there are none; -ENOMEM. */
int dcp_kept_read(const struct dcp_version *v, const char *name, struct dcp_buf *out);

/* Keep them. Where the index is in memory, or nothing can be written, they are not kept:
 * nothing depends on it. */
void dcp_kept_write(const struct dcp_version *v, const char *name, const void *p, size_t n);

/*
 * The same as records of one size, one a tensor, which lie in the order of the rows' ids. A record
 * begins with this.
 */
struct dcp_kept_head {
	int64_t id;
	uint64_t key;  /* hash of the key */
	uint64_t done; /* 0: nothing is known of it */
};

/* Those called @name, of @size bytes each; none if there are none. -ENOMEM. */
int dcp_kept_records(const struct dcp_version *v, const char *name, size_t size,
		     struct dcp_buf *out);
/* The record of row @id, whose key is @key; NULL: nothing is known. */
const void *dcp_kept_at(const struct dcp_buf *all, size_t size, int64_t id, const char *key);
/* Make @record that of the row, with its head. -ENOMEM. */
int dcp_kept_put(struct dcp_buf *all, size_t size, int64_t id, const char *key,
		 const void *record);
/*
 * Keep @all. What other processes kept meanwhile stays, and is in @all, too, where that had
 * nothing. -ENOMEM.
 */
int dcp_kept_share(const struct dcp_version *v, const char *name, size_t size,
		   struct dcp_buf *all);

/*
 * unpack: what a compressed file decodes to, decoded once.
 *
 * The decoded content lies in the cache directory as unpacked/<name>-<hash>.bin, followed by a
 * record of which file it was made from (device, inode, size, mtime, ctime), when, and the
 * content's hash. It is used while that file is the same; one that is damaged, belongs to
 * another user, or was made within two seconds of the file's last change is made again. The
 * hash is compared when an index is built.
 *
 * Limits. One file: DCP_UNPACK_RATIO times its compressed size plus DCP_UNPACK_SLACK, and at
 * most DCP_UNPACK_MOST. All together: when one is added, the others are removed, least recently
 * used first, until they fit in cache_limit (by default DCP_UNPACK_CACHE), and in any case those
 * unused for DCP_CACHE_DAYS. Without a cache, or when it is full, decoded bytes are kept in
 * memory, at most DCP_UNPACK_MEMORY for one version.
 *
 * Only one thread of one process decodes a file at a time; others that want that file wait for
 * it. Safe from any thread.
 */

struct dcp_err;
struct dcp_blob;
struct dcp_file_id;
struct dcp_site;
struct dcp_store_opts;
struct dcp_unpack;

#define DCP_UNPACK_RATIO 1024u /* about the most gzip can reach; real data rarely exceeds 3 */
#define DCP_UNPACK_SLACK (64ull << 20)
#define DCP_UNPACK_MOST (1ull << 40)
#define DCP_UNPACK_MEMORY (4ull << 30)
#define DCP_UNPACK_CACHE (32ull << 30)

/* What one version decodes. The log and stop_ctx of @opts must outlive it; progress is
 * reported until dcp_unpack_settle(). -ENOMEM. */
int dcp_unpack_create(const struct dcp_store_opts *opts, struct dcp_unpack **out);
void dcp_unpack_destroy(struct dcp_unpack *u);

/* The index is built: from now on report no progress, check no hashes, and keep no descriptors
 * of what is in the cache. */
void dcp_unpack_settle(struct dcp_unpack *u);

/*
 * The content of the compressed file @name below @at, as a blob of which only the
 * first @size bytes count. @source (may be NULL) receives the compressed file's identity and
 * @size; its name is not set. -EBADMSG (damaged, or not compressed), -E2BIG (a limit), -ESTALE
 * (it changed meanwhile), -ENOSPC, -ENOMEM, or as dcp_site_open().
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

/* Write the record after @size bytes of content, and make all of it last. */
int dcp_unpack_seal(int fd, const struct dcp_file_id *source, uint64_t size, int64_t began_ns);
