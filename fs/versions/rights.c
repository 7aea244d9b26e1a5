/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions/rights.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/format/format.h"
#include "core/model/rights.h"
#include "core/model/tensor.h"
#include "core/store/index/index.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/grants.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

enum { ROW_MEMORY = 512 << 20 };

/* ---- asking the source ---- */

bool dcpfs_rights_refresh(struct dcpfs *fs)
{
	struct dcp_grants *now, *old = fs->grants;
	bool changed;

	if (!fs->opts.allow_other || dcp_grants_source(fs->opts.source, &now) < 0)
		return false;
	changed = !old || !dcp_rights_equal(old->way, now->way);
	pthread_rwlock_wrlock(&fs->lock);
	fs->grants = now;
	pthread_rwlock_unlock(&fs->lock);
	dcp_grants_free(old);
	return changed;
}

int dcpfs_rights_find(const struct dcpfs *fs, struct dcpfs_version *ver)
{
	if (!fs->opts.allow_other)
		return 0;
	return fs->grants ? dcp_grants_version(fs->grants, ver->found.where, &ver->grants)
			  : -ENOMEM;
}

bool dcpfs_rights_changed(const struct dcpfs *fs, const struct dcpfs_version *ver)
{
	const struct dcp_grants *g = ver ? ver->grants : fs->grants;

	return g && dcp_grants_changed(g);
}

/* @r restricted by the rights of file number @file. */
static struct dcp_rights meet_file(const struct dcp_grants *g, uint32_t file, bool *used,
				   struct dcp_rights r)
{
	if (file >= g->n)
		return r;
	if (used)
		used[file] = true;
	return dcp_rights_meet(r, g->files[file]);
}

/*
 * @r restricted by the rights of the files that hold pieces of row @id; @used[i]: is file i
 * among them?
 */
static struct dcp_rights meet_pieces(const struct dcp_grants *g, struct dcp_version *v,
				     int64_t id, bool *used, struct dcp_rights r)
{
	uint32_t last = UINT32_MAX;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(ROW_MEMORY);
	struct dcp_tensor t;
	int rc = dcp_index_tensor(dcp_version_index(v), id, &arena, &t, NULL);

	for (size_t i = 0; rc == 0 && i < t.npieces; i++) {
		const struct dcp_piece *p = &t.pieces[i];

		if (p->file != last)
			r = meet_file(g, p->file, used, r);
		last = p->file;
		for (uint32_t k = 0; k < p->nmore; k++)
			r = meet_file(g, p->more[k].file, used, r);
	}
	if (rc < 0 || !t.npieces)
		r = g->data;
	return r;
}

/*
 * If each key has its own rights: the rights of the files without pieces, which name the keys
 * and shapes.
 */
static int find_common(struct dcpfs_version *ver, struct dcp_version *v)
{
	const struct dcp_grants *g = ver->grants;
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(dcp_version_index(v), &n);
	dcp_auto_free bool *used = calloc(n ? n : 1, sizeof(*used));
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = used ? dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, true, &scan)
		      : -ENOMEM;

	if (rc < 0)
		return rc;
	while ((rc = dcp_index_scan_next(scan, &row)) > 0)
		meet_pieces(g, v, row.id, used, g->way);
	ver->common = g->way;
	for (size_t i = 0; i < n; i++)
		if (!used[i] && !ids[i].shown)
			ver->common = dcp_rights_meet(ver->common, g->files[i]);
	return rc;
}

int dcpfs_rights_open(struct dcpfs_version *ver, struct dcp_version *v)
{
	size_t n;
	const struct dcp_file_id *ids = dcp_index_files(dcp_version_index(v), &n);
	int rc = ver->grants ? dcp_grants_files(ver->grants, dcp_version_dirfd(v), ids, n) : 0;

	if (rc < 0 || !ver->grants)
		return rc;
	ver->apart = ver->grants->mixed && dcp_version_format(v)->apart;
	ver->common = ver->grants->data;
	return ver->apart ? find_common(ver, v) : 0;
}

/* ---- what a node shows ---- */

/* The rights to reach the source and, with @all, to read all open versions. */
static struct dcp_rights of_versions(struct dcpfs *fs, bool asked)
{
	struct dcp_rights r;

	pthread_rwlock_rdlock(&fs->lock);
	r = fs->grants->way;
	for (size_t i = 0; asked && i < fs->nversions; i++)
		if (dcpfs_opened(fs->versions[i]))
			r = dcp_rights_meet(r, fs->versions[i]->grants->data);
	pthread_rwlock_unlock(&fs->lock);
	return r;
}

static struct dcp_rights of_row(const struct dcpfs_version *ver, enum dcp_row_kind rows,
				uint64_t row)
{
	if (!ver->apart || rows != DCP_ROW_TENSOR)
		return ver->grants->data;
	return meet_pieces(ver->grants, dcpfs_opened(ver), (int64_t)row, NULL, ver->common);
}

