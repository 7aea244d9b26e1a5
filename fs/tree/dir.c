/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the tree: lookup and listing. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/log.h"
#include "core/model/name.h"
#include "core/store/index/index.h"
#include "core/store/layouts/layouts.h"
#include "fs/fs.h"
#include "fs/tree/dir_int.h"
#include "fs/tree/tree.h"
#include "fs/versions/hf.h"
#include "fs/versions/opener.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

/*
 * Is the row there, and can this form show it? Otherwise it is not listed. @row becomes what
 * @ver holds of it; one that a layout cannot cut stays as it is: opening it gives the error.
 */
static bool is_shown(const struct dcpfs_version *ver, const struct dcpfs_rows *r,
		     struct dcp_row *row, struct dcp_arena *arena)
{
	if (r->rows == DCP_ROW_OBJECT)
		return dcpfs_rank_has_object(ver, row->key);
	return dcp_view_can_show(row->key, row->dtype, r->as) &&
	       dcpfs_rank_cut(ver, row, arena, NULL, NULL) != 0;
}

/* Tied tensors are one inode: the first of them. A rank may cut each in its own way. */
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
	rc = dcp_index_by_name(dcpfs_index(ver), r->rows, stem, &arena, &row);
	dcpfs_index_asked(fs, ver, rc);
	if (rc == 0 && !is_shown(ver, r, &row, &arena))
		rc = -ENOENT;
	if (rc == 0) {
		*ino = ino_of_row(ver, r, &row);
		if (st)
			rc = attr_of_row(fs, ver, *ino, &row, st);
	}
	dcp_arena_finish(&arena);
	return rc;
}

/* @ver: what the slot stands for; NULL: slot 0. */
static uint64_t parent_of(struct dcpfs_ino i, const struct dcpfs_version *ver)
{
	enum dcpfs_kind parent = dcpfs_node(i.kind)->parent;

	if (i.kind == DCPFS_VERSION && ver && dcpfs_is_rank(ver))
		return dcpfs_ino_pack(ver->of->slot, DCPFS_LAYOUT, ver->layout->id);
	if (i.kind == DCPFS_VERSION && ver && ver->of)
		return dcpfs_ino_pack(ver->of->slot, DCPFS_VERSION, 0);
	if (i.kind == DCPFS_FILES_SUB && ver && ver->v)
		return dcpfs_sidecars_above(ver, i);
	return dcpfs_ino_pack(parent == DCPFS_ROOT || parent == DCPFS_BLOB_DIR ? 0 : i.slot,
			      parent, i.kind == DCPFS_LAYOUT_JSON ? i.row : 0);
}

/* A fixed child's inode; 0: it is not there now. The link's tells where it leads, so that the
 * kernel may keep what it read from it: when latest moves, it is another inode. */
static uint64_t ino_of_child(struct dcpfs *fs, struct dcpfs_ino dir,
			     const struct dcpfs_version *ver, enum dcpfs_kind kind)
{
	uint64_t row = kind == DCPFS_LATEST ? dcpfs_latest(fs) : dir.row;

	if ((kind == DCPFS_LATEST && !row) || (kind == DCPFS_HF_INDEX && ver->hf->nfiles < 2))
		return 0;
	return dcpfs_ino_pack(dir.slot, kind, row);
}

/* Its name costs nothing; whoever enters it has it opened. */
static int lookup_version(struct dcpfs *fs, const char *name, uint64_t *ino)
{
	struct dcpfs_version *ver = dcpfs_version_by_name(fs, name);
	int rc = ver && !dcpfs_version_refusal(ver) ? 0 : -ENOENT;

	if (rc == 0)
		*ino = dcpfs_ino_pack(ver->slot, DCPFS_VERSION, 0);
	dcpfs_version_put(ver);
	return rc;
}

/* Reached through the directory of a version (not of a rank: that is below one). */
static int enter(struct dcpfs *fs, struct dcpfs_ino dir, struct dcpfs_version *ver)
{
	int rc = dir.kind == DCPFS_VERSION && !dcpfs_is_rank(ver)
			 ? dcpfs_version_open(fs, ver, NULL)
			 : 0;

	return rc == -ENOENT ? -ESTALE : rc; /* ENOENT would say that the name is free */
}

/* A name below shard/: one that no layout has is told in the log, where the user of a shell
 * that says "No such file" finds the nearest. */
