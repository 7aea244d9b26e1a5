/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layouts: which names may stand below shard/, and what they mean.
 *
 * Listed are those of files: --layout FILE, *.dcpl beside the checkpoints, *.dcpl in the user's
 * config directory; a name is the file's stem, and the first of a name counts. Built-in names
 * (core/LAYOUT.md) and "mesh:dp2,tp4:<stem>" are not listed and found when somebody asks.
 *
 * A layout that was found stays until the mount ends. Safe from any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/layout.h"

struct dcp_err;
struct dcp_log;
struct dcpfs_layouts;

struct dcpfs_layout {
	uint32_t id; /* a hash of the name: the same in every mount */
	bool listed;
	const char *name;
	const struct dcp_layout *l;
	struct dcpfs_layout *next; /* the table's */
};

struct dcpfs_layout_opts {
	const char *const *files; /* of --layout; one that cannot be read is an error */
	size_t nfiles;
	const char *const *dirs; /* whose *.dcpl are taken; one that is wrong is logged */
	size_t ndirs;
	const struct dcp_log *log;
};

int dcpfs_layouts_create(const struct dcpfs_layout_opts *opts, struct dcpfs_layouts **out,
			 struct dcp_err *err);
void dcpfs_layouts_destroy(struct dcpfs_layouts *t);

/* By name: listed, known, or built in. -ENOENT (with the nearest name, of files or built in),
 * -EINVAL, -E2BIG (too many names asked for), -ENOMEM. */
int dcpfs_layouts_find(struct dcpfs_layouts *t, const char *name,
		       const struct dcpfs_layout **out, struct dcp_err *err);

/*
 * What a person calls a layout: a file by its path, "mesh:dp2,tp4:PATH", or any name that
 * dcpfs_layouts_find() takes. A word with a slash, one that ends in .dcpl, and one that no name
 * is but a file has is a path. Errors as there, and those of reading the file.
 */
int dcpfs_layouts_open(struct dcpfs_layouts *t, const char *word,
		       const struct dcpfs_layout **out, struct dcp_err *err);

const struct dcpfs_layout *dcpfs_layouts_by_id(struct dcpfs_layouts *t, uint64_t id);

/* The n-th of those that are listed, in order of name; NULL behind the last. */
const struct dcpfs_layout *dcpfs_layouts_at(struct dcpfs_layouts *t, size_t n);
