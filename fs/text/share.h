/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share: the files that describe layouts and ranks: layout.json, and a rank's index.json and
 * plan.json. Their forms are documented in fs/README.md.
 */
#pragma once
#include <stdint.h>

struct dcp_err;
struct dcpfs;
struct dcpfs_spool;
struct dcpfs_version;

/* layout.json of layout number @id over the version @ver: mesh, rules, and the rule of each key. */
int dcpfs_share_layout(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t id,
		       struct dcpfs_spool *s, struct dcp_err *err);

/* index.json of the rank @ver: its part of each key. */
int dcpfs_share_index(struct dcpfs_version *ver, struct dcpfs_spool *s);

/* plan.json of the rank @ver: which stored bytes it needs. Opens backing files. */
int dcpfs_share_plan(struct dcpfs_version *ver, struct dcpfs_spool *s);
