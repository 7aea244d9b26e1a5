/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of the tree: lookup and listing.
 *
 * Positions in a directory: 1 and 2 are "." and "..", 3 to 31 the fixed children, FIRST_ROW
 * and up the versions by their place, or rows by their id. So seekdir and telldir hold across
 * listings, and a listing needs no state between calls.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/model/name.h"
#include "core/store/index.h"
#include "fs/fs.h"
#include "fs/tree.h"
#include "fs/versions.h"

enum { FIRST_ROW = 32 };

/* Can this form show the row at all? One that cannot is not listed in its directory. */
static bool is_shown(const struct dcpfs_rows *r, const struct dcp_row *row)
{
	return r->rows == DCP_ROW_OBJECT || dcp_view_can_show(row->dtype, r->as);
}

/* Tied tensors are one inode: the first of them. */
static uint64_t ino_of_row(const struct dcpfs_version *ver, const struct dcpfs_rows *r,
			   const struct dcp_row *row)
{
	return dcpfs_ino_pack(ver->slot, r->file,
			      (uint64_t)(row->alias_of ? row->alias_of : row->id));
}

static int attr_of_row(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       const struct dcp_row *row, struct stat *st)
{
	if (row->alias_of)
		return dcpfs_getattr(fs, ino, st);
	dcpfs_attr_of_row(fs, ver, ino, row, st);
	return 0;
}

static int lookup_row(struct dcpfs *fs, struct dcpfs_version *ver, const struct dcpfs_rows *r,
		      const char *name, uint64_t *ino, struct stat *st)
{
	char stem[DCP_NAME_MAX + 1];
	struct dcp_arena arena;
	struct dcp_row row;
	int rc;

	if (!dcpfs_stem(name, r->extension, stem))
		return -ENOENT;
	rc = dcpfs_version_open(fs, ver, NULL);
	if (rc < 0)
		return rc;
	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_index_by_name(dcp_version_index(ver->v), r->rows, stem, &arena, &row);
	if (rc == 0 && !is_shown(r, &row))
		rc = -ENOENT;
	if (rc == 0) {
		*ino = ino_of_row(ver, r, &row);
		if (st)
			rc = attr_of_row(fs, ver, *ino, &row, st);
	}
	dcp_arena_finish(&arena);
	return rc;
}

static uint64_t parent_of(struct dcpfs_ino i)
{
	enum dcpfs_kind parent = dcpfs_node(i.kind)->parent;

	return dcpfs_ino_pack(parent == DCPFS_ROOT ? 0 : i.slot, parent, 0);
}

/* A fixed child's inode; 0: it is not there now. The link's tells where it leads, so that the
 * kernel may keep what it read from it: when latest moves, it is another inode. */
static uint64_t ino_of_child(struct dcpfs *fs, uint32_t slot, enum dcpfs_kind kind)
{
	uint32_t to = kind == DCPFS_LATEST ? dcpfs_latest(fs) : 0;

	return kind == DCPFS_LATEST && !to ? 0 : dcpfs_ino_pack(slot, kind, to);
}

static int lookup_version(struct dcpfs *fs, const char *name, uint64_t *ino)
{
	struct dcpfs_version *ver = dcpfs_version_by_name(fs, name);
	int rc;

	if (!ver)
		return -ENOENT;
	rc = dcpfs_version_open(fs, ver, NULL);
	*ino = dcpfs_ino_pack(ver->slot, DCPFS_VERSION, 0);
	dcpfs_version_put(ver);
	return rc;
}

/* A file of a directory of rows; with its attributes, since the row is at hand. */
static int lookup_in_rows(struct dcpfs *fs, struct dcpfs_ino dir, const char *name,
			  uint64_t *ino, struct stat *st)
{
	struct dcpfs_version *ver = dcpfs_version_by_slot(fs, dir.slot);
	int rc = ver ? lookup_row(fs, ver, dcpfs_rows_in(dir.kind), name, ino, st) : -ESTALE;

	dcpfs_version_put(ver);
	return rc;
}

int dcpfs_lookup(struct dcpfs *fs, uint64_t parent, const char *name, uint64_t *ino,
		 struct stat *st)
{
	struct dcpfs_ino p = dcpfs_ino_unpack(parent);
	const struct dcpfs_node *dir = dcpfs_node(p.kind), *child;
	int rc = 0;

	if (!dir)
		return -ENOENT;
	child = dcpfs_child(p.kind, name);
	if (strlen(name) > NAME_MAX)
		rc = -ENAMETOOLONG;
	else if (!strcmp(name,
			 ".")) /* asked for inodes known by number only (NFS, file handles) */
		*ino = parent;
	else if (!strcmp(name, ".."))
		*ino = parent_of(p);
	else if (dir->type != DCPFS_DIR)
		rc = -ENOTDIR;
	else if (child)
		rc = (*ino = ino_of_child(fs, p.slot, child->kind)) ? 0 : -ENOENT;
	else if (p.kind == DCPFS_ROOT)
		rc = lookup_version(fs, name, ino);
	else if (dcpfs_rows_in(p.kind))
		return lookup_in_rows(fs, p, name, ino, st);
	else
		rc = -ENOENT;
	return rc == 0 && st ? dcpfs_getattr(fs, *ino, st) : rc;
}

