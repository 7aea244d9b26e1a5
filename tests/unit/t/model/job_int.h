/* SPDX-License-Identifier: Apache-2.0 */
/* t_job_int: what the files of t_job share. */
#pragma once
#include "core/base/arena.h"
#include "tests/unit/t/model/job.h"

#define NO_RANK UINT32_MAX

/* One tensor: what each rank of a layout holds of it. */
struct t_job_ask {
	struct t_job *w;
	const struct dcp_job *job;
	const struct dcp_tensor *t;
	struct dcp_arena arena;
	struct dcp_cut cut[T_JOB_RANKS];
	bool has[T_JOB_RANKS];
	uint64_t volume[T_JOB_RANKS];
};

/* Ask every rank about a->t. NULL, or that one of them cannot cut it. */
const char *t_job_ask(struct t_job_ask *a, const struct dcp_layout *l);
/* One piece that holds the element and is read; with copies, that whose first byte a rank reads.
 */
const struct dcp_piece *t_job_piece(const struct t_job *w, const struct dcp_tensor *t,
				    const uint64_t *at, uint64_t *off);

/* t_job_held.c: NULL, or what does not agree */
const char *t_job_check_from(struct t_job *w, const struct dcp_job *job, struct t_job_ask *a);
