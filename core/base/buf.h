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

/* A buffer to which elements of one type were appended: the first of them, and how many. */
#define DCP_ITEMS(buf, type) ((type *)(void *)(buf).p)
#define DCP_NITEMS(buf, type) ((buf).n / sizeof(type))

void dcp_buf_finish(struct dcp_buf *b);
/* Append; returns dcp_buf_error(). */
int dcp_buf_add(struct dcp_buf *b, const void *p, size_t n);
int dcp_buf_str(struct dcp_buf *b, const char *s);
int dcp_buf_printf(struct dcp_buf *b, const char *fmt, ...) DCP_PRINTF(2, 3);

/* Append @n bytes of text with those that may not be shown as they are (core/base/utf8.h) spelled \xNN, but for those in @kept: the
 * newlines of a page. */
int dcp_buf_shown(struct dcp_buf *b, const char *s, size_t n, const char *kept);

/* Unsigned LEB128, the number form of every packed blob in the index. */
void dcp_buf_varint(struct dcp_buf *b, uint64_t v);

/* @n writable bytes at the end, already counted; NULL: out of memory. */
void *dcp_buf_grow(struct dcp_buf *b, size_t n);

/* Element @i of @size bytes; the buffer grows to it, filled with zeros. NULL: out of memory. */
void *dcp_buf_at(struct dcp_buf *b, size_t i, size_t size);

/* Empty it but keep the memory. */
void dcp_buf_reset(struct dcp_buf *b);

/* Give the bytes away (caller frees); the buffer is empty again. Never NULL unless failed. */
char *dcp_buf_take(struct dcp_buf *b);

static inline int dcp_buf_error(const struct dcp_buf *b)
{
	return b->failed ? -ENOMEM : 0;
}

/* Make room for one more element after the @n of the malloc'ed @array, which has room for @cap: that doubles when it
 * is full. 0, -ENOMEM. */
#define DCP_GROW(array, cap, n) dcp_array_grow((void **)&(array), &(cap), (n), sizeof(*(array)))
int dcp_array_grow(void **array, size_t *cap, size_t n, size_t size);

#define dcp_auto_buf __attribute__((cleanup(dcp_buf_finish)))
