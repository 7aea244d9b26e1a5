/* SPDX-License-Identifier: Apache-2.0 */
/* dcpfs load --trace: times at which each rank read, waited, placed and copied, for
 * chrome://tracing and Perfetto, or as a drawing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "tools/export/export.h"
#include "tools/load/error.h"
#include "tools/load/load.h"
#include "tools/loading/loading.h"
#include "tools/out.h"
#include "tools/svg.h"

enum { MAX_DRAWN = 256 }; /* ranks */

/* The first bytes of both forms. */
#define CHROME "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["
#define TITLE "what each rank did when"
#define NAMES 70.0
#define WIDTH 900.0
#define LANE 7.0
#define TOP 40.0

/* The message of a rank: this header, then its events. */
struct span {
	uint64_t open_ns, plan_ns, execute_ns, n;
};

struct drawing {
	const struct loading *l;
	struct load_blobs all;
	uint64_t before, total; /* ns: until the execution begins, and until all have ended */
};

static const char *const kinds[] = { "read", "wait", "place", "copy", "exchange" };

static const struct span *span_of(const struct drawing *d, uint32_t rank)
{
	return d->all.at[rank];
}

static const struct dcpload_event *events_of(const struct drawing *d, uint32_t rank)
{
	return (const void *)(span_of(d, rank) + 1);
}

/* ---- Chrome's form ---- */

static void put_us(struct dcp_jsonw *w, const char *key, uint64_t ns)
{
	dcp_jsonw_put_f64(w, key, (double)ns / 1e3);
}

static void put_event(struct dcp_jsonw *w, const char *name, uint32_t rank, uint32_t thread,
		      uint64_t start, uint64_t end, uint64_t bytes)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", name);
	dcp_jsonw_put_str(w, "ph", "X");
	dcp_jsonw_put_u64(w, "pid", rank);
	dcp_jsonw_put_u64(w, "tid", thread);
	put_us(w, "ts", start);
	put_us(w, "dur", end - start);
	if (bytes) {
		dcp_jsonw_put_object(w, "args");
		dcp_jsonw_put_u64(w, "bytes", bytes);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void put_rank(const struct drawing *d, struct dcp_jsonw *w, uint32_t rank)
{
	const struct span *s = span_of(d, rank);
	const struct dcpload_event *e = events_of(d, rank);
	uint64_t opened = d->before - s->plan_ns;
	char name[24];

	snprintf(name, sizeof(name), "rank %u", rank);
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "name", "process_name");
	dcp_jsonw_put_str(w, "ph", "M");
	dcp_jsonw_put_u64(w, "pid", rank);
	dcp_jsonw_put_object(w, "args");
	dcp_jsonw_put_str(w, "name", name);
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
	put_event(w, "open", rank, 0, opened - s->open_ns, opened, 0);
	put_event(w, "plan", rank, 0, opened, d->before, 0);
	put_event(w, "load", rank, 0, d->before, d->before + s->execute_ns, 0);
	for (uint64_t i = 0; i < s->n; i++)
		put_event(w, kinds[e[i].kind], rank, e[i].thread, d->before + e[i].start_ns,
			  d->before + e[i].end_ns, e[i].bytes);
}

static void put_json(const struct drawing *d, struct dcp_buf *out)
{
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, out, false);
	dcp_jsonw_object(&w);
	dcp_jsonw_put_str(&w, "displayTimeUnit", "ms");
	dcp_jsonw_put_array(&w, "traceEvents");
	for (uint32_t r = 0; r < d->l->comm->ranks; r++)
		put_rank(d, &w, r);
	dcp_jsonw_end(&w);
	dcp_jsonw_end(&w);
	dcp_buf_str(out, "\n");
}

/* ---- drawn ---- */

/* Draw events of one kind in one lane; events too close to be seen apart share a box. */
static void draw_lane(const struct drawing *d, struct dcp_buf *out, uint32_t rank,
		      uint32_t kind, double y)
{
	static const char *const fill[] = { "#3b78b0", "#d9a441", "#5a9e5a", "#9a5fb4",
					    "#c0504d" };
	const struct dcpload_event *e = events_of(d, rank);
	double scale = WIDTH / (double)DCP_MAX(d->total, (uint64_t)1), from = -1, to = -1;
	uint64_t bytes = 0;
	char size[OUT_SIZE];

	for (uint64_t i = 0; i <= span_of(d, rank)->n; i++) {
		bool last = i == span_of(d, rank)->n;
		double lo = last ? 0 : (double)(d->before + e[i].start_ns) * scale;

		if (!last && e[i].kind != kind)
			continue;
		if (from >= 0 && (last || lo > to + 0.5 || lo < from)) {
			svg_box(out, NAMES + from, y, DCP_MAX(to - from, 0.4), LANE - 1,
				fill[kind], "none", 0);
			svg_title(out, "rank %u: %s, %s", rank, kinds[kind],
				  out_size(size, bytes));
			svg_close(out);
			from = -1;
		}
		if (last)
			break;
		if (from < 0) {
			from = to = lo;
			bytes = 0;
		}
		to = DCP_MAX(to, (double)(d->before + e[i].end_ns) * scale);
		bytes += e[i].bytes;
	}
}

