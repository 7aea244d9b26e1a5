/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: the generated files: README.txt, index.json, status.json and so on; those of hf/, layouts,
 * ranks and stats/; and extended attributes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/store/view/measure.h"
#include "fs/ino.h"
#include "fs/text/describe.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_version;

/* Append the content of .dcpfs/metrics. */
void dcpfs_text_metrics(struct dcpfs *fs, struct dcp_buf *out);

/*
 * Generate the file of inode @ino. @ver is open, except for README.txt, which also says why a
 * version was refused; NULL for kinds that belong to no version.
 */
int dcpfs_text_make(struct dcpfs *fs, struct dcpfs_version *ver, struct dcpfs_ino ino,
		    struct dcpfs_text *out, struct dcp_err *err);

/* hf: the generated files of hf/: README.md, with the mapping of keys and the missing files, and
 * model.safetensors.index.json, if there are several model files. */

struct dcpfs_spool;

/* @ver: an open slot of hf/. 0, or the error of the index. */
int dcpfs_hf_readme(const struct dcpfs *fs, const struct dcpfs_version *ver,
		    struct dcpfs_spool *s, struct dcp_err *err);
int dcpfs_hf_weight_map(const struct dcpfs_version *ver, struct dcpfs_spool *s,
			struct dcp_err *err);
/* The file that is made at place @i (dcp_hf_next_file). -ENOENT: there are fewer. */
int dcpfs_hf_made(const struct dcpfs_version *ver, uint64_t i, struct dcpfs_spool *s);

/*
 * share: the files that describe layouts and ranks: layout.json, and a rank's index.json and
 * plan.json. Their forms are documented in fs/README.md.
 */

/* layout.json of layout number @id over the version @ver: mesh, rules, and the rule of each key. */
int dcpfs_share_layout(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t id,
		       struct dcpfs_spool *s, struct dcp_err *err);

/* index.json of the rank @ver: its part of each key. */
int dcpfs_share_index(struct dcpfs_version *ver, struct dcpfs_spool *s);

/* plan.json of the rank @ver: which stored bytes it needs. Opens backing files. */
int dcpfs_share_plan(struct dcpfs_version *ver, struct dcpfs_spool *s);

/*
 * xattr: what getfattr -d shows of a tensor or object file: user.dcpfs.key, dtype, shape,
 * nbytes, version, format, path, files, alias_of, type, error; those that apply.
 */

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
struct dcpfs_text;

/* The statistics of an open version; NULL: no memory. */
struct dcp_measures *dcpfs_measures(struct dcpfs_version *ver);

uint64_t dcpfs_measured_size(const struct dcp_row *row);

/* Are the statistics of row @id there without reading the tensor? */
bool dcpfs_measured_is_known(struct dcpfs_version *ver, int64_t id);

/*
 * The file of row @id. Reads all of the tensor where its statistics are not known; -EINTR: the
 * program was interrupted meanwhile, or the mount ends.
 */
int dcpfs_measured_make(struct dcpfs *fs, struct dcpfs_version *ver, int64_t id,
			struct dcpfs_text *out, struct dcp_err *err);
