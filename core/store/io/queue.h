/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue: many reads of files, asked for together.
 *
 * A batch goes through an io_uring: one call, and the device sees all reads side by side. Where
 * that is not available (not built in, forbidden by seccomp or sysctl, all rings in use) reads
 * are made one after the other, and the kernel gets read-ahead hints for some of them. What a
 * ring did not deliver in full is read by pread, so errors are the same either way.
 *
 * Rings are opened when they are first needed, at most DCP_QUEUE_RINGS, and kept.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/origin/origin.h"

struct dcp_io_counts;
struct dcp_queue;

#define DCP_QUEUE_RINGS 16
#define DCP_QUEUE_READS 256 /* in one batch */
#define DCP_QUEUE_BUFFER (1u << 20)

/* -ENOMEM. Opens nothing, so it survives a fork before the first read. */
int dcp_queue_create(struct dcp_queue **out);
void dcp_queue_destroy(struct dcp_queue *q);

/* Call before the first read: all reads will be to [@memory, @memory + @n), which its rings
 * register if they may (core/store/io/ring.h); then a single read goes through a ring, too. */
void dcp_queue_register(struct dcp_queue *q, void *memory, size_t n);
/* Why its memory is not registered, a negative errno; 0: it is, or nothing was read yet. Any
 * thread. */
int dcp_queue_refused(const struct dcp_queue *q);

/*
 * Make @n reads, at most DCP_QUEUE_READS, each in full; -EIO: a file ends early, or cannot be
 * read. Reads without a descriptor are made by their blob. When it returns no read is in
 * flight. Any thread. @q NULL: one after the other.
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
