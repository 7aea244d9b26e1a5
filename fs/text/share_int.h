/* SPDX-License-Identifier: Apache-2.0 */
/* share_int: private to share.c and share_plan.c. */
#pragma once
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/jsonw.h"
#include "core/store/index/index.h"

struct dcp_named_layout;
struct dcpfs_spool;
struct dcpfs_version;

enum { DCPFS_ROW_MEMORY = 16 << 20 }; /* for the cut of one row */

struct dcpfs_writing {
	struct dcpfs_version *ver;
	const struct dcp_named_layout *layout;
	struct dcp_jsonw w;
	struct dcp_buf text;
	struct dcp_arena arena;
};

/* Begin a JSON object with the members that name the rank. */
void dcpfs_share_begin(struct dcpfs_writing *x);
