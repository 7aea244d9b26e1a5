/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/arena.h"
#include "core/parse/dir/dir.h"
#include "core/store/index/index.h"
#include "fs/errors.h"
#include "fs/file/file.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/tree/dir_int.h"
#include "fs/tree/tree.h"
#include "fs/versions/opener.h"
#include "fs/versions/ranks.h"
#include "fs/versions/rights.h"
#include "fs/versions/versions.h"

bool dcpfs_is_settled(uint64_t ino)
{
	return dcpfs_ino_unpack(ino).slot != 0;
}

static void set_time(struct stat *st, struct timespec t)
{
	st->st_atim = st->st_mtim = st->st_ctim = t;
}

static void attr_base(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		      enum dcpfs_type type, struct stat *st)
{
	struct timespec when = ver ? dcp_file_time(ver->found.commit_ns) : fs->started;

	*st = (struct stat){ .st_ino = ino,
			     .st_mode = type == DCPFS_DIR    ? S_IFDIR
					: type == DCPFS_FILE ? S_IFREG
							     : S_IFLNK,
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

	attr_base(fs, ver, ino, DCPFS_FILE, st);
	st->st_nlink = 1 + (dcpfs_is_rank(ver) ? 0 : row->naliases);
	if (r->rows == DCP_ROW_TENSOR && dcp_view_size_of(row, r->as, &size) < 0)
		size = 0; /* opening it gives the error */
	if (row->broken && size == 0 && fs->opts.no_open)
		size = 1; /* or the kernel, not asking us, would find it empty and sound */
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

static int attr_of_row_ino(struct dcpfs *fs, struct dcpfs_version *ver, struct dcpfs_ino i,
			   uint64_t ino, struct stat *st)
{
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);
	struct dcp_arena arena;
	struct dcp_row row;
	int rc;

	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_index_by_id(dcpfs_index(ver), r->rows, (int64_t)i.row, &arena, &row);
	dcpfs_index_asked(fs, ver, rc);
	if (rc == 0 && r->rows == DCP_ROW_TENSOR)
		rc = dcpfs_rank_cut(ver, &row, &arena, NULL, NULL) == 0 ? -ENOENT : 0;
	if (rc == 0)
		dcpfs_attr_of_row(fs, ver, ino, &row, st);
	dcp_arena_finish(&arena);
	return rc;
}

/* A file made by us: as big as its text. */
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

static int attr_of_node(struct dcpfs *fs, struct dcpfs_version *ver,
			const struct dcpfs_node *node, uint64_t ino, struct stat *st)
{
	char to[PATH_MAX];
	int rc;

	/* An open version tells who may read what is in it; of one that cannot be opened only
	 * the user who mounts may read why. */
	if (ver && fs->opts.allow_other && (node->kind != DCPFS_VERSION || dcpfs_is_hf(ver)))
		dcpfs_version_open(fs, ver, NULL);
	attr_base(fs, ver, ino, node->type, st);
	if (node->kind == DCPFS_SIDECAR) {
		rc = ver ? dcpfs_version_open(fs, ver, NULL) : -ESTALE;
		return rc < 0 ? rc : dcpfs_sidecar_attr(ver, dcpfs_ino_unpack(ino).row, st);
	}
	if (node->type == DCPFS_FILE)
		return attr_of_text(fs, ino, st);
	if (node->type == DCPFS_LINK) {
		rc = dcpfs_readlink(fs, ino, to, sizeof(to));
		set_size(st, rc == 0 ? strlen(to) : 0);
		return rc;
	}
	if (node->kind == DCPFS_BY_KEY) {
		rc = dcpfs_by_key_check(fs, dcpfs_ino_unpack(ino));
		if (rc < 0)
			return rc;
	}
	st->st_nlink = 2 + dcpfs_child_dirs(node->kind, dcpfs_slots_of(ver));
	if (node->kind == DCPFS_ROOT) {
		pthread_rwlock_rdlock(&fs->lock);
		st->st_nlink += fs->nversions;
		pthread_rwlock_unlock(&fs->lock);
	}
	return 0;
}

int dcpfs_getattr(struct dcpfs *fs, uint64_t ino, struct stat *st)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	const struct dcpfs_node *node = dcpfs_node(i.kind);
	struct dcpfs_version *ver = NULL;
	int rc = 0;

	if (!node)
		return -ENOENT;
	if (i.slot) {
		ver = dcpfs_version_by_slot(fs, i.slot);
		if (!ver)
			return -ESTALE;
	}
	if (dcpfs_rows_of(i.kind)) {
		rc = ver ? dcpfs_version_open(fs, ver, NULL) : -ENOENT;
		if (rc == 0)
			rc = attr_of_row_ino(fs, ver, i, ino, st);
	} else {
		rc = attr_of_node(fs, ver, node, ino, st);
	}
	dcpfs_version_put(ver);
	return rc;
}

int dcpfs_readlink(struct dcpfs *fs, uint64_t ino, char *buf, size_t size)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);

	if (i.kind == DCPFS_LATEST)
		return dcpfs_slot_name(fs, i.row, buf, size);
	if (i.kind == DCPFS_BY_KEY_LINK)
		return dcpfs_by_key_readlink(fs, i, buf, size);
	if (i.kind != DCPFS_TAG || size < 3)
		return -EINVAL;
	memcpy(buf, "../", 3);
	return dcpfs_slot_name(fs, i.slot, buf + 3, size - 3);
}
