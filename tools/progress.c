/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/clock.h"
#include "tools/cmd.h"
#include "tools/out.h"

#define QUIET_NS 500000000   /* before the first line */
#define BETWEEN_NS 100000000 /* between lines */

static const char *amount(char buf[32], bool bytes, double v)
{
	uint64_t n = v > 0 && v < 1e19 ? (uint64_t)v : 0;

	return bytes ? out_size(buf, n) : out_count(buf, n);
}

static void eta(char *buf, size_t size, double seconds)
{
	unsigned s = seconds < 359999 ? (unsigned)(seconds + 0.5) : 359999;

	if (s >= 3600)
		snprintf(buf, size, "%u:%02u:%02u left", s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(buf, size, "%u:%02u left", s / 60, s % 60);
}

/* How much of the numbers is shown, from all to what is needed. */
struct form {
	unsigned bar; /* cells */
	bool sums, rate, left;
};

static void put_numbers(char *buf, size_t size, const struct form *f, bool bytes, uint64_t done,
			uint64_t total, double rate)
{
	double part = done >= total ? 1 : (double)done / (double)total;
	char sum[32], all[32], speed[32] = "", left[32] = "", bar[32] = "", sums[72] = "";

	if (rate > 0 && f->rate)
		snprintf(speed, sizeof(speed), " %.24s/s", amount(sum, bytes, rate));
	if (!total) {
		snprintf(buf, size, " %s%s", amount(sum, bytes, (double)done), speed);
		return;
	}
	if (f->left && rate > 0 && done < total) {
		*left = ' ';
		eta(left + 1, sizeof(left) - 1, (double)(total - done) / rate);
	}
	if (f->bar) {
		memset(bar, '.', f->bar + 3);
		memset(bar + 2, '#', (unsigned)(part * f->bar));
		memcpy(bar, " [", 2);
		memcpy(bar + 2 + f->bar, "]", 2);
	}
	if (f->sums)
		snprintf(sums, sizeof(sums), " %s of %s", amount(sum, bytes, (double)done),
			 amount(all, bytes, (double)total));
	snprintf(buf, size, "%s %3u%%%s%s%s", bar, (unsigned)(part * 100), sums, speed, left);
}

void progress_line(char *buf, size_t size, unsigned width, bool bytes, const char *what,
		   uint64_t done, uint64_t total, double rate)
{
	static const struct form forms[] = {
		{ 20, true, true, true }, { 10, true, true, true },  { 10, false, true, true },
		{ 0, false, true, true }, { 0, false, false, true }, { 0, false, false, false },
	};
	enum { NAME_LEAST = 12 };
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	char tail[192];
	size_t room, least = DCP_MIN(out_width(what), (size_t)NAME_LEAST);

	for (size_t i = 0; i < DCP_LEN(forms); i++) {
		put_numbers(tail, sizeof(tail), &forms[i], bytes, done, total, rate);
		if (strlen(tail) + least <= width)
			break;
	}
	room = strlen(tail) < width ? width - strlen(tail) : 0;
	dcp_buf_add(&name, what,
		    out_fit(what, out_width(what) > room && room > 2 ? room - 2 : room));
	if (out_width(what) > room && room > 2)
		dcp_buf_str(&name, "..");
	snprintf(buf, size, "%s%.*s", name.p ? name.p : "", (int)width,
		 name.n ? tail : tail + 1);
}

static bool as_json;

void progress_as_json(bool on)
{
	as_json = on;
}

static void put_json(bool bytes, const char *what, uint64_t done, uint64_t total, double rate)
{
	dcp_auto_buf struct dcp_buf line = DCP_BUF_INIT;
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, &line, false);
	dcp_jsonw_object(&w);
	dcp_jsonw_put_str(&w, "doing", what);
	dcp_jsonw_put_str(&w, "unit", bytes ? "bytes" : "items");
	dcp_jsonw_put_u64(&w, "done", done);
	dcp_jsonw_put_u64(&w, "total", total);
	dcp_jsonw_put_f64(&w, "rate", rate);
	dcp_jsonw_end(&w);
	if (dcp_jsonw_error(&w) == 0)
		fprintf(stderr, "%s\n", line.p);
}

static void draw_as(struct progress *p, bool bytes, uint64_t done, uint64_t total,
		    const char *what)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	char line[1024];
	int64_t now;
	double seconds, rate;

	if (!what)
		progress_finish(p);
	if (!p->on || !what)
		return;
	now = dcp_now_ns(CLOCK_MONOTONIC);
	if (total != p->phase_total || done < p->done || bytes != p->counts_bytes) {
		p->phase_total = total;
		p->phase_done = done;
		p->phase_ns = now;
		p->counts_bytes = bytes;
	}
	p->done = done;
	if ((now - p->start_ns < QUIET_NS && !as_json) ||
	    (now - p->last_ns < BETWEEN_NS && !(as_json && total && done >= total)))
		return;
	p->last_ns = now;
	seconds = (double)(now - p->phase_ns) / 1e9;
	rate = seconds > 0 ? (double)(done - p->phase_done) / seconds : 0;
	if (as_json) {
		put_json(bytes, what, done, total, rate);
		return;
	}
	out_text(&name, what);
	progress_line(line, sizeof(line), p->width, bytes, name.p ? name.p : "", done, total,
		      rate);
	fprintf(stderr, "\r%s\033[K", line);
	p->drawn = true;
}

static void draw(void *ctx, uint64_t done, uint64_t total, const char *what)
{
	struct progress *p = ctx;

	draw_as(p, p->bytes, done, total, what);
}

static void draw_bytes(void *ctx, uint64_t done, uint64_t total, const char *what)
{
	draw_as(ctx, true, done, total, what);
}

void progress_init(struct progress *p, bool bytes)
{
	struct winsize ws;

	*p = (struct progress){ .bytes = bytes,
				.on = as_json || (!cmd_is_quiet() && isatty(STDERR_FILENO)),
				.width = 79 };
	p->report = (struct dcp_progress){ .report = draw, .ctx = p, .bytes = draw_bytes };
	if (p->on && ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col > 20)
		p->width = DCP_MIN(ws.ws_col - 1u, 200u);
	p->start_ns = dcp_now_ns(CLOCK_MONOTONIC);
}

void progress_finish(struct progress *p)
{
	if (p->drawn)
		fputs("\r\033[K", stderr);
	p->drawn = false;
}
