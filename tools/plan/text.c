/* SPDX-License-Identifier: Apache-2.0 */
/* The plan for people. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "tools/plan/plan.h"

enum { TERMINAL_RANKS = 40, TERMINAL_LOST = 5 };

/* Read this often alone, a byte is worth no exchange. */
#define NOTHING_GAINED 1.05

/* "1.5 s", "12 ms" */
static const char *seconds(char buf[32], double s)
{
	if (s >= 0.9995)
		snprintf(buf, 32, s < 99.95 ? "%.2f s" : "%.0f s", s);
	else if (s >= 0.0009995)
		snprintf(buf, 32, "%.3g ms", s * 1e3);
	else
		snprintf(buf, 32, "%.3g us", s * 1e6);
	return buf;
}

static void line(struct out *o, const char *name)
{
	dcp_buf_printf(&o->buf, "%-12s", name);
}

static void sums(const struct plan *p, struct out *o)
{
	static const char *const ways[] = { "all", "node", "never" };
	char a[OUT_SIZE], b[OUT_SIZE], n[32];
	struct plan_range needs = plan_range(p, PLAN_NEEDS), sends = plan_range(p, PLAN_SENDS);
	uint32_t rank;
	uint64_t staging = plan_staging(p, &rank);

	line(o, "tensors");
	dcp_buf_printf(&o->buf, "%s", out_count(n, p->sum.tensors));
	dcp_buf_printf(&o->buf, " of %s kind%s\n", out_count(n, p->sum.kinds),
		       dcp_s(p->sum.kinds));
	for (size_t i = 0; i < p->opts->ignore.n; i++) {
		line(o, "ignored");
		dcp_buf_printf(&o->buf, "%s key%s by ", out_count(n, p->ignored[i]),
			       dcp_s(p->ignored[i]));
		out_text(&o->buf, p->opts->ignore.v[i]);
		dcp_buf_str(&o->buf, p->ignored[i] ? "\n" : ": no path is called so\n");
	}
	line(o, "needed");
	dcp_buf_printf(&o->buf, "%s by all ranks together\n", out_size(a, needs.sum));
	if (p->from) {
		line(o, "held");
		dcp_buf_str(&o->buf, "by the ranks of ");
		out_text(&o->buf, dcp_layout_name(p->from));
		dcp_buf_printf(&o->buf, ": nothing is read, %s are sent\n",
			       out_size(a, sends.sum));
		return;
	}
	line(o, "stored");
	dcp_buf_printf(&o->buf, "%s, in %s stretch%s of %zu file%s", out_size(a, p->sum.unique),
		       out_count(n, p->sum.extents), p->sum.extents == 1 ? "" : "es", p->nread,
		       dcp_s(p->nread));
	dcp_buf_str(&o->buf, "\n");
	line(o, "alone");
	dcp_buf_printf(
		&o->buf, "every rank for itself: %s read, %.2f times the elements stored%s\n",
		out_size(a, needs.sum), plan_alone(p),
		plan_alone(p) < NOTHING_GAINED && p->ranks > 1 ? ": nothing is gained together"
							       : "");
	line(o, ways[p->opts->exchange]);
	dcp_buf_printf(&o->buf, "%s read, %.2f times them; then %s are %s",
		       out_size(a, plan_range(p, PLAN_READS).sum), plan_together(p),
		       out_size(b, plan_range(p, PLAN_RECEIVES).sum),
		       sends.sum ? "sent" : "taken from other ranks");
	if (p->sum.stripe)
		dcp_buf_printf(&o->buf, ", by stripes of %s", out_count(n, p->sum.stripe));
	dcp_buf_str(&o->buf, "\n");
	line(o, "staging");
	dcp_buf_printf(&o->buf, "%s at most, on rank %" PRIu32 ": read for others\n",
		       out_size(a, staging), rank);
}

