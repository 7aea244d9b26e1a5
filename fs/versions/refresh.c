/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions/versions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/system.h"
#include "core/format/format.h"
#include "core/model/rights.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "fs/errors.h"
#include "fs/file/file.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/tree/tree.h"

enum { ROW_MEMORY = 512 << 20 };

/* ---- asking the source ---- */

/* Read the rights on the way to SOURCE. True: they changed. Watcher's thread only. */
static bool dcpfs_rights_refresh(struct dcpfs *fs)
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

/* Read the rights on the way to the new version @ver. -ENOMEM. */
static int dcpfs_rights_find(const struct dcpfs *fs, struct dcpfs_version *ver)
{
	if (!fs->opts.allow_other)
		return 0;
	return fs->grants ? dcp_grants_version(fs->grants, ver->found.where, &ver->grants)
			  : -ENOMEM;
}

/* Have the rights on the way to @ver (NULL: to SOURCE) changed? Watcher's thread only. */
static bool dcpfs_rights_changed(const struct dcpfs *fs, const struct dcpfs_version *ver)
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

/* @r restricted by the rights of the files that hold pieces of row @id; @used[i]: is file i among
 * them? */
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

/* If each key has its own rights: the rights of the files without pieces, which name the keys and
 * shapes. */
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
	int rc = ver->grants ? dcp_grants_files(ver->grants, dcp_version_place(v), ids, n) : 0;

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

/* The rights of a node that belongs to a version; @search: those to enter it, if it is a
 * directory. */
static struct dcp_rights in_version(const struct dcpfs_version *ver, struct dcpfs_ino i,
				    struct dcp_rights *search)
{
	const struct dcp_grants *g = ver->grants;
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);

	if (i.kind == DCPFS_VERSION || i.kind == DCPFS_SHARD_DIR || i.kind == DCPFS_LAYOUT)
		return *search = g->way;
	if (!dcpfs_opened(ver))
		return *search = dcp_rights_alone();
	if (i.kind == DCPFS_FILES_DIR)
		return *search = g->beside;
	if (i.kind == DCPFS_SIDECAR)
		return *search = i.row && i.row <= g->n ? g->files[i.row - 1]
							: dcp_rights_alone();
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
	return dcp_rights_alone();
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

/* Apply -o uid, gid and umask: @uid and @gid may read everything, others no more than before. */
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

/* Delay before a version that was refused for a temporary reason is tried again: the first one, and
 * how often it doubles. */
static const int64_t AGAIN_NS = 2 * (int64_t)1000000000;
enum { AGAIN_DOUBLED = 7, SCAN_TRIES = 16 };

/* A slot for this content of the version, from a hash of it, so that a remount finds the same. */
static uint32_t choose_slot(struct dcpfs *fs, const struct dcp_found *found, uint32_t epoch)
{
	uint64_t h = dcp_hash64(found->name, strlen(found->name));

	h = dcp_hash64_more(h, &found->commit_ns, sizeof(found->commit_ns));
	h = dcp_hash64_more(h, &epoch, sizeof(epoch));
	return dcpfs_slot_take(fs, h);
}

static struct dcpfs_version *new_version(struct dcpfs *fs, const struct dcp_found *found,
					 uint32_t epoch)
{
	struct dcpfs_version *ver = calloc(1, sizeof(*ver));

	if (!ver)
		return NULL;
	dcp_arena_init(&ver->arena, 1 << 20);
	ver->refs = 1;
	ver->found = *found;
	ver->name = dcp_arena_strndup(&ver->arena, found->name, strlen(found->name));
	ver->found.name = ver->name;
	ver->found.where = dcp_arena_strndup(&ver->arena, found->where, strlen(found->where));
	if (found->group)
		ver->found.group =
			dcp_arena_strndup(&ver->arena, found->group, strlen(found->group));
	ver->found.why = NULL;
	ver->refusal = dcp_arena_alloc(&ver->arena, DCPFS_REFUSAL_MAX);
	if (!ver->name || !ver->found.where || !ver->refusal ||
	    (found->group && !ver->found.group) || dcpfs_rights_find(fs, ver) < 0) {
		dcp_arena_finish(&ver->arena);
		free(ver);
		return NULL;
	}
	ver->slot = choose_slot(fs, &ver->found, epoch);
	return ver;
}

