/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grants: who may read a source, as the owners, modes and access control lists of its files
 * and directories say.
 *
 * To read a file a user needs search permission on every directory from / down to it, on its
 * real path, and read permission on the file. Directories from SOURCE down must be readable
 * too, since the names of versions and files are shown.
 *
 * Where a file system decides by more than that (FUSE, SMB, unknown ones; NFSv4 with entries
 * for single users), only the user of this process is let in, who could copy what they read
 * anyway. Mandatory access control is not considered.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/buf.h"
#include "core/model/rights.h"

struct dcp_file_id;
struct dcp_version;

struct dcp_grants {
	struct dcp_rights way;    /* to reach the directory, and to list it */
	struct dcp_rights data;   /* to read every file of the version but sidecars */
	struct dcp_rights beside; /* to list every directory that sidecars lie in */
	bool mixed;               /* the rights of the data files differ */
	struct dcp_rights
		*files; /* by number; NULL: not examined, and data is the user's alone */
	size_t n;
	bool copied; /* about what is written from the files: modes count as they are shown */
	struct dcp_rights writers; /* then: to change every file and directory asked */
	char *source;        /* real path of SOURCE; "" while this is about SOURCE itself */
	struct dcp_buf dirs; /* the directories that were examined: see grants.c */
};

/* Of SOURCE: the directories down to it, and itself if it is one. -ENOMEM; what cannot be
 * examined is the user's alone. */
int dcp_grants_source(const char *source, struct dcp_grants **out);

/* Of the version whose directory is @where below @source; its files are examined later, by
 * dcp_grants_files(). -ENOMEM. */
int dcp_grants_version(const struct dcp_grants *source, const char *where,
		       struct dcp_grants **out);

/* Examine the version's files. -ENOMEM. */
int dcp_grants_files(struct dcp_grants *g, int dirfd, const struct dcp_file_id *ids, size_t n);

/* Have the rights of the directories changed since? (Those of files change their ctime, which
 * dcp_version_check() compares.) */
bool dcp_grants_changed(const struct dcp_grants *g);

/* The directory number @i that was examined, or NULL past the last. */
const char *dcp_grants_dir(const struct dcp_grants *g, size_t i);

void dcp_grants_free(struct dcp_grants *g);

/* The rights of any other file. */
struct dcp_rights dcp_grants_of_file(const char *path);

/*
 * The permission bits that a file or directory written from @v must not have, in the form of a
 * umask. Users other than the writer may read or change it only if they may read or change all
 * files of @v, those beside the weights of a Hugging Face directory included, and the
 * directories from @source (as for dcp_version_open()) down to them. As with cp -p, what lies
 * above @source does not count. @gid: the group of what is written. -ENOMEM.
 */
int dcp_grants_withheld(const struct dcp_version *v, const char *source, uint32_t gid,
			uint32_t *out);

/* Only the user of this process. */
struct dcp_rights dcp_grants_alone(void);
