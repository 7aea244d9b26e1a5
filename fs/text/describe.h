/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe: tensors, objects and versions as JSON: the entries of index.json, which the tools
 * print, too. The form is documented in fs/README.md, and programs rely on it.
 */
#pragma once
#include <stdbool.h>

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
