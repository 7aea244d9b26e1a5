/* SPDX-License-Identifier: Apache-2.0 */
/*
 * describe: a tensor, an object, a version as JSON: the entries of index.json, which the tools
 * show too. The form is documented in fs/README.md; people rely on it.
 */
#pragma once
#include <stdbool.h>

#include "core/model/dtype.h"
#include "core/store/index/index.h"

struct dcp_err;
struct dcp_jsonw;
struct dcp_version;

/*
 * One entry of "tensors": where every piece lies is looked up, so this opens backing files. A
 * tensor that cannot be read is described with its "error". -ENOMEM, or what the index gave.
 */
int dcpfs_describe_tensor(struct dcp_version *v, const struct dcp_row *row, struct dcp_jsonw *w,
			  struct dcp_err *err);

/* One entry of "objects"; with @value also what it holds. */
int dcpfs_describe_object(struct dcp_version *v, const struct dcp_row *row, bool value,
			  struct dcp_jsonw *w, struct dcp_err *err);

/*
 * Call @fn for each row of a kind that cannot be read, with the reason (NULL: not known), until it returns other than 0. Returns
 * that, 0, or what the index gave.
 */
typedef int dcpfs_broken_fn(void *ctx, const struct dcp_row *row, const char *why);
int dcpfs_describe_broken(const struct dcp_version *v, enum dcp_row_kind kind,
			  dcpfs_broken_fn *fn, void *ctx);

/* The member "files" of a tensor whose elements are seen as @dtype; null where a form cannot show it. */
void dcpfs_describe_files(const struct dcp_row *row, enum dcp_dtype dtype, struct dcp_jsonw *w);

/* The members of index.json before "tensors": dcpfs, version, format, complete, frameworks, and what the files of
 * safetensors say (metadata, metadata_lost). */
void dcpfs_describe_version(const struct dcp_version *v, struct dcp_jsonw *w);
