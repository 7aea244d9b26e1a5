/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob: where the bytes of virtual files are stored, told to other programs (fs/ABI.md).
 */
#pragma once
#include <stdint.h>

#include "fs/dcpfs_abi.h"
#include "fs/ino.h"
#include "fs/text/spool.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_version;

/* The blob of inode @ino, in @ver, which is opened. -ENOTSUP: its bytes are not stored as they
 * are shown; or what opening the file gave. */
int dcpfs_blob_make(struct dcpfs *fs, struct dcpfs_version *ver, struct dcpfs_ino ino,
		    struct dcpfs_text *out, struct dcp_err *err);

/* The answer to DCPFS_IOC_INFO. -ENOTTY: nothing to tell about that kind of node. */
int dcpfs_blob_info(struct dcpfs *fs, uint64_t ino, struct dcpfs_info *out);
