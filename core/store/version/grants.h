/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grants: who may read a source, as the owners, modes and access control lists of its files
 * and directories say.
 *
 * To read a file a user needs search permission on every directory from / down to it, on its
 * real path, and read permission on the file. Directories from SOURCE down must be readable
 * too, since the names of versions and files are shown.
 *
 * Where that cannot be found out (core/origin/dir/rights.h) only the user of this process gets
 * rights, because this user can copy the files anyway. Mandatory access control is not considered.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/buf.h"
#include "core/origin/dir/rights.h"

struct dcp_file_id;
struct dcp_site;
struct dcp_version;

struct dcp_grants {
	struct dcp_rights way;    /* rights to reach the directory and to list it */
	struct dcp_rights data;   /* rights to read every file of the version except sidecars */
	struct dcp_rights beside; /* rights to list every directory with sidecars */
	bool mixed;               /* the rights of the data files differ */
	/*
	 * by file number; NULL: not examined, and only the user of this process may read the data
	 */
	struct dcp_rights *files;
	size_t n;
	/*
	 * rights for output written from the files: modes count on every file system
	 */
	bool copied;
	/* if @copied: rights to change every examined file and directory */
	struct dcp_rights writers;
	uint64_t dev;        /* the last device found to decide by mode and list alone */
	char *source;        /* real path of SOURCE; "" while this is about SOURCE itself */
	struct dcp_buf dirs; /* the directories that were examined: see grants.c */
};

/* The rights to SOURCE: those of the directories down to it, and of itself if it is a directory.
 * -ENOMEM. A file or directory that cannot be examined is only for the user of this process. */
int dcp_grants_source(const char *source, struct dcp_grants **out);

/* The rights to the version whose directory is @where below @source. Its files are examined later,
 * by dcp_grants_files(). -ENOMEM. */
int dcp_grants_version(const struct dcp_grants *source, const char *where,
		       struct dcp_grants **out);

/* Examine the version's files, which lie at @at. -ENOMEM. */
int dcp_grants_files(struct dcp_grants *g, const struct dcp_site *at,
		     const struct dcp_file_id *ids, size_t n);

/* Have the rights of the directories changed since? (A change of the rights of a file changes its
 * ctime, which dcp_version_check() compares.) */
bool dcp_grants_changed(const struct dcp_grants *g);

/* The @i-th examined directory, or NULL past the last. */
const char *dcp_grants_dir(const struct dcp_grants *g, size_t i);

void dcp_grants_free(struct dcp_grants *g);

/* The rights of a file outside of a version. */
struct dcp_rights dcp_grants_of_file(const char *path);

/*
 * The permission bits that a file or directory written from @v must not have, in the form of a
 * umask. Users other than the writer may read or change it only if they may do so with all files of
 * @v (also those beside the weights of a Hugging Face directory) and the directories from @source
 * (as for dcp_version_open()) or from --hf-assets down to them. As with cp -p, what lies above
 * these does not count. @gid: the group of what is written. -ENOMEM.
 */
int dcp_grants_withheld(const struct dcp_version *v, const char *source, uint32_t gid,
			uint32_t *out);
