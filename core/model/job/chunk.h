/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk: the stretches of files that a group of ranks needs, cut into chunks that fit a slot of the
 * staging memory, which the ranks read in turn. The loader executes these chunks, and a plan of its
 * job prints them. Pure: no I/O, no communication.
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

/*
 * The ranges of @n needs, sorted and merged; the caller frees them. Ranges are whole blocks, and
 * include short gaps between runs. With @exact they have only needed bytes, in one range for each
 * need that is not packed. -ENOMEM.
 */
int dcp_chunk_ranges(const struct dcp_chunk_need *need, size_t n, bool exact,
		     struct dcp_chunk_range **out, size_t *nout);

/* Bytes [lo, hi) of a file. @n bytes are read from lo: more than hi - lo if the last element ends
 * after hi. */
struct dcp_chunk_stretch {
	uint32_t file, n;
	uint64_t lo, hi;
	uint64_t at; /* offset in the slot */
};

/* Chunk c is stretches [first[c], first[c + 1]); member c % members reads it. */
struct dcp_chunks {
	uint32_t members;
	uint64_t slot;   /* bytes */
	uint64_t unique; /* bytes of the union, which consists of whole blocks */
	/* members have hardly a byte in common, and need about as many bytes each */
	bool apart;
	struct dcp_chunk_stretch *stretch;
	size_t nstretch, cap_stretch;
	size_t *first, n, cap_chunk;
};

/* Make the chunks of the union of the needs of @members ranks: n[m] ranges at of[m]. @slack:
 * elements are converted, so a stretch may be read one block beyond its end. -ENOMEM. */
int dcp_chunks_create(const struct dcp_chunk_range *const *of, const size_t *n,
		      uint32_t members, uint64_t slot, bool slack, struct dcp_chunks **out);
/* Subtract from c->unique the bytes of blocks that are after the ends of files. */
void dcp_chunks_trim(struct dcp_chunks *c, const struct dcp_file_id *files, size_t n);
void dcp_chunks_free(struct dcp_chunks *c);

/* pack: sends runs that lie apart in a file one after the other. */

/* Are the runs of @s sent packed? They are if there are gaps between them, so that messages contain
 * only needed bytes. */
bool dcp_chunk_is_packed(const struct dcp_strided *s);

/* @count runs of @run bytes, every @step bytes of the file from @off on. */
struct dcp_chunk_series {
	uint64_t off, run, step, count;
};

/* Pass the runs of @s to @fn in the order in which they are sent. A negative return of @fn ends the
 * call and is returned. */
typedef int (*dcp_chunk_series_fn)(void *ctx, const struct dcp_chunk_series *s);
int dcp_chunk_pack(const struct dcp_strided *s, dcp_chunk_series_fn fn, void *ctx);

/* @s in packed form: its strides are those of the message. */
struct dcp_strided dcp_chunk_packed(const struct dcp_strided *s);

/*
 * stripe: which rank reads which bytes of the files, when each byte is read by a single rank of the
 * job.
 *
 * The files of a version, one after the other, are cut into stripes of one size; stripe s belongs
 * to rank s mod ranks, and round k is stripes k * ranks up to the next round's. The loader
 * (tools/load/load.h) and the plan of its job (job.h) use these stripes. Pure: arithmetic only.
 */

#define DCP_STRIPE_STAGING ((uint64_t)64 << 20) /* default of a rank */

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

/* The first byte of the stripe in the file. */
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
 * Size of a stripe in bytes. With @tried 0: the first size to try. Otherwise @most is the size of a
 * rank's messages in a round with stripes of @tried bytes: returns @tried if they fit, or a smaller
 * size. The messages of the smallest size fit in @staging. @slack: bytes that are read beyond a
 * stripe.
 */
uint64_t dcp_stripe_size(uint64_t staging, uint32_t ranks, uint64_t slack, uint64_t tried,
			 uint64_t most);

/* Size of a slot that holds a chunk, in bytes: @most, or less so that @n slots fit in @staging. */
uint64_t dcp_slot_size(uint64_t staging, uint32_t n, uint64_t most);

enum {
	DCP_DEVICE_SLOTS = 4, /* if copies to a device are in flight */
	DCP_DEVICE_SLOT_MOST = 4 << 20,
	DCP_SLOTS = 3,           /* of each rank in host memory, at least */
	DCP_SLOT_MOST = 2 << 20, /* bytes: a huge page, all of which RLIMIT_MEMLOCK counts
				   * for any part; each slot has its thread */
};

/* The share of @staging for bytes that are copied to a device at a time. */
static inline uint64_t dcp_stripe_share(uint64_t staging)
{
	return DCP_MIN(staging / 8, (uint64_t)2 << 20);
}

/* The share of @staging for bytes that views decode. */
static inline uint64_t dcp_stripe_band(uint64_t staging)
{
	return DCP_MIN(staging / 4, (uint64_t)4 << 20);
}