static void ranges(const struct plan *p, struct out *o)
{
	static const struct out_col cols[] = { { "BYTES A RANK" },
					       { "LEAST", .right = true },
					       { "MEAN", .right = true },
					       { "MOST", .right = true },
					       { "RANK", .right = true } };
	struct out_table t;
	char s[OUT_SIZE];

	out_table_init(&t, cols, DCP_LEN(cols));
	for (int n = 0; n < PLAN_NUMBERS; n++) {
		struct plan_range r = plan_range(p, (enum plan_number)n);

		if (p->from && n == PLAN_READS)
			continue;
		out_table_cell(&t, plan_number_name[n]);
		out_table_cell(&t, out_size(s, r.least));
		out_table_cell(&t, out_size(s, r.sum / p->ranks));
		out_table_cell(&t, out_size(s, r.most));
		out_table_printf(&t, "%" PRIu32, r.most_rank);
	}
	out_table_print(&t, o, 0);
	out_table_finish(&t);
}

static void limited(struct out_table *t, const struct plan_time *time)
{
	static const char *const words[][2] = { { "disk", "disk of node" },
						{ "network in", "network into node" },
						{ "network out", "network out of node" } };

	for (size_t i = 0; i < DCP_LEN(words); i++)
		if (strcmp(time->limit, words[i][0]) == 0) {
			out_table_printf(t, "%s %" PRIu32, words[i][1], time->node);
			return;
		}
	out_table_cell(t, "all storage");
}

static void simulated(const struct plan *p, struct out *o)
{
	static const struct out_col cols[] = { { "WAY" },
					       { "READING", .right = true },
					       { "EXCHANGE", .right = true },
					       { "BOTH AT ONCE", .right = true },
					       { "ONE BY ONE", .right = true },
					       { "LIMITED BY" } };
	struct plan_time times[PLAN_WAYS];
	uint32_t n = plan_sim_times(&p->sim, p->rank, p->ranks, p->group, p->groups,
				    p->from != NULL, times);
	char a[OUT_SIZE], b[OUT_SIZE], s[32];
	struct out_table t;

	dcp_buf_printf(&o->buf,
		       "\nOn %" PRIu64 " node%s of %" PRIu64
		       " GPU%s, %s/s from each disk, %s/s of network each way:\n",
		       p->sim.nodes, dcp_s(p->sim.nodes), p->sim.gpus, dcp_s(p->sim.gpus),
		       out_size(a, (uint64_t)p->sim.disk), out_size(b, (uint64_t)p->sim.net));
	out_table_init(&t, cols, DCP_LEN(cols));
	for (uint32_t i = 0; i < n; i++) {
		bool sent = times[i].send > 0;

		out_table_cell(&t, times[i].way);
		out_table_cell(&t, p->from ? "" : seconds(s, times[i].read));
		out_table_cell(&t, sent ? seconds(s, times[i].send) : "");
		out_table_cell(&t, seconds(s, times[i].total));
		out_table_cell(&t, sent ? seconds(s, times[i].read + times[i].send) : "");
		limited(&t, &times[i]);
	}
	out_table_print(&t, o, 0);
	out_table_finish(&t);
}

/* The cells from READS to FILES. */
static void rank_part(const struct plan *p, uint32_t rank, struct out_table *t)
{
	const struct plan_part *part = &p->part[rank];
	char s[OUT_SIZE], n[32];

	out_table_cell(t, out_size(s, p->rank[rank].reads));
	for (int end = 0; end < 2; end++) {
		if (part->stretches)
			out_table_printf(t, "%s %s", p->files[part->file[end]].name,
					 out_count(n, part->off[end]));
		else
			out_table_cell(t, "");
	}
	out_table_cell(t, part->stretches ? out_count(n, part->nfiles) : "");
}

