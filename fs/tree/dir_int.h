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

struct dcpfs_listing {
	struct dcpfs *fs;
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

/* Tell one entry; its attributes when wanted and cheap. False: the reader has enough. */
bool dcpfs_tell(const struct dcpfs_listing *l, const char *name, uint64_t ino,
		enum dcpfs_type type, uint64_t position);

/* ---- by_key.c: by-key/<key>/<version>.npy ---- */

int dcpfs_by_key_lookup(struct dcpfs *fs, struct dcpfs_ino dir, const char *name,
			uint64_t *ino);
int dcpfs_by_key_list(const struct dcpfs_listing *l, struct dcpfs_ino dir, uint64_t after);
/* Does the directory of a key exist (-ESTALE: no more)? */
int dcpfs_by_key_check(struct dcpfs *fs, struct dcpfs_ino ino);
/* Where a link leads. */
int dcpfs_by_key_readlink(struct dcpfs *fs, struct dcpfs_ino ino, char *buf, size_t size);

/* ---- sidecars.c: files/<name> ---- */

int dcpfs_sidecars_lookup(const struct dcpfs_version *ver, struct dcpfs_ino dir,
			  const char *name, uint64_t *ino);
void dcpfs_sidecars_list(const struct dcpfs_listing *l, const struct dcpfs_version *ver,
			 struct dcpfs_ino dir, uint64_t after);
/* The directory above one of them. */
uint64_t dcpfs_sidecars_above(const struct dcpfs_version *ver, struct dcpfs_ino dir);
/* Attributes of one whose common ones are set. -ENOENT: there is no such file. */
int dcpfs_sidecar_attr(const struct dcpfs_version *ver, uint64_t row, struct stat *st);

/* ---- hf.c: hf/<name>, beside what is fixed ---- */

int dcpfs_hf_lookup(const struct dcpfs_version *ver, const char *name, uint64_t *ino);
void dcpfs_hf_list(const struct dcpfs_listing *l, const struct dcpfs_version *ver,
		   uint64_t after);

/* ---- tags.c: tags/<name> ---- */

int dcpfs_tags_lookup(struct dcpfs *fs, const char *name, uint64_t *ino);
void dcpfs_tags_list(const struct dcpfs_listing *l, uint64_t after);
