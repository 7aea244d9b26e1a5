/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: the data of `dcpfs plan`, and its output forms.
 *
 * plan_load() reads the index of one version and plans the job (core/model/job); other functions
 * only show it. Functions that return an exit code have printed the error.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/model/job/job.h"
#include "core/model/layout/layout.h"
#include "core/store/layouts/layouts.h"
#include "tools/load/dcpload.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/svg.h"

/*
 * sim: estimate the time on other machines, as bytes over rates.
 *
 * Nodes of @gpus ranks each, in order of rank. A node's storage delivers @disk bytes a second,
 * all storage together @store at most; a node's network takes @net a second in each direction.
 * Nothing else costs time: no latency, no seek, no CPU, and inside a node bytes move for free.
 *
 *   each rank for itself   the slowest node: what its ranks need, each for itself, over @disk
 *   each node for itself   what its ranks need, common bytes once (a shared page cache)
 *   together               the slowest node's parts over @disk, while the slowest node's
 *                          exchange with others goes over @net: a byte is sent to each rank
 *                          that needs it
 */

struct dcp_err;
struct dcp_job_flow;

struct plan_sim {
	bool on;
	uint64_t nodes, gpus;
	double disk, store, net; /* bytes a second; store 0: no limit */
};

/* "nodes=64,gpus=8,disk=25GB/s,net=50GB/s,store=400GB/s" for @ranks ranks. gpus: 8, nodes: as
 * many as it takes, disk: 25 GB/s, net: 50 GB/s where not given. -EINVAL. */
int plan_sim_parse(struct plan_sim *s, const char *text, uint32_t ranks, struct dcp_err *err);

/* A rate: "25GB/s", "400Gb/s" (bits), "3.5GiB/s", "2e9". */
bool plan_sim_rate(const char *text, double *out);

struct plan_time {
	const char *way;   /* "together" */
	double read, send; /* seconds; send 0: nothing is sent */
	double total;      /* the longer of both times */
	const char *limit; /* what takes longest */
	uint32_t node;     /* the slowest */
};

enum { PLAN_WAYS = 3 };

/* @rank, @node: flows of @ranks ranks and of their nodes (dcp_job_flows()). @held: ranks hold
 * everything, so that only the last way has a meaning. Returns how many were filled. */
uint32_t plan_sim_times(const struct plan_sim *s, const struct dcp_job_flow *rank,
			uint32_t ranks, const struct dcp_job_flow *node, uint32_t nodes,
			bool held, struct plan_time out[PLAN_WAYS]);

struct plan_opts {
	const char *layout, *from, *rank, *key, *simulate, *file;
	struct pick_opts pick;
	int form;
	const char *device;
	struct opt_texts keys, skip, ignore;
	int exchange, io, dtype; /* enum dcp_job_exchange, plan_io, export_dtypes */
	uint64_t node, staging;
	bool weights_only;
};

enum plan_io { PLAN_BUFFERED, PLAN_DIRECT };

/* A tensor that the plan leaves out. */
struct plan_lost {
	const char *key, *why;
};

/* The part that a rank reads, from its first byte to the end of its last; stretches 0: nothing. */
struct plan_part {
	uint32_t file[2];
	uint64_t off[2], nfiles, stretches;
};

struct plan {
	const struct plan_opts *opts;
	struct pick pick;
	struct dcp_layouts *layouts;
	const struct dcp_layout *to, *from;
	struct dcp_job *job;
	struct dcp_job_sum sum;
	uint32_t ranks, groups;
	struct dcp_job_flow *rank, *group; /* of all ranks; of all groups */
	struct plan_sim sim;               /* of --simulate */
	const struct dcp_file_id *files;
	size_t nfiles;
	struct plan_part *part; /* of each rank */
	bool *is_read;          /* by file number: bytes of it are read */
	size_t nread;
	struct dcpload_select select;
	uint64_t *ignored;               /* tensors that each glob of --ignore-keys left out */
	struct dcp_quantized *quantized; /* of tensors to be converted */
	struct dcp_buf lost;             /* struct plan_lost */
	struct dcp_arena arena;
	struct { /* the tensor that is drawn when none is named */
		int64_t id;
		uint64_t nbytes;
	} largest;
};

/* The first bytes of a page. */
#define PLAN_HTML HTML_HEAD("dcpfs plan")

enum cmd_exit plan_load(struct plan *p, const struct opt_args *args);
void plan_finish(struct plan *p);

/* The tensor that --key names, or the largest: its row id in @id. */
enum cmd_exit plan_tensor(struct plan *p, int64_t *id);

/* Least, sum and most of a number over all ranks. */
enum plan_number { PLAN_NEEDS, PLAN_READS, PLAN_KEEPS, PLAN_SENDS, PLAN_RECEIVES };
#define PLAN_NUMBERS 5
struct plan_range {
	uint64_t least, sum, most;
	uint32_t most_rank;
};
extern const char *const plan_number_name[PLAN_NUMBERS];
uint64_t plan_number(const struct dcp_job_flow *f, enum plan_number n);
struct plan_range plan_range(const struct plan *p, enum plan_number n);

/* How often a needed element is read, on average: by each rank for itself, and together. */
double plan_alone(const struct plan *p);
double plan_together(const struct plan *p);
/* Most bytes that any rank reads for others, and holds beside its own tensors if it reads its part
 * at once. */
uint64_t plan_staging(const struct plan *p, uint32_t *rank);

/* text.c: all, or one rank */
void plan_write(const struct plan *p, struct out *o);
enum cmd_exit plan_rank_text(struct plan *p, uint32_t rank, struct out *o);
enum cmd_exit plan_json(struct plan *p, struct out *o);
enum cmd_exit plan_rank_json(struct plan *p, uint32_t rank, struct out *o);

/* text.c: a line for each rank */
enum cmd_exit plan_tsv(const struct plan *p, struct out *o);

/* map.c: one tensor, as stored and as the ranks have it, as an SVG */
enum cmd_exit plan_map(struct plan *p, int64_t id, struct dcp_buf *out);

/* map.c: the readers of each file; the bytes that ranks send to each other */
enum cmd_exit plan_draw_files(struct plan *p, struct dcp_buf *out);
enum cmd_exit plan_draw_exchange(struct plan *p, struct dcp_buf *out);

/* text.c: one page with everything */
enum cmd_exit plan_html(struct plan *p, struct out *o);
