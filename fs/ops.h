/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops: the table of FUSE callbacks. Each unpacks its arguments, calls the tree, and replies
 * exactly once. The userdata is a struct dcpfs_server.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct dcpfs;
struct dcpfs_late;
struct dcpfs_slabs;
struct fuse_lowlevel_ops;

#define DCPFS_MAX_READ (1u << 20) /* bytes of one READ; libfuse 3.14 cannot do more */

struct dcpfs_server {
	struct dcpfs *fs;
	struct dcpfs_slabs *slabs; /* buffers for gathered replies */
	struct dcpfs_late *late;   /* NULL: every request is answered by its worker */
	bool greeted;              /* the session's first reply was sent */
};

extern const struct fuse_lowlevel_ops dcpfs_ops;
extern const size_t dcpfs_ops_size;
