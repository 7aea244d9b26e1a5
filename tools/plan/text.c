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
#include "tools/svg.h"

enum { TERMINAL_RANKS = 40, TERMINAL_LOST = 5 };

/* Below this many reads of a byte an exchange gains nothing. */
#define NOTHING_GAINED 1.05

/* "1.5 s", "12 ms" */
static const char *seconds_text(char buf[32], double s)
{
	if (s >= 0.9995)
		snprintf(buf, 32, s < 99.95 ? "%.2f s" : "%.0f s", s);
	else if (s >= 0.0009995)
		snprintf(buf, 32, "%.3g ms", s * 1e3);
	else
		snprintf(buf, 32, "%.3g us", s * 1e6);
	return buf;
}

static void put_label(struct out *o, const char *name)
{
	dcp_buf_printf(&o->buf, "%-12s", name);
}

static void put_sums(const struct plan *p, struct out *o)
{
	static const char *const ways[] = { "all", "node", "never" };
	char a[OUT_SIZE], b[OUT_SIZE], n[32];
	struct plan_range needs = plan_range(p, PLAN_NEEDS), sends = plan_range(p, PLAN_SENDS);
	uint32_t rank;
	uint64_t staging = plan_staging(p, &rank);

	put_label(o, "tensors");
	dcp_buf_printf(&o->buf, "%s", out_count(n, p->sum.tensors));
	dcp_buf_printf(&o->buf, " of %s kind%s\n", out_count(n, p->sum.kinds),
		       dcp_s(p->sum.kinds));
	for (size_t i = 0; i < p->opts->ignore.n; i++) {
		put_label(o, "ignored");
		dcp_buf_printf(&o->buf, "%s key%s by ", out_count(n, p->ignored[i]),
			       dcp_s(p->ignored[i]));
		out_text(&o->buf, p->opts->ignore.v[i]);
		dcp_buf_str(&o->buf, p->ignored[i] ? "\n" : ": no path is called so\n");
	}
	put_label(o, "needed");
	dcp_buf_printf(&o->buf, "%s by all ranks together\n", out_size(a, needs.sum));
	if (p->from) {
		put_label(o, "held");
		dcp_buf_str(&o->buf, "by the ranks of ");
		out_text(&o->buf, dcp_layout_name(p->from));
		dcp_buf_printf(&o->buf, ": nothing is read, %s are sent\n",
			       out_size(a, sends.sum));
		return;
	}
	put_label(o, "stored");
	dcp_buf_printf(&o->buf, "%s, in %s stretch%s of %zu file%s", out_size(a, p->sum.unique),
		       out_count(n, p->sum.extents), p->sum.extents == 1 ? "" : "es", p->nread,
		       dcp_s(p->nread));
	dcp_buf_str(&o->buf, "\n");
	put_label(o, "alone");
	dcp_buf_printf(
		&o->buf, "every rank for itself: %s read, %.2f times the elements stored%s\n",
		out_size(a, needs.sum), plan_alone(p),
		plan_alone(p) < NOTHING_GAINED && p->ranks > 1 ? ": nothing is gained together"
							       : "");
	put_label(o, ways[p->opts->exchange]);
	dcp_buf_printf(&o->buf, "%s read, %.2f times them; then %s are %s",
		       out_size(a, plan_range(p, PLAN_READS).sum), plan_together(p),
		       out_size(b, plan_range(p, PLAN_RECEIVES).sum),
		       sends.sum ? "sent" : "taken from other ranks");
	if (p->sum.stripe)
		dcp_buf_printf(&o->buf, ", by stripes of %s", out_count(n, p->sum.stripe));
	dcp_buf_str(&o->buf, "\n");
	put_label(o, "staging");
	dcp_buf_printf(&o->buf, "%s at most, on rank %" PRIu32 ": read for others\n",
		       out_size(a, staging), rank);
}

static void put_ranges(const struct plan *p, struct out *o)
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

static void name_limit(struct out_table *t, const struct plan_time *time)
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

static void put_times(const struct plan *p, struct out *o)
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
		out_table_cell(&t, p->from ? "" : seconds_text(s, times[i].read));
		out_table_cell(&t, sent ? seconds_text(s, times[i].send) : "");
		out_table_cell(&t, seconds_text(s, times[i].total));
		out_table_cell(&t, sent ? seconds_text(s, times[i].read + times[i].send) : "");
		name_limit(&t, &times[i]);
	}
	out_table_print(&t, o, 0);
	out_table_finish(&t);
}

