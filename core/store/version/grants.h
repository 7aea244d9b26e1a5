/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grants: who may read a source, as the owners, modes and access control lists of its files
 * and directories say.
 *
 * To read a file somebody must be let search every directory from / down to it, on its real
 * path, and read the file. Directories from SOURCE down must let him list them, too: names of
 * versions and files are shown.
 *
 * Where a file system decides by more than that (FUSE, SMB, what is not known; NFSv4 with
 * entries for single users), nobody is let in but the user of this process, who could copy
 * what he reads. Mandatory access control is not asked.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/buf.h"
#include "core/model/rights.h"

struct dcp_file_id;

struct dcp_grants {
	struct dcp_rights way;    /* to the directory, and to list it */
	struct dcp_rights data;   /* to read every file of the version but sidecars */
	struct dcp_rights beside; /* to list every directory that sidecars lie in */
	bool mixed;               /* some files of the data say something else than others */
	struct dcp_rights
		*files; /* by number; NULL: not looked at, and data is the user's alone */
	size_t n;
	char *source;        /* real path of SOURCE; "" while this is about SOURCE itself */
	struct dcp_buf dirs; /* those that were asked: see grants.c */
};

/* Of SOURCE: the directories down to it, and itself if it is one. -ENOMEM; what cannot be asked
 * is the user's alone. */
int dcp_grants_source(const char *source, struct dcp_grants **out);

/* Of the version whose directory is @where below that; its files come later. -ENOMEM. */
int dcp_grants_version(const struct dcp_grants *source, const char *where,
		       struct dcp_grants **out);

/* Look at its files. -ENOMEM. */
int dcp_grants_files(struct dcp_grants *g, int dirfd, const struct dcp_file_id *ids, size_t n);

/* Would the directories be told otherwise now? (Files: their ctime says so, which
 * dcp_version_check() asks.) */
bool dcp_grants_changed(const struct dcp_grants *g);

/* Directory number @i of those that were asked, or NULL behind the last. */
const char *dcp_grants_dir(const struct dcp_grants *g, size_t i);

void dcp_grants_free(struct dcp_grants *g);

/* Of any other file. */
struct dcp_rights dcp_grants_of_file(const char *path);

/* The user of this process, and nobody else. */
struct dcp_rights dcp_grants_alone(void);
