/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk: the stretches of files that a group of ranks needs, cut into chunks that fit a slot of the
 * staging memory. Pure: no I/O, no communication.
 */
#pragma once
#include "core/model/geometry/strided.h"
#include "tools/load/load.h"

/* Bytes [lo, hi) of a file that a rank needs. Sent between ranks in this form. */
struct load_range {
	uint32_t file, zero;
	uint64_t lo, hi;
};

/* The ranges of @n needs, sorted and merged; the caller frees them. They are whole blocks, and hold short
 * gaps between runs; @exact: they are not; one for each need that is not packed, whose gaps are an eighth of it at most. -ENOMEM. */
int load_ranges(const struct load_need *need, size_t n, bool exact, struct load_range **out,
		size_t *nout);

/* Bytes [lo, hi) of a file. @n bytes are read from lo: more than hi - lo when the last element ends
 * after hi. */
struct load_stretch {
	uint32_t file, n;
	uint64_t lo, hi;
	uint64_t at; /* offset in the slot */
};

/* Chunk c is stretches [first[c], first[c + 1]); member c % members reads it. */
struct load_chunks {
	uint32_t members;
	uint64_t slot;   /* bytes */
	uint64_t unique; /* bytes of the union, which is of whole blocks */
	bool apart;      /* members need hardly a byte in common, and about as many each */
	struct load_stretch *stretch;
	size_t nstretch, cap_stretch;
	size_t *first, n, cap_chunk;
};

/* Chunks of the union of what @members ranks need: n[m] ranges at of[m]. @slack: elements are
 * converted, so a stretch may be read one block beyond its end. -ENOMEM. */
int load_chunks_create(const struct load_range *const *of, const size_t *n, uint32_t members,
		       uint64_t slot, bool slack, struct load_chunks **out);
/* Leave out of c->unique what lies after the ends of files, where only blocks reach. */
void load_chunks_trim(struct load_chunks *c, const struct dcp_file_id *files, size_t n);
void load_chunks_free(struct load_chunks *c);

/*
 * pack: how runs that lie apart in a file are sent, one after the other. Pure: no I/O, no communication.
 */

/* Are the runs of @s sent so? Where gaps are no more than an eighth of them, they go along. */
bool load_is_packed(const struct dcp_strided *s);

/* @count runs of @run bytes, every @step bytes of the file from @off on. */
struct load_series {
	uint64_t off, run, step, count;
};

/* Pass the runs of @s to @fn in the order in which they are sent. Its negative return ends it and is returned. */
typedef int (*load_series_fn)(void *ctx, const struct load_series *s);
int load_pack(const struct dcp_strided *s, load_series_fn fn, void *ctx);

/* @s as it was sent: its strides are those of the message. */
struct dcp_strided load_packed(const struct dcp_strided *s);
