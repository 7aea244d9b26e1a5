/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue: many reads of files, asked for together.
 *
 * A batch goes through an io_uring: one call, and the device sees all reads side by side. Where
 * that is not to be had (not built in, forbidden by seccomp or sysctl, all rings in use) reads
 * are made one after the other, and the kernel is told of some before. What a ring did not
 * deliver in full pread is asked for, so errors are the same either way.
 *
 * Rings are opened when they are first needed, at most DCP_QUEUE_RINGS, and kept.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_io_counts;
struct dcp_queue;

#define DCP_QUEUE_RINGS 16
#define DCP_QUEUE_READS 256 /* in one batch */
#define DCP_QUEUE_BUFFER (1u << 20)

struct dcp_read {
	int fd;
	uint32_t n;
	uint64_t off; /* in the file */
	void *to;
};

/* -ENOMEM. Opens nothing, so it survives a fork that comes before the first read. */
int dcp_queue_create(struct dcp_queue **out);
void dcp_queue_destroy(struct dcp_queue *q);

/*
 * All bytes of @n reads, at most DCP_QUEUE_READS; -EIO: a file ends early, or cannot be read.
 * No read is under way any more when it returns. Any thread. @q NULL: one after the other.
 */
int dcp_queue_read(struct dcp_queue *q, const struct dcp_read *reads, size_t n,
		   struct dcp_io_counts *io);

/* DCP_QUEUE_BUFFER bytes that reads may go to, of those kept for that, or NULL; to be given
 * back. Any thread; @q NULL: none are kept. */
void *dcp_queue_take(struct dcp_queue *q);
void dcp_queue_give(struct dcp_queue *q, void *buffer);

/* Does a batch cost less than its reads one by one, as far as is known? */
bool dcp_queue_batches(const struct dcp_queue *q);

/* Would a ring be had? 0, or why not: -ENOTSUP (not built in), -EPERM, -ENOSYS, ... */
int dcp_queue_probe(void);
