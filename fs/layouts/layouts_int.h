/* SPDX-License-Identifier: Apache-2.0 */
/* layouts_int: the table of layouts, for layouts.c and layouts_file.c. */
#pragma once
#include <pthread.h>
#include <stddef.h>

#include "fs/layouts/layouts.h"

#define DCPFS_LAYOUT_EXT ".dcpl"

struct dcpfs_layouts {
	pthread_rwlock_t lock; /* the list; what is in it never changes */
	struct dcpfs_layout *first;
	size_t n;
	struct dcpfs_layout **listed; /* by name; complete before anybody else looks */
	size_t nlisted;
};

/* ---- layouts.c: the caller is alone, or holds the lock ---- */

struct dcpfs_layout *dcpfs_layouts_by_name(const struct dcpfs_layouts *t, const char *name);

/* Take @l, also on failure, as @name; of @file, if it is to be listed. -E2BIG, -ENOMEM. */
int dcpfs_layouts_add(struct dcpfs_layouts *t, const char *name, struct dcp_layout *l,
		      const char *file, struct dcpfs_layout **out);

/* ---- layouts_file.c ---- */

/* Add those of all files that the options lead to. */
int dcpfs_layout_files_load(struct dcpfs_layouts *t, const struct dcpfs_layout_opts *opts,
			    struct dcp_err *err);

/* The file at @path on its own mesh, or on @mesh of @n bytes. -ENOENT names the nearest. */
int dcpfs_layout_file_open(const char *path, const char *mesh, size_t n,
			   struct dcp_layout **out, struct dcp_err *err);
