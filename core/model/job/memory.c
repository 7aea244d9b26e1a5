/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory: what a job takes of the memory it was given, and what all its files ask of a piece.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/model/job/job_int.h"

int dcp_job_no_memory(const struct dcp_job *job, struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM,
			"the plan of the job needs more than its %zu MiB of memory",
			job->opts.memory >> 20);
}

static int count_memory(struct dcp_job *job, size_t n)
{
	if (n > job->opts.memory - job->used)
		return -ENOMEM;
	job->used += n;
	return 0;
}

int dcp_job_room(struct dcp_job *job, struct job_vec *v, size_t n, size_t size)
{
	size_t cap = v->cap;
	void *p;

	if (n <= cap - v->n)
		return 0;
	while (cap - v->n < n)
		cap += DCP_MAX(cap / 2, (size_t)64);
	if (count_memory(job, (cap - v->cap) * size) < 0)
		return -ENOMEM;
	p = realloc(v->p, cap * size);
	if (!p) {
		job->used -= (cap - v->cap) * size;
		return -ENOMEM;
	}
	v->p = p;
	v->cap = cap;
	return 0;
}

void dcp_job_shrink(struct dcp_job *job, struct job_vec *v, size_t size)
{
	void *p = v->n ? realloc(v->p, v->n * size) : NULL;

	if (!p)
		return;
	job->used -= (v->cap - v->n) * size;
	v->p = p;
	v->cap = v->n;
}

void *dcp_job_array(struct dcp_job *job, size_t n, size_t size)
{
	void *p;

	if (n > SIZE_MAX / 2 / size || count_memory(job, n * size) < 0)
		return NULL;
	p = calloc(n ? n : 1, size);
	if (!p)
		job->used -= n * size;
	return p;
}

uint64_t dcp_job_file_size(const struct dcp_job *job, uint32_t file)
{
	const struct dcp_file_id *f = &job->opts.files[file];

	return f->unpacked ? f->unpacked : f->size;
}

bool dcp_job_is_opaque(const struct dcp_piece *p)
{
	return p->enc != DCP_ENC_PLAIN || dcp_filter_encodes(p->filter);
}

bool dcp_job_is_atom(const struct dcp_piece *p)
{
	return dcp_job_is_opaque(p) || p->stride;
}
