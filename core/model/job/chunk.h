/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk: the stretches of files that a group of ranks needs, cut into chunks that fit a slot
 * of the staging memory, of which the ranks read one after the other. The loader does what
 * is computed here, and a plan of its job prints it. Pure: no I/O, no communication.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/model/geometry/strided.h"
#include "core/model/tensor.h"

#define DCP_CHUNK_BLOCK 4096 /* alignment of O_DIRECT reads */

/* Stored bytes that a rank needs: runs of a file. */
struct dcp_chunk_need {
	struct dcp_strided s; /* s.piece is NULL */
	uint32_t file, want;
};

/* Bytes [lo, hi) of a file that a rank needs. Sent between ranks in this form. */
struct dcp_chunk_range {
	uint32_t file, zero;
	uint64_t lo, hi;
};

/* The ranges of @n needs, sorted and merged; the caller frees them. They are whole blocks,
 * and hold short gaps between runs; @exact: they are not; one for each need that is not
 * packed. -ENOMEM. */
int dcp_chunk_ranges(const struct dcp_chunk_need *need, size_t n, bool exact,
		     struct dcp_chunk_range **out, size_t *nout);

/* Bytes [lo, hi) of a file. @n bytes are read from lo: more than hi - lo when the last
 * element ends after hi. */
struct dcp_chunk_stretch {
	uint32_t file, n;
	uint64_t lo, hi;
	uint64_t at; /* offset in the slot */
};

/* Chunk c is stretches [first[c], first[c + 1]); member c % members reads it. */
struct dcp_chunks {
	uint32_t members;
	uint64_t slot;   /* bytes */
	uint64_t unique; /* bytes of the union, which is of whole blocks */
	bool apart;      /* members need hardly a byte in common, and about as many each */
	struct dcp_chunk_stretch *stretch;
	size_t nstretch, cap_stretch;
	size_t *first, n, cap_chunk;
};

/* Chunks of the union of what @members ranks need: n[m] ranges at of[m]. @slack: elements are
 * converted, so a stretch may be read one block beyond its end. -ENOMEM. */
int dcp_chunks_create(const struct dcp_chunk_range *const *of, const size_t *n,
		      uint32_t members, uint64_t slot, bool slack, struct dcp_chunks **out);
/* Leave out of c->unique what lies after the ends of files, where only blocks reach. */
void dcp_chunks_trim(struct dcp_chunks *c, const struct dcp_file_id *files, size_t n);
void dcp_chunks_free(struct dcp_chunks *c);

/*
 * pack: how runs that lie apart in a file are sent, one after the other.
 */

/* Are the runs of @s sent so? They are where there are gaps, so that messages hold what is
 * needed, and nothing else. */
bool dcp_chunk_is_packed(const struct dcp_strided *s);

/* @count runs of @run bytes, every @step bytes of the file from @off on. */
struct dcp_chunk_series {
	uint64_t off, run, step, count;
};

/* Pass the runs of @s to @fn in the order in which they are sent. Its negative return ends
 * it and is returned. */
typedef int (*dcp_chunk_series_fn)(void *ctx, const struct dcp_chunk_series *s);
int dcp_chunk_pack(const struct dcp_strided *s, dcp_chunk_series_fn fn, void *ctx);

/* @s as it was sent: its strides are those of the message. */
struct dcp_strided dcp_chunk_packed(const struct dcp_strided *s);

/*
 * stripe: which rank reads what of the files, where each byte is read by one rank of the
 * job.
 *
 * The files of a version, one after the other, are cut into stripes of one size; stripe s
 * belongs to rank s mod ranks, and round k is stripes k * ranks up to the next round's. The
 * loader reads and sends by this (tools/load/load.h), and a plan of its job says so
 * (job.h). Pure: arithmetic only.
 */

#define DCP_STRIPE_STAGING ((uint64_t)64 << 20) /* of a rank, if nothing is asked for */

struct dcp_stripes {
	uint64_t size;  /* bytes; whole blocks (DCP_CHUNK_BLOCK) */
	uint32_t ranks; /* of the job */
	size_t nfiles;
	uint64_t *base; /* first stripe of each file; base[nfiles]: number of stripes */
};

/* Number the stripes of @n files: s->base, which the caller frees; s->size and s->ranks
 * are set. -ENOMEM. */
int dcp_stripes_number(struct dcp_stripes *s, const struct dcp_file_id *files, size_t n);

static inline uint32_t dcp_stripe_owner(const struct dcp_stripes *s, uint64_t stripe)
{
	return (uint32_t)(stripe % s->ranks);
}

/* The stripe of byte @off of a file. */
static inline uint64_t dcp_stripe_at(const struct dcp_stripes *s, uint32_t file, uint64_t off)
{
	return s->base[file] + off / s->size;
}

/* Its first byte in the file. */
static inline uint64_t dcp_stripe_start(const struct dcp_stripes *s, uint32_t file,
					uint64_t stripe)
{
	return (stripe - s->base[file]) * s->size;
}

static inline uint64_t dcp_stripe_rounds(const struct dcp_stripes *s)
{
	return dcp_div_up(s->base[s->nfiles], s->ranks);
}

/*
 * Bytes of a stripe: the first to try (@tried 0), or after @tried, for which the messages of
 * a round take up to @most bytes of a rank: that, when it fits, or a smaller one. Messages
 * never take more than @staging with the smallest. @slack: bytes that are read beyond a
 * stripe.
 */
uint64_t dcp_stripe_size(uint64_t staging, uint32_t ranks, uint64_t slack, uint64_t tried,
			 uint64_t most);

/* Bytes of a slot that holds a chunk (chunk.h): of @most, or as @n of them fit @staging. */
uint64_t dcp_slot_size(uint64_t staging, uint32_t n, uint64_t most);

enum {
	DCP_DEVICE_SLOTS = 4, /* where copies to a device are in flight */
	DCP_DEVICE_SLOT_MOST = 4 << 20,
	DCP_SLOTS = 3,           /* of each rank in the host's memory, at least */
	DCP_SLOT_MOST = 2 << 20, /* bytes: a huge page, as a part of one counts as all of
				   * it in RLIMIT_MEMLOCK; each slot has its thread */
};

/* Bytes of what is copied to a device at a time, out of @staging. */
static inline uint64_t dcp_stripe_share(uint64_t staging)
{
	return DCP_MIN(staging / 8, (uint64_t)2 << 20);
}

/* Bytes of the buffer for what views decode, out of @staging. */
static inline uint64_t dcp_stripe_band(uint64_t staging)
{
	return DCP_MIN(staging / 4, (uint64_t)4 << 20);
}
