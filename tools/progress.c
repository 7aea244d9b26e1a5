/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/clock.h"
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

void progress_line(char *buf, size_t size, unsigned width, bool bytes, const char *what,
		   uint64_t done, uint64_t total, int64_t elapsed_ns)
{
	double seconds = (double)elapsed_ns / 1e9;
	double rate = seconds > 0 ? (double)done / seconds : 0;
	char amounts[3][32], tail[128], left[32] = "";
	char bar[21];
	unsigned cells = 0;

	if (total) {
		double part = done >= total ? 1 : (double)done / (double)total;

		cells = (unsigned)(part * 20);
		if (rate > 0 && done < total)
			eta(left, sizeof(left), (double)(total - done) / rate);
		memset(bar, '.', 20);
		memset(bar, '#', cells);
		bar[20] = '\0';
		snprintf(tail, sizeof(tail), " [%s] %3u%% %s of %s %s/s %s", bar,
			 (unsigned)(part * 100), amount(amounts[0], bytes, (double)done),
			 amount(amounts[1], bytes, (double)total),
			 amount(amounts[2], bytes, rate), left);
	} else {
		snprintf(tail, sizeof(tail), " %s %s/s",
			 amount(amounts[0], bytes, (double)done),
			 amount(amounts[2], bytes, rate));
	}
	/* The name gives way to the numbers. */
	if (strlen(tail) + 8 > width)
		snprintf(buf, size, "%.*s", (int)DCP_MIN(width, size - 1), tail + 1);
	else
		snprintf(buf, size, "%.*s%s", (int)(width - strlen(tail)), what, tail);
}

static void draw(void *ctx, uint64_t done, uint64_t total, const char *what)
{
	struct progress *p = ctx;
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	char line[256];
	int64_t now;

	if (!what)
		progress_finish(p);
	if (!p->on || !what)
		return;
	now = dcp_now_ns(CLOCK_MONOTONIC);
	if (now - p->start_ns < QUIET_NS || now - p->last_ns < BETWEEN_NS)
		return;
	p->last_ns = now;
	out_text(&name, what);
	progress_line(line, sizeof(line), p->width, p->bytes, name.p ? name.p : "", done, total,
		      now - p->start_ns);
	fprintf(stderr, "\r%s\033[K", line);
	p->drawn = true;
}

void progress_init(struct progress *p, bool bytes)
{
	struct winsize ws;

	*p = (struct progress){ .bytes = bytes, .on = isatty(STDERR_FILENO), .width = 79 };
	p->report = (struct dcp_progress){ draw, p };
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
