/* SPDX-License-Identifier: Apache-2.0 */
/* rule: the contents of a layout, and how its rules cut. core/parse/layout/ makes a layout from a
 * text; a key is matched to a rule, and the rule gives a cut. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"
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

/* The pairs of neighbouring bytes in @s, hashed to 64 bits. A key that lacks a pair of the glob
 * cannot match: one comparison tells this without a search. */
static inline uint64_t dcp_layout_pairs(const char *s, size_t n)
{
	uint64_t pairs = 0;

	for (size_t i = 1; i < n; i++)
		pairs |= 1ull << (((unsigned char)s[i - 1] * 37u + (unsigned char)s[i]) & 63);
	return pairs;
}

/* ---- for the files of layout: layout.c matches keys to rules, prints, and computes splits ---- */

/* The rule that has the glob nearest to @key; UINT32_MAX: there are no rules. */
uint32_t dcp_layout_glob_nearest(const struct dcp_layout *l, const char *key,
				 const struct glob **out);

/* ---- cut.c turns a rule into a cut ---- */

/* The dimension of a tensor that @p cuts. WHOLE: it cuts none; NONE: the tensor lacks it. */
enum { LAYOUT_DIM_WHOLE = -1, LAYOUT_DIM_NONE = -2 };
int dcp_layout_dim(const struct place *p, uint32_t ndim);
bool dcp_layout_range_has(const struct dcp_layout *l, const struct place_range *r, uint32_t at);

/* ---- splits ---- */

struct slice {
	uint64_t lo, n;
};

/* The slices that one part takes of a length, in ascending order. */
struct slices {
	struct slice one; /* v points here if there is a single slice */
	struct slice *v;
	size_t n;
	uint64_t len; /* length of the result: the slices and the zeros after them */
};

/* Compute part @index of @parts of a length of @n. -EINVAL or -E2BIG: the reason is in @why. */
int dcp_layout_split(const struct place *p, uint32_t parts, uint32_t index, uint64_t n,
		     struct dcp_arena *arena, struct slices *out, char *why, size_t why_size);
/* Compute the slice [lo, lo + n) of part @index, for kinds whose parts are a single slice. */
int dcp_layout_part(enum split_kind kind, const struct place *p, uint32_t parts, uint32_t index,
		    uint64_t n, struct slice *out, char *why, size_t why_size);
/* Cut an axis down to the slices @s. */
int dcp_layout_axis_take(struct dcp_axis *axis, const struct slices *s,
			 struct dcp_arena *arena);

void dcp_layout_print_place(const struct dcp_layout *l, const struct place *p,
			    struct dcp_buf *out);

/*
 * deal: how one placement distributes a length over parts, computed in the inverse direction:
 * how many of the elements before x are in part i?
 *
 * The elements of a part keep their order. So an interval becomes an interval of each part, which
 * the next placement distributes in turn: a rank's share of a box is computed without a list of its
 * elements.
 */

struct deal {
	const struct place *p;
	uint32_t parts;
	enum {
		DEAL_CHUNK,
		DEAL_BALANCED,
		DEAL_SIZES,
		DEAL_GROUPS,
		DEAL_STRIDED,
		DEAL_INTERLEAVE,
	} way;
	uint64_t n;
	/* length of a part; strided: of a piece, which is cut in turn; interleave: of a block */
	uint64_t each;
	/* balanced: number of parts that have one element more; strided: the same for each piece */
	uint64_t more;
	/* parts before this one are of equal length, and so are those after it */
	uint64_t edge;
};

/* A position x in [0, n], prepared for queries of many parts. In the piece or round of x, part @at
 * holds x, and the parts before and after it lie before and after x. */
struct deal_mark {
	uint64_t x, full, rest, part, at;
};

/* The length of part @n; dcp_deal_fits() must be true. */
void dcp_deal(struct deal *out, const struct place *p, uint32_t parts, uint64_t n);

/* Can the length @n be distributed? Not if `even` is set and it is uneven, or if sizes do not add
 * up. */
bool dcp_deal_fits(const struct place *p, uint32_t parts, uint64_t n);
/* Does every part get the same length, and which? */
bool dcp_deal_same(const struct place *p, uint32_t parts, uint64_t n, uint64_t *each);
/* An upper limit of the slices of any part. */
uint64_t dcp_deal_slices(const struct place *p, uint32_t parts, uint64_t n);

/* The length must not be 0. */
void dcp_deal_mark(const struct deal *deal, uint64_t x, struct deal_mark *out);
/* The number of elements before the mark that are in part @i. */
uint64_t dcp_deal_below(const struct deal *deal, uint32_t i, const struct deal_mark *mark);
/* Length of part @i, padding included. @end: a mark at the end. */
uint64_t dcp_deal_length(const struct deal *deal, uint32_t i, const struct deal_mark *end);
/* The parts from @i to before the result have as many elements as @i before each of the @n
 * marks. */
uint32_t dcp_deal_alike(const struct deal *deal, uint32_t i, const struct deal_mark *mark,
			size_t n);
