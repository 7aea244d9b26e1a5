/* SPDX-License-Identifier: Apache-2.0 */
/* text: the generated files: README.txt, index.json, status.json and so on. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "fs/ino.h"
#include "fs/text/spool.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_version;

/* What .dcpfs/metrics has. */
void dcpfs_text_metrics(struct dcpfs *fs, struct dcp_buf *out);

/*
 * Generate the file of inode @ino. @ver is open, except for README.txt, which also says why a
 * version was refused; NULL for kinds that belong to no version.
 */
int dcpfs_text_make(struct dcpfs *fs, struct dcpfs_version *ver, struct dcpfs_ino ino,
		    struct dcpfs_text *out, struct dcp_err *err);