/*
 * Is @found still the save that @ver was made of? Another directory in its place may have a
 * commit file of the same time: copies keep times, and two saves may lie within one tick of the
 * file system's clock. So inodes are compared, too, but only if @ver was opened, since some
 * file systems give a directory another inode number at each scan.
 */
static bool same_commit(const struct dcpfs_version *ver, const struct dcp_found *found)
{
	const struct dcp_found *had = &ver->found;

	return !strcmp(ver->name, found->name) && had->commit_ns == found->commit_ns &&
	       (!dcpfs_opened(ver) || (had->dev == found->dev && had->ino == found->ino)) &&
	       had->format == found->format && !strcmp(had->where, found->where);
}

/* New content under the same name keeps the place in listings; otherwise a listing could have the
 * name twice. */
static uint64_t place_of(struct dcpfs *fs, const char *name)
{
	for (size_t i = 0; i < fs->nversions; i++)
		if (!strcmp(fs->versions[i]->name, name))
			return fs->versions[i]->place;
	return ++fs->places;
}

/* When to try @ver again, which was refused. For a temporary reason: later each time; for an error
 * in its content: never, since the content does not change. */
static int64_t find_retry_time(struct dcpfs_version *ver)
{
	static const int passing[] = { ESTALE, EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR,
				       EBUSY,  ENOENT, EACCES, EPERM,  EIO,    ETIMEDOUT };

	if (!dcpfs_version_refusal(ver))
		return INT64_MAX;
	if (!ver->again_ns)
		ver->again_ns = dcp_now_ns(CLOCK_MONOTONIC) +
				(AGAIN_NS << DCP_MIN(ver->tries, AGAIN_DOUBLED));
	for (size_t i = 0; i < DCP_LEN(passing); i++)
		if (ver->refused_code == -passing[i])
			return ver->again_ns;
	return INT64_MAX;
}

/*
 * May latest lead to the new version @name before it is opened? Yes if it replaces a version
 * that latest may lead to, so that the name does not vanish while it is saved over; and at the
 * start, for all versions that were there before the mount.
 */
static bool inherits_trust(const struct dcpfs *fs, const char *name)
{
	for (size_t i = 0; i < fs->nversions; i++) {
		const struct dcpfs_version *old = fs->versions[i];

		if (strcmp(old->name, name) == 0)
			return !dcpfs_version_refusal(old) &&
			       (old->trusted || dcpfs_opened(old));
	}
	return !fs->scanned;
}

/* Is the index of @ver damaged, or that of its hf/? */
static bool is_damaged(struct dcpfs *fs, const struct dcpfs_version *ver)
{
	struct dcpfs_version *hf = dcpfs_hf_find(fs, ver);
	bool damaged = dcp_index_is_damaged(dcpfs_index(ver)) ||
		       (hf && dcpfs_opened(hf) && dcp_index_is_damaged(dcpfs_index(hf)));

	dcpfs_version_put(hf);
	return damaged;
}

/* Did files beside the weights change, or who may read them? */
static bool hf_went_stale(struct dcpfs *fs, const struct dcpfs_version *ver)
{
	struct dcpfs_version *hf = dcpfs_hf_find(fs, ver);
	struct dcp_version *v = hf ? dcpfs_opened(hf) : NULL;
	bool stale = v && dcp_version_check_beside(v, NULL) < 0;

	for (size_t i = 0; v && !stale && i < DCP_LEN(hf->hf->grants); i++)
		stale = hf->hf->grants[i] && dcp_grants_changed(hf->hf->grants[i]);
	dcpfs_version_put(hf);
	return stale;
}

