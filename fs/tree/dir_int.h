/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_int: private to the files that do lookup and listing. Positions in a directory: 1 and 2
 * are "." and "..", 3 to 31 the fixed children; from DCPFS_FIRST_ROW on versions by their
 * place, rows by their id, layouts and ranks by their number, keys by their hash. So seekdir
 * and telldir hold across listings, and a listing needs no state between calls.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/tree/tree.h"

enum { DCPFS_FIRST_ROW = 32 };

/* A node found by its inode number. */
struct dcpfs_at {
	struct dcpfs *fs;
	struct dcpfs_version *ver; /* reference to the version of its slot; NULL: none */
	struct dcpfs_ino i;
	const struct dcpfs_node *node;
};

/* The result of a lookup. */
struct dcpfs_entry {
	uint64_t ino;
	struct stat *st; /* NULL: not wanted */
	bool filled;     /* st is */
};

struct dcpfs_listing {
	struct dcpfs_at dir;
	bool attrs;
	dcpfs_dirent_fn fn;
	void *ctx;
};

/* The kind of slot @ver; NULL is slot 0. */
static inline enum dcpfs_slots dcpfs_slots_of(const struct dcpfs_version *ver)
{
	if (!ver || !ver->of)
		return DCPFS_IN_VERSION;
	return dcpfs_is_rank(ver) ? DCPFS_IN_RANK : DCPFS_IN_HF;
}

/* ---- attr.c ---- */

/* -ENOENT, -ESTALE: the version is gone. Put at->ver, also on failure. */
int dcpfs_at(struct dcpfs *fs, uint64_t ino, struct dcpfs_at *at);

/* Emit one entry, with attributes if they are wanted and cheap. False: stop. */
bool dcpfs_emit(const struct dcpfs_listing *l, const char *name, uint64_t ino,
		enum dcpfs_type type, uint64_t position);
/* The same for a directory that is made when it is entered. */
bool dcpfs_emit_slot(const struct dcpfs_listing *l, const char *name, uint32_t slot,
		     uint64_t position);

/* ---- for the table ---- */

/* nodes.c: the versions, latest, tags/TAG; hf/NAME, shard/LAYOUT/RANK; rows.c: npy/KEY.npy and its
 * like, by-key/KEY/VERSION.npy, files/NAME; tree.c:
 * .dcpfs/blob/INO, the number in hex, which is not listed */
dcpfs_lookup_fn dcpfs_versions_lookup, dcpfs_tags_lookup, dcpfs_keys_lookup,
	dcpfs_by_key_lookup, dcpfs_rows_lookup, dcpfs_sidecars_lookup, dcpfs_hf_lookup,
	dcpfs_layouts_lookup, dcpfs_ranks_lookup, dcpfs_blob_lookup;
dcpfs_list_fn dcpfs_versions_list, dcpfs_tags_list, dcpfs_keys_list, dcpfs_by_key_list,
	dcpfs_rows_list, dcpfs_sidecars_list, dcpfs_hf_list, dcpfs_layouts_list,
	dcpfs_ranks_list;
dcpfs_readlink_fn dcpfs_latest_readlink, dcpfs_tag_readlink, dcpfs_by_key_readlink;
dcpfs_attr_fn dcpfs_by_key_attr, dcpfs_sidecar_attr;

/*
 * The entry of files/ or hf/ for file @row of @ver: the file's name, or the subdirectory whose
 * first file it is. False: an earlier file stands for the subdirectory, or the file is not
 * shown. @shown: DCP_NAME_MAX + 1 bytes.
 */
bool dcpfs_sidecar_shown(const struct dcpfs_version *ver, uint64_t row, char *shown,
			 uint64_t *ino);
/* The parent of a directory below files/ or hf/. */
uint64_t dcpfs_sidecars_above(const struct dcpfs_version *ver, struct dcpfs_ino dir);