static int lookup_layout(struct dcpfs *fs, struct dcpfs_ino dir, const char *name,
			 uint64_t *ino)
{
	struct dcp_err err = { 0 };
	const struct dcp_named_layout *layout;
	int rc = dcp_layouts_find(fs->layouts, name, &layout, &err);

	if (rc == -EINVAL || rc == -ENOENT) {
		dcp_log(fs->opts.log, DCP_LOG_WARN, "shard/%s: %s", name, err.msg);
		return -ENOENT;
	}
	if (rc == 0)
		*ino = dcpfs_ino_pack(dir.slot, DCPFS_LAYOUT, layout->id);
	return rc;
}

/* The blob about an inode, by its number in hex; the directory lists none. */
static int lookup_blob(const char *name, uint64_t *ino)
{
	size_t n = strlen(name);

	if (n != 16 || strspn(name, "0123456789abcdef") != n)
		return -ENOENT;
	return dcpfs_blob_ino(dcpfs_ino_unpack(strtoull(name, NULL, 16)), ino);
}

/* "17", not "017". */
static int rank_of(const char *name, uint32_t *rank)
{
	size_t n = strlen(name);

	if (n == 0 || n > 7 || strspn(name, "0123456789") != n || (*name == '0' && n > 1))
		return -ENOENT;
	*rank = (uint32_t)strtoul(name, NULL, 10);
	return 0;
}

static int lookup_hf(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t *ino)
{
	struct dcpfs_version *hf;
	int rc = dcpfs_rank_get(fs, ver, NULL, 0, &hf);

	if (rc < 0)
		return rc;
	*ino = dcpfs_ino_pack(hf->slot, DCPFS_VERSION, 0);
	dcpfs_version_put(hf);
	return 0;
}

static int lookup_rank(struct dcpfs *fs, struct dcpfs_ino dir, struct dcpfs_version *ver,
		       const char *name, uint64_t *ino)
{
	const struct dcp_named_layout *layout = dcp_layouts_by_id(fs->layouts, dir.row);
	struct dcpfs_version *r;
	uint32_t rank;
	int rc = layout ? rank_of(name, &rank) : -ENOENT;

	if (rc == 0)
		rc = dcpfs_rank_get(fs, ver, layout, rank, &r);
	if (rc < 0)
		return rc;
	*ino = dcpfs_ino_pack(r->slot, DCPFS_VERSION, 0);
	dcpfs_version_put(r);
	return 0;
}

/* @ver: what the parent's slot stands for; NULL: slot 0. 1: @st is filled in already. */
static int lookup_in(struct dcpfs *fs, struct dcpfs_ino dir, struct dcpfs_version *ver,
		     const char *name, uint64_t *ino, struct stat *st)
{
	const struct dcpfs_node *child = dcpfs_child(dir.kind, dcpfs_slots_of(ver), name);
	int rc;

	if (!strcmp(name, ".")) /* asked for inodes known by number only (NFS, file handles) */
		*ino = dcpfs_ino_pack(dir.slot, dir.kind, dir.row);
	else if (!strcmp(name, ".."))
		*ino = parent_of(dir, ver);
	else if (dcpfs_node(dir.kind)->type != DCPFS_DIR)
		return -ENOTDIR;
	else if (child && child->kind == DCPFS_HF)
		return lookup_hf(fs, ver, ino);
	else if (child)
		return (*ino = ino_of_child(fs, dir, ver, child->kind)) ? 0 : -ENOENT;
	else if (dir.kind == DCPFS_VERSION && dcpfs_is_hf(ver))
		return dcpfs_hf_lookup(ver, name, ino);
	else if (dir.kind == DCPFS_ROOT)
		return lookup_version(fs, name, ino);
	else if (dir.kind == DCPFS_BLOB_DIR)
		return lookup_blob(name, ino);
	else if (dir.kind == DCPFS_TAGS_DIR)
		return dcpfs_tags_lookup(fs, name, ino);
	else if (dir.kind == DCPFS_BY_KEY_DIR || dir.kind == DCPFS_BY_KEY)
		return dcpfs_by_key_lookup(fs, dir, name, ino);
	else if ((dir.kind == DCPFS_FILES_DIR || dir.kind == DCPFS_FILES_SUB) && ver) {
		rc = dcpfs_version_open(fs, ver, NULL);
		return rc < 0 ? rc : dcpfs_sidecars_lookup(ver, dir, name, ino);
	} else if (dir.kind == DCPFS_SHARD_DIR)
		return lookup_layout(fs, dir, name, ino);
	else if (dir.kind == DCPFS_LAYOUT && ver)
		return lookup_rank(fs, dir, ver, name, ino);
	else if (dcpfs_rows_in(dir.kind) && ver) {
		rc = lookup_row(fs, ver, dcpfs_rows_in(dir.kind), name, ino, st);
		return rc < 0 ? rc : 1;
	} else {
		return -ENOENT;
	}
	return 0;
}

