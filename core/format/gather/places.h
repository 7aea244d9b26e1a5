/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places: which tensor was emitted before with the same bytes?
 *
 * A place is what says where and how a tensor is stored: dtype, shape, and all members of each
 * piece. Places are compared byte for byte, since a hash alone could be forged.
 */
#pragma once
#include "core/base/buf.h"
#include "core/base/intern.h"

struct dcp_tensor;

struct dcp_places {
	struct dcp_buf place;         /* of the tensor asked about */
	struct dcp_intern seen;       /* place to number */
	struct dcp_buf keys, key_off; /* of each number: its key, and where that starts */
};

/*
 * Set the alias_of of @t, which has pieces, to the key that was the first at its place, valid
 * until the next call; if @t is the first, its key is remembered. -ENOMEM; -E2BIG.
 */
int dcp_places_find(struct dcp_places *p, struct dcp_tensor *t);
void dcp_places_finish(struct dcp_places *p);
