/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp: what the two forms of a torch.distributed.checkpoint directory share.
 *
 * One .metadata for all ranks, or one __<rank>.metadata for each: either way the tensors and
 * byte items of a joined struct dcp_tmeta are emitted to a sink. Tensor items are named by place
 * and length and not opened; byte items are read.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/format/dcp/meta/meta.h"
#include "core/format/format.h"

#define DCP_TDCP_MAX_OBJECT (256u << 20) /* a byte item; train states are kilobytes */
#define DCP_TDCP_MAX_DECODED (64u << 20) /* of a compressed item, which is kept in memory */

struct dcp_tdcp {
	const struct dcp_load *in;
	struct dcp_tmeta meta;
	const char *missing; /* of rank-local metadata: why elements may be missing; or NULL */
	const char *const *rank; /* what to call the writer of each file read; or NULL */
};

/* Read the file @name as (one more) metadata file and emit it to the sink. The directory may be
 * NULL when nothing is read through it. */
int dcp_tdcp_read(struct dcp_tdcp *d, const char *name, struct dcp_err *err);

/* Join, then emit every key and the facts. */
int dcp_tdcp_emit(struct dcp_tdcp *d, struct dcp_err *err);
/*
 * Emit other files of the directory that may hold tensors, below their names, or name them as left
 * out.
 */
int dcp_tdcp_emit_rest(struct dcp_tdcp *d);

/*
 * Is @name that of a data file, "<anything>__<i>_<n>.distcp"? @rank receives i. And of a
 * rank's metadata, "__<rank>.metadata"?
 */
bool dcp_tdcp_is_data_name(const char *name, uint64_t *rank);
bool dcp_tdcp_is_rank_name(const char *name, const char *suffix, uint64_t *rank);
