/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes: the directories of the mount. First those whose children are computed: the root with its
 * versions, latest and tags/; shard/ with its layouts and ranks; then look-up and listing for every
 * kind of directory; hf/; and at the end the table, one row for each kind of inode.
 */
#include "fs/tree/dir_int.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/hf/hf.h"
#include "core/model/name.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "fs/versions/versions.h"

/*
 * The root: versions by name, the link latest, and tags/: the source's own names for versions,
 * as links. The inode number of a tag holds the slot of its version, so that a cached target
 * stays true.
 */

/* A lookup does not open the version; entering its directory does. */
int dcpfs_versions_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	struct dcpfs_version *ver = dcpfs_version_by_name(dir->fs, name);
	int rc = ver && !dcpfs_version_refusal(ver) ? 0 : -ENOENT;

	if (rc == 0)
		out->ino = dcpfs_ino_pack(ver->slot, DCPFS_VERSION, 0);
	dcpfs_version_put(ver);
	return rc;
}

int dcpfs_versions_list(const struct dcpfs_listing *l, uint64_t first)
{
	uint64_t place = first ? first - 1 : 0;
	struct dcpfs_version *ver;
	bool more = true;

	while (more && (ver = dcpfs_version_behind(l->dir.fs, place)) != NULL) {
		place = ver->place;
		if (!dcpfs_version_refusal(ver)) /* the reason is in .dcpfs/errors.json */
			more = dcpfs_emit(l, ver->name,
					  dcpfs_ino_pack(ver->slot, DCPFS_VERSION, 0),
					  DCPFS_DIR, DCPFS_FIRST_ROW + place);
		dcpfs_version_put(ver);
	}
	return 0;
}

int dcpfs_latest_readlink(struct dcpfs *fs, struct dcpfs_ino i, char *buf, size_t size)
{
	return dcpfs_slot_name(fs, i.row, buf, size);
}

static uint64_t ino_of(const struct dcpfs_version *ver, const char *tag)
{
	return dcpfs_ino_pack(ver->slot, DCPFS_TAG,
			      dcp_hash64(tag, strlen(tag)) & DCPFS_ROW_MAX);
}

/* The next tag from number @n on whose version is shown now: sets @name (DCP_GROUP_MAX) and returns
 * a reference to the version; NULL after the last. */
static struct dcpfs_version *tag_at(struct dcpfs *fs, size_t *n, char *name)
{
	struct dcpfs_version *ver = NULL;

	for (bool more = true; more && !ver; ++*n) {
		char version[DCP_GROUP_MAX] = "";

		pthread_rwlock_rdlock(&fs->lock);
		more = *n < fs->scan.ntags;
		if (more && strlen(fs->scan.tags[*n].name) < DCP_GROUP_MAX &&
		    strlen(fs->scan.tags[*n].version) < DCP_GROUP_MAX) {
			strcpy(name, fs->scan.tags[*n].name);
			strcpy(version, fs->scan.tags[*n].version);
		}
		pthread_rwlock_unlock(&fs->lock);
		if (*version)
			ver = dcpfs_version_by_name(fs, version);
	}
	return ver;
}

int dcpfs_tags_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	char tag[DCP_GROUP_MAX];
	struct dcpfs_version *ver;
	int rc = -ENOENT;

	for (size_t n = 0; rc && (ver = tag_at(dir->fs, &n, tag)) != NULL;) {
		if (strcmp(tag, name) == 0) {
			out->ino = ino_of(ver, name);
			rc = 0;
		}
		dcpfs_version_put(ver);
	}
	return rc;
}

int dcpfs_tags_list(const struct dcpfs_listing *l, uint64_t first)
{
	char tag[DCP_GROUP_MAX];
	struct dcpfs_version *ver;
	bool more = true;

	for (size_t n = 0; more && (ver = tag_at(l->dir.fs, &n, tag)) != NULL;) {
		if (n >= first)
			more = dcpfs_emit(l, tag, ino_of(ver, tag), DCPFS_LINK,
					  DCPFS_FIRST_ROW + n);
		dcpfs_version_put(ver);
	}
	return 0;
}