int dcpfs_lookup(struct dcpfs *fs, uint64_t parent, const char *name, uint64_t *ino,
		 struct stat *st)
{
	struct dcpfs_ino dir = dcpfs_ino_unpack(parent);
	struct dcpfs_version *ver = NULL;
	int rc;

	if (!dcpfs_node(dir.kind))
		return -ENOENT;
	if (strlen(name) > NAME_MAX)
		return -ENAMETOOLONG;
	if (dir.slot) {
		ver = dcpfs_version_by_slot(fs, dir.slot);
		if (!ver)
			return -ESTALE;
	}
	rc = ver && strcmp(name, ".") && strcmp(name, "..") ? enter(fs, dir, ver) : 0;
	if (rc == 0)
		rc = lookup_in(fs, dir, ver, name, ino, st);
	if (rc == 0 && st)
		rc = dcpfs_getattr(fs, *ino, st);
	dcpfs_version_put(ver);
	return rc < 0 ? rc : 0;
}

/* ---- listing ---- */

static const mode_t type_bits[] = {
	[DCPFS_DIR] = S_IFDIR, [DCPFS_FILE] = S_IFREG, [DCPFS_LINK] = S_IFLNK
};

bool dcpfs_tell(const struct dcpfs_listing *l, const char *name, uint64_t ino,
		enum dcpfs_type type, uint64_t position)
{
	struct stat st = { .st_ino = ino, .st_mode = type_bits[type], .st_size = -1 };

	if (l->attrs && type != DCPFS_FILE && dcpfs_getattr(l->fs, ino, &st) < 0)
		return true; /* gone in between */
	return l->fn(l->ctx, name, &st, position);
}

/* A directory that is made by entering it. */
static bool tell_slot(const struct dcpfs_listing *l, const char *name, uint32_t slot,
		      uint64_t position)
{
	struct stat st = { .st_ino = dcpfs_ino_pack(slot, DCPFS_VERSION, 0),
			   .st_mode = S_IFDIR,
			   .st_size = -1 };

	return l->fn(l->ctx, name, &st, position);
}

static bool list_child(const struct dcpfs_listing *l, struct dcpfs_ino dir,
		       const struct dcpfs_version *ver, const struct dcpfs_node *child,
		       uint64_t position)
{
	uint64_t at;

	if (child->kind == DCPFS_HF)
		return tell_slot(l, child->name, dcpfs_rank_slot(l->fs, ver, NULL, 0),
				 position);
	at = ino_of_child(l->fs, dir, ver, child->kind);
	return !at || dcpfs_tell(l, child->name, at, child->type, position);
}

static bool list_fixed(const struct dcpfs_listing *l, struct dcpfs_ino dir,
		       const struct dcpfs_version *ver, uint64_t ino, uint64_t after)
{
	const struct dcpfs_node *child;

	if (after < 1 && !dcpfs_tell(l, ".", ino, DCPFS_DIR, 1))
		return false;
	if (after < 2 && !dcpfs_tell(l, "..", parent_of(dir, ver), DCPFS_DIR, 2))
		return false;
	for (unsigned n = 0; (child = dcpfs_child_at(dir.kind, dcpfs_slots_of(ver), n)); n++)
		if (after < 3 + n && !list_child(l, dir, ver, child, 3 + n))
			return false;
	return true;
}

static void list_versions(const struct dcpfs_listing *l, uint64_t after)
{
	struct dcpfs_version *ver;
	uint64_t place;

	after = after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW;
	for (; (ver = dcpfs_version_behind(l->fs, after)); after = place) {
		uint64_t ino = dcpfs_ino_pack(ver->slot, DCPFS_VERSION, 0);
		bool more =
			dcpfs_version_refusal(ver) || /* .dcpfs/errors.json tells */
			dcpfs_tell(l, ver->name, ino, DCPFS_DIR, DCPFS_FIRST_ROW + ver->place);

		place = ver->place;
		dcpfs_version_put(ver);
		if (!more)
			return;
	}
}

