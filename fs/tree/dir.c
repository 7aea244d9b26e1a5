/* SPDX-License-Identifier: Apache-2.0 */
/* Lookup and listing, for all kinds of directories. */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "core/store/layouts/layouts.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/hf.h"
#include "fs/versions/opener.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

static uint64_t parent_of(const struct dcpfs_at *at)
{
	enum dcpfs_kind kind = at->i.kind, parent = at->node->parent;
	const struct dcpfs_version *ver = at->ver;

	if (kind == DCPFS_VERSION && dcpfs_is_rank(ver))
		return dcpfs_ino_pack(ver->of->slot, DCPFS_LAYOUT, ver->layout->id);
	if (kind == DCPFS_VERSION && ver->of)
		return dcpfs_ino_pack(ver->of->slot, DCPFS_VERSION, 0);
	if (kind == DCPFS_FILES_SUB && dcpfs_opened(ver))
		return dcpfs_sidecars_above(ver, at->i);
	return dcpfs_ino_pack(
		dcpfs_is_of_version(at->fs, dcpfs_node(at->fs, parent)) ? at->i.slot : 0,
		parent, kind == DCPFS_LAYOUT_JSON ? at->i.row : 0);
}

/*
 * The inode of a fixed child, or 0 if it is absent now. The inode of a link depends on its
 * target, so that the kernel may cache the target: when latest moves, it gets another inode.
 */
static uint64_t ino_of_child(const struct dcpfs_at *dir, enum dcpfs_kind kind)
{
	uint64_t row = kind == DCPFS_LATEST ? dcpfs_latest(dir->fs) : dir->i.row;

	return kind == DCPFS_LATEST && !row ? 0 : dcpfs_ino_pack(dir->i.slot, kind, row);
}

/*
 * Is the child reached through the directory of a version, not of a rank, which lies below one?
 */
static int enter(const struct dcpfs_at *dir)
{
	int rc = dir->i.kind == DCPFS_VERSION && !dcpfs_is_rank(dir->ver)
			 ? dcpfs_version_open(dir->fs, dir->ver, NULL)
			 : 0;

	return rc == -ENOENT ? -ESTALE : rc; /* not ENOENT: the name exists */
}

static int lookup_in(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	const struct dcpfs_node *child;
	int rc;

	if (!strcmp(name, ".") || !strcmp(name, "..")) {
		/* asked for inodes known by number only (NFS, file handles) */
		out->ino = name[1] ? parent_of(dir)
				   : dcpfs_ino_pack(dir->i.slot, dir->i.kind, dir->i.row);
		return 0;
	}
	if (dir->node->type != DCPFS_DIR)
		return -ENOTDIR;
	rc = enter(dir);
	if (rc < 0)
		return rc;
	child = dcpfs_child(dir->fs, dir->i.kind, dcpfs_slots_of(dir->ver), name);
	if (child && child->kind == DCPFS_HF)
		return dcpfs_slot_lookup(dir, NULL, 0, out);
	if (child) {
		out->ino = ino_of_child(dir, child->kind);
		return out->ino ? 0 : -ENOENT;
	}
	return dir->node->lookup ? dir->node->lookup(dir, name, out) : -ENOENT;
}

int dcpfs_lookup(struct dcpfs *fs, uint64_t parent, const char *name, uint64_t *ino,
		 struct stat *st)
{
	struct dcpfs_entry out = { .st = st };
	struct dcpfs_at dir;
	int rc;

	if (strlen(name) > NAME_MAX)
		return -ENAMETOOLONG;
	rc = dcpfs_at(fs, parent, &dir);
	if (rc == 0)
		rc = lookup_in(&dir, name, &out);
	if (rc == 0 && st && !out.filled)
		rc = dcpfs_getattr(fs, out.ino, st);
	dcpfs_version_put(dir.ver);
	*ino = out.ino;
	return rc;
}

/* ---- listing ---- */

static bool list_child(const struct dcpfs_listing *l, const struct dcpfs_node *child,
		       uint64_t position)
{
	uint64_t ino;

	if (child->kind == DCPFS_HF)
		return dcpfs_emit_slot(l, child->name,
				       dcpfs_rank_slot(l->dir.fs, l->dir.ver, NULL, 0),
				       position);
	ino = ino_of_child(&l->dir, child->kind);
	return !ino || dcpfs_emit(l, child->name, ino, child->type, position);
}

static bool list_fixed(const struct dcpfs_listing *l, uint64_t ino, uint64_t after)
{
	const struct dcpfs_node *child;

	if (after < 1 && !dcpfs_emit(l, ".", ino, DCPFS_DIR, 1))
		return false;
	if (after < 2 && !dcpfs_emit(l, "..", parent_of(&l->dir), DCPFS_DIR, 2))
		return false;
	for (unsigned n = 0;
	     (child = dcpfs_child_at(l->dir.fs, l->dir.i.kind, dcpfs_slots_of(l->dir.ver), n));
	     n++)
		if (after < 3 + n && !list_child(l, child, 3 + n))
			return false;
	return true;
}

int dcpfs_readdir(struct dcpfs *fs, uint64_t ino, uint64_t after, bool attrs,
		  dcpfs_dirent_fn fn, void *ctx)
{
	struct dcpfs_listing l = { .attrs = attrs, .fn = fn, .ctx = ctx };
	int rc = dcpfs_at(fs, ino, &l.dir);

	if (rc == 0)
		rc = l.dir.node->type == DCPFS_DIR ? enter(&l.dir) : -ENOTDIR;
	if (rc == 0 && list_fixed(&l, ino, after) && l.dir.node->list)
		rc = l.dir.node->list(
			&l, after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW + 1);
	dcpfs_version_put(l.dir.ver);
	return rc;
}
