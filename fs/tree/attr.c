/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/arena.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "fs/errors.h"
#include "fs/file/file.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/text/text.h"
#include "fs/tree/dir_int.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

bool dcpfs_is_settled(uint64_t ino)
{
	return dcpfs_ino_unpack(ino).slot != 0;
}

static void set_time(struct stat *st, struct timespec t)
{
	st->st_atim = st->st_mtim = st->st_ctim = t;
}

static const mode_t type_bits[] = {
	[DCPFS_DIR] = S_IFDIR, [DCPFS_FILE] = S_IFREG, [DCPFS_LINK] = S_IFLNK
};

/* Attributes of a node, without its size. */
static void dcpfs_attr_base(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
			    enum dcpfs_type type, struct stat *st)
{
	struct timespec when = ver ? dcp_file_time(ver->found.commit_ns) : fs->started;

	*st = (struct stat){ .st_ino = ino,
			     .st_mode = type_bits[type],
			     .st_nlink = 1,
			     .st_blksize = 128 << 10 };
	dcpfs_rights_show(fs, ver, ino, st);
	set_time(st, when);
}

static void set_size(struct stat *st, uint64_t size)
{
	st->st_size = (off_t)size;
	st->st_blocks = (blkcnt_t)(size / 512 + (size % 512 != 0));
}

void dcpfs_attr_of_row(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       const struct dcp_row *row, struct stat *st)
{
	const struct dcpfs_rows *r = dcpfs_rows_of(dcpfs_ino_unpack(ino).kind);
	uint64_t size = row->nbytes;

	dcpfs_attr_base(fs, ver, ino, DCPFS_FILE, st);
	st->st_nlink = 1 + (dcpfs_is_rank(ver) || r->named ? 0 : row->naliases);
	if (r->file == DCPFS_MEASURED)
		size = dcpfs_measured_size(row);
	else if (r->rows == DCP_ROW_TENSOR &&
		 dcp_view_size_of(dcpfs_index(ver), row, r->as, &size) < 0)
		size = 0; /* opening it gives the error */
	if (row->broken && size == 0 && fs->opts.no_open)
		/* size 0 would make the kernel take it for empty, without an OPEN to fail */
		size = 1;
	set_size(st, size);
}

int dcpfs_index_asked(struct dcpfs *fs, const struct dcpfs_version *ver, int rc)
{
	bool damaged = dcp_index_is_damaged(dcpfs_index(ver));

	if (rc == -EIO || rc == -EBADMSG)
		dcpfs_errors_add(fs->errors, dcpfs_is_rank(ver) ? ver->of->name : ver->name,
				 NULL, NULL,
				 damaged ? "its index is damaged; it is built again when it is "
					   "next opened"
					 : "its index cannot be read: unmount, and mount with "
					   "--rebuild");
	if (damaged)
		dcpfs_versions_suspect(fs);
	return rc;
}

static int attr_of_row(const struct dcpfs_at *at, const struct dcpfs_rows *r, uint64_t ino,
		       struct stat *st)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row row;
	int rc = dcpfs_version_open(at->fs, at->ver, NULL);

	if (rc < 0)
		return rc;
	rc = dcp_index_by_id(dcpfs_index(at->ver), r->rows, (int64_t)at->i.row, &arena, &row);
	dcpfs_index_asked(at->fs, at->ver, rc);
	if (rc == 0 && r->rows == DCP_ROW_TENSOR)
		rc = dcpfs_rank_cut(at->ver, &row, &arena, NULL, NULL) == 0 ? -ENOENT : 0;
	if (rc == 0)
		dcpfs_attr_of_row(at->fs, at->ver, ino, &row, st);
	return rc;
}

