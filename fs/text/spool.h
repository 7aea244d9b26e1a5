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

/*
 * Open a nameless file in @dir, or in memory (named @what) if @dir is NULL or cannot hold one.
 * -1: errno.
 */
int dcpfs_nameless(const char *dir, const char *what);

/* Takes over the buffer's memory, also on failure. 0 or -ENOMEM. */
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

/*
 * Write the appended text to the file if it has reached a megabyte, or with @now in any case.
 * -ENOMEM, -ENOSPC, -EIO, ...
 */
int dcpfs_spool_flush(struct dcpfs_spool *s, bool now);

/*
 * Call @fn for every row of a kind, and flush the text that it appends. 0, or the first error
 * of @fn or the index.
 */
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