/* clang-format off */
static const struct out_field rank_fields[] = {
	{ "rank", "RANK", OUT_NUMBER }, { "needs", "NEEDS", OUT_BYTES },
	{ "reads", "READS", OUT_BYTES, OUT_LONG }, { NULL, "FROM", OUT_WORD, OUT_LONG, 16 },
	{ NULL, "TO", OUT_WORD, OUT_LONG, 16 }, { NULL, "FILES", OUT_COUNT, OUT_LONG },
	{ "keeps", "KEEPS", OUT_BYTES }, { "sends", "SENDS", OUT_BYTES },
	{ "receives", "RECEIVES", OUT_BYTES },
	{ "first_file" }, { "first_offset" }, { "last_file" }, { "end_offset" }, { NULL }
};
/* clang-format on */

static void put_rank(const struct plan *p, uint32_t rank, struct out *o)
{
	static const char *const names[2][3] = { { "FROM", "first_file", "first_offset" },
						 { "TO", "last_file", "end_offset" } };
	const struct dcp_job_flow *f = &p->rank[rank];
	const struct plan_part *part = &p->part[rank];
	bool any = part->stretches != 0;
	char text[512], n[32];

	out_row(o);
	out_put_u64(o, "rank", rank);
	out_put_u64(o, "needs", f->needs);
	out_put_u64(o, "reads", f->reads);
	for (int end = 0; any && end < 2; end++) {
		snprintf(text, sizeof(text), "%s %s", p->files[part->file[end]].name,
			 out_count(n, part->off[end]));
		out_put_str(o, names[end][0], text);
	}
	if (any)
		out_put_u64(o, "FILES", part->nfiles);
	out_put_u64(o, "keeps", f->keeps);
	out_put_u64(o, "sends", f->sends);
	out_put_u64(o, "receives", f->receives);
	for (int end = 0; end < 2; end++) {
		out_put_str(o, names[end][1], any ? p->files[part->file[end]].name : "");
		out_put_u64(o, names[end][2], any ? part->off[end] : 0);
	}
	out_row_end(o);
}

static void put_ranks_table(const struct plan *p, struct out *o)
{
	bool all = o->form != OUT_TEXT || !o->width;
	uint32_t shown = all ? p->ranks : DCP_MIN(p->ranks, (uint32_t)TERMINAL_RANKS);

	o->lengthy = !p->from;
	out_list(o, NULL, rank_fields);
	for (uint32_t r = 0; r < shown; r++)
		put_rank(p, r, o);
	out_list_end(o, true);
	if (shown < p->ranks)
		dcp_buf_printf(&o->buf,
			       "%" PRIu32
			       " more ranks: a pipe is given all of them, --rank shows one\n",
			       p->ranks - shown);
}

static void put_lost_lines(const struct plan *p, struct out *o)
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
	put_ranks_table(p, o);
	return out_flush(o);
}

