/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/trust.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "tools/export/export.h"
#include "tools/svg.h"

/* A version and its tensors. */
struct at {
	struct pick p;
	struct walk_keys keys;
	bool open;
};

struct row {
	const char *version;
	struct dcp_stats s;
	struct dcp_difference d;
	bool compared;
};

struct following {
	const struct pick_opts *opts;
	const struct opt_texts *keys;
	unsigned jobs;
	uint64_t rate;
	const char *source;
	struct at at
		[2]; /* which of the two is newer alternates, as open versions are not moved */
	unsigned new;
	struct dcp_buf rows;
	struct dcp_arena arena;
	enum cmd_exit code;
	struct out out;
};

static void close_at(struct at *a)
{
	if (a->open) {
		walk_keys_finish(&a->keys);
		pick_finish(&a->p);
	}
	*a = (struct at){ .open = false };
}

/* Measure how far the second version is from the first. */
static int compare_versions(struct following *w, struct row *r)
{
	struct at *old = &w->at[!w->new], *new = &w->at[w->new];
	struct comparing c = { .p = { &old->p, &new->p },
			       .keys = { &old->keys, &new->keys },
			       .jobs = w->jobs,
			       .rate = w->rate };
	int rc = compare_run(&c);

	dcp_difference_init(&r->d);
	for (size_t i = 0; i < c.n && rc == 0; i++)
		if (c.pairs[i].a && c.pairs[i].b)
			dcp_difference_join(&r->d, &c.pairs[i].d);
	r->compared = rc == 0;
	w->code = w->code == CMD_OK ? c.code : w->code;
	free(c.pairs);
	return rc;
}

static int take_version(struct following *w)
{
	struct at *at = &w->at[w->new];
	struct measuring m = {
		.p = &at->p, .keys = &at->keys, .jobs = w->jobs, .rate = w->rate
	};
	struct row r = { .version = dcp_arena_strdup(&w->arena, at->p.ck.name) };
	int rc = r.version ? measure_run(&m) : -ENOMEM;

	dcp_stats_init(&r.s);
	for (size_t i = 0; i < WALK_NKEYS(&at->keys) && rc == 0; i++)
		if (m.m[i].head.done)
			dcp_stats_join(&r.s, &m.m[i].s);
	w->code = w->code == CMD_OK ? m.code : w->code;
	measure_finish(&m);
	if (rc == 0 && w->at[!w->new].open)
		rc = compare_versions(w, &r);
	dcp_buf_add(&w->rows, &r, sizeof(r));
	return rc < 0 ? rc : dcp_buf_error(&w->rows);
}

/* Add a version. If it cannot be measured, it is left out with a message, and the exit code
 * tells. */
static enum cmd_exit follow_version(struct following *w, const char *version)
{
	struct at *at = &w->at[w->new];
	enum cmd_exit code;
	int rc;

	at->open = true;
	code = walk_pick(&at->p, w->source, version, w->opts, "stats");
	if (code == CMD_OK)
		code = walk_keys(&at->p, w->keys, &at->keys);
	if (code != CMD_OK) {
		close_at(at);
		w->code = w->code == CMD_OK ? code : w->code;
		return CMD_OK;
	}
	rc = take_version(w);
	w->new = !w->new;
	close_at(&w->at[w->new]);
	return rc < 0 ? cmd_fail(CMD_ENV, "stats: %s", strerror(-rc)) : CMD_OK;
}

/* Eight heights, scaled between the least and the greatest number. */
static void put_sparkline(struct out *o, const char *name, const double *v, size_t n)
{
	static const char *const bars[] = { "\u2581", "\u2582", "\u2583", "\u2584",
					    "\u2585", "\u2586", "\u2587", "\u2588" };
	double low = INFINITY, high = -INFINITY;

	for (size_t i = 0; i < n; i++)
		if (isfinite(v[i])) {
			low = DCP_MIN(low, v[i]);
			high = DCP_MAX(high, v[i]);
		}
	if (!(low <= high))
		return;
	dcp_buf_printf(&o->buf, "%-7s", name);
	for (size_t i = 0; i < n; i++) {
		unsigned at = isfinite(v[i]) && high > low
				      ? (unsigned)((v[i] - low) / (high - low) * 7.99)
				      : 0;

		if (!isfinite(v[i]))
			dcp_buf_str(&o->buf, " ");
		else if (o->utf8)
			dcp_buf_str(&o->buf, bars[at]);
		else
			dcp_buf_printf(&o->buf, "%u", at);
	}
	dcp_buf_printf(&o->buf, "  %.4g to %.4g\n", low, high);
}