/* Does a node of this kind show only that the version exists? */
static bool is_bare(enum dcpfs_kind kind)
{
	return kind == DCPFS_SHARD_DIR || kind == DCPFS_LAYOUT;
}

/*
 * The rights of a node that belongs to a version; @search: those to enter it, if it is a
 * directory.
 */
static struct dcp_rights in_version(const struct dcpfs_version *ver, struct dcpfs_ino i,
				    struct dcp_rights *search)
{
	const struct dcp_grants *g = ver->grants;
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);

	if (i.kind == DCPFS_VERSION || i.kind == DCPFS_SHARD_DIR || i.kind == DCPFS_LAYOUT)
		return *search = g->way;
	if (!dcpfs_opened(ver))
		return *search = dcp_grants_alone();
	if (i.kind == DCPFS_FILES_DIR)
		return *search = g->beside;
	if (i.kind == DCPFS_SIDECAR)
		return *search = i.row && i.row <= g->n ? g->files[i.row - 1]
							: dcp_grants_alone();
	if (dcpfs_is_blob(i.kind))
		r = dcpfs_rows_of(dcpfs_blob_about(i).kind);
	*search = ver->common;
	return r ? of_row(ver, r->rows, i.row) : g->data;
}

/* The rights of a layout's file, which may lie anywhere. */
static struct dcp_rights of_layout(struct dcpfs *fs, uint64_t id)
{
	const struct dcp_named_layout *l = dcp_layouts_by_id(fs->layouts, id);
	const char *file = l ? dcp_layouts_file(fs->layouts, l) : NULL;

	return file ? dcp_grants_of_file(file) : DCP_RIGHTS_ALL;
}

static bool is_among(enum dcpfs_kind kind, const enum dcpfs_kind *kinds, size_t n)
{
	while (n && kinds[n - 1] != kind)
		n--;
	return n;
}

/* The rights of a node that belongs to no version. */
static struct dcp_rights in_mount(struct dcpfs *fs, enum dcpfs_kind kind)
{
	static const enum dcpfs_kind of_all[] = { DCPFS_BY_KEY_DIR, DCPFS_BY_KEY,
						  DCPFS_STATUS };
	static const enum dcpfs_kind of_none[] = { DCPFS_ROOT,     DCPFS_LATEST,  DCPFS_CONTROL,
						   DCPFS_STATS,    DCPFS_METRICS, DCPFS_CONFIG,
						   DCPFS_TAGS_DIR, DCPFS_BLOB_DIR };

	if (is_among(kind, of_all, DCP_LEN(of_all)))
		return of_versions(fs, true);
	if (is_among(kind, of_none, DCP_LEN(of_none)))
		return of_versions(fs, false);
	return dcp_grants_alone();
}

static struct dcp_rights of_node(struct dcpfs *fs, const struct dcpfs_version *ver,
				 struct dcpfs_ino i, struct dcp_rights *search)
{
	const struct dcpfs_version *whole = ver, *hf = NULL;
	struct dcp_rights r;

	if (!ver)
		return *search = in_mount(fs, i.kind);
	for (; whole->of; whole = whole->of)
		hf = dcpfs_is_hf(whole) ? whole : hf;
	r = hf && !is_bare(i.kind) ? dcpfs_hf_rights(hf, &i, search)
				   : in_version(whole, i, search);
	return i.kind == DCPFS_LAYOUT_JSON ? dcp_rights_meet(r, of_layout(fs, i.row)) : r;
}

/*
 * Apply -o uid, gid and umask: @uid and @gid may read everything, others no more than before.
 */
static struct dcp_rights as_ordered(const struct dcpfs_opts *o, struct dcp_rights r)
{
	bool uid = o->uid != (uid_t)-1, gid = o->gid != (gid_t)-1;

	if (uid || gid)
		r = dcp_rights_as(r, uid ? o->uid : r.uid, gid ? o->gid : r.gid);
	r.mode |= (uid ? 0400u : 0) | (gid ? 0040u : 0);
	if (o->umask != (mode_t)-1)
		r.mode &= ~(uint32_t)o->umask;
	return r;
}

void dcpfs_rights_show(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       struct stat *st)
{
	struct dcp_rights r = { fs->uid, fs->gid, fs->mode }, search = r;

	if (fs->opts.allow_other) {
		r = as_ordered(&fs->opts, of_node(fs, ver, dcpfs_ino_unpack(ino), &search));
		search = as_ordered(&fs->opts, search);
	}
	if (S_ISDIR(st->st_mode) && search.mode != DCP_RIGHTS_ALL.mode)
		r = dcp_rights_as(r, search.uid, search.gid);
	if (S_ISDIR(st->st_mode))
		st->st_mode |= search.mode >> 2;
	st->st_mode |= S_ISLNK(st->st_mode) ? 0777 : r.mode;
	st->st_uid = r.uid;
	st->st_gid = r.gid;
}
