/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover: pieces that overlap, cut into pieces that do not.
 *
 * Some writers store elements more than once. A tensor's pieces must tile it, so of several
 * pieces that hold an element the last one has it, as if they were copied into the tensor one
 * after another, and the others lose what they share with it. Runs become the boxes they
 * consist of. Which elements are held does not change, so a hole stays a hole.
 *
 * Whether copies of an element are equal is not checked.
 */
#pragma once
#include <stddef.h>

#include "core/model/tensor.h"

struct dcp_arena;
struct dcp_err;

/*
 * The plain pieces of @t, whose boxes lie inside shapes that do not overflow, as pieces without
 * overlap in @arena, in the same order. Pieces that need no cut come out as they were. Returns
 * 0, -ENOTSUP (a cut through an encoded item, described in @err), -E2BIG (too many cuts) or
 * -ENOMEM.
 */
int dcp_cover(const struct dcp_tensor *t, struct dcp_arena *arena, struct dcp_piece **out,
	      size_t *nout, struct dcp_err *err);
