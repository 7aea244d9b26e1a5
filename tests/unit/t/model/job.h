/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_job: random checkpoints and layouts, and a planner of whole jobs that is slow and plainly
 * right.
 *
 * The reference looks at every element of every tensor for every rank: does the rank hold it,
 * by the definition of its cut; where is it stored, by the definition of its piece; who reads
 * that byte. It shares no code with core/model/job. Nothing here knows cmocka.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/job/job.h"
#include "core/model/layout/layout.h"
#include "tests/unit/t/model/plan.h"

enum {
	T_JOB_TENSORS = 6,
	T_JOB_RANKS = 24,
	T_JOB_FILES = 3,
	T_JOB_FILE_BYTES = 6 * (24 << 10),
};

struct t_job {
	struct t_plan plan[T_JOB_TENSORS];
	char key[T_JOB_TENSORS][16];
	size_t n;
	bool shared; /* tensors may have bytes in common */
	struct dcp_file_id files[T_JOB_FILES];
	struct dcp_job_opts opts;
	uint32_t ranks;

	/* by the reference, of one finished job */
	uint8_t wanted[T_JOB_FILES][T_JOB_FILE_BYTES];
	uint32_t owner[T_JOB_FILES][T_JOB_FILE_BYTES]; /* who reads the byte; UINT32_MAX */
	uint64_t sends[T_JOB_RANKS][T_JOB_RANKS];      /* the diagonal: what is kept */
	struct dcp_job_flow rank[T_JOB_RANKS];
	uint8_t read[T_JOB_FILES][T_JOB_FILE_BYTES]; /* by some rank, as the plan says */
	uint64_t stripe, base[T_JOB_FILES];          /* of DCP_JOB_ALL; else 0 */
	uint64_t viewed[T_JOB_RANKS];                /* bytes that views read */
	bool reversed; /* bytes of elements are: those of an element go together */
};

/* Tensors, some of whose pieces share bytes with others', or have copies elsewhere when
 * @copies. Layouts are the caller's (w->opts.to, from). */
void t_job_random(struct t_job *w, struct t_choice *c, bool copies);

/* Plan with the tensors told in the order @order, and hold everything the plan tells against
 * the reference; a plan must be refused when a layout cannot cut one of them. NULL, or what
 * does not agree; @digest of the plan. */
const char *t_job_check(struct t_job *w, const size_t *order, uint64_t *digest);
