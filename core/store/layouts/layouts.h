/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layouts: the names allowed below shard/, and the layouts that they mean.
 *
 * Layouts from files are listed. Files are read once; a layout's name is the file's stem, and of
 * several files with one name the first wins. They are looked for in this order: --layout FILE;
 * *.dcpl in the source; *.dcpl in other directories of it that hold versions (SOURCE/checkpoints);
 * *.dcpl beside the source, if that is itself a version; *.dcpl in the user's config directory.
 * Only regular files directly in such a directory count, and links that lead out of it are followed
 * only in the user's config directory. Built-in names (core/LAYOUT.md) and "mesh:dp2,tp4:<stem>"
 * are not listed but can be looked up.
 *
 * A layout that was found stays until the mount ends. Safe from any thread.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/model/layout/layout.h"

struct dcp_err;
struct dcp_log;
struct dcp_scan;
struct dcp_layouts;

/* Extension of a file that lists the regions of each rank in place of rules. It is not a layout. */
#define DCP_REGIONS_EXT ".regions"

struct dcp_named_layout {
	uint32_t id; /* a hash of the name: the same in every mount */
	const char *name;
	/* absolute path of a listed layout; NULL: built in, or a path that the user gave */
	const char *file;
	const struct dcp_layout *l;
	struct dcp_named_layout *next; /* the table's */
};

struct dcp_layouts_opts {
	const char *const *files; /* of --layout; a file that cannot be read is an error */
	size_t nfiles;
	const char *source;          /* errors in its and user_dir's *.dcpl are logged */
	const struct dcp_scan *scan; /* of the source */
	const char *user_dir;        /* NULL: none */
	const struct dcp_log *log;
};

/* -EBADMSG (a file is not a layout), -EEXIST (two of --layout have one name), -E2BIG, -ENOMEM, or
 * the error of opening a file. */
int dcp_layouts_create(const struct dcp_layouts_opts *opts, struct dcp_layouts **out,
		       struct dcp_err *err);
void dcp_layouts_destroy(struct dcp_layouts *t);

/* Find a layout by name: listed, known, or built in. -ENOENT (the message has the nearest name),
 * -EINVAL, -E2BIG (too many names asked for), -ENOMEM. */
int dcp_layouts_find(struct dcp_layouts *t, const char *name,
		     const struct dcp_named_layout **out, struct dcp_err *err);

/*
 * The layout that a user means: a file by its path, "mesh:dp2,tp4:PATH", or any name that
 * dcp_layouts_find() takes. A word is a path if it contains a slash, ends in .dcpl, or is not a
 * layout's name but that of an existing file. -EINVAL: the word is not a layout; -EBADMSG: the
 * file is not a layout; -ENOENT and the like: it cannot be opened; -E2BIG, -ENOMEM.
 */
int dcp_layouts_open(struct dcp_layouts *t, const char *word,
		     const struct dcp_named_layout **out, struct dcp_err *err);

/* The file that @l comes from, also if @l has another mesh; NULL: built in. */
const char *dcp_layouts_file(struct dcp_layouts *t, const struct dcp_named_layout *l);

const struct dcp_named_layout *dcp_layouts_by_id(struct dcp_layouts *t, uint64_t id);

/* The n-th listed layout, in order of name; NULL past the last. */
const struct dcp_named_layout *dcp_layouts_at(struct dcp_layouts *t, size_t n);
