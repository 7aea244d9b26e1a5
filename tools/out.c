/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/out.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "core/base/base.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/origin/dir/dir.h"
#include "tools/cmd.h"

static unsigned terminal_width(bool tty)
{
	const char *env = getenv("COLUMNS");
	struct winsize ws;
	uint64_t n;

	if (env && opt_number(env, 10, &n) && n >= 20 && n <= 10000)
		return (unsigned)n;
	if (!tty)
		return 0;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col >= 20)
		return ws.ws_col;
	return 80;
}

void out_init(struct out *o, enum out_form form)
{
	bool tty = isatty(STDOUT_FILENO);
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	*o = (struct out){ .form = form };
	dcp_jsonw_init(&o->json, &o->buf, true);
	o->width = terminal_width(tty);
	o->color = tty && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0 &&
		   !getenv("OMPI_COMM_WORLD_SIZE"); /* mpirun's terminal, not the user's */
	o->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

const char *out_paint(const struct out *o, const char *word)
{
	static const char *const paint[] = { "\033[38;5;34m", "\033[38;5;172m",
					     "\033[38;5;160m" };
	static const struct {
		const char *word;
		int paint; /* good, of note, bad */
	} states[] = {
		{ "ok", 0 },        { "complete", 0 },   { "equal", 0 }, { "known", 0 },
		{ "note", 1 },      { "incomplete", 1 }, { "close", 1 }, { "unknown", 1 },
		{ "only in A", 1 }, { "only in B", 1 },  { "bad", 2 },   { "refused", 2 },
		{ "differs", 2 },   { "dtype", 2 },      { "shape", 2 }, { "unreadable", 2 },
		{ "dangerous", 2 },
	};

	for (size_t i = 0; o->color && i < DCP_LEN(states); i++)
		if (strcmp(word, states[i].word) == 0)
			return paint[states[i].paint];
	return "";
}

int out_divert(void)
{
	int was = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);

	setenv("CUFILE_LOGFILE_PATH", "/dev/null", 0);
	fflush(stdout);
	if (was >= 0)
		dup2(STDERR_FILENO, STDOUT_FILENO);
	return was;
}

void out_restore(int was)
{
	if (was < 0)
		return;
	fflush(stdout); /* its buffer holds only text of libraries */
	dup2(was, STDOUT_FILENO);
	close(was);
}

int out_write(int fd, const void *p, size_t n)
{
	const char *at = p;

	while (n) {
		ssize_t k = write(fd, at, n);

		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0)
			return -errno;
		at += k;
		n -= (size_t)k;
	}
	return 0;
}

enum cmd_exit out_flush(struct out *o)
{
	if (o->form == OUT_TEXT && cmd_hides_report()) {
		dcp_buf_finish(&o->buf);
		return CMD_OK;
	}
	return out_flush_to(o, STDOUT_FILENO, "standard output");
}

enum cmd_exit out_flush_to(struct out *o, int fd, const char *file)
{
	bool json = o->json.values != 0;
	int rc;

	if (json)
		dcp_buf_str(&o->buf, "\n");
	rc = json ? dcp_jsonw_error(&o->json) : dcp_buf_error(&o->buf);
	if (rc == 0)
		rc = out_write(fd, o->buf.p, o->buf.n);
	dcp_buf_finish(&o->buf);
	if (rc == 0 || rc == -EPIPE)
		return CMD_OK;
	return cmd_fail(CMD_ENV, "%s: %s", file, strerror(-rc));
}

static const char *three_digits(char buf[OUT_SIZE], uint64_t n, const char *const *units,
				size_t nunits)
{
	double v = (double)n;
	size_t u = 0;

	/* 999,500 would be shown as 1000 kB: the next unit begins where rounding reaches it. */
	while (v >= 999.5 && u + 1 < nunits) {
		v /= 1000;
		u++;
	}
	if (u == 0)
		snprintf(buf, OUT_SIZE, "%u%s", (unsigned)n, units[u]);
	else
		snprintf(buf, OUT_SIZE, "%.*f%s",
			 v < 9.995   ? 2
			 : v < 99.95 ? 1
				     : 0,
			 v, units[u]);
	return buf;
}

void out_text(struct dcp_buf *b, const char *s)
{
	dcp_buf_shown(b, s, strlen(s), "");
}

const char *out_size(char buf[OUT_SIZE], uint64_t n)
{
	static const char *const units[] = { " B", " kB", " MB", " GB", " TB", " PB", " EB" };

	return three_digits(buf, n, units, DCP_LEN(units));
}

const char *out_params(char buf[OUT_SIZE], uint64_t n)
{
	static const char *const units[] = { "", "k", "M", "B", "T", "Q" };

	return three_digits(buf, n, units, DCP_LEN(units));
}

const char *out_count(char buf[32], uint64_t n)
{
	char digits[24];
	int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
	char *p = buf;

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*p++ = ',';
		*p++ = digits[i];
	}
	*p = '\0';
	return buf;
}

const char *out_size_exact(char buf[64], uint64_t n)
{
	char size[OUT_SIZE], count[32];

	if (n < 1000)
		snprintf(buf, 64, "%u byte%s", (unsigned)n, dcp_s(n));
	else
		snprintf(buf, 64, "%s (%s bytes)", out_size(size, n), out_count(count, n));
	return buf;
}

const char *out_time(char buf[32], int64_t ns, bool utc)
{
	time_t t = dcp_file_time(ns).tv_sec;
	struct tm tm;

	if (!(utc ? gmtime_r(&t, &tm) : localtime_r(&t, &tm)) ||
	    !strftime(buf, 32, utc ? "%Y-%m-%dT%H:%M:%SZ" : "%Y-%m-%d %H:%M:%S", &tm))
		strcpy(buf, "?");
	return buf;
}