static void put_svg(const struct drawing *d, struct dcp_buf *out)
{
	uint32_t n = DCP_MIN(d->l->comm->ranks, (uint32_t)MAX_DRAWN);
	double row = DCP_LEN(kinds) * LANE + 5,
	       scale = WIDTH / (double)DCP_MAX(d->total, (uint64_t)1);

	svg_begin(out, NAMES + WIDTH + 20, TOP + n * row + 10, TITLE);
	svg_text(out, NAMES, 16, SVG_LEFT, 12,
		 "%.200s as %.200s: open, plan (grey); read (blue), wait (yellow), place "
		 "(green), copy to a device (violet), exchange between devices (red); %.3f s",
		 dcpload_version(d->l->ck), d->l->layout, (double)d->total / 1e9);
	for (uint32_t r = 0; r < n; r++) {
		const struct span *s = span_of(d, r);
		double y = TOP + r * row, w = (double)(s->open_ns + s->plan_ns) * scale;

		svg_text(out, NAMES - 8, y + 14, SVG_RIGHT, 11, "rank %u", r);
		svg_box(out, NAMES + (double)d->before * scale - w, y, w,
			DCP_LEN(kinds) * LANE - 1, "#dddddd", "none", 0);
		svg_close(out);
		for (uint32_t k = 0; k < DCP_LEN(kinds); k++)
			draw_lane(d, out, r, k, y + k * LANE);
	}
	svg_end(out);
}

/* ---- all of it ---- */

/* An existing file is replaced only if it is a trace. */
static int check_replaced(const char *path, struct dcpload_error *err)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	char head[256] = "";
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
		return 0;
	if (pread(fd, head, sizeof(head) - 1, 0) > 0 &&
	    (strncmp(head, CHROME, strlen(CHROME)) == 0 ||
	     (strncmp(head, "<svg", 4) == 0 && strstr(head, "<title>" TITLE))))
		return 0;
	return load_fail(err, -EEXIST, "%s exists and is not a trace: it is not replaced",
			 path);
}

enum cmd_exit loading_check_trace(struct loading *l)
{
	int rc = l->opts->trace && l->comm->rank == 0 ? check_replaced(l->opts->trace, &l->err)
						      : 0;

	return loading_agree(l, rc) < 0 ? loading_fail(l, CMD_USAGE) : CMD_OK;
}

static int write_file(const struct loading *l, const char *path, const struct dcp_buf *b,
		      struct dcpload_error *err)
{
	uint32_t withheld = 0;
	int rc = export_withheld_beside(l->ck->of.v, l->ck->of.source, path, &withheld);
	dcp_auto_fd int fd = rc < 0 ? rc : export_create(path, withheld);

	rc = fd < 0 ? fd : out_write(fd, b->p, b->n);
	return rc < 0 ? load_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

static int write_trace(struct drawing *d, struct dcpload_error *err)
{
	const char *path = d->l->opts->trace;
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	uint64_t longest = 0;

	for (uint32_t r = 0; r < d->l->comm->ranks; r++) {
		const struct span *s = span_of(d, r);

		if (d->all.n[r] < sizeof(*s) ||
		    (d->all.n[r] - sizeof(*s)) / sizeof(struct dcpload_event) != s->n)
			return load_fail(err, -EPROTO,
					 "ranks 0 and %u run different releases of dcpfs", r);
		d->before = DCP_MAX(d->before, s->open_ns + s->plan_ns);
		longest = DCP_MAX(longest, s->execute_ns);
	}
	d->total = d->before + longest;
	if (dcp_ends_with(path, strlen(path), ".svg"))
		put_svg(d, &out);
	else
		put_json(d, &out);
	if (dcp_buf_error(&out) < 0)
		return load_fail(err, -ENOMEM, "out of memory");
	return write_file(d->l, path, &out, err);
}

enum cmd_exit loading_trace(struct loading *l)
{
	struct drawing d = { .l = l };
	struct dcpload_report rep = { .size = sizeof(rep) };
	dcp_auto_buf struct dcp_buf own = DCP_BUF_INIT;
	struct dcpload_event e;
	struct span s = { 0 };
	int rc;

	if (!l->opts->trace)
		return CMD_OK;
	dcpload_plan_report(l->plan, &rep);
	while (dcpload_plan_event(l->plan, s.n, &e) == 0)
		s.n++;
	s = (struct span){ rep.open_ns, rep.plan_ns, rep.execute_ns, s.n };
	dcp_buf_add(&own, &s, sizeof(s));
	for (uint64_t i = 0; i < s.n && dcpload_plan_event(l->plan, i, &e) == 0; i++)
		dcp_buf_add(&own, &e, sizeof(e));
	rc = dcp_buf_error(&own) < 0 ? load_fail(&l->err, -ENOMEM, "out of memory") : 0;
	rc = loading_agree(l, rc);
	if (rc == 0)
		rc = load_gather_first(l->comm, own.p, own.n, &d.all, &l->err,
				       loading_timeout(l));
	if (rc == 0)
		rc = loading_agree(l, l->comm->rank == 0 ? write_trace(&d, &l->err) : 0);
	load_blobs_free(&d.all);
	return rc < 0 ? loading_fail(l, CMD_ENV) : CMD_OK;
}
