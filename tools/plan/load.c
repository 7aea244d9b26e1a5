/* SPDX-License-Identifier: Apache-2.0 */
/* Load a source and a layout, and plan the job. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/hf/hf.h"
#include "core/store/view/view.h"
#include "tools/export/export.h"
#include "tools/load/load.h"
#include "tools/plan/plan.h"

enum { LOST_MEMORY = 64 << 20 };

/* ---- layouts ---- */

static enum cmd_exit open_layouts(struct plan *p)
{
	enum cmd_exit code = pick_layout(&p->pick, p->opts->layout, &p->layouts, &p->to);
	struct dcp_err err = { 0 };

	if (code == CMD_OK)
		code = pick_layout(&p->pick, p->opts->from, &p->layouts, &p->from);
	if (code != CMD_OK)
		return code;
	p->ranks = dcp_layout_ranks(p->to);
	if (p->from)
		p->ranks = DCP_MAX(p->ranks, dcp_layout_ranks(p->from));
	if (p->opts->simulate && plan_sim_parse(&p->sim, p->opts->simulate, p->ranks, &err) < 0)
		return cmd_fail(CMD_USAGE, "%s", err.msg);
	return CMD_OK;
}

/* ---- tensors ---- */

static int leave_out(struct plan *p, const char *key, const char *why)
{
	struct plan_lost *lost = dcp_buf_grow(&p->lost, sizeof(*lost));

	if (!lost)
		return -ENOMEM;
	lost->key = dcp_arena_strdup(&p->arena, key);
	lost->why = dcp_arena_strdup(&p->arena, why);
	return lost->key && lost->why ? 0 : -ENOMEM;
}

static enum dcp_dtype dtype_of(const struct plan *p)
{
	int dtype = p->opts->dtype;

	return dtype ? dcp_dtype_from_name(export_dtypes[dtype]) : DCP_DTYPE_OTHER;
}

struct adding {
	struct plan *p;
	struct dcp_arena arena;
	struct dcp_err err;
	uint64_t done;
};

/* Add a tensor with the places of its bytes inside items. */
static int add_located(struct adding *a, const struct dcp_row *row)
{
	struct plan *p = a->p;
	dcp_auto_view struct dcp_view *view = NULL;
	struct dcp_err why = { 0 };
	int rc = dcp_view_open(p->pick.ck.v, row->id, DCP_AS_RAW, NULL, &view, &why);

	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return leave_out(p, row->key, why.msg);
	return dcp_job_add(p->job, dcp_view_tensor(view), &a->err);
}

/* Can it be converted as --dtype asks? */
static int check_cast(const struct plan *p, const struct dcp_row *row,
		      const struct dcp_tensor *t, struct dcp_err *err)
{
	enum dcp_dtype to = dtype_of(p);
	const char *by;

	if (to == DCP_DTYPE_OTHER || to == t->dtype || !dcp_dtype_is_float(t->dtype))
		return 0;
	by = dcp_quantized_row(p->quantized, row);
	return by ? dcp_quantized_refuse(row, by, err) : 0;
}

static int add_row(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct adding *a = ctx;
	struct plan *p = a->p;
	struct dcp_progress *report = &p->pick.progress.report;
	bool locate = false;
	struct dcp_tensor t;
	int rc;

	rc = load_selects(p->pick.ck.v, &p->select, row);
	if (rc <= 0)
		return rc;
	dcp_arena_reset(&a->arena);
	rc = dcp_index_tensor(dcp_version_index(p->pick.ck.v), row->id, &a->arena, &t, &a->err);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < t.npieces && !p->from; i++)
		locate |= t.pieces[i].enc != DCP_ENC_PLAIN && !t.error;
	if (locate)
		report->report(report->ctx, a->done++,
			       dcp_index_counts(dcp_version_index(p->pick.ck.v))->tensors,
			       "locating");
	if (t.error || t.itemsize == 0)
		return leave_out(p, t.key, t.error ? t.error : "elements of no size");
	rc = check_cast(p, row, &t, &a->err);
	if (rc < 0)
		return rc;
	if (row->nbytes > p->largest.nbytes || !p->largest.id) {
		p->largest.id = row->id;
		p->largest.nbytes = row->nbytes;
	}
	return locate ? add_located(a, row) : dcp_job_add(p->job, &t, &a->err);
}

static int add_part(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct plan *p = ctx;
	struct plan_part *part = &p->part[rank];

	if (!part->stretches++) {
		part->file[0] = file;
		part->off[0] = off;
	}
	part->nfiles += part->stretches == 1 || part->file[1] != file;
	part->file[1] = file;
	part->off[1] = off + n;
	p->is_read[file] = true;
	return 0;
}

/* Find the part of each rank, and the number of files that are read. */
static enum cmd_exit find_parts(struct plan *p)
{
	p->is_read = calloc(p->nfiles + 1, sizeof(*p->is_read));
	p->part = calloc(p->ranks, sizeof(*p->part));
	if (!p->is_read || !p->part || dcp_job_reads(p->job, DCP_JOB_EACH, add_part, p) < 0)
		return cmd_fail(CMD_ENV, "out of memory");
	for (size_t i = 0; i < p->nfiles; i++)
		p->nread += p->is_read[i];
	return CMD_OK;
}

static enum cmd_exit add_tensors(struct plan *p)
{
	struct adding a = { .p = p };
	int rc;

