/* SPDX-License-Identifier: Apache-2.0 */
/* npy/ raw/ safetensors/ objects/ stats/: rows of the index. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/hf/hf.h"
#include "core/model/name.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/version/version.h"
#include "fs/tree/dir_int.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

/* Is the row listed: does @ver hold a part of it, and can this form show it? @row becomes that
 * part. A row that the layout cannot cut stays whole, and opening it gives the error. */
static bool is_shown(const struct dcpfs_version *ver, const struct dcpfs_rows *r,
		     struct dcp_row *row, struct dcp_arena *arena)
{
	if (r->rows == DCP_ROW_OBJECT)
		return dcpfs_rank_has_object(ver, row->key);
	return dcp_view_can_show(row->key, row->dtype, r->as) &&
	       dcpfs_rank_cut(ver, row, arena, NULL, NULL) != 0;
}

/* Tied tensors share the inode of the first, except in a rank, which may cut each differently. */
static bool is_tied(const struct dcpfs_version *ver, const struct dcpfs_rows *r,
		    const struct dcp_row *row)
{
	return row->alias_of && !r->named && !dcpfs_is_rank(ver);
}

static uint64_t ino_of_row(const struct dcpfs_version *ver, const struct dcpfs_rows *r,
			   const struct dcp_row *row)
{
	return dcpfs_ino_pack(ver->slot, r->file,
			      (uint64_t)(is_tied(ver, r, row) ? row->alias_of : row->id));
}

static int attr_of_row(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       const struct dcp_row *row, struct stat *st)
{
	if (is_tied(ver, dcpfs_rows_of(dcpfs_ino_unpack(ino).kind), row))
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

/* files/ and, in hf/, the files beside the weights, shown unchanged: config.json, a tokenizer,
 * 1_Pooling/ with its files. A directory is identified by its first file and its depth. */

enum { DEPTH_BITS = 3, MAX_DEPTH = (1 << DEPTH_BITS) - 1 };

/* A directory, as the prefix of the names of its files. */
struct place {
	const char *prefix;
	size_t n;
	unsigned depth;
};

/* The file of @row and the name under which it is shown, or NULL. Sets *n, the number of rows. */
static const struct dcp_file_id *file_of(const struct dcpfs_version *ver, uint64_t row,
					 const char **name, size_t *n)
{
	const struct dcp_assets *a = dcp_hf_assets(dcpfs_opened(ver));
	const struct dcp_file_id *id = NULL;

	if (a) {
		*n = a->n;
		if (row <= a->n)
			id = dcp_asset_id(a, row - 1);
		*name = id ? a->at[row - 1].name : NULL;
		return id;
	}
	id = dcp_index_files(dcpfs_index(ver), n);
	if (row > *n || !id[row - 1].shown)
		return NULL;
	*name = id[row - 1].name;
	return &id[row - 1];
}

/* The name of the next sidecar below @p whose row is at least *row, which is set to it; or NULL. */
static const char *find_next_sidecar(const struct dcpfs_version *ver, const struct place *p,
				     uint64_t *row)
{
	const char *name;
	size_t n = SIZE_MAX;

	for (; *row && *row <= n; ++*row)
		if (file_of(ver, *row, &name, &n) && strncmp(name, p->prefix, p->n) == 0)
			return name;
	return NULL;
}

static bool find_place(const struct dcpfs_version *ver, struct dcpfs_ino dir, struct place *p)
{
	uint64_t row = dir.row >> DEPTH_BITS, at = row;
	const char *name;

	*p = (struct place){ .prefix = "" };
	if (dir.kind != DCPFS_FILES_SUB)
		return true;
	name = find_next_sidecar(ver, p, &at);
	if (!name || at != row)
		return false;
	p->prefix = name;
	for (p->depth = dir.row & MAX_DEPTH; p->depth > 0; p->depth--) {
		const char *slash = strchr(name + p->n, '/');

		if (!slash)
			return false;
		p->n = (size_t)(slash + 1 - name);
	}
	p->depth = dir.row & MAX_DEPTH;
	return true;
}

/* The entry of directory @p for the file of @row: the file itself, or the subdirectory that holds
 * it, if it is the first file there. False: an earlier file stands for the subdirectory. */
static bool show_entry(const struct dcpfs_version *ver, const struct place *p, uint64_t row,
		       const char *path, char *shown, uint64_t *ino)
{
	const char *name = path + p->n, *slash = strchr(name, '/');
	struct place sub = { path, p->n, p->depth + 1 };
	uint64_t first = 1;
	char part[DCP_NAME_MAX + 1];

	*ino = dcpfs_ino_pack(ver->slot, DCPFS_SIDECAR, row);
	if (!slash || sub.depth > MAX_DEPTH || slash - name > DCP_NAME_MAX) {
		dcp_name_from_key(name, false, shown);
		return true;
	}
	sub.n += (size_t)(slash + 1 - name);
	find_next_sidecar(ver, &sub, &first);
	memcpy(part, name, (size_t)(slash - name));
	part[slash - name] = '\0';
	dcp_name_from_key(part, false, shown);
	*ino = dcpfs_ino_pack(ver->slot, DCPFS_FILES_SUB, row << DEPTH_BITS | sub.depth);
	return first == row;
}

int dcpfs_sidecars_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	int rc = dcpfs_version_open(dir->fs, dir->ver, NULL);
	const char *path;
	char shown[DCP_NAME_MAX + 1];
	struct place p;

	if (rc < 0 || !find_place(dir->ver, dir->i, &p))
		return rc < 0 ? rc : -ENOENT;
	for (uint64_t row = 1; (path = find_next_sidecar(dir->ver, &p, &row)) != NULL; row++)
		if (show_entry(dir->ver, &p, row, path, shown, &out->ino) &&
		    strcmp(shown, name) == 0)
			return 0;
	return -ENOENT;
}

