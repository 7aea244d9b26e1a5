/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dir_int: what the files that answer lookup and listing share.
 *
 * Positions in a directory: 1 and 2 are "." and "..", 3 to 31 the fixed children,
 * DCPFS_FIRST_ROW and up the versions by their place, rows by their id, layouts and ranks by
 * their number, keys by their hash. So seekdir and telldir hold across listings, and a listing
 * needs no state between calls.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/tree/tree.h"

enum { DCPFS_FIRST_ROW = 32 };

/* A node, found by its inode number. */
struct dcpfs_at {
	struct dcpfs *fs;
	struct dcpfs_version *ver; /* reference to its slot's; NULL: it has none */
	struct dcpfs_ino i;
	const struct dcpfs_node *node;
};

/* What a lookup finds. */
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

/* Of which kind is the slot @ver? NULL: slot 0. */
static inline enum dcpfs_slots dcpfs_slots_of(const struct dcpfs_version *ver)
{
	if (!ver || !ver->of)
		return DCPFS_IN_VERSION;
	return dcpfs_is_rank(ver) ? DCPFS_IN_RANK : DCPFS_IN_HF;
}

/* ---- attr.c ---- */

/* -ENOENT, -ESTALE: the version is gone. Put at->ver, also on failure. */
int dcpfs_at(struct dcpfs *fs, uint64_t ino, struct dcpfs_at *at);

/* Attributes of a node but its size. */
void dcpfs_attr_base(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		     enum dcpfs_type type, struct stat *st);

/* Emit one entry; its attributes when wanted and cheap. False: the reader has enough. */
bool dcpfs_emit(const struct dcpfs_listing *l, const char *name, uint64_t ino,
		enum dcpfs_type type, uint64_t position);
/* The same of a directory that is made by entering it. */
bool dcpfs_emit_slot(const struct dcpfs_listing *l, const char *name, uint32_t slot,
		     uint64_t position);

/* ---- for the table ---- */

/* root.c: the versions, latest, tags/TAG; by_key.c: by-key/KEY/VERSION.npy; rows.c: npy/KEY.npy
 * and its like; sidecars.c: files/NAME; hf.c: hf/NAME; shard.c: shard/LAYOUT/RANK; tree.c:
 * .dcpfs/blob/INO, the number in hex, which is not listed */
dcpfs_lookup_fn dcpfs_versions_lookup, dcpfs_tags_lookup, dcpfs_keys_lookup,
	dcpfs_by_key_lookup, dcpfs_rows_lookup, dcpfs_sidecars_lookup, dcpfs_hf_lookup,
	dcpfs_layouts_lookup, dcpfs_ranks_lookup, dcpfs_blob_lookup;
dcpfs_list_fn dcpfs_versions_list, dcpfs_tags_list, dcpfs_keys_list, dcpfs_by_key_list,
	dcpfs_rows_list, dcpfs_sidecars_list, dcpfs_hf_list, dcpfs_layouts_list,
	dcpfs_ranks_list;
dcpfs_readlink_fn dcpfs_latest_readlink, dcpfs_tag_readlink, dcpfs_by_key_readlink;
dcpfs_attr_fn dcpfs_by_key_attr, dcpfs_sidecar_attr;

/* How file @row of @ver is shown in files/ or hf/ itself: under its name, or as the directory that it is the first in. False: it is
 * shown there by another, or not at all. @shown: DCP_NAME_MAX + 1 bytes. */
bool dcpfs_sidecar_shown(const struct dcpfs_version *ver, uint64_t row, char *shown,
			 uint64_t *ino);
/* The directory above one in files/ or hf/. */
uint64_t dcpfs_sidecars_above(const struct dcpfs_version *ver, struct dcpfs_ino dir);

/* Make the slot of a rank of a version; @layout NULL: of its hf/. */
int dcpfs_slot_lookup(const struct dcpfs_at *dir, const struct dcp_named_layout *layout,
		      uint32_t rank, struct dcpfs_entry *out);
