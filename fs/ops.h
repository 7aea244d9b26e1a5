/* SPDX-License-Identifier: Apache-2.0 */
/* ops: the table of FUSE callbacks. Each unpacks its arguments, calls the tree, and replies exactly
 * once. The userdata is a struct dcpfs_server. */
#pragma once
#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 312
#endif
#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stddef.h>

struct dcpfs;
struct dcpfs_late;
struct dcpfs_slabs;

#define DCPFS_MAX_READ (1u << 20) /* bytes of one READ; libfuse 3.14 cannot do more */

struct dcpfs_server {
	struct dcpfs *fs;
	struct dcpfs_slabs *slabs; /* buffers for gathered replies */
	struct dcpfs_late *late;   /* NULL: every request is answered by its worker */
	bool greeted;              /* the session's first reply was sent */
};

extern const struct fuse_lowlevel_ops dcpfs_ops;
extern const size_t dcpfs_ops_size;

/*
 * ops_late: requests that take as long as a tensor takes to be read, answered by a few threads of
 * their own. The worker that received the request is free at once, so other programs are served
 * however many ask for statistics.
 *
 * A request that waits for its turn ends at once when its program is interrupted. Several requests
 * for one file are answered one after the other.
 */

#define DCPFS_LATE_MOST 4u

/* The function to call, which replies, and its arguments. */
struct dcpfs_late_call {
	void (*answer)(const struct dcpfs_late_call *call);
	fuse_req_t req;
	fuse_ino_t ino;
	size_t size; /* of a READ */
	off_t off;
	struct fuse_file_info fi;
};

/* @threads: 1 to DCPFS_LATE_MOST. 0, -ENOMEM or why no thread can be started. */
int dcpfs_late_start(unsigned threads, struct dcpfs_late **out);

/* Have @call answered; out of memory, or after dcpfs_late_stop(), it is answered with an error. */
void dcpfs_late_add(struct dcpfs_late *l, const struct dcpfs_late_call *call);

/* Answer waiting requests with EINTR, and wait up to @ms for requests that are being answered.
 * Accepts NULL. False: some are still being answered, so the memory stays in use. */
bool dcpfs_late_stop(struct dcpfs_late *l, unsigned ms);

/*
 * slabs: reply buffers, taken and given back by workers. There are two sizes: short slabs of
 * DCPFS_SLAB_SHORT bytes, and long slabs, in huge pages where available, which makes copying a
 * twelfth cheaper. Slabs are kept, so nothing is allocated once there are as many as workers
 * need at the same time.
 */

#define DCPFS_SLAB_SHORT (128u << 10)

/* @most: size of the longest reply in bytes. */
struct dcpfs_slabs *dcpfs_slabs_create(size_t most);
void dcpfs_slabs_destroy(struct dcpfs_slabs *s);

/* A page-aligned buffer for @n bytes, at most those of the longest reply; or NULL. Given back
 * with the same @n. Any thread. */
void *dcpfs_slab_take(struct dcpfs_slabs *s, size_t n);
void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab, size_t n);
