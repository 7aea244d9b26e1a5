/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/job/job_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/base/hash.h"
#include "core/base/jsonw.h"

/* ---- a job ---- */

int dcp_job_create(const struct dcp_job_opts *opts, struct dcp_job **out, struct dcp_err *err)
{
	struct dcp_job *job = calloc(1, sizeof(*job));

	if (!job)
		return dcp_fail(err, -ENOMEM, "out of memory");
	job->opts = *opts;
	job->opts.group = opts->group ? opts->group : 1;
	job->opts.staging = opts->staging ? opts->staging : DCP_STRIPE_STAGING;
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
	free(job->extent.p);
	free(job->part.p);
	free(job->of.base);
	free(job->rank);
	free(job->group);
	dcp_arena_finish(&job->arena);
	free(job);
}

/* ---- the end ---- */

int dcp_job_finish(struct dcp_job *job, struct dcp_err *err)
{
	uint64_t id[8] = { dcp_layout_hash(job->opts.to),
			   job->opts.from ? dcp_layout_hash(job->opts.from) : 0,
			   job->emitted,
			   job->opts.exchange,
			   job->opts.exchange == DCP_JOB_NODE ? job->opts.group : 0,
			   job->opts.direct,
			   0,
			   job->opts.device | (uint64_t)job->opts.dtype << 8 };
	int rc = dcp_job_find_wanted(job, err);

	if (rc == 0 && !job->opts.from && dcp_job_choose(job) < 0)
		rc = dcp_job_no_memory(job, err);
	if (rc == 0 && !job->opts.from)
		rc = dcp_job_find_union(job, err);
	if (rc == 0 && !job->opts.from)
		rc = dcp_job_find_flows(job, err);
	id[6] = job->of.size;
	job->digest = dcp_hash64(id, sizeof(id));
	job->finished = rc == 0;
	return rc;
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
				     .extents = job->extent.n,
				     .stripe = job->of.size };
}

/* Who sends how much to whom: rows and columns of the table of ranks by ranks. */

struct rows {
	const struct dcp_job *job;
	uint32_t first, n, to; /* of these ranks, to this one (JOB_NONE: to each) */
	uint64_t *v;
};

static void row_move(void *ctx, const struct job_move *m)
{
	struct rows *rows = ctx;

	if (m->from - rows->first < rows->n)
		rows->v[(size_t)(m->from - rows->first) * rows->job->ranks + m->to] += m->bytes;
}

int dcp_job_sends(const struct dcp_job *job, uint32_t first, uint32_t n, uint64_t *rows,
		  struct dcp_err *err)
{
	struct rows r = { .job = job, .first = first, .n = n, .v = rows };

	memset(rows, 0, (size_t)n * job->ranks * sizeof(*rows));
	return job->opts.from ? dcp_job_moves(job, row_move, &r, err)
			      : dcp_job_way(job)->sends(job, first, n, rows, err);
}

static void column_move(void *ctx, const struct job_move *m)
{
	const struct rows *c = ctx;

	if (m->to == c->to)
		c->v[m->from] += m->bytes;
}

int dcp_job_receives(const struct dcp_job *job, uint32_t rank, uint64_t *from,
		     struct dcp_err *err)
{
	struct rows c = { .to = rank, .v = from };

	memset(from, 0, job->ranks * sizeof(*from));
	return job->opts.from ? dcp_job_moves(job, column_move, &c, err)
			      : dcp_job_way(job)->receives(job, rank, from, err);
}

int dcp_job_reads(const struct dcp_job *job, uint32_t rank, dcp_job_read_fn fn, void *ctx)
{
	int rc = job->opts.from ? 0 : dcp_job_way(job)->reads(job, rank, fn, ctx);

	return DCP_MIN(rc, 0);
}

static void put_sum(const struct dcp_job *job, struct dcp_jsonw *w)
{
	static const char *const ways[] = { "all", "node", "never" };
	struct dcp_job_sum sum;
	char hex[24];

	dcp_job_sum(job, &sum);
	snprintf(hex, sizeof(hex), "%016llx", (unsigned long long)dcp_job_digest(job));
	dcp_jsonw_put_str(w, "digest", hex);
	dcp_jsonw_put_u64(w, "group", job->opts.group);
	dcp_jsonw_put_str(w, "way", ways[job->opts.exchange]);
	dcp_jsonw_put_u64(w, "stripe", sum.stripe);
	dcp_jsonw_put_u64(w, "tensors", sum.tensors);
	dcp_jsonw_put_u64(w, "kinds", sum.kinds);
	dcp_jsonw_put_u64(w, "unique", sum.unique);
	dcp_jsonw_put_u64(w, "extents", sum.extents);
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

static void put_move(struct dcp_jsonw *w, uint32_t from, uint32_t to, uint64_t n)
{
	dcp_jsonw_array(w);
	dcp_jsonw_u64(w, from);
	dcp_jsonw_u64(w, to);
	dcp_jsonw_u64(w, n);
	dcp_jsonw_end(w);
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
				put_move(w, from, to, rows[i]);
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
