/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: computes what each rank of a parallel job holds. A layout is a mesh and ordered rules
 * over keys.
 *
 * The grammar and the cutting rules are specified in core/LAYOUT.md. A layout is immutable and may
 * be used by any number of threads. It stores nothing about a checkpoint or its ranks, so a layout
 * of a million ranks costs no more than a layout of two.
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
#define DCP_LAYOUT_MAX_GLOB 1024 /* bytes of one */
/* limit of the spans of one cut, and of the numbers in lists of one layout */
#define DCP_LAYOUT_MAX_SPANS 65536

struct dcp_mesh {
	uint32_t ndim;
	const char *dim[DCP_LAYOUT_MAX_DIMS]; /* "dp", "tp" */
	uint32_t size[DCP_LAYOUT_MAX_DIMS];
};

void dcp_layout_free(struct dcp_layout *l);

const char *dcp_layout_name(const struct dcp_layout *l);
const struct dcp_mesh *dcp_layout_mesh(const struct dcp_layout *l);
uint32_t dcp_layout_ranks(const struct dcp_layout *l);
/* Set @at (mesh ndim) to the coordinates of @rank, row-major over the mesh. */
void dcp_layout_coords(const struct dcp_layout *l, uint32_t rank, uint32_t *at);
/* A hash of everything that decides a cut: equal layouts have equal hashes in every process. */
uint64_t dcp_layout_hash(const struct dcp_layout *l);

/*
 * Set @out, in @arena, to the cut that @rank holds of the tensor @key of that shape. Returns 1; 0:
 * the rank does not have the key at all (only, drop); -EINVAL: the rule cannot cut this tensor (no
 * such dimension, uneven where even was asked, no rule matches): layout, line, key and rank in
 * @err; -E2BIG (too many spans); -ENOMEM. An array without elements is held: 1.
 */
int dcp_layout_cut(const struct dcp_layout *l, uint32_t rank, const char *key, uint32_t ndim,
		   const uint64_t *shape, struct dcp_arena *arena, struct dcp_cut *out,
		   struct dcp_err *err);

/*
 * The same in two steps, for callers that cut a key for many ranks: matching costs more than
 * cutting. dcp_layout_rule() fills @out and allocates nothing; false: no rule matches, and cutting
 * by it gives the error that says so. @key must outlive @out.
 */
struct dcp_layout_rule {
	const char *key;
	uint32_t number;   /* number of the rule; UINT32_MAX: none */
	uint64_t stage[8]; /* the numbers in the key, for stage() */
};

bool dcp_layout_rule(const struct dcp_layout *l, const char *key, struct dcp_layout_rule *out);
int dcp_layout_cut_by_rule(const struct dcp_layout *l, const struct dcp_layout_rule *rule,
			   uint32_t rank, uint32_t ndim, const uint64_t *shape,
			   struct dcp_arena *arena, struct dcp_cut *out, struct dcp_err *err);

/* For callers with many keys: replace the numbers of @rule by the smallest numbers that are dealt
 * to the same coordinates. Keys with equal settled numbers are held by the same ranks. */
void dcp_layout_rule_settle(const struct dcp_layout *l, struct dcp_layout_rule *rule);

/* Does @rank have the non-tensor state @key? Every rank does, unless only, stage or drop says
 * otherwise. */
bool dcp_layout_has_object(const struct dcp_layout *l, uint32_t rank, const char *key);

/* Append the rule that decides @key to @out, as normalized text ("shard(0)@tp"), and set @line to
 * its line (0: built in). -ENOENT: no rule matches. For layout.json and error texts. */
int dcp_layout_explain(const struct dcp_layout *l, const char *key, struct dcp_buf *out,
		       unsigned *line);

/* The whole layout in the grammar, normalized: parsing it gives an equal layout. -ENOMEM. */
int dcp_layout_print(const struct dcp_layout *l, struct dcp_buf *out);