/* ---- the drawing ---- */

enum { WIDE = 800, HIGH = 180, LEFT = 90, GAP = 50, LABELS = 16 };

/* Draw a number of all versions as a line from left to right, broken where a version lacks it. */
static void draw_line(struct dcp_buf *b, double top, const char *name, const double *v,
		      size_t n, const struct row *r)
{
	double low = INFINITY, high = -INFINITY;
	bool begun = false;

	for (size_t i = 0; i < n; i++)
		if (isfinite(v[i])) {
			low = DCP_MIN(low, v[i]);
			high = DCP_MAX(high, v[i]);
		}
	svg_text(b, LEFT, top - 8, SVG_LEFT, 13, "%s", name);
	svg_box(b, LEFT, top, WIDE, HIGH, "#f6f6f6", "#bbbbbb", 0.5);
	svg_close(b);
	if (!(low <= high))
		return;
	svg_text(b, LEFT - 6, top + 10, SVG_RIGHT, 11, "%.4g", high);
	svg_text(b, LEFT - 6, top + HIGH, SVG_RIGHT, 11, "%.4g", low);
	dcp_buf_str(b, "<path fill='none' stroke='#1668c1' stroke-width='1.5' d='");
	for (size_t i = 0; i < n; i++) {
		double x = LEFT + (n > 1 ? WIDE * (double)i / (double)(n - 1) : WIDE / 2.0);
		double part = high > low ? (v[i] - low) / (high - low) : 0.5;

		if (isfinite(v[i]))
			dcp_buf_printf(b, "%s%.2f %.2f", begun ? "L" : "M", x,
				       top + HIGH * (1 - part));
		begun = isfinite(v[i]);
	}
	dcp_buf_str(b, "'/>\n");
	for (size_t i = 0; i < n; i++) {
		double x = LEFT + (n > 1 ? WIDE * (double)i / (double)(n - 1) : WIDE / 2.0);
		double part = high > low ? (v[i] - low) / (high - low) : 0.5;

		if (!isfinite(v[i]))
			continue;
		svg_box(b, x - 2.5, top + HIGH * (1 - part) - 2.5, 5, 5, "#1668c1", "none", 0);
		svg_title(b, "%.200s: %.6g", r[i].version, v[i]);
		svg_close(b);
	}
}

static enum cmd_exit draw_norms(struct following *w, const char *file)
{
	const struct row *r = DCP_ITEMS(w->rows, struct row);
	size_t n = DCP_NITEMS(w->rows, struct row), each = n / LABELS + 1;
	double *line = calloc(2 * n, sizeof(*line));
	struct dcp_buf *b = &w->out.buf;

	if (!line)
		return cmd_fail(CMD_ENV, "stats: %s", strerror(ENOMEM));
	for (size_t i = 0; i < n; i++) {
		line[i] = r[i].s.finite ? dcp_stats_norm(&r[i].s) : NAN;
		line[n + i] = r[i].compared ? sqrt(r[i].d.dd) : NAN;
	}
	svg_begin(b, LEFT + WIDE + 60, 2 * (HIGH + GAP) + 40, "norms over versions");
	draw_line(b, GAP, "norm", line, n, r);
	draw_line(b, 2 * GAP + HIGH, "norm of the update since the version before", line + n, n,
		  r);
	for (size_t i = 0; i < n; i += each)
		svg_text(b, LEFT + (n > 1 ? WIDE * (double)i / (double)(n - 1) : WIDE / 2.0),
			 2 * (GAP + HIGH) + 16, SVG_MIDDLE, 10, "%.12s%s", r[i].version,
			 strlen(r[i].version) > 12 ? ".." : "");
	svg_end(b);
	free(line);
	return export_put_file(&w->out, "stats", file, SVG_HEAD, &w->at[!w->new].p, NULL);
}

/* ---- the table ---- */

