/* SPDX-License-Identifier: Apache-2.0 */
/* text: the generated files: README.txt, index.json, status.json and so on; those of hf/, layouts,
 * ranks and stats/; and extended attributes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/model/dtype.h"
#include "core/store/index/index.h"
#include "core/store/view/measure.h"
#include "fs/ino.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_spool;
struct dcpfs_text;
struct dcpfs_version;

/* Append the content of .dcpfs/metrics. */
void dcpfs_text_metrics(struct dcpfs *fs, struct dcp_buf *out);

/* Generate the file of inode @ino. @ver is open, except for README.txt, which also says why a
 * version was refused; NULL for kinds that belong to no version. */
int dcpfs_text_make(struct dcpfs *fs, struct dcpfs_version *ver, struct dcpfs_ino ino,
		    struct dcpfs_text *out, struct dcp_err *err);

/* hf: the generated files of hf/: README.md, with the mapping of keys and the missing files, and
 * model.safetensors.index.json, if there are several model files. */

/* @ver: an open slot of hf/. 0, or the error of the index. */
int dcpfs_hf_readme(const struct dcpfs *fs, const struct dcpfs_version *ver,
		    struct dcpfs_spool *s, struct dcp_err *err);
int dcpfs_hf_weight_map(const struct dcpfs_version *ver, struct dcpfs_spool *s,
			struct dcp_err *err);
/* The file that is made at place @i (dcp_hf_next_file). -ENOENT: there are fewer. */
int dcpfs_hf_made(const struct dcpfs_version *ver, uint64_t i, struct dcpfs_spool *s);

/* share: the files that describe layouts and ranks: layout.json, and a rank's index.json and
 * plan.json. Their forms are documented in fs/README.md. */

/* layout.json of layout number @id over the version @ver: mesh, rules, and the rule of each key. */
int dcpfs_share_layout(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t id,
		       struct dcpfs_spool *s, struct dcp_err *err);

/* index.json of the rank @ver: its part of each key. */
int dcpfs_share_index(struct dcpfs_version *ver, struct dcpfs_spool *s);

/* plan.json of the rank @ver: which stored bytes it needs. Opens backing files. */
int dcpfs_share_plan(struct dcpfs_version *ver, struct dcpfs_spool *s);

/* xattr: what getfattr -d shows of a tensor or object file: user.dcpfs.key, dtype, shape, nbytes,
 * version, format, path, files, alias_of, type, error; those that apply. */

struct dcp_buf;

/* Append the value (no NUL). -ENODATA: the node has no attribute of that name. */
int dcpfs_xattr_get(struct dcpfs *fs, uint64_t ino, const char *name, struct dcp_buf *out);

/* Append the names, each with its NUL. Empty for nodes without attributes. */
int dcpfs_xattr_list(struct dcpfs *fs, uint64_t ino, struct dcp_buf *out);

/*
 * measured: stats/KEY.json, the output of dcpfs stats for a tensor, and the same in index.jsonl.
 *
 * Reading all tensors takes hours where there are many, so listing stats/ must read none. So the
 * size of a file is known before its text, which is padded with spaces.
 */

struct dcp_jsonw;
struct dcp_row;

/* The statistics of an open version; NULL: no memory. */
struct dcp_measures *dcpfs_measures(struct dcpfs_version *ver);

uint64_t dcpfs_measured_size(const struct dcp_row *row);

/* Are the statistics of row @id there without reading the tensor? */
bool dcpfs_measured_is_known(struct dcpfs_version *ver, int64_t id);

/* The file of row @id. Reads all of the tensor where its statistics are not known; -EINTR: the
 * program was interrupted meanwhile, or the mount ends. */
int dcpfs_measured_make(struct dcpfs *fs, struct dcpfs_version *ver, int64_t id,
			struct dcpfs_text *out, struct dcp_err *err);

/* describe: tensors, objects and versions as JSON: the entries of index.json, which the tools
 * print, too. The form is documented in fs/README.md, and programs rely on it. */

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

/* Call @fn for each row of a kind that cannot be read, with the reason (NULL: unknown), until @fn
 * returns non-zero. Returns the last return of @fn, or the error of the index. */
typedef int dcpfs_broken_fn(void *ctx, const struct dcp_row *row, const char *why);
int dcpfs_describe_broken(const struct dcp_version *v, enum dcp_row_kind kind,
			  dcpfs_broken_fn *fn, void *ctx);

/* Write the member "files" of a tensor shown as @dtype; null for forms that cannot show it. */
void dcpfs_describe_files(const struct dcp_row *row, enum dcp_dtype dtype, struct dcp_jsonw *w);

/* Write the members of index.json before "tensors": dcpfs, version, format, complete, frameworks,
 * and __metadata__ of safetensors files (metadata, metadata_lost). */
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

/* Open a nameless file in @dir, or in memory (named @what) if @dir is NULL or cannot hold one. -1:
 * errno. */
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

/* Write the appended text to the file if it has reached a megabyte, or with @now in any case.
 * -ENOMEM, -ENOSPC, -EIO, ... */
int dcpfs_spool_flush(struct dcpfs_spool *s, bool now);

/* Call @fn for every row of a kind, and flush the text that it appends. 0, or the first error of
 * @fn or the index. */
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
