/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch: bringing the pages of mapped files into memory before they are copied.
 *
 * Touching a page that is not in memory makes the kernel read around it, as far as its read-ahead
 * reaches: many times the wanted bytes for a row of a big shard, the whole shard for columns, with
 * a wait each time. So exactly the ranges that a copy will touch are requested before the copy:
 * across the holes if runs are close together, else run by run.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "core/model/geometry/strided.h"

struct dcp_strided;

/*
 * Distance of runs up to which one read across the holes costs less than a read per run. At twice
 * this distance a read per run wins by any measure; at this distance it reads half as many bytes
 * for 1.6 times the CPU time.
 */
#define DCP_FETCH_STRIDE DCP_STRIDED_NEAR

/* Counters of how bytes were read. Add to shared counts with dcp_io_add(). */
struct dcp_io_counts {
	uint64_t mapped;  /* bytes delivered out of mappings */
	uint64_t read;    /* bytes delivered by read calls */
	uint64_t span;    /* part of both: fetched together with the holes between the runs */
	uint64_t direct;  /* part of both: fetched run by run */
	uint64_t fetched; /* bytes of files requested for these two, in whole pages */
	uint64_t runs;    /* runs copied */
	uint64_t ring;    /* bytes of read that came through an io_uring */
	uint64_t fixed;   /* part of these: read into memory that is registered with the ring */
	uint64_t calls;   /* system calls for all of this */
};

/* Any thread; @to may be NULL. */
void dcp_io_add(struct dcp_io_counts *to, const struct dcp_io_counts *more);

#define DCP_FETCH_RANGES 1024 /* as many as the kernel takes at once */

/* The ranges that one request asks for, collected to need few calls. */
struct dcp_fetch {
	struct iovec range[DCP_FETCH_RANGES];
	size_t n;
	struct dcp_io_counts *io;
	uint64_t asked; /* bytes requested for the current descriptor */
	unsigned warm;  /* checks that found everything in memory */
	bool cold;      /* a check found a page missing: the rest is requested without checks */
};

void dcp_fetch_begin(struct dcp_fetch *f, struct dcp_io_counts *io);

/* Request the ranges of @s in the file that is mapped at @map. They are assumed to be in memory if
 * both ends of @s are, or if the ends of earlier descriptors were. */
void dcp_fetch_add(struct dcp_fetch *f, const uint8_t *map, const struct dcp_strided *s);

/* Make the kernel begin to read @s from the file @fd, if it is a long run not yet in memory. */
void dcp_fetch_run(struct dcp_fetch *f, int fd, const struct dcp_strided *s);

/* Send the remaining requests without waiting for their completion. */
void dcp_fetch_end(struct dcp_fetch *f);

/* Count the bytes of @s, for which @bytes of the file had to be requested. */
void dcp_io_fetched(struct dcp_io_counts *io, const struct dcp_strided *s, uint64_t bytes);
