/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rule: what a layout consists of. core/parse/layout/ makes it from a text; a key is matched to
 * a rule, and the rule gives a cut.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/model/layout/layout.h"

struct dcp_buf;

#define LAYOUT_MAX_NAME 31   /* bytes of the name of a mesh dimension */
#define LAYOUT_MAX_NUMBERS 8 /* numbers {} in one glob; as many as dcp_layout_rule.stage has */
#define LAYOUT_MAX_PLACES 32 /* placements of one rule */
#define LAYOUT_MAX_ARENA (64u << 20)

enum glob_op_kind { GLOB_LITERAL, GLOB_STAR, GLOB_ANY, GLOB_NUMBER };

struct glob_op {
	enum glob_op_kind kind;
	uint32_t n;       /* bytes of a literal */
	const char *text; /* of a literal, escapes resolved */
	uint64_t lo, hi;  /* of a number, both included */
};

struct glob {
	const char *text; /* as written */
	const struct glob_op *op;
	uint32_t nop, nnumber;
	size_t min;     /* bytes of the shortest key */
	uint64_t pairs; /* pairs of bytes in its literals */
};

enum split_kind {
	SPLIT_CHUNK, /* torch's rule */
	SPLIT_BALANCED,
	SPLIT_EVEN,
	SPLIT_LAST,
	SPLIT_PAD,
	SPLIT_SIZES,
	SPLIT_TIGHT, /* flat only: as SPLIT_CHUNK, in place of its default SPLIT_PAD */
};

enum place_kind {
	PLACE_SHARD,
	PLACE_COLWISE,
	PLACE_ROWWISE,
	PLACE_STRIDED,
	PLACE_INTERLEAVE,
	PLACE_FLAT,
	PLACE_ONLY,
	PLACE_STAGE,
};

/* Coordinates [lo, hi] of a mesh dimension, as written: negative counts from the end. */
struct place_range {
	uint32_t mesh_dim;
	int32_t lo, hi;
};

struct place {
	enum place_kind kind;
	enum split_kind split;
	bool optional;
	uint32_t mesh_dim;
	int32_t dim;
	uint64_t arg;           /* split factor, block, multiple of flat(pad=), layers */
	const uint64_t *number; /* sizes= or groups= */
	size_t nnumber;
	bool grouped;
	uint64_t sum;                    /* of number[] */
	const struct place_range *range; /* of only */
	size_t nrange;
};

struct rule {
	uint32_t glob, nglob;   /* in layout.glob */
	uint32_t place, nplace; /* in layout.place */
	bool drop;
	unsigned line;
};

struct dcp_layout {
	struct dcp_arena arena; /* names, texts, numbers */
	const char *name;
	struct dcp_mesh mesh;
	uint32_t nranks;
	uint64_t hash;
	struct rule *rule;
	struct glob *glob;
	struct place *place;
	size_t nrule, nglob, nplace;
	size_t rule_cap, glob_cap, place_cap;
	size_t nlisted; /* numbers in all lists, against the limit */
};

/* The rules in the grammar, normalized, without the mesh. */
void dcp_layout_print_rules(const struct dcp_layout *l, struct dcp_buf *out);

/*
 * The pairs of neighbouring bytes in @s, hashed to 64 bits. A key that lacks one that a glob
 * needs cannot match: one comparison instead of a search.
 */
static inline uint64_t dcp_layout_pairs(const char *s, size_t n)
{
	uint64_t pairs = 0;

	for (size_t i = 1; i < n; i++)
		pairs |= 1ull << (((unsigned char)s[i - 1] * 37u + (unsigned char)s[i]) & 63);
	return pairs;
}
