/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout: declarations that its files share. layout.c matches keys to rules, prints, and computes
 * splits; cut.c turns a rule into a cut.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/model/layout/rule.h"

struct dcp_buf;

/* layout.c */

/* The rule that has the glob nearest to @key; UINT32_MAX: there are no rules. */
uint32_t dcp_layout_glob_nearest(const struct dcp_layout *l, const char *key,
				 const struct glob **out);

/* cut.c */

/* The dimension of a tensor that @p cuts. */
/* WHOLE: no dimension is cut; NONE: the tensor has no such dimension */
enum { LAYOUT_DIM_WHOLE = -1, LAYOUT_DIM_NONE = -2 };
int dcp_layout_dim(const struct place *p, uint32_t ndim);
bool dcp_layout_range_has(const struct dcp_layout *l, const struct place_range *r, uint32_t at);

/* layout.c */

struct slice {
	uint64_t lo, n;
};

/* What one part takes of a length: slices in ascending order, not touching the end. */
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
 * Elements of a part keep the order of the length. So what a part has of an interval is an
 * interval of the part, which the next placement distributes in turn: a rank's share of a box is
 * arithmetic, without a list of what the rank holds.
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

/* A position x in [0, n], prepared for queries of many parts. Parts before @at lie before x with
 * all their elements, or with one round more than the others; those after @at have the rest. */
struct deal_mark {
	uint64_t x, full, rest, part, at;
};

/* The length of part @n; dcp_deal_fits() must be true. */
void dcp_deal(struct deal *out, const struct place *p, uint32_t parts, uint64_t n);

/*
 * Can the length @n be distributed? Not if `even` is set and it is uneven, or if sizes do not add
 * up.
 */
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
/* The end of the range of parts from @i on that have as many elements as part @i before each of
 * the @n marks. */
uint32_t dcp_deal_alike(const struct deal *deal, uint32_t i, const struct deal_mark *mark,
			size_t n);
