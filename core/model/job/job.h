/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job: the plan of a whole parallel job. All ranks of a layout need parts of a checkpoint; the plan
 * says which rank reads which stored bytes, and how many bytes each rank sends to each other rank.
 *
 *	dcp_job_create(&opts, &job, err);
 *	for each tensor
 *		dcp_job_add(job, &tensor, err);
 *	dcp_job_finish(job, err);
 *	dcp_job_reads(job, rank, ...);     what this rank reads
 *	dcp_job_receives(job, rank, ...);  what it gets from each of the others
 *
 * The loader (tools/load) follows the plan if it loads into the host's memory with the same files,
 * layout, exchange, nodes and staging memory; its reports have these numbers. Three ways:
 *
 *	DCP_JOB_ALL    stripes of files are dealt to all ranks (chunk.h); the owner of a stripe reads the
 *	               blocks that any rank needs, and sends each rank the bytes it needs
 *	DCP_JOB_NODE   the same in each node, by chunks (chunk.h) that its ranks take from memory
 *	               that they share
 *	DCP_JOB_NEVER  each rank reads the bytes that it needs; @direct: whole blocks
 *
 * Items that only a view can decode (compressed items, negated numbers) are read by each rank for
 * itself, with any exchange. Zeros that are not stored (DCP_FILTER_ZERO) are not read, sent or
 * needed.
 *
 * Pieces of one tensor that hold the same elements are copies: the one in the file from which
 * the fewest bytes are needed is read. Bytes that several tensors share are read once.
 *
 * With a layout @from nothing is read, because its ranks hold the tensors already. A rank keeps the
 * elements that it holds, and gets the rest from a holder, in its own group if there is one;
 * holders of copies take turns.
 *
 * The plan is a function of layouts, tensors and files alone: not of the order in which tensors
 * were added or ranks are queried. So ranks that see the same checkpoint compute equal plans and
 * need only compare dcp_job_digest(). Tensors that share a rule, a shape and the way they were cut
 * form a kind; the parts that ranks hold of a kind have closed forms
 * (core/model/layout/spread/spread.h). So DCP_JOB_ALL costs some hundred nanoseconds for each
 * tensor and stripe, for any number of ranks. If tensors share bytes or are stored in another
 * order, and for the other two ways, the needs of one rank after the other are computed. Pure: no
 * I/O. One thread at a time until it is finished; then any number.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/geometry/strided.h"
#include "core/model/tensor.h"

struct dcp_err;
struct dcp_job;
struct dcp_jsonw;
struct dcp_layout;

enum dcp_job_exchange { DCP_JOB_ALL, DCP_JOB_NODE, DCP_JOB_NEVER };

#define DCP_JOB_MEMORY ((size_t)512 << 20)

struct dcp_job_opts {
	const struct dcp_layout *to, *from; /* borrowed; from NULL: bytes come from files */
	const struct dcp_file_id *files;    /* borrowed */
	size_t nfiles;
	uint32_t group; /* ranks of one node; 0: 1 */
	enum dcp_job_exchange exchange;
	bool direct; /* read past the page cache */
	/* load into memory of devices, which changes the size of slots; not with DCP_JOB_ALL */
	bool device;
	uint64_t staging; /* bytes of each rank; 0: DCP_STRIPE_STAGING; at least 1 MiB */
	/* Floating-point numbers are converted to this type, so their elements are not split;
	 * DCP_DTYPE_OTHER: no conversion. */
	enum dcp_dtype dtype;
	size_t memory; /* bytes at most; 0: DCP_JOB_MEMORY */
};

int dcp_job_create(const struct dcp_job_opts *opts, struct dcp_job **out, struct dcp_err *err);
void dcp_job_free(struct dcp_job *job);

/* Add a tensor; nothing of it is borrowed. Tensors are numbered from 0. -EBADMSG: the pieces do not
 * tile it, or are outside of their file; -E2BIG, -ENOMEM. */
int dcp_job_add(struct dcp_job *job, const struct dcp_tensor *t, struct dcp_err *err);

/* Compute the plan; no tensors can be added afterwards. -EINVAL: a layout cannot cut a tensor
 * (layout, line, key and rank in @err); -E2BIG, -ENOMEM. */
int dcp_job_finish(struct dcp_job *job, struct dcp_err *err);

/* ---- a job that is finished ---- */

struct dcp_job_sum {
	uint32_t ranks; /* of the larger layout */
	uint64_t tensors, kinds;
	uint64_t unique;  /* stored bytes that some rank needs, each once */
	uint64_t extents; /* contiguous stretches of files that make up @unique */
	uint64_t stripe;  /* of DCP_JOB_ALL: bytes; else 0 */
};
void dcp_job_sum(const struct dcp_job *job, struct dcp_job_sum *out);

/* A hash of the whole plan, the same on every machine. */
uint64_t dcp_job_digest(const struct dcp_job *job);

/* The work of a rank, or of a group of ranks, in bytes. */
struct dcp_job_flow {
	uint64_t needs; /* bytes of elements that it must have at the end, without padding */
	uint64_t reads; /* from files, blocks around elements included */
	/* bytes that it needs and reads itself as their owner, or already holds */
	uint64_t keeps;
	uint64_t sends;    /* in messages */
	uint64_t receives; /* in messages, or from memory that the ranks of a node share */
};

/*
 * The flows of every rank: the bytes that it reads, sends to other ranks and receives from them. If
 * @group is not NULL, also the flows of every group, to and from other groups; @needs of a group
 * counts bytes once that several of its ranks need.
 */
int dcp_job_flows(const struct dcp_job *job, struct dcp_job_flow *rank,
		  struct dcp_job_flow *group, struct dcp_err *err);
uint32_t dcp_job_groups(const struct dcp_job *job);

/*
 * Bytes that ranks [first, first + n) read for each rank and pass on in messages or shared memory.
 * @rows has n rows with a number for each rank of the job; on the diagonal are the bytes that a
 * rank keeps.
 */
int dcp_job_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
		  struct dcp_err *err);

/* The number of senders to pass to dcp_job_sends() at a time: all, up to some thousand ranks. */
#define DCP_JOB_TABLE ((size_t)32 << 20)
static inline uint32_t dcp_job_rows(uint32_t ranks)
{
	size_t n = DCP_JOB_TABLE / sizeof(uint64_t) / ranks;

	return n < 1 ? 1 : n > ranks ? ranks : (uint32_t)n;
}

/* Bytes that @rank gets from each rank; from itself, the bytes that it keeps. Does not compute cuts
 * of other ranks. */
int dcp_job_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
		     struct dcp_err *err);

/* Call @fn for the stretches of files that @rank reads, in order, or for those of all ranks
 * (DCP_JOB_EACH); reads of views are not included. A negative return of @fn ends the call. */
#define DCP_JOB_EACH UINT32_MAX
typedef int (*dcp_job_read_fn)(void *ctx, uint32_t rank, uint32_t file, uint64_t off,
			       uint64_t n);
int dcp_job_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx);

/*
 * The plan as members of the object that is open in @w (dcpfs(1), FOR PROGRAMS, has the form):
 * files, sums, every rank's part and flow, and, with up to DCP_JOB_JSON_RANKS ranks, who sends
 * how much to whom.
 */
#define DCP_JOB_JSON_RANKS 4096
int dcp_job_json(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err);
