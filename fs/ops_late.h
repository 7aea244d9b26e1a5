/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops_late: requests that take as long as a tensor takes to be read, answered by a few threads of
 * their own. The worker that received one is free again at once, so however many programs ask for
 * statistics, others are served.
 *
 * A request that waits for its turn ends at once when its program is interrupted. Of requests for
 * one file, the others wait for the first.
 */
#pragma once
#ifndef FUSE_USE_VERSION
#define FUSE_USE_VERSION 312
#endif
#include <fuse_lowlevel.h>
#include <stdbool.h>

#define DCPFS_LATE_MOST 4u

struct dcpfs_late;

/* What to do, and with what; it replies. */
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

/*
 * Answer what waits with EINTR, and wait so long for what is being answered. Accepts NULL. False:
 * some still is, and the memory stays in use.
 */
bool dcpfs_late_stop(struct dcpfs_late *l, unsigned ms);
