/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree: what lies in which directory, as a table. No FUSE types, no I/O.
 *
 * A node with a fixed name is a row of the table; directories of rows (npy/, objects/, ...)
 * name the kind of their files, the extension, and the index rows they show. A new view of
 * a version is a row or two here and, if its bytes are new, a case in file.c.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/store/index/index.h"
#include "core/store/view/view.h"
#include "fs/ino.h"

enum dcpfs_type { DCPFS_DIR, DCPFS_FILE, DCPFS_LINK };

/* In which slots something stands. */
enum dcpfs_slots {
	DCPFS_IN_VERSION = 1,
	DCPFS_IN_RANK = 2, /* what one rank holds of one */
	DCPFS_IN_HF = 4,   /* hf/ of one */
	DCPFS_IN_BOTH = DCPFS_IN_VERSION | DCPFS_IN_RANK,
	DCPFS_IN_ALL = DCPFS_IN_BOTH | DCPFS_IN_HF,
	DCPFS_UNLISTED = 8, /* in hf/ it can be entered, but who copies hf/ copies a model */
};

struct dcpfs_node {
	enum dcpfs_kind kind;
	enum dcpfs_kind parent;
	enum dcpfs_type type;
	const char *name; /* NULL: named by a version, a layout, a rank or a row */
	bool live;        /* content changes while mounted: never cached by the kernel */
	unsigned slots;   /* enum dcpfs_slots: in which the parent has it */
};

/* What the files of a directory of rows are; NULL for every other kind. */
struct dcpfs_rows {
	enum dcpfs_kind dir, file;
	enum dcp_row_kind rows;
	enum dcp_as as; /* tensors */
	const char *extension;
	enum dcpfs_kind blob; /* about the file; DCPFS_ROOT: none is made */
};

/* NULL for a number that is no kind. */
const struct dcpfs_node *dcpfs_node(enum dcpfs_kind kind);

/* By the kind of the directory or of the files in it. */
const struct dcpfs_rows *dcpfs_rows_in(enum dcpfs_kind dir);
const struct dcpfs_rows *dcpfs_rows_of(enum dcpfs_kind file);

/* The inode of the blob about @ino. -ENOENT: no blob is made of that kind of node. */
int dcpfs_blob_ino(struct dcpfs_ino ino, uint64_t *blob);
/* The file that a blob is about. */
struct dcpfs_ino dcpfs_blob_about(struct dcpfs_ino blob);

/* The fixed child of @parent with that name in such a slot, or NULL. */
const struct dcpfs_node *dcpfs_child(enum dcpfs_kind parent, enum dcpfs_slots in,
				     const char *name);

/* The n-th of those that are listed, or NULL behind the last. */
const struct dcpfs_node *dcpfs_child_at(enum dcpfs_kind parent, enum dcpfs_slots in,
					unsigned n);

/* How many of those are directories (for st_nlink). */
unsigned dcpfs_child_dirs(enum dcpfs_kind parent, enum dcpfs_slots in);

/* Cut @extension off @name into @stem (DCP_NAME_MAX + 1 bytes); false when it does not end so.
 */
bool dcpfs_stem(const char *name, const char *extension, char *stem);
