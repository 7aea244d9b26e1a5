/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "core/base/hash.h"
#include "core/model/job/job_int.h"

/* ---- a job ---- */

int dcp_job_create(const struct dcp_job_opts *opts, struct dcp_job **out, struct dcp_err *err)
{
	struct dcp_job *job = calloc(1, sizeof(*job));

	if (!job)
		return dcp_fail(err, -ENOMEM, "out of memory");
	job->opts = *opts;
	job->opts.group = opts->group ? opts->group : 1;
	job->opts.align = opts->align ? opts->align : DCP_JOB_ALIGN;
	job->opts.memory = opts->memory ? opts->memory : DCP_JOB_MEMORY;
	job->ranks = dcp_layout_ranks(opts->to);
	if (opts->from)
		job->ranks = DCP_MAX(job->ranks, dcp_layout_ranks(opts->from));
	job->groups = (job->ranks + job->opts.group - 1) / job->opts.group;
	dcp_arena_init(&job->arena, job->opts.memory / 2);
	*out = job;
	return 0;
}

void dcp_job_free(struct dcp_job *job)
{
	if (!job)
		return;
	for (size_t i = 0; i < job->kind.n; i++) {
		const struct job_kind *k = JOB_AT(job->kind, struct job_kind, i);

		for (size_t p = 0; k->runs && p < k->t.npieces; p++)
			free(k->runs[p].v);
		free(k->runs);
	}
	free(job->sign.p);
	free(job->kind.p);
	free(job->slot.p);
	free(job->owner_of_pattern.p);
	free(job->tensor.p);
	free(job->item.p);
	free(job->copy.p);
	free(job->order);
	free(job->owner);
	free(job->by_pattern);
	free(job->start);
	free(job->extent.p);
	free(job->atom.p);
	free(job->cut);
	dcp_arena_finish(&job->arena);
	free(job);
}

/* ---- the end ---- */

int dcp_job_finish(struct dcp_job *job, struct dcp_err *err)
{
	uint64_t id[4] = { dcp_layout_hash(job->opts.to),
			   job->opts.from ? dcp_layout_hash(job->opts.from) : 0, job->emitted,
			   job->opts.align };
	int rc = dcp_job_find_wanted(job, err);

	if (rc == 0 && !job->opts.from && dcp_job_choose(job) < 0)
		rc = dcp_job_no_memory(job, err);
	if (rc == 0 && !job->opts.from)
		rc = dcp_job_find_parts(job, err);
	if (rc < 0)
		return rc;
	job->digest = dcp_hash64(id, sizeof(id));
	for (uint32_t r = 0; job->cut && r <= job->ranks; r++) {
		job->digest =
			dcp_hash64_more(job->digest, &job->cut[r].off, sizeof(job->cut[r].off));
		job->digest = dcp_hash64_more(job->digest, &job->cut[r].file,
					      sizeof(job->cut[r].file));
	}
	job->finished = true;
	return 0;
}

uint64_t dcp_job_digest(const struct dcp_job *job)
{
	return job->digest;
}

uint32_t dcp_job_groups(const struct dcp_job *job)
{
	return job->groups;
}

void dcp_job_sum(const struct dcp_job *job, struct dcp_job_sum *out)
{
	*out = (struct dcp_job_sum){ .ranks = job->ranks,
				     .tensors = job->tensor.n,
				     .kinds = job->kind.n,
				     .unique = job->unique,
				     .payload = job->payload,
				     .extents = job->extent.n,
				     .whole_items = job->atom.n,
				     .largest_item = job->largest };
}
