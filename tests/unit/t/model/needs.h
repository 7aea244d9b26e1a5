/* SPDX-License-Identifier: Apache-2.0 */
/* t_job_needs: what one rank of a job needs, from the job's own kinds and items. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/geometry/strided.h"

struct dcp_err;
struct dcp_job;

/*
 * What @rank needs, tensor by tensor in the order they were added: descriptors as of
 * model/strided with offsets in the file; s->piece is of no use. @whole: bytes [s->off, s->off
 * + s->run) are an item whose inside is not known, and s->dst means nothing.
 */
struct t_job_need {
	uint64_t tensor;
	uint32_t file;
	bool whole;
	struct dcp_strided s;
};
typedef int (*t_job_need_fn)(void *ctx, const struct t_job_need *need);
int t_job_needs(const struct dcp_job *job, uint32_t rank, t_job_need_fn fn, void *ctx,
		struct dcp_err *err);