int dcpfs_tag_readlink(struct dcpfs *fs, struct dcpfs_ino i, char *buf, size_t size)
{
	if (size < 3)
		return -EINVAL;
	memcpy(buf, "../", 3);
	return dcpfs_slot_name(fs, i.slot, buf + 3, size - 3);
}

/* shard/: layouts by name, and their ranks. */

/* An unknown layout is also logged, with the nearest name, since the shell only says "No such
 * file". */
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

/* Make the slot of a rank of a version; @layout NULL: the slot of its hf/. */
static int dcpfs_slot_lookup(const struct dcpfs_at *dir, const struct dcp_named_layout *layout,
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

/* Lookup and listing, for all kinds of directories. */

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

/* The inode of a fixed child, or 0 if it is absent now. The inode of a link depends on its target,
 * so that the kernel may cache the target: when latest moves, it gets another inode. */
static uint64_t ino_of_child(const struct dcpfs_at *dir, enum dcpfs_kind kind)
{
	uint64_t row = kind == DCPFS_LATEST ? dcpfs_latest(dir->fs) : dir->i.row;

	return kind == DCPFS_LATEST && !row ? 0 : dcpfs_ino_pack(dir->i.slot, kind, row);
}

/* Open the version if @dir is its directory. Below a rank it is open already. */
static int enter_version(const struct dcpfs_at *dir)
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
	rc = enter_version(dir);
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
		rc = l.dir.node->type == DCPFS_DIR ? enter_version(&l.dir) : -ENOTDIR;
	if (rc == 0 && list_fixed(&l, ino, after) && l.dir.node->list)
		rc = l.dir.node->list(
			&l, after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW + 1);
	dcpfs_version_put(l.dir.ver);
	return rc;
}

/* hf/: model files by number, generated files, and the files beside the weights. */

/* Model files, followed by their index if there are several. */
static size_t count_weights(const struct dcp_hf_weights *hf)
{
	return hf->nfiles + (hf->nfiles > 1);
}

static uint64_t ino_of_weights(const struct dcpfs_version *ver, uint64_t n)
{
	return n < ver->hf->weights.nfiles ? dcpfs_ino_pack(ver->slot, DCPFS_MODEL, n)
					   : dcpfs_ino_pack(ver->slot, DCPFS_HF_INDEX, 0);
}

/* The name of the next file from place *@i on; @shown: room for it. NULL: there are no more. */
static const char *next_beside(const struct dcpfs_version *ver, size_t *i,
			       char shown[DCP_NAME_MAX + 1], uint64_t *ino)
{
	struct dcp_hf_file f;

	while (dcp_hf_next_file(dcpfs_opened(ver), i, &f)) {
		*ino = dcpfs_ino_pack(ver->slot, DCPFS_HF_MADE, f.number);
		if (f.made)
			return f.name;
		if (dcpfs_sidecar_shown(ver, f.number + 1, shown, ino))
			return shown;
	}
	return NULL;
}

int dcpfs_hf_lookup(const struct dcpfs_at *dir, const char *name, struct dcpfs_entry *out)
{
	const struct dcp_hf_weights *hf;
	const char *digits = strchr(name, '-');
	char shown[DCP_NAME_MAX + 1];
	char weights[DCP_SAFETENSORS_NAME] = "";
	const char *beside;
	uint64_t n = 0;

	if (!dcpfs_is_hf(dir->ver))
		return -ENOENT;
	hf = &dir->ver->hf->weights;
	if (digits && hf->nfiles > 1) {
		digits++;
		dcp_take_number(&digits, NULL, DCP_ANY_DIGITS, &n);
	}
	n = n >= 1 && n <= hf->nfiles ? n - 1 : count_weights(hf) - 1;
	if (hf->nfiles)
		dcp_hf_weights_name(dcpfs_opened(dir->ver), hf, n, weights);
	if (strcmp(name, weights) == 0) {
		out->ino = ino_of_weights(dir->ver, n);
		return 0;
	}
	for (size_t i = 0; (beside = next_beside(dir->ver, &i, shown, &out->ino));)
		if (strcmp(beside, name) == 0)
			return 0;
	return -ENOENT;
}

