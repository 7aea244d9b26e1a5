/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measured: stats/KEY.json, what dcpfs stats says of one tensor, and the same in index.jsonl.
 *
 * Reading all tensors takes hours where there are many, so listing stats/ must read none. The size
 * of a file is therefore known before what is in it: the text is filled up with spaces.
 */
#pragma once
#include <stdint.h>

#include "core/store/view/measure.h"

struct dcp_err;
struct dcp_jsonw;
struct dcp_row;
struct dcpfs;
struct dcpfs_text;
struct dcpfs_version;

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

/* Write the members of an object. */
void dcpfs_measured_put(const struct dcp_measured *m, const struct dcp_row *row,
			struct dcp_jsonw *w);