static void ranks(const struct plan *p, struct out *o)
{
	static const struct out_col cols[] = {
		{ "RANK", .right = true },     { "NEEDS", .right = true },
		{ "READS", .right = true },    { "FROM", .least = 16 },
		{ "TO", .least = 16 },         { "FILES", .right = true },
		{ "KEEPS", .right = true },    { "SENDS", .right = true },
		{ "RECEIVES", .right = true },
	};
	static const struct out_col held[] = { { "RANK", .right = true },
					       { "NEEDS", .right = true },
					       { "KEEPS", .right = true },
					       { "SENDS", .right = true },
					       { "RECEIVES", .right = true } };
	uint32_t shown = o->width ? DCP_MIN(p->ranks, (uint32_t)TERMINAL_RANKS) : p->ranks;
	struct out_table t;
	char s[OUT_SIZE];

	out_table_init(&t, p->from ? held : cols, p->from ? DCP_LEN(held) : DCP_LEN(cols));
	for (uint32_t r = 0; r < shown; r++) {
		const struct dcp_job_flow *f = &p->rank[r];

		out_table_printf(&t, "%" PRIu32, r);
		out_table_cell(&t, out_size(s, f->needs));
		if (!p->from)
			rank_part(p, r, &t);
		out_table_cell(&t, out_size(s, f->keeps));
		out_table_cell(&t, out_size(s, f->sends));
		out_table_cell(&t, out_size(s, f->receives));
	}
	dcp_buf_str(&o->buf, "\n");
	out_table_print(&t, o, 0);
	out_table_finish(&t);
	if (shown < p->ranks)
		dcp_buf_printf(&o->buf,
			       "%" PRIu32
			       " more ranks: a pipe is given all of them, --rank shows one\n",
			       p->ranks - shown);
}

static void lost(const struct plan *p, struct out *o)
{
	const struct plan_lost *v = DCP_ITEMS(p->lost, struct plan_lost);
	size_t n = p->lost.n / sizeof(*v);
	size_t shown = o->width ? DCP_MIN(n, (size_t)TERMINAL_LOST) : n;

	if (!n)
		return;
	dcp_buf_printf(&o->buf, "\n%zu tensor%s cannot be read and %s left out:\n", n, dcp_s(n),
		       n == 1 ? "is" : "are");
	for (size_t i = 0; i < shown; i++) {
		dcp_buf_str(&o->buf, "  ");
		out_text(&o->buf, v[i].key);
		dcp_buf_str(&o->buf, ": ");
		out_text(&o->buf, v[i].why);
		dcp_buf_str(&o->buf, "\n");
	}
	if (shown < n)
		dcp_buf_printf(&o->buf, "  and %zu more\n", n - shown);
}

enum cmd_exit plan_tsv(const struct plan *p, struct out *o)
{
	out_tsv_head(o, "rank needs reads keeps sends receives first_file first_offset "
			"last_file end_offset");
	for (uint32_t r = 0; r < p->ranks; r++) {
		const struct plan_part *part = &p->part[r];
		bool any = part->stretches != 0;

		out_tsv_u64(o, r);
		for (int n = 0; n < PLAN_NUMBERS; n++)
			out_tsv_u64(o, plan_number(&p->rank[r], (enum plan_number)n));
		for (int i = 0; i < 2; i++) {
			out_tsv(o, any ? p->files[part->file[i]].name : "");
			out_tsv_u64(o, any ? part->off[i] : 0);
		}
		out_tsv_end(o);
	}
	return out_flush(o);
}

void plan_write(const struct plan *p, struct out *o)
{
	out_text(&o->buf, p->pick.ck.name);
	dcp_buf_printf(&o->buf, " on the %" PRIu32 " rank%s of ", p->ranks, dcp_s(p->ranks));
	out_text(&o->buf, dcp_layout_name(p->to));
	dcp_buf_str(&o->buf, "\n\n");
	sums(p, o);
	dcp_buf_str(&o->buf, "\n");
	ranges(p, o);
	if (p->sim.on)
		simulated(p, o);
	ranks(p, o);
	lost(p, o);
}

/* ---- one rank ---- */

struct files {
	const struct plan *p;
	struct out_table t;
	uint32_t file;
	uint64_t first, end, bytes, stretches;
};

static void put_file(struct files *f)
{
	char n[32];

	if (!f->stretches)
		return;
	out_table_cell(&f->t, f->p->files[f->file].name);
	out_table_cell(&f->t, out_count(n, f->first));
	out_table_cell(&f->t, out_count(n, f->end));
	out_table_cell(&f->t, out_count(n, f->bytes));
	out_table_cell(&f->t, out_count(n, f->stretches));
	f->stretches = f->bytes = 0;
}

