/* SPDX-License-Identifier: Apache-2.0 */
/* shard/: layouts by name, and their ranks. */
#include <errno.h>
#include <stdio.h>

#include "core/base/err.h"
#include "core/base/log.h"
#include "core/base/number.h"
#include "core/store/layouts/layouts.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

/*
 * An unknown layout is also logged, with the nearest name, since the shell only says "No such
 * file".
 */
int dcpfs_layouts_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	struct dcp_err err = { 0 };
	const struct dcp_named_layout *layout;
	int rc = dcp_layouts_find(dir->fs->layouts, name, &layout, &err);

	if (rc == -EINVAL || rc == -ENOENT) {
		dcp_log(dir->fs->opts.log, DCP_LOG_WARN, "shard/%s: %s", name, err.msg);
		return -ENOENT;
	}
	if (rc == 0)
		out->ino = dcpfs_ino_pack(dir->i.slot, DCPFS_LAYOUT, layout->id);
	return rc;
}

int dcpfs_layouts_list(const struct dcpfs_listing *l, uint64_t first)
{
	const struct dcp_named_layout *layout;

	for (; (layout = dcp_layouts_at(l->dir.fs->layouts, first)); first++)
		if (!dcpfs_emit(l, layout->name,
				dcpfs_ino_pack(l->dir.i.slot, DCPFS_LAYOUT, layout->id),
				DCPFS_DIR, DCPFS_FIRST_ROW + first))
			break;
	return 0;
}

/* "17", not "017". */
static int rank_of(const char *name, uint32_t *rank)
{
	uint64_t n;

	if ((*name == '0' && name[1]) || !dcp_take_number(&name, NULL, 7, &n) || *name)
		return -ENOENT;
	*rank = (uint32_t)n;
	return 0;
}

int dcpfs_slot_lookup(const struct dcpfs_at *dir, const struct dcp_named_layout *layout,
		      uint32_t rank, struct dcpfs_entry *out)
{
	struct dcpfs_version *r;
	int rc = dcpfs_rank_get(dir->fs, dir->ver, layout, rank, &r);

	if (rc < 0)
		return rc;
	out->ino = dcpfs_ino_pack(r->slot, DCPFS_VERSION, 0);
	dcpfs_version_put(r);
	return 0;
}

int dcpfs_ranks_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	const struct dcp_named_layout *layout = dcp_layouts_by_id(dir->fs->layouts, dir->i.row);
	uint32_t rank;
	int rc = layout ? rank_of(name, &rank) : -ENOENT;

	return rc < 0 ? rc : dcpfs_slot_lookup(dir, layout, rank, out);
}

/* Listing makes no slots: lookup does. */
int dcpfs_ranks_list(const struct dcpfs_listing *l, uint64_t first)
{
	const struct dcpfs_at *dir = &l->dir;
	const struct dcp_named_layout *layout = dcp_layouts_by_id(dir->fs->layouts, dir->i.row);
	uint32_t n = layout ? dcp_layout_ranks(layout->l) : 0;

	for (uint32_t rank = (uint32_t)first; rank < n; rank++) {
		char name[16];

		snprintf(name, sizeof(name), "%u", rank);
		if (!dcpfs_emit_slot(l, name, dcpfs_rank_slot(dir->fs, dir->ver, layout, rank),
				     DCPFS_FIRST_ROW + (uint64_t)rank))
			break;
	}
	return 0;
}