int dcpfs_sidecars_list(const struct dcpfs_listing *l, uint64_t first)
{
	int rc = dcpfs_version_open(l->dir.fs, l->dir.ver, NULL);
	uint64_t row = first ? first : 1, ino;
	const char *path;
	char shown[DCP_NAME_MAX + 1];
	struct place p;

	if (rc < 0 || !find_place(l->dir.ver, l->dir.i, &p))
		return rc;
	for (; (path = find_next_sidecar(l->dir.ver, &p, &row)) != NULL; row++)
		if (show_entry(l->dir.ver, &p, row, path, shown, &ino) &&
		    !dcpfs_emit(l, shown, ino,
				dcpfs_ino_unpack(ino).kind == DCPFS_SIDECAR ? DCPFS_FILE
									    : DCPFS_DIR,
				DCPFS_FIRST_ROW + row))
			break;
	return 0;
}

bool dcpfs_sidecar_shown(const struct dcpfs_version *ver, uint64_t row, char *shown,
			 uint64_t *ino)
{
	const struct place all = { .prefix = "" };
	const char *path;
	size_t n;

	return file_of(ver, row, &path, &n) && show_entry(ver, &all, row, path, shown, ino);
}

uint64_t dcpfs_sidecars_above(const struct dcpfs_version *ver, struct dcpfs_ino dir)
{
	struct dcpfs_ino above = dir;
	uint64_t first = 1;
	struct place p;

	above.row--; /* one level up; the same file lies below that directory */
	if ((dir.row & MAX_DEPTH) < 2 || !find_place(ver, above, &p))
		return dcpfs_ino_pack(dir.slot,
				      dcpfs_is_hf(ver) ? DCPFS_VERSION : DCPFS_FILES_DIR, 0);
	find_next_sidecar(ver, &p, &first);
	return dcpfs_ino_pack(dir.slot, DCPFS_FILES_SUB, first << DEPTH_BITS | p.depth);
}

int dcpfs_sidecar_attr(const struct dcpfs_at *at, struct stat *st)
{
	int rc = dcpfs_version_open(at->fs, at->ver, NULL);
	const struct dcp_file_id *id;
	const char *name;
	size_t n;

	if (rc < 0)
		return rc;
	id = at->i.row ? file_of(at->ver, at->i.row, &name, &n) : NULL;
	if (!id)
		return -ENOENT;
	st->st_size = (off_t)id->size;
	st->st_blocks = (blkcnt_t)((id->size + 511) / 512);
	st->st_mtim = dcp_file_time(id->mtime_ns);
	return 0;
}

/*
 * by-key/: one tensor over time. by-key/<key>/<version>.npy is a link to the version's npy/
 * file, or <version>.bin to its raw/ file if .npy cannot hold the dtype. The inode number has
 * the slot of the version and the number of the key. A version whose index is still being built
 * may have any key, so requests wait for it: the lookup of a version's name for that version,
 * the lookup of a key until a version has it, and a listing for all versions.
 */

/* The form in which by-key/ shows the tensor @stem of @ver; NULL: @ver has no such tensor. */
static const struct dcpfs_rows *form_in(const struct dcpfs_version *ver, const char *stem)
{
	const struct dcpfs_rows *npy = dcpfs_rows_in(DCPFS_NPY_DIR);
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row row;
	int rc;

	if (!dcpfs_opened(ver))
		return NULL;
	rc = dcp_index_by_name(dcpfs_index(ver), DCP_ROW_TENSOR, stem, &arena, &row);
	if (rc < 0)
		return NULL;
	return dcp_view_can_show(row.key, row.dtype, DCP_AS_NPY) ? npy
								 : dcpfs_rows_in(DCPFS_RAW_DIR);
}

/* Wait until the version after @place is opened or refused. Returns its place, 0 after the last
 * version, or -ECANCELED when the mount ends. */