/* clang-format off */
static const struct out_field fields[] = {
	{ "version", "VERSION", OUT_NAME }, { "n" }, { "min", "MIN", OUT_NUMBER },
	{ "max", "MAX", OUT_NUMBER }, { "mean", "MEAN", OUT_NUMBER },
	{ "std", "STD", OUT_NUMBER }, { "norm", "NORM", OUT_NUMBER }, { "nan" }, { "inf" },
	{ NULL, "NAN", OUT_SOME }, { "update", "UPDATE", OUT_NUMBER }, { "relative" },
	{ "changed" }, { NULL, "CHANGED", OUT_PART }, { NULL }
};
/* clang-format on */

static void put_version(struct out *o, const struct row *r)
{
	const struct dcp_stats *s = &r->s;
	double changed = r->compared && r->d.n ? (double)r->d.changed / (double)r->d.n : NAN;
	char text[32];

	out_row(o);
	out_put_str(o, "version", r->version);
	out_put_u64(o, "n", s->n);
	out_put_f64(o, "min", s->finite ? s->min : NAN);
	out_put_f64(o, "max", s->finite ? s->max : NAN);
	out_put_f64(o, "mean", s->finite ? s->mean : NAN);
	out_put_f64(o, "std", s->finite ? dcp_stats_std(s) : NAN);
	out_put_f64(o, "norm", s->finite ? dcp_stats_norm(s) : NAN);
	out_put_u64(o, "nan", s->nans);
	out_put_u64(o, "inf", s->infs);
	out_put_u64(o, "NAN", s->nans + s->infs);
	out_put_f64(o, "update", r->compared ? sqrt(r->d.dd) : NAN);
	out_put_f64(o, "relative", r->compared ? dcp_difference_relative(&r->d) : NAN);
	out_put_f64(o, "changed", changed);
	snprintf(text, sizeof(text), "%.4g%%", 100 * changed);
	out_put_str(o, "CHANGED", r->compared ? text : "");
	out_row_end(o);
}

static enum cmd_exit print_versions(struct following *w)
{
	const struct row *r = DCP_ITEMS(w->rows, struct row);
	size_t n = DCP_NITEMS(w->rows, struct row);
	double *line = calloc(2 * n + 1, sizeof(*line));
	struct out *o = &w->out;

	if (!line)
		return cmd_fail(CMD_ENV, "stats: %s", strerror(ENOMEM));
	out_list(o, NULL, fields);
	for (size_t i = 0; i < n; i++) {
		line[i] = r[i].s.finite ? dcp_stats_norm(&r[i].s) : NAN;
		line[n + i] = r[i].compared ? sqrt(r[i].d.dd) : NAN;
		put_version(o, &r[i]);
	}
	out_list_end(o, true);
	if (o->form == OUT_TEXT) {
		put_sparkline(o, "norm", line, n);
		put_sparkline(o, "update", line + n, n);
	}
	free(line);
	return out_flush(o);
}

enum cmd_exit overtime(const char *source, const struct pick_opts *opts,
		       const struct opt_texts *keys, unsigned jobs, uint64_t rate,
		       enum out_form form, const char *file)
{
	struct following w = { .opts = opts,
			       .keys = keys,
			       .jobs = jobs,
			       .rate = rate,
			       .source = source,
			       .arena = DCP_ARENA_INIT((size_t)1 << 30) };
	struct pick all = { 0 };
	enum cmd_exit code;

	out_init(&w.out, form);
	walk_prepare();
	code = form == OUT_SVG ? pick_check_drawing("stats", file) : CMD_OK;
	if (code == CMD_OK)
		code = pick_source(&all, source, opts, false);
	for (size_t i = 0; code == CMD_OK && i < all.ck.scan.n; i++)
		if (all.ck.scan.found[i].complete)
			code = follow_version(&w, all.ck.scan.found[i].name);
	if (code == CMD_OK && w.code == CMD_OK && !w.rows.n)
		code = cmd_fail(CMD_NO, "stats: %s has no complete version", source);
	if (code == CMD_OK && w.rows.n && form == OUT_SVG)
		code = draw_norms(&w, file);
	else if (code == CMD_OK && w.rows.n)
		code = print_versions(&w);
	if (code == CMD_OK)
		code = w.code;
	close_at(&w.at[!w.new]);
	dcp_buf_finish(&w.rows);
	dcp_arena_finish(&w.arena);
	out_finish(&w.out);
	pick_finish(&all);
	return code;
}
