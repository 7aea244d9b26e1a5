/* SPDX-License-Identifier: Apache-2.0 */
/* npy/ raw/ safetensors/ objects/: rows of the index. */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "core/model/name.h"
#include "core/store/index/index.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/opener.h"
#include "fs/versions/ranks.h"

/*
 * Is the row listed: does @ver hold a part of it, and can this form show it? @row becomes that
 * part. A row that the layout cannot cut stays whole, and opening it gives the error.
 */
static bool is_shown(const struct dcpfs_version *ver, const struct dcpfs_rows *r,
		     struct dcp_row *row, struct dcp_arena *arena)
{
	if (r->rows == DCP_ROW_OBJECT)
		return dcpfs_rank_has_object(ver, row->key);
	return dcp_view_can_show(row->key, row->dtype, r->as) &&
	       dcpfs_rank_cut(ver, row, arena, NULL, NULL) != 0;
}

/*
 * Tied tensors share the inode of the first, except in a rank, which may cut each differently.
 */
static bool is_tied(const struct dcpfs_version *ver, const struct dcp_row *row)
{
	return row->alias_of && !dcpfs_is_rank(ver);
}

static uint64_t ino_of_row(const struct dcpfs_version *ver, const struct dcpfs_rows *r,
			   const struct dcp_row *row)
{
	return dcpfs_ino_pack(ver->slot, r->file,
			      (uint64_t)(is_tied(ver, row) ? row->alias_of : row->id));
}

static int attr_of_row(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       const struct dcp_row *row, struct stat *st)
{
	if (is_tied(ver, row))
		return dcpfs_getattr(fs, ino, st);
	dcpfs_attr_of_row(fs, ver, ino, row, st);
	return 0;
}

int dcpfs_rows_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	const struct dcpfs_rows *r = dcpfs_rows_in(dir->i.kind);
	struct dcpfs_version *ver = dir->ver;
	char stem[DCP_NAME_MAX + 1];
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row row;
	int rc;

	if (!dcpfs_stem(name, r->extension, stem))
		return -ENOENT;
	rc = dcpfs_version_open(dir->fs, ver, NULL);
	if (rc < 0)
		return rc;
	rc = dcp_index_by_name(dcpfs_index(ver), r->rows, stem, &arena, &row);
	dcpfs_index_asked(dir->fs, ver, rc);
	if (rc == 0 && !is_shown(ver, r, &row, &arena))
		rc = -ENOENT;
	if (rc == 0) {
		out->ino = ino_of_row(ver, r, &row);
		out->filled = out->st != NULL;
		if (out->st)
			rc = attr_of_row(dir->fs, ver, out->ino, &row, out->st);
	}
	return rc;
}

int dcpfs_rows_list(const struct dcpfs_listing *l, uint64_t first)
{
	const struct dcpfs_rows *r = dcpfs_rows_in(l->dir.i.kind);
	struct dcpfs_version *ver = l->dir.ver;
	struct dcpfs *fs = l->dir.fs;
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(16 << 20);
	struct dcp_row row;
	bool more = true;
	int rc = dcpfs_version_open(fs, ver, NULL);

	if (rc == 0) /* a rank's part depends on key and shape, so read whole rows */
		rc = dcp_index_scan(dcpfs_index(ver), r->rows, first ? (int64_t)first - 1 : 0,
				    !l->attrs && !dcpfs_is_rank(ver), &scan);
	if (rc < 0) /* ENOENT from readdir means the end to C libraries */
		return rc == -ENOENT ? -ESTALE : rc;
	while (more && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		uint64_t ino = ino_of_row(ver, r, &row);
		struct stat st = { .st_ino = ino, .st_mode = S_IFREG, .st_size = -1 };
		char name[NAME_MAX + 1];

		dcp_arena_reset(&arena);
		if (!is_shown(ver, r, &row, &arena))
			continue;
		stpcpy(stpcpy(name, row.name),
		       r->extension); /* the stem is at most DCP_NAME_MAX */
		if (l->attrs && attr_of_row(fs, ver, ino, &row, &st) < 0)
			continue;
		more = l->fn(l->ctx, name, &st, DCPFS_FIRST_ROW + (uint64_t)row.id);
	}
	return rc < 0 ? dcpfs_index_asked(fs, ver, rc) : 0;
}
