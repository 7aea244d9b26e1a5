/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place: what a rank's file holds, compared with what metadata.pkl says of it.
 *
 * A tensor that is stored as it was in the rank's memory becomes a part of the whole; one that
 * says itself which part it is must say the same.
 */
#pragma once
#include <stdint.h>

#include "core/format/torch_checkpointing/meta/meta.h"

struct dcp_arena;
struct dcp_err;
struct dcp_tensor;

/*
 * The local tensor @local of rank @rank, one whole piece or (without elements) none, as a part
 * of what @g describes. What @out points at lives in @arena and @local. -EBADMSG (it is not
 * what the metadata says: found and expected), -E2BIG, -ENOMEM.
 */
int dcp_titems_place(const struct dcp_titems_group *g, uint32_t rank,
		     const struct dcp_tensor *local, struct dcp_arena *arena,
		     struct dcp_tensor *out, struct dcp_err *err);

/* The same of @part, which is in pieces of the whole already: are they the right ones? */
int dcp_titems_compare(const struct dcp_titems_group *g, uint32_t rank,
		       const struct dcp_tensor *part, struct dcp_arena *arena,
		       struct dcp_err *err);
