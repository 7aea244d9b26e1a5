/* SPDX-License-Identifier: Apache-2.0 */
/* layouts_int: the table of layouts. Each file below calls only those before it. */
#pragma once
#include <pthread.h>
#include <stddef.h>

#include "core/store/layouts/layouts.h"

#define DCP_LAYOUT_EXT ".dcpl"

struct dcp_layouts {
	pthread_rwlock_t lock; /* the list; what is in it never changes */
	struct dcp_named_layout *first;
	size_t n;
	struct dcp_named_layout **listed; /* by name; complete before another thread looks */
	size_t nlisted;
};

/* ---- table.c: the caller is alone, or holds the lock ---- */

struct dcp_named_layout *dcp_layouts_by_name(const struct dcp_layouts *t, const char *name);
struct dcp_named_layout *dcp_layouts_get(const struct dcp_layouts *t, uint64_t id);

/* Take @l, also on failure, as @name; of @file, if it is to be listed. -E2BIG, -ENOMEM. */
int dcp_layouts_add(struct dcp_layouts *t, const char *name, struct dcp_layout *l,
		    const char *file, struct dcp_named_layout **out);

/* ---- file.c ---- */

/* Add those of all files that the options lead to. */
int dcp_layouts_load(struct dcp_layouts *t, const struct dcp_layouts_opts *opts,
		     struct dcp_err *err);

/* The file at @path on its own mesh, or on @mesh of @n bytes. -ENOENT names the nearest. */
int dcp_layouts_open_file(const char *path, const char *mesh, size_t n, struct dcp_layout **out,
			  struct dcp_err *err);
