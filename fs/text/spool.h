/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spool: text that may become big, written to an unlinked file as it grows.
 *
 *	struct dcpfs_spool s = DCPFS_SPOOL_INIT(dir);
 *
 *	... append to s.buf, and now and then:
 *	rc = dcpfs_spool_flush(&s, false);
 *	rc = rc == 0 ? dcpfs_spool_finish(&s, &text) : dcpfs_spool_drop(&s, rc);
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/buf.h"
#include "core/store/index/index.h"

/* Bytes of one generated file. Small ones are on the heap; big ones are mapped from an unlinked
 * file. */
struct dcpfs_text {
	const char *p;
	size_t n;
	char *heap; /* what p points to, or NULL: p is a mapping */
};

/* A file without a name in @dir, or (@dir NULL, or not possible there) in memory, called @what. -1: errno. */
int dcpfs_nameless(const char *dir, const char *what);

/* Takes the buffer's memory, also on failure. 0 or -ENOMEM. */
int dcpfs_text_from_buf(struct dcpfs_text *t, struct dcp_buf *b);
void dcpfs_text_finish(struct dcpfs_text *t);

struct dcpfs_spool {
	struct dcp_buf buf;
	int fd; /* -1 until the first flush */
	size_t written;
	const char *dir; /* where the file may lie; NULL: memory only */
};
#define DCPFS_SPOOL_INIT(where)                                                                \
	{                                                                                      \
		.fd = -1, .dir = (where)                                                       \
	}

/* Write what was appended when that is a megabyte, or at once. -ENOMEM, -ENOSPC, -EIO, ... */
int dcpfs_spool_flush(struct dcpfs_spool *s, bool now);

/* Call @fn for every row of a kind, and write what it appended. What @fn or the index gave, if that is negative; 0. */
int dcpfs_spool_rows(struct dcpfs_spool *s, struct dcp_index *ix, enum dcp_row_kind kind,
		     int (*fn)(void *ctx, struct dcp_row *row), void *ctx);

/* Write over @n bytes at @off, all of them appended by one call. -EIO, ... */
int dcpfs_spool_patch(struct dcpfs_spool *s, size_t off, const void *p, size_t n);

/* Bytes appended so far. */
static inline size_t dcpfs_spool_size(const struct dcpfs_spool *s)
{
	return s->written + s->buf.n;
}

/* The text; the spool ends, also on failure. */
int dcpfs_spool_finish(struct dcpfs_spool *s, struct dcpfs_text *out);
/* Give up; returns @rc. */
int dcpfs_spool_drop(struct dcpfs_spool *s, int rc);