/* Read a code point of @s, and its columns. Invalid UTF-8 is read byte by byte. */
static size_t code_at(const char *s, int *cols)
{
	size_t n = dcp_utf8_len(s, strnlen(s, 4));

	*cols = n > 1 ? wcwidth((wchar_t)dcp_utf8_code(s, n)) : 1;
	*cols = *cols < 0 ? 1 : *cols;
	return n ? n : *s != '\0';
}

size_t out_char(const char *s, size_t *cols)
{
	int own, more = 0;
	size_t n = code_at(s, &own), mark;

	*cols = n ? (size_t)own : 0;
	while (n && (unsigned char)s[n] >= 0x80 && (mark = code_at(s + n, &more)) && more == 0)
		n += mark;
	return n;
}

size_t out_fit(const char *s, size_t max)
{
	size_t n = 0, cols, bytes;

	while ((bytes = out_char(s + n, &cols)) && cols <= max) {
		n += bytes;
		max -= cols;
	}
	return n;
}

size_t out_width(const char *s)
{
	size_t width = 0, cols, bytes;

	for (; (bytes = out_char(s, &cols)); s += bytes)
		width += cols;
	return width;
}

void out_wrap(struct dcp_buf *b, size_t col, size_t indent, size_t width, const char *text)
{
	bool fresh = true; /* nothing of the text stands on this line yet */

	for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
		size_t bytes = strcspn(text, " "), n = 0, cols;

		for (size_t i = 0; i < bytes; n += cols)
			i += out_char(text + i, &cols);
		if (width && !fresh && col + 1 + n > width) {
			dcp_buf_printf(b, "\n%*s", (int)indent, "");
			col = indent;
			fresh = true;
		}
		if (!fresh)
			dcp_buf_str(b, " ");
		dcp_buf_add(b, text, bytes);
		col += n + !fresh;
		fresh = false;
		text += bytes;
	}
}

enum { NAMED = 3 }; /* items named for each reason; JSON has all */

/* All unreadable pieces of a file count as one reason. */
static int compare_causes(const char *a, const char *b)
{
	const char *x = strstr(a, ": piece at ["), *y = strstr(b, ": piece at [");

	if (x && y && x - a == y - b)
		return strncmp(a, b, (size_t)(x - a));
	return strcmp(a, b);
}

static int by_cause(const void *a, const void *b)
{
	const struct out_left *const *x = a, *const *y = b;
	int rc = strcmp((*y)->what, (*x)->what);

	if (rc == 0)
		rc = compare_causes((*x)->why, (*y)->why);
	return rc ? rc : DCP_CMP(*x, *y);
}

void out_causes(struct out *o, const char *head, const struct out_left *all, size_t n)
{
	const struct out_left **l = calloc(n + 1, sizeof(*l));
	char count[32];

	for (size_t i = 0; l && i < n; i++)
		l[i] = &all[i];
	if (l)
		qsort(l, n, sizeof(*l), by_cause);
	for (size_t i = 0, next; l && i < n; i = next) {
		for (next = i + 1; next < n && strcmp(l[next]->what, l[i]->what) == 0 &&
				   compare_causes(l[next]->why, l[i]->why) == 0;)
			next++;
		dcp_buf_printf(&o->buf, "%s %s %s%s", head, out_count(count, next - i),
			       l[i]->what, dcp_s(next - i));
		for (size_t k = i; k < next && k < i + NAMED; k++) {
			dcp_buf_str(&o->buf, k > i ? ", " : " ");
			out_text(&o->buf, l[k]->key);
		}
		dcp_buf_printf(&o->buf, "%s: ", next - i > NAMED ? ", ..." : "");
		out_text(&o->buf, l[i]->why);
		dcp_buf_str(&o->buf, "\n");
	}
	if (!l)
		dcp_buf_printf(&o->buf, "%s %s in all\n", head, out_count(count, n));
	free((void *)l);
}

#define QUIET_NS 500000000   /* before the first line */
#define BETWEEN_NS 100000000 /* between lines */

static const char *amount_text(char buf[32], bool bytes, double v)
{
	uint64_t n = v > 0 && v < 1e19 ? (uint64_t)v : 0;

	return bytes ? out_size(buf, n) : out_count(buf, n);
}

static void write_eta(char *buf, size_t size, double seconds)
{
	unsigned s = seconds < 359999 ? (unsigned)(seconds + 0.5) : 359999;

	if (s >= 3600)
		snprintf(buf, size, "%u:%02u:%02u left", s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(buf, size, "%u:%02u left", s / 60, s % 60);
}

/* How much of the numbers is shown: all, or less where room is short. */
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
		snprintf(speed, sizeof(speed), " %.24s/s", amount_text(sum, bytes, rate));
	if (!total) {
		snprintf(buf, size, " %s%s", amount_text(sum, bytes, (double)done), speed);
		return;
	}
	if (f->left && rate > 0 && done < total) {
		*left = ' ';
		write_eta(left + 1, sizeof(left) - 1, (double)(total - done) / rate);
	}
	if (f->bar) {
		memset(bar, '.', f->bar + 3);
		memset(bar + 2, '#', (unsigned)(part * f->bar));
		memcpy(bar, " [", 2);
		memcpy(bar + 2 + f->bar, "]", 2);
	}
	if (f->sums)
		snprintf(sums, sizeof(sums), " %s of %s", amount_text(sum, bytes, (double)done),
			 amount_text(all, bytes, (double)total));
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

static void draw_items(void *ctx, uint64_t done, uint64_t total, const char *what)
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
	p->report =
		(struct dcp_progress){ .report = draw_items, .ctx = p, .bytes = draw_bytes };
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
