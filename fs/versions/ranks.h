/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks: what one rank of a layout holds of a version, as a slot of its own.
 *
 * A rank is a struct dcpfs_version that shares the index of the version it is part of and cuts
 * every tensor by its layout. It is a few hundred bytes, made when it is entered, not when
 * its directory is listed; what it holds is computed row by row. DCPFS_RANKS_KEPT are kept, and
 * those with open files; the ones used longest ago go first, and whoever comes back by path
 * finds the rank again, under another inode. All of a version's ranks go when the version does.
 *
 * Slots are given here, to versions and ranks alike.
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

/* A slot for something of that hash: the one it asks for, so that a remount finds the same, or
 * the next that was never given. */
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

/* A reference to hf/ of @ver; NULL: it was not looked up yet. */
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
 * What @ver, a version or a rank, holds of a tensor: changes the shape and size of @row to
 * that, and with @cut says how (in @arena; NULL cut: not wanted). For a version all of it. 1;
 * 0: nothing, it is not shown; negative: the layout cannot cut it, described in @err.
 */
int dcpfs_rank_cut(const struct dcpfs_version *ver, struct dcp_row *row,
		   struct dcp_arena *arena, struct dcp_cut *cut, struct dcp_err *err);

/* Open what @ver holds of tensor row @id. -ENOENT: nothing; or as dcp_view_open(). */
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
