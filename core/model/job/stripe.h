/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripe: which rank reads what of the files, where each byte is read by one rank of the
 * job.
 *
 * The files of a version, one after the other, are cut into stripes of one size; stripe s
 * belongs to rank s mod ranks, and round k is stripes k * ranks up to the next round's. The
 * loader reads and sends by this (tools/load/plan/schedule.h), and a plan of its job says so
 * (job.h). Pure: arithmetic only.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/model/tensor.h"

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
