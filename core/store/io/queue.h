/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue: many reads of files, made together.
 *
 * A batch goes through an io_uring: one call, and the device sees all reads side by side. If no
 * ring is available (not built in, forbidden by seccomp or sysctl, all rings in use), reads are
 * made one after the other, and the kernel gets read-ahead hints for some of them. Reads that a
 * ring did not deliver in full are completed by pread, so errors are the same either way.
 *
 * Rings are opened when they are first needed, at most DCP_QUEUE_RINGS, and kept.
 *
 * For mapped files there is fetch, below, instead of reads.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "core/model/geometry/strided.h"
#include "core/origin/origin.h"

struct dcp_io_counts;
struct dcp_queue;

#define DCP_QUEUE_RINGS 16
#define DCP_QUEUE_READS 256 /* in one batch */
#define DCP_QUEUE_BUFFER (1u << 20)

/* -ENOMEM. Opens nothing, so it survives a fork before the first read. */
int dcp_queue_create(struct dcp_queue **out);
void dcp_queue_destroy(struct dcp_queue *q);

/* Declare that all reads will be to [@memory, @memory + @n); call before the first read. The rings
 * register this memory if that is permitted, and then even a single read goes through a ring. */
void dcp_queue_register(struct dcp_queue *q, void *memory, size_t n);
/* The negative errno that tells why the memory is not registered; 0: it is registered, or nothing
 * was read yet. Any thread. */
int dcp_queue_refused(const struct dcp_queue *q);

/*
 * Make @n reads, at most DCP_QUEUE_READS, each in full; -EIO: a file ends early, or cannot be read.
 * Reads without a descriptor are made by their blob. When the function returns, no read is in
 * flight. Any thread. @q NULL: reads are made one after the other.
 */
int dcp_queue_read(struct dcp_queue *q, const struct dcp_read *reads, size_t n,
		   struct dcp_io_counts *io);

/* A buffer of DCP_QUEUE_BUFFER bytes for reads, or NULL; give it back with dcp_queue_give(),
 * which keeps it for reuse. Any thread; @q NULL: none are kept. */
void *dcp_queue_take(struct dcp_queue *q);
void dcp_queue_give(struct dcp_queue *q, void *buffer);

/* Is a batch expected to cost less than its reads one by one? */
bool dcp_queue_batches(const struct dcp_queue *q);

/* Can a ring be opened? 0, or why not: -ENOTSUP (not built in), -EPERM, -ENOSYS, ... */
int dcp_queue_probe(void);

/* ring: one io_uring (ring_uring.c, built where liburing was found), or a stub that has none
 * (ring_none.c). Readers use core/store/io/queue.h, which shares rings and works without them. */

struct dcp_read;
struct dcp_ring;

/* Room for @entries reads at once. -ENOTSUP (not built in), -EPERM and -ENOSYS (forbidden by the
 * kernel or by a sandbox), -EMFILE, -ENOMEM, ... */
int dcp_ring_open(unsigned entries, struct dcp_ring **out);
void dcp_ring_close(struct dcp_ring *r);

/*
 * Register [@memory, @memory + @n), so that the kernel need not look up and pin its pages for every
 * read into it. The memory must stay mapped until the ring is closed. -ENOMEM: more than
 * RLIMIT_MEMLOCK allows, ...
 */
int dcp_ring_register(struct dcp_ring *r, void *memory, size_t n);

/*
 * Make @n reads, at most as many as there is room for, and wait for all of them: done[i] is how
 * many bytes of the i-th came, 0 if it failed. System calls are added to @calls. One thread at a
 * time. Negative: the ring can no longer be used; @done is valid all the same.
 */
int dcp_ring_read(struct dcp_ring *r, const struct dcp_read *reads, size_t n, uint32_t *done,
		  uint64_t *calls);

/*
 * gather: the runs of strided descriptors, copied to where they belong.
 *
 * From mapped memory, memcpy beats any read call at every run length. Without a mapping, runs are
 * read directly to their destination, many in one batch (core/store/io/queue.h); if they lie close
 * together, one read over runs and holes is cheaper, and the runs are copied out of it.
 */

/* Copy the runs from @src, which holds the file from offset s->off on, to @dst + s->dst and on. */
void dcp_gather_copy(char *dst, const uint8_t *src, const struct dcp_strided *s);

#define DCP_GATHER_SPAN DCP_QUEUE_BUFFER /* bytes read at once, runs and holes */
#define DCP_GATHER_BOXES 32

/* A box whose runs are copied out of the span after the span is read. */
struct dcp_gather_box {
	struct dcp_strided s;
	char *dst;
	uint32_t at; /* in the span */
};

/* Reads of one request, over all its files: some 20 KB on the stack, not cleared. */
struct dcp_gather {
	struct dcp_queue *queue;
	struct dcp_io_counts *io;
	uint64_t stride; /* distance of runs up to which the holes between them are read, too */
	size_t nreads, nboxes;
	uint32_t used; /* of the span */
	struct dcp_read read[DCP_QUEUE_READS];
	struct dcp_gather_box box[DCP_GATHER_BOXES];
	uint8_t *span; /* a buffer of the queue; taken when the first span is needed */
};

/* @queue NULL: one read after the other. */
void dcp_gather_begin(struct dcp_gather *g, struct dcp_queue *queue, struct dcp_io_counts *io);

/* A file to read from: its blob, its descriptor (-1: none), and planned and until as in struct
 * dcp_read. */
struct dcp_from {
	const struct dcp_blob *blob;
	int fd;
	bool planned;
	uint64_t until;
};

/*
 * Copy the bytes that @s describes from the file @from to @dst + s->dst and on, at the latest in
 * dcp_gather_end(). -EIO: some file ends early, or cannot be read; -ENOMEM; then add nothing more.
 */
int dcp_gather_add(struct dcp_gather *g, char *dst, struct dcp_from from,
		   const struct dcp_strided *s);

/* 0: all that was added is copied; or -EIO. More may be added afterwards. */
int dcp_gather_end(struct dcp_gather *g);

/* Release it, also after a failure. */
void dcp_gather_finish(struct dcp_gather *g);

/*
 * fetch: bringing the pages of mapped files into memory before they are copied.
 *
 * Touching a page that is not in memory makes the kernel read around it, as far as its read-ahead
 * reaches: many times the wanted bytes for a row of a big shard, the whole shard for columns, with
 * a wait each time. So exactly the ranges that a copy will touch are requested before the copy:
 * across the holes if runs are close together, else run by run.
 */

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
	uint64_t fixed;   /* part of ring: read into memory that is registered with it */
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