/* ---- listing ---- */

struct listing {
	struct dcpfs *fs;
	bool attrs;
	dcpfs_dirent_fn fn;
	void *ctx;
};

static const mode_t type_bits[] = {
	[DCPFS_DIR] = S_IFDIR, [DCPFS_FILE] = S_IFREG, [DCPFS_LINK] = S_IFLNK
};

/* Tell one entry; its attributes when wanted and cheap. False: the reader has enough. */
static bool tell(const struct listing *l, const char *name, uint64_t ino, enum dcpfs_type type,
		 uint64_t position)
{
	struct stat st = { .st_ino = ino, .st_mode = type_bits[type], .st_size = -1 };

	if (l->attrs && type == DCPFS_DIR && dcpfs_getattr(l->fs, ino, &st) < 0)
		return true; /* gone in between */
	return l->fn(l->ctx, name, &st, position);
}

static bool list_fixed(const struct listing *l, struct dcpfs_ino dir, uint64_t ino,
		       uint64_t after)
{
	const struct dcpfs_node *child;

	if (after < 1 && !tell(l, ".", ino, DCPFS_DIR, 1))
		return false;
	if (after < 2 && !tell(l, "..", parent_of(dir), DCPFS_DIR, 2))
		return false;
	for (unsigned n = 0; (child = dcpfs_child_at(dir.kind, n)); n++) {
		uint64_t at = ino_of_child(l->fs, dir.slot, child->kind);

		if (after < 3 + n && at && !tell(l, child->name, at, child->type, 3 + n))
			return false;
	}
	return true;
}

static void list_versions(const struct listing *l, uint64_t after)
{
	struct dcpfs_version *ver;
	uint64_t place;

	after = after < FIRST_ROW ? 0 : after - FIRST_ROW;
	for (; (ver = dcpfs_version_behind(l->fs, after)); after = place) {
		uint64_t ino = dcpfs_ino_pack(ver->slot, DCPFS_VERSION, 0);
		bool more = dcpfs_version_refusal(ver) || /* .dcpfs/errors.json tells */
			    tell(l, ver->name, ino, DCPFS_DIR, FIRST_ROW + ver->place);

		place = ver->place;
		dcpfs_version_put(ver);
		if (!more)
			return;
	}
}

static int list_rows(const struct listing *l, struct dcpfs_version *ver,
		     const struct dcpfs_rows *r, uint64_t after)
{
	struct dcp_index_scan *scan;
	struct dcp_row row;
	bool more = true;
	int rc;

	rc = dcpfs_version_open(l->fs, ver, NULL);
	if (rc == 0)
		rc = dcp_index_scan(dcp_version_index(ver->v), r->rows,
				    after < FIRST_ROW ? 0 : (int64_t)(after - FIRST_ROW),
				    !l->attrs, &scan);
	if (rc < 0) /* C libraries take ENOENT for the end of a listing */
		return rc == -ENOENT ? -ESTALE : rc;
	while (more && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		uint64_t ino = ino_of_row(ver, r, &row);
		struct stat st = { .st_ino = ino, .st_mode = S_IFREG, .st_size = -1 };
		char name[NAME_MAX + 1];

		if (!is_shown(r, &row))
			continue;
		stpcpy(stpcpy(name, row.name),
		       r->extension); /* the stem is at most DCP_NAME_MAX */
		if (l->attrs && attr_of_row(l->fs, ver, ino, &row, &st) < 0)
			continue;
		more = l->fn(l->ctx, name, &st, FIRST_ROW + (uint64_t)row.id);
	}
	dcp_index_scan_end(scan);
	return rc < 0 ? rc : 0;
}

int dcpfs_readdir(struct dcpfs *fs, uint64_t ino, uint64_t after, bool attrs,
		  dcpfs_dirent_fn fn, void *ctx)
{
	struct listing l = { fs, attrs, fn, ctx };
	struct dcpfs_ino dir = dcpfs_ino_unpack(ino);
	const struct dcpfs_node *node = dcpfs_node(dir.kind);
	const struct dcpfs_rows *r = dcpfs_rows_in(dir.kind);
	struct dcpfs_version *ver = NULL;
	int rc = 0;

	if (!node || node->type != DCPFS_DIR)
		return -ENOTDIR;
	if (dir.slot) {
		ver = dcpfs_version_by_slot(fs, dir.slot);
		if (!ver)
			return -ESTALE;
	}
	if (list_fixed(&l, dir, ino, after)) {
		if (dir.kind == DCPFS_ROOT)
			list_versions(&l, after);
		else if (r && ver)
			rc = list_rows(&l, ver, r, after);
	}
	dcpfs_version_put(ver);
	return rc;
}