/* Set the attributes of a generated file: its size is the length of its text. */
static int attr_of_text(struct dcpfs *fs, uint64_t ino, struct stat *st)
{
	struct dcpfs_file *file;
	int rc = dcpfs_file_get(fs, ino, &file, NULL);

	if (rc < 0)
		return rc;
	set_size(st, dcpfs_file_size(file));
	if (!dcpfs_is_settled(ino))
		set_time(st, dcpfs_file_made(file));
	dcpfs_file_put(fs, file);
	return 0;
}

static unsigned count_children(const struct dcpfs_at *at)
{
	unsigned n = dcpfs_child_dirs(at->fs, at->i.kind, dcpfs_slots_of(at->ver));

	if (at->i.kind == DCPFS_ROOT) {
		pthread_rwlock_rdlock(&at->fs->lock);
		n += (unsigned)at->fs->nversions;
		pthread_rwlock_unlock(&at->fs->lock);
	}
	return n;
}

static int attr_of_node(const struct dcpfs_at *at, uint64_t ino, struct stat *st)
{
	const struct dcpfs_node *node = at->node;
	char to[PATH_MAX];
	int rc = 0;

	/* The rights inside a version are known once it is open. If it cannot be opened, only
	 * the user who mounts may read the reason. */
	if (at->ver && at->fs->opts.allow_other &&
	    (node->kind != DCPFS_VERSION || dcpfs_is_hf(at->ver)))
		dcpfs_version_open(at->fs, at->ver, NULL);
	dcpfs_attr_base(at->fs, at->ver, ino, node->type, st);
	if (node->attr)
		rc = node->attr(at, st);
	else if (node->type == DCPFS_FILE)
		rc = attr_of_text(at->fs, ino, st);
	if (node->type == DCPFS_DIR)
		st->st_nlink = 2 + count_children(at);
	if (node->type == DCPFS_LINK) {
		rc = node->readlink(at->fs, at->i, to, sizeof(to));
		set_size(st, rc == 0 ? strlen(to) : 0);
	}
	return rc;
}

int dcpfs_at(struct dcpfs *fs, uint64_t ino, struct dcpfs_at *at)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);

	*at = (struct dcpfs_at){ .fs = fs, .i = i, .node = dcpfs_node(fs, i.kind) };
	if (!at->node || (!i.slot && dcpfs_is_of_version(fs, at->node)))
		return -ENOENT;
	if (i.slot)
		at->ver = dcpfs_version_by_slot(fs, i.slot);
	return i.slot && !at->ver ? -ESTALE : 0;
}

int dcpfs_getattr(struct dcpfs *fs, uint64_t ino, struct stat *st)
{
	struct dcpfs_at at;
	int rc = dcpfs_at(fs, ino, &at);
	const struct dcpfs_rows *r = dcpfs_rows_of(at.i.kind);

	if (rc == 0)
		rc = r ? attr_of_row(&at, r, ino, st) : attr_of_node(&at, ino, st);
	dcpfs_version_put(at.ver);
	return rc;
}

int dcpfs_readlink(struct dcpfs *fs, uint64_t ino, char *buf, size_t size)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	const struct dcpfs_node *node = dcpfs_node(fs, i.kind);

	return node && node->readlink ? node->readlink(fs, i, buf, size) : -EINVAL;
}

/* ---- entries of a listing ---- */

bool dcpfs_emit(const struct dcpfs_listing *l, const char *name, uint64_t ino,
		enum dcpfs_type type, uint64_t position)
{
	struct stat st = { .st_ino = ino, .st_mode = type_bits[type], .st_size = -1 };

	if (l->attrs && type != DCPFS_FILE && dcpfs_getattr(l->dir.fs, ino, &st) < 0)
		return true; /* gone in between */
	return l->fn(l->ctx, name, &st, position);
}

bool dcpfs_emit_slot(const struct dcpfs_listing *l, const char *name, uint32_t slot,
		     uint64_t position)
{
	struct stat st = { .st_ino = dcpfs_ino_pack(slot, DCPFS_VERSION, 0),
			   .st_mode = S_IFDIR,
			   .st_size = -1 };

	return l->fn(l->ctx, name, &st, position);
}
