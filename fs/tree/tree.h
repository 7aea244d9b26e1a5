/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree: the directories and their entries, as a table (nodes.c). No FUSE types.
 *
 * A node with a fixed name is a row of the table; so is a kind of directory whose children have
 * no fixed names, with the functions that look one up and list them. Directories of rows (npy/,
 * objects/, ...) name the kind of their files, the extension, and the index rows they show. A
 * new view of a version is a row or two here and, if its bytes are new, a case in fs/file/file.c.
 * Functions reach the table through dcpfs.nodes, because the rows name functions of files that
 * use the table themselves.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/model/name.h"
#include "core/store/index/index.h"
#include "core/store/view/view.h"
#include "fs/ino.h"

struct dcpfs;

enum dcpfs_type { DCPFS_DIR, DCPFS_FILE, DCPFS_LINK };

/* In which slots a node exists. */
enum dcpfs_slots {
	DCPFS_IN_VERSION = 1,
	DCPFS_IN_RANK = 2, /* a rank of a version */
	DCPFS_IN_HF = 4,   /* hf/ of a version */
	DCPFS_IN_BOTH = DCPFS_IN_VERSION | DCPFS_IN_RANK,
	DCPFS_IN_ALL = DCPFS_IN_BOTH | DCPFS_IN_HF,
	DCPFS_UNLISTED =
		8, /* can be entered but is not listed, so that a copy of hf/ is just a model */
};

struct dcpfs_at;
struct dcpfs_entry;
struct dcpfs_listing;

/* Find the child @name of @dir: -ENOENT. */
typedef int dcpfs_lookup_fn(const struct dcpfs_at *dir, const char *name,
			    struct dcpfs_entry *out);
/* List children from number @first on; their position is DCPFS_FIRST_ROW + the number. */
typedef int dcpfs_list_fn(const struct dcpfs_listing *l, uint64_t first);
/* Read the target of the link @i. */
typedef int dcpfs_readlink_fn(struct dcpfs *fs, struct dcpfs_ino i, char *buf, size_t size);
/* Check that the node exists, and set attributes that differ from its type's. */
typedef int dcpfs_attr_fn(const struct dcpfs_at *at, struct stat *st);

struct dcpfs_node {
	enum dcpfs_kind kind;
	enum dcpfs_kind parent;
	enum dcpfs_type type;
	const char *name; /* NULL: named by a version, a layout, a rank or a row */
	unsigned slots;   /* enum dcpfs_slots: kinds of parent that have the node */
	bool live;        /* content changes while mounted: never cached by the kernel */
	dcpfs_lookup_fn
		*lookup; /* lookup and list of children without fixed names; NULL: none */
	dcpfs_list_fn *list;
	dcpfs_readlink_fn *readlink;
	dcpfs_attr_fn *attr;
};

/* Describes the files in a directory of rows. */
struct dcpfs_rows {
	enum dcpfs_kind dir, file;
	enum dcp_row_kind rows;
	enum dcp_as as;               /* tensors */
	const char *name, *extension; /* of the directory, of the files */
	enum dcpfs_kind blob;         /* kind of the file's blob; DCPFS_ROOT: no blob */
	bool named; /* the files contain their key, so files of tied tensors differ */
};

/* One row for each kind, by number. */
extern const struct dcpfs_node dcpfs_nodes[DCPFS_KIND_COUNT];

/* NULL for a number that is not a kind. */
const struct dcpfs_node *dcpfs_node(const struct dcpfs *fs, enum dcpfs_kind kind);

/* By the kind of the directory or of its files; NULL for other kinds. */
const struct dcpfs_rows *dcpfs_rows_in(enum dcpfs_kind dir);
const struct dcpfs_rows *dcpfs_rows_of(enum dcpfs_kind file);

/* Does the kind belong to a version, so that its inode numbers have a slot? */
bool dcpfs_is_of_version(const struct dcpfs *fs, const struct dcpfs_node *node);

/* The inode of the blob of @ino. -ENOENT: that kind of node has no blob. */
int dcpfs_blob_ino(struct dcpfs_ino ino, uint64_t *blob);
/* The file that a blob is about. */
struct dcpfs_ino dcpfs_blob_about(struct dcpfs_ino blob);

/* The fixed child of @parent with that name in a slot of the kind @in, or NULL. */
const struct dcpfs_node *dcpfs_child(const struct dcpfs *fs, enum dcpfs_kind parent,
				     enum dcpfs_slots in, const char *name);

/* The n-th listed child, or NULL after the last. */
const struct dcpfs_node *dcpfs_child_at(const struct dcpfs *fs, enum dcpfs_kind parent,
					enum dcpfs_slots in, unsigned n);

/* Number of listed directories (for st_nlink). */
unsigned dcpfs_child_dirs(const struct dcpfs *fs, enum dcpfs_kind parent, enum dcpfs_slots in);

/* Cut @extension off @name into @stem (DCP_NAME_MAX + 1 bytes); false: @name has another end. */
bool dcpfs_stem(const char *name, const char *extension, char *stem);

/*
 * keys: the set of tensor keys of all open versions. The set is made on first use, from the
 * names in the indexes, newest version first, and takes 24 bytes a key. A version that is
 * opened later adds its new keys; when a version leaves the list, the set is discarded. A key
 * is identified by the hash of its file stem: of two keys with the same hash, which does not
 * happen by chance, only the first is shown. Safe from any thread.
 */

struct dcpfs_keys;

struct dcpfs_keys *dcpfs_keys_create(void);
void dcpfs_keys_destroy(struct dcpfs_keys *k);

/* A version left the list. */
void dcpfs_keys_drop(struct dcpfs_keys *k);
/* A version was opened. */
void dcpfs_keys_grow(struct dcpfs_keys *k);

/* Find the number of the key with that stem, at most DCPFS_ROW_MAX. -ENOENT, -ENOMEM. */
int dcpfs_keys_find(struct dcpfs *fs, const char *stem, uint64_t *number);

/* Find the first key whose number is at least *number: sets *number and the stem. -ENOENT. */
int dcpfs_keys_next(struct dcpfs *fs, uint64_t *number, char stem[DCP_NAME_MAX + 1]);