void plan_write(const struct plan *p, struct out *o)
{
	out_text(&o->buf, p->pick.ck.name);
	dcp_buf_printf(&o->buf, " on the %" PRIu32 " rank%s of ", p->ranks, dcp_s(p->ranks));
	out_text(&o->buf, dcp_layout_name(p->to));
	dcp_buf_str(&o->buf, "\n\n");
	put_sums(p, o);
	dcp_buf_str(&o->buf, "\n");
	put_ranges(p, o);
	if (p->sim.on)
		put_times(p, o);
	if (o->form != OUT_HTML) { /* HTML has a table with search instead */
		dcp_buf_str(&o->buf, "\n");
		put_ranks_table(p, o);
	}
	put_lost_lines(p, o);
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

static void print_rank_reads(const struct plan *p, uint32_t rank, struct out *o)
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

static void print_rank_peers(uint32_t rank, const uint64_t *to, const uint64_t *from,
			     uint32_t n, struct out *o)
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

/* "fsdp=3", or "none" for a rank that only reads. */
static void put_place(const struct plan *p, uint32_t rank, struct dcp_buf *out)
{
	const struct dcp_mesh *mesh = dcp_layout_mesh(p->to);
	bool has = rank < dcp_layout_ranks(p->to);
	uint32_t at[DCP_LAYOUT_MAX_DIMS];

	if (has)
		dcp_layout_coords(p->to, rank, at);
	for (uint32_t d = 0; has && d < mesh->ndim; d++)
		dcp_buf_printf(out, "%s%s=%" PRIu32, d ? " " : "", mesh->dim[d], at[d]);
	dcp_buf_str(out, has ? "" : "none");
}

enum cmd_exit plan_rank_text(struct plan *p, uint32_t rank, struct out *o)
{
	const struct dcp_job_flow *f = &p->rank[rank];
	dcp_auto_free uint64_t *to = calloc(p->ranks, sizeof(*to));
	dcp_auto_free uint64_t *from = calloc(p->ranks, sizeof(*from));
	struct dcp_err err = { .msg = "out of memory" };
	char size[64];

	if (!to || !from || dcp_job_sends(p->job, rank, 1, to, &err) < 0 ||
	    dcp_job_receives(p->job, rank, from, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	dcp_buf_printf(&o->buf, "rank %" PRIu32 " of %" PRIu32 " (", rank, p->ranks);
	put_place(p, rank, &o->buf);
	dcp_buf_str(&o->buf, ") of ");
	out_text(&o->buf, dcp_layout_name(p->to));
	dcp_buf_str(&o->buf, ", ");
	out_text(&o->buf, p->pick.ck.name);
	dcp_buf_str(&o->buf, "\n\n");
	for (int n = 0; n < PLAN_NUMBERS; n++) {
		put_label(o, plan_number_name[n]);
		dcp_buf_printf(&o->buf, "%s\n",
			       out_size_exact(size, plan_number(f, (enum plan_number)n)));
	}
	print_rank_reads(p, rank, o);
	if (f->sends || f->receives)
		print_rank_peers(rank, to, from, p->ranks, o);
	return out_flush(o);
}

/* The plan for programs; dcpfs.1 has the form, under FOR PROGRAMS. */

enum { FORM = 1 };

static void put_layout(struct dcp_jsonw *w, const char *name, const struct dcp_layout *l)
{
	const struct dcp_mesh *mesh = l ? dcp_layout_mesh(l) : NULL;

	dcp_jsonw_key(w, name);
	if (!l) {
		dcp_jsonw_null(w);
		return;
	}
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", dcp_layout_name(l));
	dcp_jsonw_put_u64(w, "ranks", dcp_layout_ranks(l));
	dcp_jsonw_put_object(w, "mesh");
	for (uint32_t d = 0; d < mesh->ndim; d++)
		dcp_jsonw_put_u64(w, mesh->dim[d], mesh->size[d]);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

static void put_head(const struct plan *p, struct dcp_jsonw *w)
{
	dcp_jsonw_put_u64(w, "dcpfs", FORM);
	dcp_jsonw_put_str(w, "version", p->pick.ck.name);
	dcp_jsonw_put_str(w, "format", p->pick.ck.found->format->name);
	put_layout(w, "layout", p->to);
	put_layout(w, "from", p->from);
}

static void put_lost(const struct plan *p, struct dcp_jsonw *w)
{
	const struct plan_lost *v = DCP_ITEMS(p->lost, struct plan_lost);

	dcp_jsonw_put_array(w, "left_out");
	for (size_t i = 0; i < p->lost.n / sizeof(*v); i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "key", v[i].key);
		dcp_jsonw_put_str(w, "error", v[i].why);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void put_ignored(const struct plan *p, struct dcp_jsonw *w)
{
	dcp_jsonw_put_object(w, "ignored");
	for (size_t i = 0; i < p->opts->ignore.n; i++)
		dcp_jsonw_put_u64(w, p->opts->ignore.v[i], p->ignored[i]);
	dcp_jsonw_end(w);
}

static void put_amplification(const struct plan *p, struct dcp_jsonw *w)
{
	uint32_t rank;

	dcp_jsonw_put_object(w, "amplification");
	dcp_jsonw_put_f64(w, "alone", plan_alone(p));
	dcp_jsonw_put_f64(w, "together", plan_together(p));
	dcp_jsonw_end(w);
	dcp_jsonw_put_u64(w, "needed", plan_range(p, PLAN_NEEDS).sum);
	dcp_jsonw_put_u64(w, "sent", plan_range(p, PLAN_SENDS).sum);
	dcp_jsonw_put_u64(w, "staging", plan_staging(p, &rank));
}

static void put_simulated(const struct plan *p, struct dcp_jsonw *w)
{
	struct plan_time times[PLAN_WAYS];
	uint32_t n;

	dcp_jsonw_key(w, "simulated");
	if (!p->sim.on) {
		dcp_jsonw_null(w);
		return;
	}
	n = plan_sim_times(&p->sim, p->rank, p->ranks, p->group, p->groups, p->from != NULL,
			   times);
	dcp_jsonw_object(w);
	dcp_jsonw_put_u64(w, "nodes", p->sim.nodes);
	dcp_jsonw_put_u64(w, "gpus", p->sim.gpus);
	dcp_jsonw_put_f64(w, "disk", p->sim.disk);
	dcp_jsonw_put_f64(w, "store", p->sim.store);
	dcp_jsonw_put_f64(w, "net", p->sim.net);
	dcp_jsonw_put_array(w, "ways");
	for (uint32_t i = 0; i < n; i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "way", times[i].way);
		dcp_jsonw_put_f64(w, "reading", times[i].read);
		dcp_jsonw_put_f64(w, "exchange", times[i].send);
		dcp_jsonw_put_f64(w, "both_at_once", times[i].total);
		dcp_jsonw_put_f64(w, "one_by_one", times[i].read + times[i].send);
		dcp_jsonw_put_str(w, "limit", times[i].limit);
		dcp_jsonw_put_u64(w, "node", times[i].node);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

enum cmd_exit plan_json(struct plan *p, struct out *o)
{
	struct dcp_jsonw *w = &o->json;
	struct dcp_err err = { .msg = "out of memory" };

	w->pretty = false; /* not indented: a table of a thousand ranks by a thousand is long */
	dcp_jsonw_object(w);
	put_head(p, w);
	put_amplification(p, w);
	put_simulated(p, w);
	if (dcp_job_json(p->job, w, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	put_lost(p, w);
	put_ignored(p, w);
	dcp_jsonw_end(w);
	return out_flush(o);
}

/* ---- one rank ---- */

static int put_stretch(void *ctx, uint32_t rank, uint32_t file, uint64_t off, uint64_t n)
{
	struct plan *p = ((void **)ctx)[0];
	struct dcp_jsonw *w = ((void **)ctx)[1];

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "file", p->files[file].name);
	dcp_jsonw_put_u64(w, "offset", off);
	dcp_jsonw_put_u64(w, "nbytes", n);
	dcp_jsonw_end(w);
	return 0;
}

static void put_peers(struct dcp_jsonw *w, const char *name, const uint64_t *bytes, uint32_t n,
		      uint32_t self)
{
	dcp_jsonw_put_array(w, name);
	for (uint32_t r = 0; r < n; r++) {
		if (r == self || !bytes[r])
			continue;
		dcp_jsonw_array(w);
		dcp_jsonw_u64(w, r);
		dcp_jsonw_u64(w, bytes[r]);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

enum cmd_exit plan_rank_json(struct plan *p, uint32_t rank, struct out *o)
{
	dcp_auto_free uint64_t *to = calloc(p->ranks, sizeof(*to));
	dcp_auto_free uint64_t *from = calloc(p->ranks, sizeof(*from));
	void *ctx[2] = { p, &o->json };
	struct dcp_jsonw *w = &o->json;
	struct dcp_err err = { .msg = "out of memory" };

	if (!to || !from || dcp_job_sends(p->job, rank, 1, to, &err) < 0 ||
	    dcp_job_receives(p->job, rank, from, &err) < 0)
		return cmd_fail(CMD_ENV, "%s", err.msg);
	dcp_jsonw_object(w);
	put_head(p, w);
	dcp_jsonw_put_u64(w, "rank", rank);
	for (int n = 0; n < PLAN_NUMBERS; n++)
		dcp_jsonw_put_u64(w, plan_number_name[n],
				  plan_number(&p->rank[rank], (enum plan_number)n));
	dcp_jsonw_put_array(w, "part");
	dcp_job_reads(p->job, rank, put_stretch, ctx);
	dcp_jsonw_end(w);
	put_peers(w, "sends_to", to, p->ranks, rank);
	put_peers(w, "receives_from", from, p->ranks, rank);
	put_lost(p, w);
	dcp_jsonw_end(w);
	return out_flush(o);
}

/* ---- one page: what plan_write() says, the ranks in a table, and the drawings ---- */

/* Draw into a buffer of its own, so that half a drawing is never shown. */
static enum cmd_exit put_drawing(struct plan *p, struct out *o, const char *head,
				 enum cmd_exit (*draw)(struct plan *p, struct dcp_buf *out))
{
	dcp_auto_buf struct dcp_buf svg = DCP_BUF_INIT;
	enum cmd_exit code = draw(p, &svg);

	if (code != CMD_OK)
		return code;
	dcp_buf_printf(&o->buf, "<h2>%s</h2>\n", head);
	dcp_buf_add(&o->buf, svg.p ? svg.p : "", svg.n);
	return CMD_OK;
}

static enum cmd_exit put_map(struct plan *p, struct dcp_buf *out)
{
	int64_t id;
	enum cmd_exit code = plan_tensor(p, &id);

	return code == CMD_OK ? plan_map(p, id, out) : code;
}

static void put_ranks(const struct plan *p, struct dcp_jsonw *w)
{
	static const char *const ends[] = { "from", "to" };

	dcp_jsonw_object(w);
	dcp_jsonw_put_array(w, "ranks");
	for (uint32_t r = 0; r < p->ranks; r++) {
		dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
		const struct plan_part *part = &p->part[r];

		dcp_jsonw_object(w);
		dcp_jsonw_put_u64(w, "rank", r);
		put_place(p, r, &text);
		dcp_buf_add(&text, "", 1);
		dcp_jsonw_put_str(w, "at", text.p ? text.p : "");
		for (int n = 0; n < PLAN_NUMBERS; n++)
			dcp_jsonw_put_u64(w, plan_number_name[n],
					  plan_number(&p->rank[r], (enum plan_number)n));
		for (int i = 0; part->stretches && i < 2; i++) {
			dcp_buf_reset(&text);
			dcp_buf_printf(&text, "%s %" PRIu64, p->files[part->file[i]].name,
				       part->off[i]);
			dcp_jsonw_put_str(w, ends[i], text.p ? text.p : "");
		}
		if (part->stretches)
			dcp_jsonw_put_u64(w, "files", part->nfiles);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

enum cmd_exit plan_html(struct plan *p, struct out *o)
{
	struct out text = *o, data;
	dcp_auto_buf struct dcp_buf heading = DCP_BUF_INIT;
	enum cmd_exit code = CMD_OK;

	text.buf = (struct dcp_buf)DCP_BUF_INIT;
	text.width = 0;
	out_init(&data, OUT_JSON);
	data.json.pretty = false;
	dcp_buf_printf(&heading, "%s for %s", p->pick.ck.name, dcp_layout_name(p->to));
	html_begin(&o->buf, PLAN_HTML, heading.p ? heading.p : "");
	dcp_buf_str(&o->buf, "<pre>");
	plan_write(p, &text);
	svg_escape_lines(&o->buf, text.buf.p ? text.buf.p : "");
	dcp_buf_finish(&text.buf);
	dcp_buf_str(&o->buf, "</pre>\n<h2>Ranks</h2>\n");
	html_table(&o->buf, "ranks", "words of a rank, place, file");
	if (p->sum.tensors)
		code = put_drawing(p, o, p->opts->key ? "One tensor" : "The largest tensor",
				   put_map);
	if (code == CMD_OK && !p->from)
		code = put_drawing(p, o, "Files", plan_draw_files);
	if (code == CMD_OK && p->ranks > 1 && p->ranks <= DCP_JOB_JSON_RANKS)
		code = put_drawing(p, o, "Exchange", plan_draw_exchange);
	put_ranks(p, &data.json);
	html_end(&o->buf, &data.buf, PAGE_PLAN);
	o->buf.failed |= dcp_jsonw_error(&data.json) < 0;
	out_finish(&data);
	return code;
}
