/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deal: how one placement deals a length out to parts, asked the other way round: how
 * many of the elements in front of x are in part i?
 *
 * Elements of a part keep the order of the length. So what a part has of an interval stands in
 * an interval of the part, which the next placement deals out in turn: a rank's share of a box
 * is arithmetic, without a list of what the rank holds.
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
	uint64_t edge; /* parts before this one have as much as each other, those behind too */
};

/* A place in the length, [0, n], prepared for many parts. Parts before @at have as much in
 * front of it as they would have of all, or of one round more; those behind have the rest. */
struct deal_mark {
	uint64_t x, full, rest, part, at;
};

/* The length @n. It must be one that dcp_deal_fits(). */
void dcp_deal(struct deal *out, const struct place *p, uint32_t parts, uint64_t n);

/* Can it be dealt out? No: even where it is not, sizes that do not add up. */
bool dcp_deal_fits(const struct place *p, uint32_t parts, uint64_t n);
/* Does every part get as much, and how much? */
bool dcp_deal_same(const struct place *p, uint32_t parts, uint64_t n, uint64_t *each);
/* No part is of more slices than this. */
uint64_t dcp_deal_slices(const struct place *p, uint32_t parts, uint64_t n);

/* The length must not be 0. */
void dcp_deal_mark(const struct deal *deal, uint64_t x, struct deal_mark *out);
/* Elements in front of the mark that part @i has. */
uint64_t dcp_deal_below(const struct deal *deal, uint32_t i, const struct deal_mark *mark);
/* Length of part @i, zeros behind it counted. @end: a mark at the end. */
uint64_t dcp_deal_length(const struct deal *deal, uint32_t i, const struct deal_mark *end);
/* Parts from @i up to this one have as much in front of each of @n marks as part @i has. */
uint32_t dcp_deal_alike(const struct deal *deal, uint32_t i, const struct deal_mark *mark,
			size_t n);
