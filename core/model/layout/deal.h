/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deal: how one placement distributes a length over parts, computed in the inverse direction:
 * how many of the elements before x are in part i?
 *
 * Elements of a part keep the order of the length. So what a part has of an interval is an
 * interval of the part, which the next placement distributes in turn: a rank's share of a box is
 * arithmetic, without a list of what the rank holds.
 */
#pragma once
#include "core/model/layout/layout_int.h"

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
	uint64_t each; /* of a part; strided: of a piece that is cut in turn; interleave: of a
			  block */
	uint64_t more; /* balanced: so many parts have one more; strided: of each piece */
	uint64_t
		edge; /* parts before this one are of equal length, and so are those after it */
};

/* A position x in [0, n], prepared for queries of many parts. Parts before @at lie before x with
 * all their elements, or with one round more than the others; those after @at have the rest. */
struct deal_mark {
	uint64_t x, full, rest, part, at;
};

/* The length of part @n; dcp_deal_fits() must be true. */
void dcp_deal(struct deal *out, const struct place *p, uint32_t parts, uint64_t n);

/* Can it be distributed? Not where `even` is asked and it is uneven, or sizes do not add up. */
bool dcp_deal_fits(const struct place *p, uint32_t parts, uint64_t n);
/* Does every part get the same length, and which? */
bool dcp_deal_same(const struct place *p, uint32_t parts, uint64_t n, uint64_t *each);
/* No part is of more slices than this. */
uint64_t dcp_deal_slices(const struct place *p, uint32_t parts, uint64_t n);

/* The length must not be 0. */
void dcp_deal_mark(const struct deal *deal, uint64_t x, struct deal_mark *out);
/* How many elements before the mark part @i has. */
uint64_t dcp_deal_below(const struct deal *deal, uint32_t i, const struct deal_mark *mark);
/* Length of part @i, its padding included. @end: a mark at the end. */
uint64_t dcp_deal_length(const struct deal *deal, uint32_t i, const struct deal_mark *end);
/* The end of the range of parts from @i on that have as many elements as part @i before each of
 * the @n marks. */
uint32_t dcp_deal_alike(const struct deal *deal, uint32_t i, const struct deal_mark *mark,
			size_t n);
