/* SPDX-License-Identifier: Apache-2.0 */
/*
 * by-key/: one tensor over time. by-key/<key>/<version>.npy is a link to the version's npy/
 * file
 * (<version>.bin to the one in raw/, where .npy has no form for the dtype); its inode number is
 * the slot of the version and the number of the key.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/store/index/index.h"
#include "fs/tree/dir_int.h"
#include "fs/tree/keys.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

/* The form that by-key/ shows of the tensor @stem in @ver; NULL: it has none of that key. */
static const struct dcpfs_rows *form_in(const struct dcpfs_version *ver, const char *stem)
{
	const struct dcpfs_rows *npy = dcpfs_rows_in(DCPFS_NPY_DIR);
	struct dcp_arena arena;
	struct dcp_row row;
	int rc;

	if (!dcpfs_opened(ver))
		return NULL;
	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_index_by_name(dcpfs_index(ver), DCP_ROW_TENSOR, stem, &arena, &row);
	dcp_arena_finish(&arena);
	if (rc < 0)
		return NULL;
	return dcp_view_can_show(row.key, row.dtype, DCP_AS_NPY) ? npy
								 : dcpfs_rows_in(DCPFS_RAW_DIR);
}

static int stem_of(struct dcpfs *fs, uint64_t number, char stem[DCP_NAME_MAX + 1])
{
	uint64_t at = number;
	int rc = dcpfs_keys_next(fs, &at, stem);

	return rc == -ENOENT || (rc == 0 && at != number) ? -ESTALE : rc;
}

int dcpfs_by_key_check(struct dcpfs *fs, struct dcpfs_ino ino)
{
	char stem[DCP_NAME_MAX + 1];

	return stem_of(fs, ino.row, stem);
}

/* "step-5.npy" in the directory of a key. */
static int lookup_link(struct dcpfs *fs, struct dcpfs_ino dir, const char *name, uint64_t *ino)
{
	char stem[DCP_NAME_MAX + 1], version[NAME_MAX + 1];
	const char *dot = strrchr(name, '.');
	const struct dcpfs_rows *r;
	struct dcpfs_version *ver;
	int rc = stem_of(fs, dir.row, stem);

	if (rc < 0 || !dot)
		return rc < 0 ? rc : -ENOENT;
	snprintf(version, sizeof(version), "%.*s", (int)(dot - name), name);
	ver = dcpfs_version_by_name(fs, version);
	if (!ver)
		return -ENOENT;
	r = form_in(ver, stem);
	if (r && strcmp(r->extension, dot) == 0)
		*ino = dcpfs_ino_pack(ver->slot, DCPFS_BY_KEY_LINK, dir.row);
	else
		rc = -ENOENT;
	dcpfs_version_put(ver);
	return rc;
}

int dcpfs_by_key_lookup(struct dcpfs *fs, struct dcpfs_ino dir, const char *name, uint64_t *ino)
{
	uint64_t number;
	int rc;

	if (dir.kind == DCPFS_BY_KEY)
		return lookup_link(fs, dir, name, ino);
	rc = dcpfs_keys_find(fs, name, &number);
	if (rc == 0)
		*ino = dcpfs_ino_pack(0, DCPFS_BY_KEY, number);
	return rc;
}

static int list_links(const struct dcpfs_listing *l, struct dcpfs_ino dir, uint64_t after)
{
	char stem[DCP_NAME_MAX + 1], name[NAME_MAX + 16];
	struct dcpfs_version *ver;
	bool more = true;
	int rc = stem_of(l->fs, dir.row, stem);

	after = after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW;
	while (rc == 0 && more && (ver = dcpfs_version_behind(l->fs, after)) != NULL) {
		const struct dcpfs_rows *r = form_in(ver, stem);

		after = ver->place;
		if (r) {
			snprintf(name, sizeof(name), "%s%s", ver->name, r->extension);
			more = dcpfs_tell(l, name,
					  dcpfs_ino_pack(ver->slot, DCPFS_BY_KEY_LINK, dir.row),
					  DCPFS_LINK, DCPFS_FIRST_ROW + after);
		}
		dcpfs_version_put(ver);
	}
	return rc;
}

int dcpfs_by_key_list(const struct dcpfs_listing *l, struct dcpfs_ino dir, uint64_t after)
{
	uint64_t number = after < DCPFS_FIRST_ROW ? 0 : after - DCPFS_FIRST_ROW + 1;
	char stem[DCP_NAME_MAX + 1];
	int rc;

	if (dir.kind == DCPFS_BY_KEY)
		return list_links(l, dir, after);
	for (; (rc = dcpfs_keys_next(l->fs, &number, stem)) == 0; number++)
		if (!dcpfs_tell(l, stem, dcpfs_ino_pack(0, DCPFS_BY_KEY, number), DCPFS_DIR,
				DCPFS_FIRST_ROW + number))
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
		n = snprintf(buf, size, "../../%s/%s/%s%s", ver->name, dcpfs_node(r->dir)->name,
			     stem, r->extension);
		rc = n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
	}
	dcpfs_version_put(ver);
	return rc;
}
