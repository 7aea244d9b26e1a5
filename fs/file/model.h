/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model: all that a rank holds as one virtual safetensors file, or one file of hf/.
 *
 * The header is generated text; after it the tensors' stored values are consecutive. A part is
 * a file like the slot's raw/ file of that tensor: it is opened when it is read for the first
 * time, and stays with the model, which keeps DCPFS_MODEL_KEPT parts. So such a file costs
 * sixteen bytes a key, its header, and some 2 KB for each part kept, however big the tensors are.
 *
 * Left out, and named in the header's metadata ("dcpfs.left_out"): tensors whose dtype
 * safetensors has no name for, and those that are broken or that the layout cannot cut.
 */
#pragma once
#include <pthread.h>
#include <stdint.h>

#include "fs/text/spool.h"

struct dcp_err;
struct dcpfs;
struct dcpfs_file;
struct dcpfs_version;

#define DCPFS_MODEL_KEPT 2048

struct dcpfs_model_part {
	uint64_t end; /* of its bytes, counted from the end of the header */
	int64_t row;
};

struct dcpfs_model {
	struct dcpfs_text header; /* the 8 bytes of its length come first */
	struct dcp_buf parts;     /* struct dcpfs_model_part, in order */
	uint64_t size;            /* of the whole file */

	pthread_mutex_t lock;     /* the rest: */
	struct dcpfs_file **kept; /* of part i in place i % nkept; NULL: not read yet */
	size_t nkept;
};

/* For hf/ its file number @n. -ENOENT (no such file), -ENOMEM, -EFBIG, or what the index gave. */
int dcpfs_model_make(struct dcpfs *fs, struct dcpfs_version *ver, uint64_t n,
		     struct dcpfs_model *out, struct dcp_err *err);
/* @m's kept files were given back. */
void dcpfs_model_finish(struct dcpfs_model *m);

/*
 * What lies at @off, which must be inside the file: a part, or NULL for the header. @inside: the
 * position of @off in it; @left: how many of its bytes follow.
 */
const struct dcpfs_model_part *dcpfs_model_at(const struct dcpfs_model *m, uint64_t off,
					      uint64_t *inside, uint64_t *left);
