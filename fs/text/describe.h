/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe: tensors, objects and versions as JSON: the entries of index.json, which the tools
 * print, too. The form is documented in fs/README.md, and programs rely on it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "core/base/buf.h"
#include "core/model/dtype.h"
#include "core/store/index/index.h"

struct dcp_err;
struct dcp_jsonw;
struct dcp_measured;
struct dcp_version;

/*
 * Write one entry of "tensors", with its statistics where they are known (@m; NULL: they are not).
 * Opens backing files to find where the pieces lie; a tensor that cannot be read gets an "error".
 * -ENOMEM, or the error of the index.
 */
int dcpfs_describe_tensor(struct dcp_version *v, const struct dcp_row *row,
			  const struct dcp_measured *m, struct dcp_jsonw *w,
			  struct dcp_err *err);

/* Write one entry of "objects"; with @value also the value of the object. */
int dcpfs_describe_object(struct dcp_version *v, const struct dcp_row *row, bool value,
			  struct dcp_jsonw *w, struct dcp_err *err);

/*
 * Call @fn for each row of a kind that cannot be read, with the reason (NULL: unknown), until
 * @fn returns non-zero. Returns the last return of @fn, or the error of the index.
 */
typedef int dcpfs_broken_fn(void *ctx, const struct dcp_row *row, const char *why);
int dcpfs_describe_broken(const struct dcp_version *v, enum dcp_row_kind kind,
			  dcpfs_broken_fn *fn, void *ctx);

/* Write the member "files" of a tensor shown as @dtype; null for forms that cannot show it. */
void dcpfs_describe_files(const struct dcp_row *row, enum dcp_dtype dtype, struct dcp_jsonw *w);

/*
 * Write the members of index.json before "tensors": dcpfs, version, format, complete,
 * frameworks, and __metadata__ of safetensors files (metadata, metadata_lost).
 */
void dcpfs_describe_version(const struct dcp_version *v, struct dcp_jsonw *w);

/*
 * spool: text that may become big, written to an unlinked file as it grows.
 *
 *	struct dcpfs_spool s = DCPFS_SPOOL_INIT(dir);
 *
 *	... append to s.buf, and now and then:
 *	rc = dcpfs_spool_flush(&s, false);
 *	rc = rc == 0 ? dcpfs_spool_finish(&s, &text) : dcpfs_spool_drop(&s, rc);
 */

/* Bytes of one generated file. Small ones are on the heap; big ones are mapped from an unlinked
 * file. */
struct dcpfs_text {
	const char *p;
	size_t n;
	char *heap; /* the memory at p; NULL: p is a mapping */
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

/* Overwrite @n bytes at @off, which were appended by a single call. -EIO, ... */
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
