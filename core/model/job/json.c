/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/cleanup.h"
#include "core/base/jsonw.h"
#include "core/model/job/job_int.h"

static void put_sum(const struct dcp_job *job, struct dcp_jsonw *w)
{
	struct dcp_job_sum sum;
	char hex[24];

	dcp_job_sum(job, &sum);
	snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)dcp_job_digest(job));
	dcp_jsonw_put_str(w, "digest", hex);
	dcp_jsonw_put_u64(w, "group", job->opts.group);
	dcp_jsonw_put_u64(w, "align", job->opts.align);
	dcp_jsonw_put_u64(w, "tensors", sum.tensors);
	dcp_jsonw_put_u64(w, "kinds", sum.kinds);
	dcp_jsonw_put_u64(w, "unique", sum.unique);
	dcp_jsonw_put_u64(w, "payload", sum.payload);
	dcp_jsonw_put_u64(w, "extents", sum.extents);
	dcp_jsonw_put_u64(w, "whole_items", sum.whole_items);
	dcp_jsonw_put_u64(w, "largest_item", sum.largest_item);
}

/* Every file of the table, so that numbers of it can be used. */
static int put_files(const struct dcp_job *job, struct dcp_jsonw *w)
{
	dcp_auto_free uint64_t *read = calloc(job->opts.nfiles + 1, sizeof(*read));
	const struct job_extent *e = job->extent.p;

	if (!read)
		return -ENOMEM;
	for (size_t i = 0; i < job->extent.n; i++)
		read[e[i].file] += e[i].n;
	dcp_jsonw_put_array(w, "files");
	for (size_t i = 0; i < job->opts.nfiles; i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "file", job->opts.files[i].name);
		dcp_jsonw_put_u64(w, "size", dcp_job_file_size(job, (uint32_t)i));
		dcp_jsonw_put_u64(w, "read", read[i]);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	return 0;
}

static void put_flow(struct dcp_jsonw *w, const struct dcp_job_flow *f)
{
	dcp_jsonw_put_u64(w, "needs", f->needs);
	dcp_jsonw_put_u64(w, "reads", f->reads);
	dcp_jsonw_put_u64(w, "keeps", f->keeps);
	dcp_jsonw_put_u64(w, "sends", f->sends);
	dcp_jsonw_put_u64(w, "receives", f->receives);
}

static int put_read(void *ctx, uint32_t file, uint64_t off, uint64_t n)
{
	struct dcp_jsonw *w = ctx;

	dcp_jsonw_array(w);
	dcp_jsonw_u64(w, file);
	dcp_jsonw_u64(w, off);
	dcp_jsonw_u64(w, n);
	dcp_jsonw_end(w);
	return 0;
}

static int put_ranks(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err)
{
	dcp_auto_free struct dcp_job_flow *f = calloc(job->ranks, sizeof(*f));
	int rc = f ? dcp_job_flows(job, f, NULL, err) : -ENOMEM;

	if (rc < 0)
		return rc;
	dcp_jsonw_put_array(w, "ranks");
	for (uint32_t r = 0; r < job->ranks; r++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_u64(w, "rank", r);
		put_flow(w, &f[r]);
		dcp_jsonw_put_array(w, "part");
		dcp_job_reads(job, r, put_read, w);
		dcp_jsonw_end(w);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	return 0;
}

static int put_exchange(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err)
{
	dcp_auto_free uint64_t *rows = NULL;
	uint32_t most = dcp_job_rows(job->ranks);
	int rc = 0;

	dcp_jsonw_key(w, "exchange");
	if (job->ranks > DCP_JOB_JSON_RANKS) {
		dcp_jsonw_null(w);
		return 0;
	}
	rows = calloc((size_t)most * job->ranks, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	dcp_jsonw_array(w);
	for (uint32_t first = 0; rc == 0 && first < job->ranks; first += most) {
		uint32_t n = DCP_MIN(job->ranks - first, most);

		rc = dcp_job_sends(job, first, n, rows, err);
		for (size_t i = 0; rc == 0 && i < (size_t)n * job->ranks; i++) {
			uint32_t from = first + (uint32_t)(i / job->ranks);
			uint32_t to = (uint32_t)(i % job->ranks);

			if (rows[i] && from != to)
				put_read(w, from, to, rows[i]);
		}
	}
	dcp_jsonw_end(w);
	return rc;
}

int dcp_job_json(const struct dcp_job *job, struct dcp_jsonw *w, struct dcp_err *err)
{
	int rc;

	put_sum(job, w);
	rc = put_files(job, w);
	if (rc == 0)
		rc = put_ranks(job, w, err);
	if (rc == 0)
		rc = put_exchange(job, w, err);
	if (rc == -ENOMEM)
		return dcp_job_no_memory(job, err);
	return rc ? rc : dcp_jsonw_error(w);
}
