/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buf: a growing run of bytes that is also a C string.
 *
 * Errors are sticky: after a failed append every later append does nothing and
 * dcp_buf_error() says -ENOMEM, so a writer may append fifty things and check once.
 */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"

struct dcp_buf {
	char *p; /* NUL-terminated once anything was appended; NULL before */
	size_t n, cap;
	bool failed;
};

/* clang-format off */
#define DCP_BUF_INIT { 0 }
/* clang-format on */

/* For a buffer of elements of one type: the first element, and the number of elements. */
#define DCP_ITEMS(buf, type) ((type *)(void *)(buf).p)
#define DCP_NITEMS(buf, type) ((buf).n / sizeof(type))

void dcp_buf_finish(struct dcp_buf *b);
/* Append; returns dcp_buf_error(). */
int dcp_buf_add(struct dcp_buf *b, const void *p, size_t n);
int dcp_buf_str(struct dcp_buf *b, const char *s);
int dcp_buf_printf(struct dcp_buf *b, const char *fmt, ...) DCP_PRINTF(2, 3);

/* Append @n bytes of text. Bytes that may not be shown (core/base/text.h) become \xNN, except for
 * characters in @kept, such as the newlines of a page. */
int dcp_buf_shown(struct dcp_buf *b, const char *s, size_t n, const char *kept);

/* Unsigned LEB128, the number form of every packed blob in the index. */
void dcp_buf_varint(struct dcp_buf *b, uint64_t v);

/* Grow by @n bytes and return them for writing; NULL: out of memory. */
void *dcp_buf_grow(struct dcp_buf *b, size_t n);

/* Element @i of @size bytes; the buffer grows to hold it, with zeros. NULL: out of memory. */
void *dcp_buf_at(struct dcp_buf *b, size_t i, size_t size);

/* Empty it but keep the memory. */
void dcp_buf_reset(struct dcp_buf *b);

/* Hand the bytes over to the caller, who frees them; the buffer is empty again. NULL only after an
 * error. */
char *dcp_buf_take(struct dcp_buf *b);

static inline int dcp_buf_error(const struct dcp_buf *b)
{
	return b->failed ? -ENOMEM : 0;
}

/* Make room for element @n of the malloc'ed @array, whose capacity @cap is doubled when it is full.
 * 0 or -ENOMEM. */
#define DCP_GROW(array, cap, n) dcp_array_grow((void **)&(array), &(cap), (n), sizeof(*(array)))
int dcp_array_grow(void **array, size_t *cap, size_t n, size_t size);

#define dcp_auto_buf __attribute__((cleanup(dcp_buf_finish)))

/*
 * Metrics in a form that the parsers of OpenMetrics, of older Prometheus releases and of the node
 * exporter read: counters, gauges and histograms. A metric that only describes is a gauge of 1,
 * because the older parsers know no other type for it.
 */

/* The lines before the samples of ROOM_NAME: type, unit (a suffix of the name; NULL: none) and
 * help. */
void dcp_metric_head(struct dcp_buf *out, const char *room, const char *name, const char *type,
		     const char *unit, const char *help);
/* The same, and one sample. */
void dcp_metric_gauge(struct dcp_buf *out, const char *room, const char *name, const char *unit,
		      const char *help, uint64_t value);
void dcp_metric_seconds(struct dcp_buf *out, const char *room, const char *name,
			const char *help, uint64_t ns);
/* name="text", escaped. */
void dcp_metric_label(struct dcp_buf *out, const char *name, const char *text);
