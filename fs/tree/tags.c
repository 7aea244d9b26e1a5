/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tags/: the names that the source itself has for versions, as links. A link's inode number
 * holds the slot of the version it leads to, so what the kernel keeps of it stays true.
 */
#include <errno.h>
#include <string.h>

#include "core/base/hash.h"
#include "fs/tree/dir_int.h"
#include "fs/versions/versions.h"

static uint64_t ino_of(const struct dcpfs_version *ver, const char *tag)
{
	return dcpfs_ino_pack(ver->slot, DCPFS_TAG,
			      dcp_hash64(tag, strlen(tag)) & DCPFS_ROW_MAX);
}

/* Tag number @n whose version is shown now: its name into @name (DCP_GROUP_MAX), the version
 * counted. NULL: behind the last. */
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

int dcpfs_tags_lookup(struct dcpfs *fs, const char *name, uint64_t *ino)
{
	char tag[DCP_GROUP_MAX];
	struct dcpfs_version *ver;
	int rc = -ENOENT;

	for (size_t n = 0; rc && (ver = tag_at(fs, &n, tag)) != NULL;) {
		if (strcmp(tag, name) == 0) {
			*ino = ino_of(ver, name);
			rc = 0;
		}
		dcpfs_version_put(ver);
	}
	return rc;
}

void dcpfs_tags_list(const struct dcpfs_listing *l, uint64_t after)
{
	char tag[DCP_GROUP_MAX];
	struct dcpfs_version *ver;
	bool more = true;

	for (size_t n = 0; more && (ver = tag_at(l->fs, &n, tag)) != NULL;) {
		uint64_t position = DCPFS_FIRST_ROW + n;

		if (position > after)
			more = dcpfs_tell(l, tag, ino_of(ver, tag), DCPFS_LINK, position);
		dcpfs_version_put(ver);
	}
}