static void list_layouts(const struct dcpfs_listing *l, struct dcpfs_ino dir, uint64_t after)
{
	const struct dcp_named_layout *layout;

	after = after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW + 1;
	for (; (layout = dcp_layouts_at(l->fs->layouts, after)); after++)
		if (!dcpfs_tell(l, layout->name,
				dcpfs_ino_pack(dir.slot, DCPFS_LAYOUT, layout->id), DCPFS_DIR,
				DCPFS_FIRST_ROW + after))
			return;
}

/* None is made: the kernel looks up those that somebody enters. */
static void list_ranks(const struct dcpfs_listing *l, struct dcpfs_ino dir,
		       const struct dcpfs_version *ver, uint64_t after)
{
	const struct dcp_named_layout *layout = dcp_layouts_by_id(l->fs->layouts, dir.row);
	uint32_t n = layout ? dcp_layout_ranks(layout->l) : 0;

	after = after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW + 1;
	for (uint32_t rank = (uint32_t)after; rank < n; rank++) {
		char name[16];

		snprintf(name, sizeof(name), "%u", rank);
		if (!tell_slot(l, name, dcpfs_rank_slot(l->fs, ver, layout, rank),
			       DCPFS_FIRST_ROW + (uint64_t)rank))
			return;
	}
}

static int list_rows(const struct dcpfs_listing *l, struct dcpfs_version *ver,
		     const struct dcpfs_rows *r, uint64_t after)
{
	struct dcp_index_scan *scan;
	struct dcp_arena arena;
	struct dcp_row row;
	bool more = true;
	int rc;

	rc = dcpfs_version_open(l->fs, ver, NULL);
	if (rc == 0) /* what a rank holds depends on keys and shapes: whole rows */
		rc = dcp_index_scan(
			dcpfs_index(ver), r->rows,
			after < DCPFS_FIRST_ROW ? 0 : (int64_t)(after - DCPFS_FIRST_ROW),
			!l->attrs && !dcpfs_is_rank(ver), &scan);
	if (rc < 0) /* C libraries take ENOENT for the end of a listing */
		return rc == -ENOENT ? -ESTALE : rc;
	dcp_arena_init(&arena, 16 << 20);
	while (more && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		uint64_t ino = ino_of_row(ver, r, &row);
		struct stat st = { .st_ino = ino, .st_mode = S_IFREG, .st_size = -1 };
		char name[NAME_MAX + 1];

		dcp_arena_reset(&arena);
		if (!is_shown(ver, r, &row, &arena))
			continue;
		stpcpy(stpcpy(name, row.name),
		       r->extension); /* the stem is at most DCP_NAME_MAX */
		if (l->attrs && attr_of_row(l->fs, ver, ino, &row, &st) < 0)
			continue;
		more = l->fn(l->ctx, name, &st, DCPFS_FIRST_ROW + (uint64_t)row.id);
	}
	dcp_arena_finish(&arena);
	dcp_index_scan_end(scan);
	return rc < 0 ? dcpfs_index_asked(l->fs, ver, rc) : 0;
}

int dcpfs_readdir(struct dcpfs *fs, uint64_t ino, uint64_t after, bool attrs,
		  dcpfs_dirent_fn fn, void *ctx)
{
	struct dcpfs_listing l = { fs, attrs, fn, ctx };
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
		rc = enter(fs, dir, ver);
	}
	if (rc == 0 && list_fixed(&l, dir, ver, ino, after)) {
		if (dir.kind == DCPFS_ROOT)
			list_versions(&l, after);
		else if (dir.kind == DCPFS_VERSION && dcpfs_is_hf(ver))
			dcpfs_hf_list(&l, ver, after);
		else if (dir.kind == DCPFS_TAGS_DIR)
			dcpfs_tags_list(&l, after);
		else if (dir.kind == DCPFS_BY_KEY_DIR || dir.kind == DCPFS_BY_KEY)
			rc = dcpfs_by_key_list(&l, dir, after);
		else if ((dir.kind == DCPFS_FILES_DIR || dir.kind == DCPFS_FILES_SUB) && ver) {
			rc = dcpfs_version_open(fs, ver, NULL);
			if (rc == 0)
				dcpfs_sidecars_list(&l, ver, dir, after);
		} else if (dir.kind == DCPFS_SHARD_DIR)
			list_layouts(&l, dir, after);
		else if (dir.kind == DCPFS_LAYOUT && ver)
			list_ranks(&l, dir, ver, after);
		else if (r && ver)
			rc = list_rows(&l, ver, r, after);
	}
	dcpfs_version_put(ver);
	return rc;
}