static int add_stretch(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct files *f = ctx;

	if (f->stretches && f->file != file)
		put_file(f);
	if (!f->stretches++)
		f->first = off;
	f->file = file;
	f->end = off + n;
	f->bytes += n;
	return 0;
}

static void rank_reads(const struct plan *p, uint32_t rank, struct out *o)
{
	static const struct out_col cols[] = { { "READS", .flex = true },
					       { "FROM", .right = true },
					       { "TO", .right = true },
					       { "BYTES", .right = true },
					       { "STRETCHES", .right = true } };
	struct files f = { .p = p };

	if (!p->part[rank].stretches)
		return;
	out_table_init(&f.t, cols, DCP_LEN(cols));
	dcp_job_reads(p->job, rank, add_stretch, &f);
	put_file(&f);
	dcp_buf_str(&o->buf, "\n");
	out_table_print(&f.t, o, 0);
	out_table_finish(&f.t);
}

static void rank_peers(uint32_t rank, const uint64_t *to, const uint64_t *from, uint32_t n,
		       struct out *o)
{
	static const struct out_col cols[] = { { "RANK", .right = true },
					       { "SENDS TO IT", .right = true },
					       { "RECEIVES FROM IT", .right = true } };
	struct out_table t;
	char s[32];

	out_table_init(&t, cols, DCP_LEN(cols));
	for (uint32_t r = 0; r < n; r++) {
		if (r == rank || (!to[r] && !from[r]))
			continue;
		out_table_printf(&t, "%" PRIu32, r);
		out_table_cell(&t, to[r] ? out_count(s, to[r]) : "");
		out_table_cell(&t, from[r] ? out_count(s, from[r]) : "");
	}
	dcp_buf_str(&o->buf, "\n");
	out_table_print(&t, o, 0);
	out_table_finish(&t);
}

enum cmd_exit plan_rank_text(struct plan *p, uint32_t rank, struct out *o)
{
	const struct dcp_job_flow *f = &p->rank[rank];
	dcp_auto_free uint64_t *to = calloc(p->ranks, sizeof(*to));
	dcp_auto_free uint64_t *from = calloc(p->ranks, sizeof(*from));
	uint32_t at[DCP_LAYOUT_MAX_DIMS];
	const struct dcp_mesh *mesh = dcp_layout_mesh(p->to);
	struct dcp_err err = { .msg = "out of memory" };
	char size[64];

	if (!to || !from || dcp_job_sends(p->job, rank, 1, to, &err) < 0 ||
	    dcp_job_receives(p->job, rank, from, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	dcp_buf_printf(&o->buf, "rank %" PRIu32 " of %" PRIu32 " (", rank, p->ranks);
	if (rank < dcp_layout_ranks(p->to))
		dcp_layout_coords(p->to, rank, at);
	for (uint32_t d = 0; rank < dcp_layout_ranks(p->to) && d < mesh->ndim; d++)
		dcp_buf_printf(&o->buf, "%s%s=%" PRIu32, d ? " " : "", mesh->dim[d], at[d]);
	dcp_buf_str(&o->buf, rank < dcp_layout_ranks(p->to) ? ") of " : "none) of ");
	out_text(&o->buf, dcp_layout_name(p->to));
	dcp_buf_str(&o->buf, ", ");
	out_text(&o->buf, p->pick.ck.name);
	dcp_buf_str(&o->buf, "\n\n");
	for (int n = 0; n < PLAN_NUMBERS; n++) {
		line(o, plan_number_name[n]);
		dcp_buf_printf(&o->buf, "%s\n",
			       out_size_exact(size, plan_number(f, (enum plan_number)n)));
	}
	rank_reads(p, rank, o);
	if (f->sends || f->receives)
		rank_peers(rank, to, from, p->ranks, o);
	return out_flush(o);
}
