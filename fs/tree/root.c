/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The root: versions by name, the link latest, and tags/: the source's own names for versions,
 * as links. The inode number of a tag holds the slot of its version, so that a cached target
 * stays true.
 */
#include <errno.h>
#include <string.h>

#include "core/base/hash.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

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
		if (!dcpfs_version_refusal(ver)) /* .dcpfs/errors.json has why */
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

/*
 * The next tag from number @n on whose version is shown now: sets @name (DCP_GROUP_MAX) and
 * returns a reference to the version; NULL after the last.
 */
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