/* Did files of an opened version change, although its commit mark did not? */
static bool went_stale(struct dcpfs *fs, const struct dcpfs_version *ver)
{
	struct dcp_version *v = dcpfs_opened(ver);

	return v && (is_damaged(fs, ver) || dcp_version_check(v, NULL) < 0 ||
		     hf_went_stale(fs, ver));
}

/* Is a file of @ver open? Without OPEN requests every cached file may be in use. */
static bool is_in_use(const struct dcpfs *fs, const struct dcpfs_version *ver)
{
	return __atomic_load_n(&ver->open, __ATOMIC_RELAXED) ||
	       (fs->opts.no_open && __atomic_load_n(&ver->refs, __ATOMIC_RELAXED) > 1);
}

bool dcpfs_versions_went_stale(struct dcpfs *fs, uint64_t *calls)
{
	if (dcpfs_rights_changed(fs, NULL))
		return true;
	for (size_t i = 0; i < fs->nversions; i++) {
		const struct dcpfs_version *ver = fs->versions[i];
		size_t n = 0;

		if (dcpfs_rights_changed(fs, ver))
			return true;
		/* other users may read what the kernel cached of a version with rights */
		if (!(is_in_use(fs, ver) || ver->grants) || !dcpfs_opened(ver))
			continue;
		dcp_index_files(dcpfs_index(ver), &n);
		*calls += n;
		if (went_stale(fs, ver))
			return true;
	}
	return false;
}

/* Have the rights to @ver changed (@all: those of all versions have)? Then it must become another
 * version with new inodes, so that the kernel does not go on using the cached modes. */
static bool has_other_rights(const struct dcpfs *fs, const struct dcpfs_version *ver, bool all)
{
	return ver->grants && (all || dcpfs_rights_changed(fs, ver));
}

/* Make the new list: unchanged versions are kept, added and changed versions are new objects. */
static struct dcpfs_version **merge_versions(struct dcpfs *fs, const struct dcp_scan *scan,
					     bool other_rights, size_t *n)
{
	struct dcpfs_version **list = calloc(scan->n ? scan->n : 1, sizeof(*list));
	int64_t now = dcp_now_ns(CLOCK_MONOTONIC);

	*n = 0;
	for (size_t i = 0; list && i < scan->n; i++) {
		const struct dcp_found *found = &scan->found[i];
		struct dcpfs_version *old = NULL, *ver;
		uint32_t epoch = 0;
		unsigned tries = 0;
		bool damaged = false;

		if (!found->complete)
			continue;
		for (size_t k = 0; k < fs->nversions && !old; k++)
			if (same_commit(fs->versions[k], found))
				old = fs->versions[k];
		if (old && went_stale(fs, old)) {
			damaged = is_damaged(fs, old);
			dcp_log(fs->opts.log, DCP_LOG_WARN, "%s: %s, indexing it again",
				old->name, damaged ? "its index is damaged" : "files changed");
			epoch = old->slot;
			old = NULL;
		} else if (old && has_other_rights(fs, old, other_rights)) {
			epoch = old->slot;
			old = NULL;
		} else if (old && find_retry_time(old) <= now) {
			epoch = old->slot;
			tries = old->tries + 1;
			old = NULL;
		}
		ver = old ? dcpfs_version_hold(old) : new_version(fs, found, epoch);
		if (!ver)
			continue; /* out of memory: the next scan adds it */
		if (old) {
			fs->due_ns = DCP_MIN(fs->due_ns, find_retry_time(old));
		} else {
			ver->tries = tries;
			ver->rebuild = damaged;
			ver->trusted = inherits_trust(fs, ver->name);
			ver->place = place_of(fs, ver->name);
		}
		list[(*n)++] = ver;
	}
	return list;
}

static bool is_listed(const struct dcpfs_version *ver, struct dcpfs_version *const *list,
		      size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (list[i] == ver)
			return true;
	return false;
}