static int64_t wait_behind(struct dcpfs *fs, uint64_t place)
{
	struct dcpfs_version *ver = dcpfs_version_behind(fs, place);
	int rc = ver ? dcpfs_version_open(fs, ver, NULL) : 0;

	if (ver)
		place = ver->place;
	dcpfs_version_put(ver);
	return !ver ? 0 : rc == -ECANCELED ? rc : (int64_t)place;
}

static int stem_of(struct dcpfs *fs, uint64_t number, char stem[DCP_NAME_MAX + 1])
{
	uint64_t at = number;
	int rc = dcpfs_keys_next(fs, &at, stem);

	return rc == -ENOENT || (rc == 0 && at != number) ? -ESTALE : rc;
}

int dcpfs_by_key_attr(const struct dcpfs_at *at, struct stat *st)
{
	char stem[DCP_NAME_MAX + 1];

	return stem_of(at->fs, at->i.row, stem); /* -ESTALE: no version has the key any more */
}

/* "step-5.npy" in the directory of a key. */
int dcpfs_by_key_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	char stem[DCP_NAME_MAX + 1], version[NAME_MAX + 1];
	const char *dot = strrchr(name, '.');
	const struct dcpfs_rows *r;
	struct dcpfs_version *ver;
	int rc = stem_of(dir->fs, dir->i.row, stem);

	if (rc < 0 || !dot)
		return rc < 0 ? rc : -ENOENT;
	snprintf(version, sizeof(version), "%.*s", (int)(dot - name), name);
	ver = dcpfs_version_by_name(dir->fs, version);
	if (!ver)
		return -ENOENT;
	r = dcpfs_version_open(dir->fs, ver, NULL) == 0 ? form_in(ver, stem) : NULL;
	if (r && strcmp(r->extension, dot) == 0)
		out->ino = dcpfs_ino_pack(ver->slot, DCPFS_BY_KEY_LINK, dir->i.row);
	else
		rc = -ENOENT;
	dcpfs_version_put(ver);
	return rc;
}

int dcpfs_keys_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	uint64_t number;
	int64_t place = 0;
	int rc = dcpfs_keys_find(dir->fs, name, &number);

	while (rc == -ENOENT && (place = wait_behind(dir->fs, (uint64_t)place)) > 0)
		rc = dcpfs_keys_find(dir->fs, name, &number);
	if (rc == 0)
		out->ino = dcpfs_ino_pack(0, DCPFS_BY_KEY, number);
	return place < 0 ? (int)place : rc;
}

int dcpfs_by_key_list(const struct dcpfs_listing *l, uint64_t first)
{
	uint64_t place = first ? first - 1 : 0, row = l->dir.i.row;
	char stem[DCP_NAME_MAX + 1], name[NAME_MAX + 16];
	struct dcpfs_version *ver;
	bool more = true;
	int rc = stem_of(l->dir.fs, row, stem);

	while (rc == 0 && more && (ver = dcpfs_version_behind(l->dir.fs, place)) != NULL) {
		const struct dcpfs_rows *r = NULL;

		rc = dcpfs_version_open(l->dir.fs, ver, NULL);
		if (rc == 0)
			r = form_in(ver, stem);
		else if (rc != -ECANCELED)
			rc = 0; /* refused, as errors.json says */
		place = ver->place;
		if (r) {
			snprintf(name, sizeof(name), "%s%s", ver->name, r->extension);
			more = dcpfs_emit(l, name,
					  dcpfs_ino_pack(ver->slot, DCPFS_BY_KEY_LINK, row),
					  DCPFS_LINK, DCPFS_FIRST_ROW + place);
		}
		dcpfs_version_put(ver);
	}
	return rc;
}

int dcpfs_keys_list(const struct dcpfs_listing *l, uint64_t first)
{
	char stem[DCP_NAME_MAX + 1];
	int64_t place = 0;
	int rc;

	do
		place = wait_behind(l->dir.fs, (uint64_t)place);
	while (place > 0);
	if (place < 0)
		return (int)place;
	for (; (rc = dcpfs_keys_next(l->dir.fs, &first, stem)) == 0; first++)
		if (!dcpfs_emit(l, stem, dcpfs_ino_pack(0, DCPFS_BY_KEY, first), DCPFS_DIR,
				DCPFS_FIRST_ROW + first))
			return 0;
	return rc == -ENOENT ? 0 : rc;
}

int dcpfs_by_key_readlink(struct dcpfs *fs, struct dcpfs_ino ino, char *buf, size_t size)
{
	struct dcpfs_version *ver = dcpfs_version_by_slot(fs, ino.slot);
	char stem[DCP_NAME_MAX + 1];
	const struct dcpfs_rows *r = NULL;
	int rc = ver ? stem_of(fs, ino.row, stem) : -ESTALE, n;

	if (rc == 0)
		r = form_in(ver, stem);
	if (rc == 0 && !r)
		rc = -ENOENT;
	if (rc == 0) {
		n = snprintf(buf, size, "../../%s/%s/%s%s", ver->name, r->name, stem,
			     r->extension);
		rc = n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
	}
	dcpfs_version_put(ver);
	return rc;
}
