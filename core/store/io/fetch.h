/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch: having the pages of mapped files in memory before they are copied.
 *
 * Touching a cold page makes the kernel read around it, as far as its read-ahead reaches: of
 * a row of a big shard it would read many times what is wanted, of columns all of the shard,
 * and it would wait for each. So the ranges that a copy will touch are asked for before it,
 * and no others: through holes where runs are close together, run by run where they are not.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct dcp_strided;

/*
 * Distance of runs up to which reading the holes between them costs less than a read each: at
 * twice this, a read each wins by any measure; at this, it reads half as much for 1.6 times the
 * CPU time.
 */
#define DCP_FETCH_STRIDE (8u << 10)

/* What was done to get bytes. Shared ones are added to with dcp_io_add(). */
struct dcp_io_counts {
	uint64_t mapped;  /* bytes delivered out of mappings */
	uint64_t read;    /* bytes delivered by read calls */
	uint64_t span;    /* of both: had to be fetched, together with the holes between them */
	uint64_t direct;  /* of both: had to be fetched, run by run */
	uint64_t fetched; /* bytes of files asked for to that end, ends of pages included */
	uint64_t runs;    /* copied */
	uint64_t ring;    /* of those read: came through an io_uring */
	uint64_t calls;   /* of the kernel, for all that */
};

/* Any thread; @to may be NULL. */
void dcp_io_add(struct dcp_io_counts *to, const struct dcp_io_counts *more);

#define DCP_FETCH_RANGES 1024 /* as many as the kernel takes at once */

/* What one request asks for, in few calls. */
struct dcp_fetch {
	struct iovec range[DCP_FETCH_RANGES];
	size_t n;
	struct dcp_io_counts *io;
	uint64_t asked; /* bytes, for the descriptor at hand */
	unsigned warm;  /* looks that found everything there */
	bool cold;      /* one that did not: the rest is not looked at, only asked for */
};

void dcp_fetch_begin(struct dcp_fetch *f, struct dcp_io_counts *io);

/* Have brought in what @s touches of the file that is mapped at @map; it counts as there when
 * both its ends are, or those of others before it were. */
void dcp_fetch_add(struct dcp_fetch *f, const uint8_t *map, const struct dcp_strided *s);

/* Have the kernel begin to read @s out of the file @fd, if it is a long run that is not there.
 */
void dcp_fetch_run(struct dcp_fetch *f, int fd, const struct dcp_strided *s);

/* Ask, and wait for nothing. */
void dcp_fetch_end(struct dcp_fetch *f);

/* Count the bytes of @s, of which @bytes of the file had to be asked for. */
void dcp_io_fetched(struct dcp_io_counts *io, const struct dcp_strided *s, uint64_t bytes);
