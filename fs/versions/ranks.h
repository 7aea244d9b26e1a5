/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks: one rank of a layout over a version, with its own slot. A rank is a struct
 * dcpfs_version that shares the index of its version and cuts every tensor by its layout. It
 * takes a few hundred bytes, is made when its directory is entered, not when the directory is
 * listed, and computes its parts row by row. Ranks with open files are kept, and
 * DCPFS_RANKS_KEPT others; the least recently used go first, and a lookup makes them again,
 * with another inode. All ranks of a version go with the version. This module gives slots to
 * versions and to ranks.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/store/view/view.h"

struct dcp_arena;
struct dcp_cut;
struct dcp_err;
struct dcp_row;
struct dcp_view;
struct dcpfs;
struct dcp_named_layout;
struct dcpfs_ranks;
struct dcpfs_version;

#define DCPFS_RANKS_KEPT (1u << 16)

struct dcpfs_ranks *dcpfs_ranks_create(void);
void dcpfs_ranks_destroy(struct dcpfs_ranks *t);

/*
 * A slot for a version or rank with this hash: the slot that the hash names, so that a remount
 * finds the same, or the next unused one.
 */
uint32_t dcpfs_slot_take(struct dcpfs *fs, uint64_t hash);

/* How often the slot was given in this mount, modulo 256: the generation of its inodes. */
uint8_t dcpfs_slot_generation(const struct dcpfs *fs, uint32_t slot);

/* A reference to rank @rank of @layout over @ver; @layout NULL: hf/ of @ver.
 * -ENOENT (no such rank), -ENOMEM. */
int dcpfs_rank_get(struct dcpfs *fs, struct dcpfs_version *ver,
		   const struct dcp_named_layout *layout, uint32_t rank,
		   struct dcpfs_version **out);

/* The slot that the rank has, or would have if it were entered now: for listings. */
uint32_t dcpfs_rank_slot(struct dcpfs *fs, const struct dcpfs_version *ver,
			 const struct dcp_named_layout *layout, uint32_t rank);

/* A reference to hf/ of @ver; NULL: hf/ was not looked up yet. */
struct dcpfs_version *dcpfs_hf_find(struct dcpfs *fs, const struct dcpfs_version *ver);

/* A reference to the version or rank of a slot; NULL: gone. */
struct dcpfs_version *dcpfs_version_by_slot(struct dcpfs *fs, uint32_t slot);

/* Name of the version in @slot into @buf, or -ESTALE. */
int dcpfs_slot_name(struct dcpfs *fs, uint64_t slot, char *buf, size_t size);

/* Take all ranks of @ver, which left the list, out of the table, and call @forget for each. */
void dcpfs_ranks_forget(struct dcpfs *fs, struct dcpfs_version *ver, bool rewritten,
			void (*forget)(struct dcpfs *fs, struct dcpfs_version *rank,
				       bool rewritten));

/*
 * Cut the tensor @row to the part that @ver holds (all of it, if @ver is a version, not a
 * rank): sets shape and size of @row, and @cut (in @arena) unless NULL. Returns 1; 0 if @ver
 * holds nothing of it, so it is not shown; negative if the layout cannot cut it, described in
 * @err.
 */
int dcpfs_rank_cut(const struct dcpfs_version *ver, struct dcp_row *row,
		   struct dcp_arena *arena, struct dcp_cut *cut, struct dcp_err *err);

/*
 * Open the part of tensor row @id that @ver holds. -ENOENT: no part; otherwise as
 * dcp_view_open().
 */
int dcpfs_rank_view(const struct dcpfs_version *ver, int64_t id, enum dcp_as as,
		    struct dcp_view **out, struct dcp_err *err);

/*
 * Can the part @cut of @row be read, as far as the index knows? 0, or why not in @err. A rank may
 * hold only sound parts of a tensor with damaged files.
 */
int dcpfs_rank_can_read(const struct dcpfs_version *ver, const struct dcp_row *row,
			const struct dcp_cut *cut, struct dcp_err *err);

/* Is the object @key part of it? */
bool dcpfs_rank_has_object(const struct dcpfs_version *ver, const char *key);
