/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpack: what a compressed file decodes to, decoded once.
 *
 * It lies in the cache directory as unpacked/<name>-<hash>.bin: the content, and behind it a
 * record of which file it was made from (device, inode, size, mtime, ctime), when, and the
 * content's hash. It is used while that file is the same; one that is damaged, belongs to
 * somebody else, or was made within two seconds of the file's last change is made anew. The
 * hash is compared when an index is built.
 *
 * Limits. One file: DCP_UNPACK_RATIO times its compressed size and DCP_UNPACK_SLACK, and
 * DCP_UNPACK_MOST. All of them together: when one is added, those unused for longest go until
 * DCP_UNPACK_CACHE is kept, and those unused for DCP_UNPACK_DAYS in any case. Without a cache,
 * or when it is full, decoded bytes are kept in memory, DCP_UNPACK_MEMORY of them for one
 * version.
 *
 * One process decodes a file at a time; others wait for it. Safe from any thread; a thread that
 * decodes makes those wait that want another file of the same version.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct dcp_err;
struct dcp_file_id;
struct dcp_store_opts;
struct dcp_unpack;

#define DCP_UNPACK_RATIO 1024u /* the most that gzip can do; zeros aside, 3 is much */
#define DCP_UNPACK_SLACK (64ull << 20)
#define DCP_UNPACK_MOST (1ull << 40)
#define DCP_UNPACK_MEMORY (4ull << 30)
#define DCP_UNPACK_CACHE (256ull << 30)
#define DCP_UNPACK_DAYS 30

/* What one version decodes. The log of @opts must outlive it; progress is told until
 * dcp_unpack_settle(). -ENOMEM. */
int dcp_unpack_create(const struct dcp_store_opts *opts, struct dcp_unpack **out);
void dcp_unpack_destroy(struct dcp_unpack *u);

/* The index is there: tell no progress and check no hashes from now on. */
void dcp_unpack_settle(struct dcp_unpack *u);

/*
 * The content of the compressed file @name below @dirfd, as a descriptor of which only the
 * first @size bytes count. @source (may be NULL) receives the compressed file's identity and
 * @size, its name left alone. -EBADMSG (damaged, or not compressed), -E2BIG (a limit), -ESTALE
 * (it changed meanwhile), -ENOSPC, -ENOMEM, or as dcp_open_beneath().
 */
int dcp_unpack_open(struct dcp_unpack *u, int dirfd, const char *name, int *fd, uint64_t *size,
		    struct dcp_file_id *source, struct dcp_err *err);
