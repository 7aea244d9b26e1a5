/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job: the plan of a whole parallel job. All ranks of a layout need parts of a checkpoint; who
 * reads which stored bytes, and who sends how many to whom?
 *
 *	dcp_job_create(&opts, &job, err);
 *	for each tensor
 *		dcp_job_add(job, &tensor, err);
 *	dcp_job_finish(job, err);
 *	dcp_job_reads(job, rank, ...);     what this rank reads
 *	dcp_job_receives(job, rank, ...);  what it gets from each of the others
 *
 * The bytes that any rank needs, the union, are taken in order of file and offset and cut into
 * as many parts as there are ranks: rank r reads part r, one stretch, each byte by exactly one
 * rank. With U bytes and R ranks the nominal boundary is U * r / R. It moves back to a multiple
 * of @align in its file, then to the front of an element, or to the nearer end of an item that
 * cannot be cut, so no part has more than U / R + align + E + A bytes: the largest element,
 * and the largest such item (dcp_job_sum).
 *
 * Zeros that are stored nowhere (DCP_FILTER_ZERO) are not read, sent, needed or counted.
 *
 * An item that cannot be cut is a piece whose bytes have no known place in the item that
 * stores it (a torch.save stream not located yet, something compressed) or do not lie in
 * row-major order: its reader reads it whole, from its first byte to its last, and sends parts
 * on. To have such items cut, add them as located pieces. Offsets in a file that is compressed
 * as a whole count the bytes it decodes to.
 *
 * Pieces of one tensor that hold the same elements are copies: the one in the file from which
 * the fewest bytes are needed is read. Bytes that several tensors share are read once.
 *
 * With a layout @from nothing is read: its ranks hold the tensors already. A rank keeps what it
 * holds, and gets the rest from a holder, in its own group if there is one; holders of copies
 * take turns.
 *
 * The plan is a function of layouts, tensors and files alone: not of the order in which tensors
 * were added or ranks are queried. So ranks that see the same checkpoint compute equal plans and
 * need only compare dcp_job_digest(). Tensors that share a rule, a shape and the way they were
 * cut form a kind, which is computed once, whatever their number; what ranks hold of one has
 * closed forms (core/model/layout/spread/spread.h), so even a tensor that is a kind by itself
 * costs only some microseconds. Pure: no I/O. One thread at a time until it is finished; then
 * any number.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/model/geometry/strided.h"
#include "core/model/tensor.h"

struct dcp_err;
struct dcp_job;
struct dcp_jsonw;
struct dcp_layout;

#define DCP_JOB_ALIGN 4096
#define DCP_JOB_MEMORY ((size_t)512 << 20)

struct dcp_job_opts {
	const struct dcp_layout *to, *from; /* borrowed; from NULL: bytes come from files */
	const struct dcp_file_id *files;    /* borrowed */
	size_t nfiles;
	uint32_t group; /* ranks of one node; 0: 1 */
	uint32_t align; /* 0: DCP_JOB_ALIGN */
	size_t memory;  /* bytes at most; 0: DCP_JOB_MEMORY */
};

int dcp_job_create(const struct dcp_job_opts *opts, struct dcp_job **out, struct dcp_err *err);
void dcp_job_free(struct dcp_job *job);

/*
 * Add a tensor; nothing of it is borrowed. Its number is how many were added before. -EBADMSG:
 * pieces that do not tile it, or lie outside of their file; -E2BIG, -ENOMEM.
 */
int dcp_job_add(struct dcp_job *job, const struct dcp_tensor *t, struct dcp_err *err);

/* No more tensors: compute. -EINVAL: a layout cannot cut one of them (layout, line, key and
 * rank in @err); -E2BIG, -ENOMEM. */
int dcp_job_finish(struct dcp_job *job, struct dcp_err *err);

/* ---- a job that is finished ---- */

struct dcp_job_sum {
	uint32_t ranks; /* of the larger layout */
	uint64_t tensors, kinds;
	uint64_t unique; /* stored bytes that are read, each once */
	uint64_t
		payload; /* of these the bytes of elements, without the framing of whole items */
	uint64_t extents; /* contiguous stretches of files that make up unique */
	uint64_t whole_items, largest_item; /* items that cannot be cut: how many; bytes */
};
void dcp_job_sum(const struct dcp_job *job, struct dcp_job_sum *out);

/* A number that differs when any part of the plan does. The same on every machine. */
uint64_t dcp_job_digest(const struct dcp_job *job);

/* What a rank, or a group of them, has to do. Bytes. */
struct dcp_job_flow {
	uint64_t needs;           /* elements it must have at the end, without padding */
	uint64_t reads;           /* stored bytes */
	uint64_t keeps;           /* of what it reads (or holds): what it needs itself */
	uint64_t sends, receives; /* needs = keeps + receives */
};

/*
 * Of every rank, and of every group of ranks when @group is not NULL. A group counts as one:
 * what several of its ranks need in common is needed, sent to it and received once. For each
 * kind a few additions a rank, and for each item a look at the ranks of its reader's group; no
 * table of ranks by ranks.
 */
int dcp_job_flows(const struct dcp_job *job, struct dcp_job_flow *rank,
		  struct dcp_job_flow *group, struct dcp_err *err);
uint32_t dcp_job_groups(const struct dcp_job *job);

/* Bytes that senders [first, first + n) send to each rank: @rows has n rows of as many numbers
 * as there are ranks; on the diagonal what they keep. */
int dcp_job_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
		  struct dcp_err *err);

/* How many senders to pass to dcp_job_sends() at a time: all, up to some thousand ranks. */
#define DCP_JOB_TABLE ((size_t)32 << 20)
static inline uint32_t dcp_job_rows(uint32_t ranks)
{
	size_t n = DCP_JOB_TABLE / sizeof(uint64_t) / ranks;

	return n < 1 ? 1 : n > ranks ? ranks : (uint32_t)n;
}

/* Bytes that @rank gets from each rank; from itself: what it keeps. Looks at no other rank's
 * cuts. */
int dcp_job_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
		     struct dcp_err *err);

/* The stretches of files that @rank reads, in order. A negative return of @fn ends it. */
typedef int (*dcp_job_read_fn)(void *ctx, uint32_t file, uint64_t off, uint64_t n);
int dcp_job_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx);

/*
 * The plan as members of the object that is open in @w (dcpfs(1), FOR PROGRAMS, has the form):
 * files, sums, every rank's part and flow, and, with up to DCP_JOB_JSON_RANKS ranks, who sends
 * how much to whom.
 */
#define DCP_JOB_JSON_RANKS 4096
int dcp_job_json(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err);