	p->ignored = calloc(p->opts->ignore.n + 1, sizeof(*p->ignored));
	if (!p->ignored)
		return cmd_fail(CMD_ENV, "out of memory");
	dcp_arena_init(&a.arena, (size_t)1 << 30);
	p->select = (struct dcpload_select){ .size = sizeof(p->select),
					     .nkeys = (uint32_t)p->opts->keys.n,
					     .keys = p->opts->keys.v,
					     .nskip = (uint32_t)p->opts->skip.n,
					     .skip = p->opts->skip.v,
					     .nignore = (uint32_t)p->opts->ignore.n,
					     .ignore = p->opts->ignore.v,
					     .ignored = p->ignored,
					     .weights_only = p->opts->weights_only };
	rc = dtype_of(p) == DCP_DTYPE_OTHER
		     ? 0
		     : dcp_quantized_find(p->pick.ck.v, p->pick.ck.base, &p->quantized, &a.err);
	if (rc == 0)
		rc = dcp_each_row(dcp_version_index(p->pick.ck.v), DCP_ROW_TENSOR, add_row, &a);
	if (rc == 0)
		rc = dcp_job_finish(p->job, &a.err);
	if (rc == 0)
		rc = dcp_job_flows(p->job, p->rank, p->group, &a.err);
	dcp_arena_finish(&a.arena);
	if (rc < 0)
		return cmd_fail(cmd_exit_of(rc), "%s: %s", p->pick.ck.name,
				a.err.msg[0] ? a.err.msg : strerror(-rc));
	dcp_job_sum(p->job, &p->sum);
	return find_parts(p);
}

enum cmd_exit plan_load(struct plan *p, const struct opt_args *args)
{
	struct dcp_job_opts opts = { 0 };
	struct dcp_err err = { 0 };
	enum cmd_exit code;

	dcp_arena_init(&p->arena, LOST_MEMORY);
	code = pick_source(&p->pick, args->operand[PICK_SOURCE], &p->opts->pick, false);
	if (code == CMD_OK)
		code = open_layouts(p);
	if (code == CMD_OK)
		code = pick_version(&p->pick, args->operand[PICK_VERSION]);
	if (code == CMD_OK && p->pick.ck.base)
		code = hf_check(p->pick.ck.v, &p->opts->pick.hf, "plan", false);
	if (code != CMD_OK)
		return code;
	p->files = dcp_index_files(dcp_version_index(p->pick.ck.v), &p->nfiles);
	opts.to = p->to;
	opts.from = p->from;
	opts.files = p->files;
	opts.nfiles = p->nfiles;
	opts.group = (uint32_t)(p->opts->node ? p->opts->node : p->sim.on ? p->sim.gpus : 1);
	opts.exchange = (enum dcp_job_exchange)p->opts->exchange;
	opts.direct = p->opts->io == PLAN_DIRECT;
	opts.device = p->opts->device && strcmp(p->opts->device, "host") != 0;
	opts.dtype = dtype_of(p);
	opts.staging = p->opts->staging;
	if (dcp_job_create(&opts, &p->job, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	p->groups = dcp_job_groups(p->job);
	p->rank = calloc(p->ranks, sizeof(*p->rank));
	p->group = calloc(p->groups, sizeof(*p->group));
	if (!p->rank || !p->group)
		return cmd_fail(CMD_ENV, "out of memory");
	return add_tensors(p);
}

void plan_finish(struct plan *p)
{
	dcp_job_free(p->job);
	dcp_quantized_free(p->quantized);
	dcp_layouts_destroy(p->layouts);
	free(p->ignored);
	free(p->rank);
	free(p->group);
	free(p->is_read);
	free(p->part);
	dcp_buf_finish(&p->lost);
	dcp_arena_finish(&p->arena);
	pick_finish(&p->pick);
}

enum cmd_exit plan_tensor(struct plan *p, int64_t *id)
{
	enum dcp_row_kind kind = DCP_ROW_TENSOR;
	struct dcp_row row = { .id = p->largest.id };
	enum cmd_exit code = CMD_OK;

	if (p->opts->key)
		code = pick_key(&p->pick, p->opts->key, &p->arena, &kind, &row);
	if (code != CMD_OK)
		return code;
	if (kind != DCP_ROW_TENSOR)
		return cmd_fail(CMD_NO, "%s is an object: it has no shape to be drawn",
				row.key);
	if (!row.id)
		return cmd_fail(CMD_NO, "%s has no tensor that could be drawn",
				p->pick.ck.name);
	*id = row.id;
	return CMD_OK;
}

/* ---- numbers ---- */

const char *const plan_number_name[PLAN_NUMBERS] = { "needs", "reads", "keeps", "sends",
						     "receives" };

uint64_t plan_number(const struct dcp_job_flow *f, enum plan_number n)
{
	const uint64_t v[PLAN_NUMBERS] = { f->needs, f->reads, f->keeps, f->sends,
					   f->receives };

	return v[n];
}

struct plan_range plan_range(const struct plan *p, enum plan_number n)
{
	struct plan_range out = { .least = UINT64_MAX };

	for (uint32_t r = 0; r < p->ranks; r++) {
		uint64_t v = plan_number(&p->rank[r], n);

		out.sum += v;
		out.least = DCP_MIN(out.least, v);
		if (v > out.most) {
			out.most = v;
			out.most_rank = r;
		}
	}
	return out;
}

double plan_alone(const struct plan *p)
{
	return p->sum.unique ? (double)plan_range(p, PLAN_NEEDS).sum / (double)p->sum.unique
			     : 0;
}

double plan_together(const struct plan *p)
{
	return p->sum.unique ? (double)plan_range(p, PLAN_READS).sum / (double)p->sum.unique
			     : 0;
}

uint64_t plan_staging(const struct plan *p, uint32_t *rank)
{
	uint64_t most = 0;

	*rank = 0;
	for (uint32_t r = 0; r < p->ranks; r++) {
		const struct dcp_job_flow *f = &p->rank[r];

		if (f->reads > f->keeps && f->reads - f->keeps > most) {
			most = f->reads - f->keeps;
			*rank = r;
		}
	}
	return most;
}
