/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk: the stretches of files that a group of ranks needs, cut into chunks that fit a slot of the
 * staging memory. Pure: no I/O, no communication.
 */
#pragma once
#include "tools/load/load_int.h"

#define LOAD_BLOCK 4096 /* what O_DIRECT reads */

/* Bytes that a rank needs, ends of blocks included. Sent between ranks as it is. */
struct load_range {
	uint32_t file, zero;
	uint64_t lo, hi;
};

/* Those of @n needs, in order, merged; malloc'ed. -ENOMEM. */
int load_ranges(const struct load_need *need, size_t n, struct load_range **out, size_t *nout);

/* Bytes [lo, hi) of a file; lo + n may be more than hi, by what the last element needs. */
struct load_stretch {
	uint32_t file, n;
	uint64_t lo, hi;
	uint64_t at; /* in the slot */
};

/* Chunk c is stretches [first[c], first[c + 1]), and brought in by member c % members. */
struct load_chunks {
	uint32_t members;
	uint64_t slot;   /* bytes */
	uint64_t unique; /* bytes of the union */
	struct load_stretch *stretch;
	size_t nstretch, cap_stretch;
	size_t *first, n, cap_chunk;
};

/* The union of what @members ranks need: rank m says of[m], n[m] ranges. @slack: elements are
 * converted. -ENOMEM. */
int load_chunks_create(const struct load_range *const *of, const size_t *n, uint32_t members,
		       uint64_t slot, bool slack, struct load_chunks **out);
void load_chunks_free(struct load_chunks *c);
