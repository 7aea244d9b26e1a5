/* SPDX-License-Identifier: Apache-2.0 */
/*
 * places: which tensor was emitted before with the same bytes?
 *
 * A place is whatever says where and how a tensor is stored, packed by its family into
 * @place: offset, dtype, shape, strides. Places are compared byte for byte, since a hash alone
 * could be forged.
 *
 *	struct dcp_places p = { 0 };
 *
 *	dcp_buf_reset(&p.place);
 *	dcp_buf_varint(&p.place, offset); ...
 *	rc = dcp_places_find(&p, key, &t.alias_of);
 */
#pragma once
#include "core/base/buf.h"
#include "core/base/intern.h"

struct dcp_places {
	struct dcp_buf place;         /* the caller's: of the tensor asked about */
	struct dcp_intern seen;       /* place to number */
	struct dcp_buf keys, key_off; /* of each number: its key, and where that starts */
};

/*
 * Set @alias to the key that was the first at this place, valid until the next call; if @key is
 * the first, it is remembered and @alias left alone. -ENOMEM, also when packing ran out of
 * memory; -E2BIG.
 */
int dcp_places_find(struct dcp_places *p, const char *key, const char **alias);
void dcp_places_finish(struct dcp_places *p);
