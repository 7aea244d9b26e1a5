/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join: which elements of the ranks' tensors are one tensor of the model?
 *
 *	rule.c            universal_checkpoint_info: the rule for a name; affine_map, element by element
 *	neox.c            the rules of GPT-NeoX, which records none
 *	join.c            from a rule and the shapes of all ranks to boxes of the whole; are copies equal?
 *
 * Pure arithmetic on shapes: nothing here knows files.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

struct dcp_arena;
struct dcp_ds;

enum dcp_ds_cut {
	DCP_DS_CUT_ROWS,
	DCP_DS_CUT_COLUMNS,
	DCP_DS_CUT_REPLICATED,
	DCP_DS_CUT_AVERAGED,
	DCP_DS_CUT_SUMMED,
	DCP_DS_CUT_HALVES,
	DCP_DS_CUT_SUBS,
	DCP_DS_CUT_MAP,
};
#define DCP_DS_CUT_COUNT (DCP_DS_CUT_MAP + 1)

/*
 * What a list of patterns may say beside a cut: that, and why, a name cannot be joined; that it is
 * not known how.
 */
enum { DCP_DS_LIST_REFUSED = DCP_DS_CUT_COUNT + 1, DCP_DS_LIST_UNKNOWN };

#define DCP_DS_OPEN UINT64_MAX /* a dimension that is what is left over */

/* A tensor made of others, along @dim of its recorded shape. */
struct dcp_ds_sub {
	uint64_t *shape;
	uint32_t ndim, dim;
	uint64_t *width; /* of each; NULL: as many equal ones as shape[dim] says */
	uint32_t nwidths;
	uint64_t **shard; /* what each rank holds of each; NULL: equal shares */
	uint32_t nshards;
	bool unequal; /* the shares need not be equal, and shard is NULL */
};

/* Elements [from, from + len) of a rank's tensor are [at, at + len) of the whole. */
struct dcp_ds_block {
	const uint64_t *from, *at, *len;
};

struct dcp_ds_shard {
	const uint64_t *shape;
	const struct dcp_ds_block *block;
	size_t n;
};

/* What every rank holds; of copies only one is there. */
struct dcp_ds_map {
	uint32_t ndim;
	const uint64_t *shape;
	const struct dcp_ds_shard *shard;
	size_t n;
};

struct dcp_ds_rule {
	enum dcp_ds_cut cut;
	const char *pattern; /* that matches the name; NULL: none */
	const struct dcp_ds_sub *sub;
	const struct dcp_ds_map *map;
	uint64_t rows;   /* if not 0: it is cut to so many */
	uint64_t height; /* if not 0: it must have so many rows */
	bool by_default; /* no list has the name, */
	bool complete;   /* so it may be no parameter */
};

/* Keep the first universal_checkpoint_info that is found, or what a model file of GPT-NeoX has
 * instead. */
int dcp_ds_take_rules(struct dcp_ds *ds, struct dcp_pv from);
void dcp_ds_rules_finish(struct dcp_ds *ds);
/* Are @args the arguments that a model file of GPT-NeoX keeps? @width: of its model. */
bool dcp_ds_is_neox(struct dcp_pv args, uint64_t *width);
/*
 * A rule that is known without being recorded: an enum dcp_ds_cut, or one of those above; @height
 * as in struct dcp_ds_rule; @why: it is refused, or not known.
 */
struct dcp_ds_known {
	const char *pattern;
	uint8_t list;
	uint64_t height;
	const char *why;
};
enum { DCP_DS_NEOX = 8 }; /* those of GPT-NeoX */
void dcp_ds_neox(struct dcp_ds *ds, uint64_t width, struct dcp_ds_known out[DCP_DS_NEOX]);

/* The rule for @name; returns why there is none, or NULL. */
const char *dcp_ds_rule(const struct dcp_ds *ds, const char *name, struct dcp_ds_rule *out);

/* What one rank holds. */
struct dcp_ds_local {
	uint32_t ndim;
	const uint64_t *shape;
};

/* Elements [first, first + n) of a rank's, the first of them at @from, and the box of the whole
 * they fill. */
struct dcp_ds_box {
	uint32_t local;
	uint64_t first, n;
	const uint64_t *lo, *len, *from;
};

struct dcp_ds_whole {
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	struct dcp_ds_box *box;
	size_t nbox, room;
	bool sum, mean; /* of all ranks; the box is that of the first */
	struct dcp_arena *arena;
};

/* ---- join.c ---- */

/* The whole, in @arena; returns why it cannot be made, or NULL. */
const char *dcp_ds_join(const struct dcp_ds_rule *rule, const struct dcp_ds_local *local,
			size_t n, struct dcp_arena *arena, struct dcp_ds_whole *w);