int dcpfs_hf_list(const struct dcpfs_listing *l, uint64_t first)
{
	const struct dcpfs_version *ver = l->dir.ver;
	char weights[DCP_SAFETENSORS_NAME], shown[DCP_NAME_MAX + 1];
	size_t n, place;
	uint64_t ino;

	if (!dcpfs_is_hf(ver))
		return 0;
	n = count_weights(&ver->hf->weights);
	for (uint64_t i = first;; i++) {
		const char *name = weights;

		place = i < n ? 0 : i - n;
		if (i < n) {
			dcp_hf_weights_name(dcpfs_opened(ver), &ver->hf->weights, i, weights);
			ino = ino_of_weights(ver, i);
		} else if ((name = next_beside(ver, &place, shown, &ino))) {
			i = n + place - 1;
		}
		if (!name ||
		    !dcpfs_emit(l, name, ino,
				dcpfs_ino_unpack(ino).kind == DCPFS_FILES_SUB ? DCPFS_DIR
									      : DCPFS_FILE,
				DCPFS_FIRST_ROW + i))
			return 0;
	}
}

/* clang-format off */
#define NODE(kind, ...) [kind] = { kind, __VA_ARGS__ }

const struct dcpfs_node dcpfs_nodes[DCPFS_KIND_COUNT] = {
	NODE(DCPFS_ROOT, DCPFS_ROOT, DCPFS_DIR, NULL, DCPFS_IN_ALL, .live = true, .lookup = dcpfs_versions_lookup, .list = dcpfs_versions_list),
	NODE(DCPFS_LATEST, DCPFS_ROOT, DCPFS_LINK, "latest", DCPFS_IN_ALL, .live = true, .readlink = dcpfs_latest_readlink),
	NODE(DCPFS_CONTROL, DCPFS_ROOT, DCPFS_DIR, ".dcpfs", DCPFS_IN_ALL),
	NODE(DCPFS_STATUS, DCPFS_CONTROL, DCPFS_FILE, "status.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_ERRORS, DCPFS_CONTROL, DCPFS_FILE, "errors.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_INCOMPLETE, DCPFS_CONTROL, DCPFS_FILE, "incomplete.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_STATS, DCPFS_CONTROL, DCPFS_FILE, "stats", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_METRICS, DCPFS_CONTROL, DCPFS_FILE, "metrics", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_CONFIG, DCPFS_CONTROL, DCPFS_FILE, "config.json", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_LOG, DCPFS_CONTROL, DCPFS_FILE, "log", DCPFS_IN_ALL, .live = true),
	NODE(DCPFS_TAGS_DIR, DCPFS_ROOT, DCPFS_DIR, "tags", DCPFS_IN_ALL, .lookup = dcpfs_tags_lookup, .list = dcpfs_tags_list),
	NODE(DCPFS_TAG, DCPFS_TAGS_DIR, DCPFS_LINK, NULL, DCPFS_IN_ALL, .readlink = dcpfs_tag_readlink),
	NODE(DCPFS_BY_KEY_DIR, DCPFS_ROOT, DCPFS_DIR, "by-key", DCPFS_IN_ALL, .lookup = dcpfs_keys_lookup, .list = dcpfs_keys_list),
	NODE(DCPFS_BY_KEY, DCPFS_BY_KEY_DIR, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_by_key_lookup, .list = dcpfs_by_key_list, .attr = dcpfs_by_key_attr),
	NODE(DCPFS_BY_KEY_LINK, DCPFS_BY_KEY, DCPFS_LINK, NULL, DCPFS_IN_ALL, .readlink = dcpfs_by_key_readlink),
	NODE(DCPFS_VERSION, DCPFS_ROOT, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_hf_lookup, .list = dcpfs_hf_list),
	NODE(DCPFS_README, DCPFS_VERSION, DCPFS_FILE, "README.txt", DCPFS_IN_VERSION),
	NODE(DCPFS_INDEX_JSON, DCPFS_VERSION, DCPFS_FILE, "index.json", DCPFS_IN_BOTH),
	NODE(DCPFS_INDEX_JSONL, DCPFS_VERSION, DCPFS_FILE, "index.jsonl", DCPFS_IN_VERSION),
	NODE(DCPFS_NPY_DIR, DCPFS_VERSION, DCPFS_DIR, "npy", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_RAW_DIR, DCPFS_VERSION, DCPFS_DIR, "raw", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_SAFETENSORS_DIR, DCPFS_VERSION, DCPFS_DIR, "safetensors", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_OBJECTS_DIR, DCPFS_VERSION, DCPFS_DIR, "objects", DCPFS_IN_BOTH, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_MEASURED_DIR, DCPFS_VERSION, DCPFS_DIR, "stats", DCPFS_IN_VERSION, .lookup = dcpfs_rows_lookup, .list = dcpfs_rows_list),
	NODE(DCPFS_FILES_DIR, DCPFS_VERSION, DCPFS_DIR, "files", DCPFS_IN_VERSION, .lookup = dcpfs_sidecars_lookup, .list = dcpfs_sidecars_list),
	NODE(DCPFS_FILES_SUB, DCPFS_FILES_DIR, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_sidecars_lookup, .list = dcpfs_sidecars_list),
	NODE(DCPFS_SIDECAR, DCPFS_FILES_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL, .attr = dcpfs_sidecar_attr),
	NODE(DCPFS_SHARD_DIR, DCPFS_VERSION, DCPFS_DIR, "shard", DCPFS_IN_VERSION | DCPFS_IN_HF | DCPFS_UNLISTED, .lookup = dcpfs_layouts_lookup, .list = dcpfs_layouts_list),
	NODE(DCPFS_LAYOUT, DCPFS_SHARD_DIR, DCPFS_DIR, NULL, DCPFS_IN_ALL, .lookup = dcpfs_ranks_lookup, .list = dcpfs_ranks_list),
	NODE(DCPFS_LAYOUT_JSON, DCPFS_LAYOUT, DCPFS_FILE, "layout.json", DCPFS_IN_ALL),
	NODE(DCPFS_PLAN_JSON, DCPFS_VERSION, DCPFS_FILE, "plan.json", DCPFS_IN_RANK),
	NODE(DCPFS_MODEL, DCPFS_VERSION, DCPFS_FILE, "model.safetensors", DCPFS_IN_RANK),
	NODE(DCPFS_HF, DCPFS_VERSION, DCPFS_DIR, "hf", DCPFS_IN_VERSION),
	NODE(DCPFS_HF_README, DCPFS_VERSION, DCPFS_FILE, "README.md", DCPFS_IN_HF),
	NODE(DCPFS_HF_INDEX, DCPFS_VERSION, DCPFS_FILE, NULL, DCPFS_IN_HF),
	NODE(DCPFS_HF_MADE, DCPFS_VERSION, DCPFS_FILE, NULL, DCPFS_IN_HF),
	NODE(DCPFS_BLOB_DIR, DCPFS_CONTROL, DCPFS_DIR, "blob", DCPFS_IN_ALL, .lookup = dcpfs_blob_lookup),
	NODE(DCPFS_NPY_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_RAW_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_SAFETENSORS_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_MODEL_BLOB, DCPFS_BLOB_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_NPY, DCPFS_NPY_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_RAW, DCPFS_RAW_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_SAFETENSORS, DCPFS_SAFETENSORS_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_OBJECT, DCPFS_OBJECTS_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
	NODE(DCPFS_MEASURED, DCPFS_MEASURED_DIR, DCPFS_FILE, NULL, DCPFS_IN_ALL),
};
/* clang-format on */
