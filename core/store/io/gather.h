/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather: the runs of strided descriptors, copied to where they belong.
 *
 * From mapped memory, memcpy beats any read call at every run length. Without a mapping, runs are
 * read directly to their destination, many in one batch (core/store/io/queue.h); where they lie
 * close together, one read over runs and holes is cheaper, and they are copied out of it.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/model/geometry/strided.h"
#include "core/store/io/queue.h"

struct dcp_io_counts;

/* From @src, which holds the file from offset s->off on, to @dst + s->dst and on. */
void dcp_gather_copy(char *dst, const uint8_t *src, const struct dcp_strided *s);

#define DCP_GATHER_SPAN DCP_QUEUE_BUFFER /* bytes read at once, runs and holes */
#define DCP_GATHER_BOXES 32

/* A box whose runs are copied out of the span once the span was read. */
struct dcp_gather_box {
	struct dcp_strided s;
	char *dst;
	uint32_t at; /* in the span */
};

/* Reads of one request, over all its files: some 20 KB on the stack, not cleared. */
struct dcp_gather {
	struct dcp_queue *queue;
	struct dcp_io_counts *io;
	uint64_t stride; /* of runs; up to it the holes between them are read, too */
	size_t nreads, nboxes;
	uint32_t used; /* of the span */
	struct dcp_read read[DCP_QUEUE_READS];
	struct dcp_gather_box box[DCP_GATHER_BOXES];
	uint8_t *span; /* the queue's, once there is something to be read together */
};

/* @queue NULL: one read after the other. */
void dcp_gather_begin(struct dcp_gather *g, struct dcp_queue *queue, struct dcp_io_counts *io);

/* A file, and the descriptor to read it from; -1: it has none. */
struct dcp_from {
	const struct dcp_blob *blob;
	int fd;
};

/* Have what @s describes of the file @from copied to @dst + s->dst and on, by dcp_gather_end() at
 * the latest. -EIO: some file ends early, or cannot be read; -ENOMEM; then add nothing more. */
int dcp_gather_add(struct dcp_gather *g, char *dst, struct dcp_from from,
		   const struct dcp_strided *s);

/* 0: all that was added is copied; or -EIO. More may be added afterwards. */
int dcp_gather_end(struct dcp_gather *g);

/* Release it, also after a failure. */
void dcp_gather_finish(struct dcp_gather *g);
