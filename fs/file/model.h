/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: all that a rank holds as one virtual safetensors file, or one file of hf/.
 *
 * The header is generated text; after it the tensors' stored values are consecutive, each read
 * through the slot's own raw/ file. So such a file costs sixteen bytes a key and its header,
 * however big the tensors are.
 *
 * Left out, and named in the header's metadata ("dcpfs.left_out"): tensors whose dtype
 * safetensors has no name for, and those that are broken or that the layout cannot cut.
 */
#pragma once
#include <stdint.h>

#include "fs/text/spool.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_version;

struct dcpfs_model_part {
	uint64_t end; /* of its bytes, counted from the end of the header */
	int64_t row;
};

struct dcpfs_model {
	struct dcpfs_text header; /* the 8 bytes of its length come first */
	struct dcp_buf parts;     /* struct dcpfs_model_part, in order */
	uint64_t size;            /* of the whole file */
};

/* For hf/ its file number @n. -ENOENT (no such file), -ENOMEM, -EFBIG, or what the index gave. */
int dcpfs_model_make(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t n,
		     struct dcpfs_model *out, struct dcp_err *err);
void dcpfs_model_finish(struct dcpfs_model *m);

/*
 * What lies at @off, which must be inside the file: a part, or NULL for the header. @inside: the
 * position of @off in it; @left: how many of its bytes follow.
 */
const struct dcpfs_model_part *dcpfs_model_at(const struct dcpfs_model *m, uint64_t off,
					      uint64_t *inside, uint64_t *left);
