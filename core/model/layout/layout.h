/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: what does each rank of a parallel job hold? A mesh and ordered rules over keys.
 *
 * The grammar and the cutting rules are specified in core/LAYOUT.md. A layout is immutable and
 * may be used by any number of threads. It knows nothing of a checkpoint until it is asked
 * about a tensor, so one of a million ranks costs no more than one of two.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/geometry/cut.h"

struct dcp_arena;
struct dcp_buf;
struct dcp_err;
struct dcp_layout;

#define DCP_LAYOUT_MAX_DIMS 8
#define DCP_LAYOUT_MAX_RANKS (1u << 20)
#define DCP_LAYOUT_MAX_TEXT (1u << 20)
#define DCP_LAYOUT_MAX_RULES 4096
#define DCP_LAYOUT_MAX_GLOBS 16384
#define DCP_LAYOUT_MAX_GLOB 1024   /* bytes of one */
#define DCP_LAYOUT_MAX_SPANS 65536 /* of one cut; numbers in lists of one layout */

struct dcp_mesh {
	uint32_t ndim;
	const char *dim[DCP_LAYOUT_MAX_DIMS]; /* "dp", "tp" */
	uint32_t size[DCP_LAYOUT_MAX_DIMS];
};

void dcp_layout_free(struct dcp_layout *l);

const char *dcp_layout_name(const struct dcp_layout *l);
const struct dcp_mesh *dcp_layout_mesh(const struct dcp_layout *l);
uint32_t dcp_layout_ranks(const struct dcp_layout *l);
/* Row-major over the mesh: the coordinates of @rank into @at (mesh ndim). */
void dcp_layout_coords(const struct dcp_layout *l, uint32_t rank, uint32_t *at);
/* A hash of everything that decides a cut: equal layouts have equal hashes in every process. */
uint64_t dcp_layout_hash(const struct dcp_layout *l);

/*
 * What @rank holds of the tensor @key of that shape: @out in @arena. Returns 1; 0: the rank
 * does not have the key at all (only, drop); -EINVAL: the rule cannot cut this tensor (no such
 * dimension, uneven where even was asked, no rule matches): layout, line, key and rank in
 * @err; -E2BIG (too many spans); -ENOMEM. An array without elements is held: 1.
 */
int dcp_layout_cut(const struct dcp_layout *l, uint32_t rank, const char *key, uint32_t ndim,
		   const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
		   struct dcp_err *err);

/*
 * The same in two steps, for callers that ask about a key for many ranks: matching costs more
 * than cutting. dcp_layout_rule() fills @out and allocates nothing; false: no rule matches, and
 * cutting by it gives the error that says so. @key must outlive @out.
 */
struct dcp_layout_rule {
	const char *key;
	uint32_t number;   /* of the rule; UINT32_MAX: none */
	uint64_t stage[8]; /* what the key's numbers are, for stage() */
};

bool dcp_layout_rule(const struct dcp_layout *l, const char *key, struct dcp_layout_rule *out);
int dcp_layout_cut_by_rule(const struct dcp_layout *l, const struct dcp_layout_rule *rule,
			   uint32_t rank, uint32_t ndim, const uint64_t *shape,
			   struct dcp_arena *arena, struct dcp_cut *out, struct dcp_err *err);

/*
 * For callers that ask about many keys: @rule with its numbers replaced by the first that are
 * dealt to the same coordinates. Keys that settle to equal numbers are held by the same ranks.
 */
void dcp_layout_rule_settle(const struct dcp_layout *l, struct dcp_layout_rule *rule);

/* Does @rank have the non-tensor state @key? Every rank does, unless only, stage or drop says
 * otherwise. */
bool dcp_layout_has_object(const struct dcp_layout *l, uint32_t rank, const char *key);

/*
 * The rule that decides @key, as normalized text ("shard(0)@tp"), appended to @out; its line
 * in @line (0: built in). -ENOENT: no rule matches. For layout.json and error texts.
 */
int dcp_layout_explain(const struct dcp_layout *l, const char *key, struct dcp_buf *out,
		       unsigned *line);

/* The whole layout in the grammar, normalized: parsing it gives an equal layout. -ENOMEM. */
int dcp_layout_print(const struct dcp_layout *l, struct dcp_buf *out);
