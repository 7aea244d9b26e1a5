/* SPDX-License-Identifier: Apache-2.0 */
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
#pragma once
#include <stdbool.h>
#include <stdint.h>

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
