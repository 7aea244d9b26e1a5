/* SPDX-License-Identifier: Apache-2.0 */
/*
 * by-key/: one tensor over time. by-key/<key>/<version>.npy is a link to the version's npy/
 * file, or <version>.bin to its raw/ file if .npy cannot hold the dtype. The inode number has
 * the slot of the version and the number of the key. A version whose index is still being built
 * may have any key, so requests wait for it: the lookup of a version's name for that version,
 * the lookup of a key until a version has it, and a listing for all versions.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/store/index/index.h"
#include "fs/tree/dir_int.h"
#include "fs/tree/keys.h"
#include "fs/versions/opener.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

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

/*
 * Wait until the version after @place is opened or refused. Returns its place, 0 after the last
 * version, or -ECANCELED when the mount ends.
 */
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
