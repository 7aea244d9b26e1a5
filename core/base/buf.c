/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"

void dcp_buf_finish(struct dcp_buf *b)
{
	free(b->p);
	*b = (struct dcp_buf)DCP_BUF_INIT;
}

void dcp_buf_reset(struct dcp_buf *b)
{
	b->n = 0;
	b->failed = false;
}

void *dcp_buf_grow(struct dcp_buf *b, size_t n)
{
	size_t want;
	void *p;

	if (b->failed)
		return NULL;
	if (n > SIZE_MAX / 2 - b->n - 1) {
		b->failed = true;
		return NULL;
	}
	want = b->n + n + 1;
	if (want > b->cap) {
		size_t cap = DCP_MAX(want, b->cap * 2);

		p = realloc(b->p, DCP_MAX(cap, 64));
		if (!p) {
			b->failed = true;
			return NULL;
		}
		b->p = p;
		b->cap = DCP_MAX(cap, 64);
	}
	p = b->p + b->n;
	b->n += n;
	b->p[b->n] = '\0';
	return p;
}

int dcp_buf_add(struct dcp_buf *b, const void *p, size_t n)
{
	void *to = dcp_buf_grow(b, n);

	if (to && n)
		memcpy(to, p, n);
	return dcp_buf_error(b);
}

void *dcp_buf_at(struct dcp_buf *b, size_t i, size_t size)
{
	size_t want = (i + 1) * size, have = DCP_MIN(b->n, want);
	void *more = dcp_buf_grow(b, want - have);

	if (more)
		memset(more, 0, want - have);
	return more ? b->p + i * size : NULL;
}

int dcp_buf_str(struct dcp_buf *b, const char *s)
{
	return dcp_buf_add(b, s, strlen(s));
}

int dcp_buf_printf(struct dcp_buf *b, const char *fmt, ...)
{
	va_list ap, again;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0) {
		b->failed = true;
	} else {
		void *to = dcp_buf_grow(b, (size_t)n);

		if (to)
			vsnprintf(to, (size_t)n + 1, fmt, again);
	}
	va_end(again);
	return dcp_buf_error(b);
}

int dcp_buf_shown(struct dcp_buf *b, const char *s, size_t n, const char *kept)
{
	for (size_t len; n; s += len, n -= len) {
		len = dcp_utf8_shown(s, n);
		if (len || (*s && strchr(kept, *s)))
			dcp_buf_add(b, s, len ? len : 1);
		else
			dcp_buf_printf(b, "\\x%02x", (unsigned char)*s);
		len = len ? len : 1;
	}
	return dcp_buf_error(b);
}

void dcp_buf_varint(struct dcp_buf *b, uint64_t v)
{
	unsigned char bytes[10];
	size_t n = 0;

	if (v < 0x80 && b->n + 2 < b->cap && !b->failed) { /* most of them */
		b->p[b->n++] = (char)v;
		b->p[b->n] = '\0';
		return;
	}
	do {
		bytes[n] = (unsigned char)(v & 0x7f);
		v >>= 7;
		if (v)
			bytes[n] |= 0x80;
		n++;
	} while (v);
	dcp_buf_add(b, bytes, n);
}

char *dcp_buf_take(struct dcp_buf *b)
{
	char *p = b->failed || !dcp_buf_grow(b, 0) ? NULL : b->p;

	if (!p)
		free(b->p);
	*b = (struct dcp_buf)DCP_BUF_INIT;
	return p;
}

int dcp_array_grow(void **array, size_t *cap, size_t n, size_t size)
{
	size_t want = *cap ? *cap * 2 : 16;
	void *p;

	if (n < *cap)
		return 0;
	p = realloc(*array, want * size);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = want;
	return 0;
}

void dcp_metric_head(struct dcp_buf *out, const char *room, const char *name, const char *type,
		     const char *unit, const char *help)
{
	dcp_buf_printf(out, "# TYPE %s_%s %s\n", room, name, type);
	if (unit)
		dcp_buf_printf(out, "# UNIT %s_%s %s\n", room, name, unit);
	dcp_buf_printf(out, "# HELP %s_%s %s\n", room, name, help);
}

void dcp_metric_gauge(struct dcp_buf *out, const char *room, const char *name, const char *unit,
		      const char *help, uint64_t value)
{
	dcp_metric_head(out, room, name, "gauge", unit, help);
	dcp_buf_printf(out, "%s_%s %llu\n", room, name, (unsigned long long)value);
}

void dcp_metric_seconds(struct dcp_buf *out, const char *room, const char *name,
			const char *help, uint64_t ns)
{
	dcp_metric_head(out, room, name, "gauge", "seconds", help);
	dcp_buf_printf(out, "%s_%s %llu.%09llu\n", room, name,
		       (unsigned long long)(ns / 1000000000),
		       (unsigned long long)(ns % 1000000000));
}

/* A backslash, a quotation mark and the end of a line are escaped. */
void dcp_metric_label(struct dcp_buf *out, const char *name, const char *text)
{
	dcp_buf_printf(out, "%s=\"", name);
	for (; *text; text++)
		dcp_buf_printf(out, "%s%c", strchr("\"\\\n", *text) ? "\\" : "",
			       *text == '\n' ? 'n' : *text);
	dcp_buf_str(out, "\"");
}
