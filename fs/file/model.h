/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: all that a rank holds as one virtual safetensors file, or one file of hf/.
 *
 * The header is text of the file; behind it the tensors' stored values stand one after the
 * other, each read through the slot's own raw/ file. So one costs sixteen bytes a key and its
 * header, however big the tensors are.
 *
 * Left out, and named in the header's metadata ("dcpfs.left_out"): tensors whose dtype
 * safetensors has no name for, and those that are broken or that the layout cannot cut.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "fs/text/spool.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_version;

struct dcpfs_model_part {
	uint64_t end; /* of its bytes, counted from the first behind the header */
	int64_t row;
};

struct dcpfs_model {
	struct dcpfs_text header; /* with the 8 bytes of its length in front */
	struct dcp_buf parts;     /* struct dcpfs_model_part, in order */
	uint64_t size;            /* of the whole file */
};

/* Of hf/ its file number @n. -ENOENT (no such file), -ENOMEM, -EFBIG, or what the index gave. */
int dcpfs_model_make(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t n,
		     struct dcpfs_model *out, struct dcp_err *err);
void dcpfs_model_finish(struct dcpfs_model *m);

/*
 * What stands at @off, which must be inside the file: a part, with where in it @off is and how
 * many of its bytes follow; NULL: the header, with the same about it.
 */
const struct dcpfs_model_part *dcpfs_model_at(const struct dcpfs_model *m, uint64_t off,
					      uint64_t *inside, uint64_t *left);