static void forget_version(struct dcpfs *fs, struct dcpfs_version *ver, bool rewritten)
{
	dcpfs_cache_forget(fs, ver, rewritten);
	dcpfs_errors_forget(fs->errors, ver->name, NULL);
}

/* Drop what is cached of @ver, its hf/ and its ranks, as they left the list. */
static void forget_all(struct dcpfs *fs, struct dcpfs_version *ver)
{
	struct dcp_version *v = dcpfs_opened(ver);
	bool rewritten = v && dcp_files_rewritten(dcp_version_files(v));

	dcpfs_ranks_forget(fs, ver, rewritten, forget_version);
	forget_version(fs, ver, rewritten);
	if (v)
		dcp_files_drop(dcp_version_files(v));
}

static bool publish_versions(struct dcpfs *fs, struct dcp_scan *scan,
			     struct dcpfs_version **list, size_t n)
{
	struct dcpfs_version **old = fs->versions;
	struct dcp_scan old_scan = fs->scan;
	size_t nold = fs->nversions;
	bool changed = n != nold, left = false;

	pthread_rwlock_wrlock(&fs->lock);
	fs->versions = list;
	fs->nversions = n;
	fs->scan = *scan;
	fs->scanned = true;
	dcpfs_versions_choose_latest(fs);
	pthread_rwlock_unlock(&fs->lock);
	for (size_t i = 0; i < nold; i++) {
		if (!is_listed(old[i], list, n)) {
			left = true;
			forget_all(fs, old[i]);
		}
		dcpfs_version_put(old[i]);
	}
	if (left)
		dcpfs_keys_drop(fs->keys);
	free(old);
	dcp_scan_finish(&old_scan);
	return changed || left;
}

static const char source[] = ""; /* in errors.json */

static int fail_scan(struct dcpfs *fs, int rc, const struct dcp_err *err)
{
	if (fs->scanned && !dcpfs_errors_find(fs->errors, source, NULL, NULL))
		dcp_log(fs->opts.log, DCP_LOG_WARN,
			"the list of versions is not updated until the source can be read: %s",
			err->msg);
	dcpfs_errors_add(fs->errors, source, NULL, NULL, err->msg);
	return rc;
}

/* Files that are kept open for readers may take all descriptors: those not in use are closed. */
static int scan_source(struct dcpfs *fs, struct dcp_seen *seen, struct dcp_scan *out,
		       struct dcp_err *err)
{
	int rc, tries = SCAN_TRIES;

	do {
		*err = (struct dcp_err){ 0 };
		rc = dcp_scan_seen(fs->opts.source, seen, out, err);
	} while ((rc == -EMFILE || rc == -ENFILE) && tries-- > 0 &&
		 dcp_handles_close_one(fs->opts.store.handles, false));
	return rc;
}

int dcpfs_versions_refresh(struct dcpfs *fs, struct dcp_seen *seen, struct dcp_err *err)
{
	struct dcpfs_version **list;
	struct dcp_scan scan;
	bool other_rights;
	size_t n;
	int rc;

	fs->due_ns = INT64_MAX;
	other_rights = dcpfs_rights_refresh(fs);
	rc = scan_source(fs, seen, &scan, err);
	if ((fs->scanned || fs->opts.wait) &&
	    (rc == -EINVAL || rc == -ENOENT || rc == -ENOTDIR || (rc < 0 && other_rights)))
		scan = (struct dcp_scan){
			0
		}; /* the source was removed, or does not exist yet */
	else if (rc < 0)
		return fail_scan(fs, rc, err);
	dcpfs_errors_forget(fs->errors, source, NULL);
	list = merge_versions(fs, &scan, other_rights, &n);
	if (!list) {
		dcp_scan_finish(&scan);
		return -ENOMEM;
	}
	dcpfs_count(&fs->stats, DCPFS_STAT_RESCANS, 1);
	return publish_versions(fs, &scan, list, n);
}
