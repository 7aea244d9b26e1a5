/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan: what `dcpfs plan` knows, and the forms in which it is printed.
 *
 * plan_load() reads the index of one version and plans the job (core/model/job); everything
 * else only shows it. Functions that return an exit code have said what is wrong.
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
#include "tools/plan/sim.h"
#include "tools/svg.h"

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

/* What one rank reads, from its first byte to the end of its last; stretches 0: nothing. */
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
	struct dcp_job_flow *rank, *group; /* as many as there are */
	struct plan_sim sim;               /* of --simulate */
	const struct dcp_file_id *files;
	size_t nfiles;
	struct plan_part *part; /* of each rank */
	bool *is_read;          /* by file number: bytes of it are read */
	size_t nread;
	struct dcpload_select select;
	uint64_t *ignored;               /* tensors that each glob of --ignore-keys left out */
	struct dcp_quantized *quantized; /* of what is to be converted */
	struct dcp_buf lost;             /* struct plan_lost */
	struct dcp_arena arena;
	struct { /* the tensor that is drawn when none is named */
		int64_t id;
		uint64_t nbytes;
	} largest;
};

/* What a page begins with. */
#define PLAN_HTML HTML_HEAD("dcpfs plan")

enum cmd_exit plan_load(struct plan *p, const struct opt_args *args);
void plan_finish(struct plan *p);

/* The tensor that --key names, or the largest: its row id in @id. */
enum cmd_exit plan_tensor(struct plan *p, int64_t *id);

/* Least, sum and most of a number of all ranks' flows. */
enum plan_number { PLAN_NEEDS, PLAN_READS, PLAN_KEEPS, PLAN_SENDS, PLAN_RECEIVES };
#define PLAN_NUMBERS 5
struct plan_range {
	uint64_t least, sum, most;
	uint32_t most_rank;
};
extern const char *const plan_number_name[PLAN_NUMBERS];
uint64_t plan_number(const struct dcp_job_flow *f, enum plan_number n);
struct plan_range plan_range(const struct plan *p, enum plan_number n);

/* How many times the elements that are needed are read: by each rank for itself, together. */
double plan_alone(const struct plan *p);
double plan_together(const struct plan *p);
/* Most bytes that a rank reads for others: what it must hold beside its own tensors, when it
 * reads all of its part at once. */
uint64_t plan_staging(const struct plan *p, uint32_t *rank);

/* text.c, json.c: all, or one rank */
void plan_write(const struct plan *p, struct out *o);
enum cmd_exit plan_rank_text(struct plan *p, uint32_t rank, struct out *o);
enum cmd_exit plan_json(struct plan *p, struct out *o);
enum cmd_exit plan_rank_json(struct plan *p, uint32_t rank, struct out *o);

/* text.c: a line for each rank */
enum cmd_exit plan_tsv(const struct plan *p, struct out *o);

/* map.c: one tensor, as stored and as the ranks have it, as an SVG */
enum cmd_exit plan_map(struct plan *p, int64_t id, struct dcp_buf *out);

/* map.c: which rank reads what of each file; who sends how much to whom */
enum cmd_exit plan_draw_files(struct plan *p, struct dcp_buf *out);
enum cmd_exit plan_draw_exchange(struct plan *p, struct dcp_buf *out);

/* html.c: one page with everything */
enum cmd_exit plan_html(struct plan *p, struct out *o);
