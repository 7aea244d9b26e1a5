/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_int: what the files behind save_for_auto_inference share.
 *
 *	auto.c               every rank's files read
 *	cut.c                how one tensor was cut
 *	join.c               each key's parts put together
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/format/gather/copies.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

/* What one rank's .pdattr says of a key. */
struct dcp_pdsaid {
	uint32_t rank; /* index in ranks */
	struct dcp_pv v;
	struct dcp_pdsaid *next;
};

/* By number of the key: what each rank says, in the order of ranks. */
struct dcp_pdentry {
	struct dcp_pdsaid *said, *last;
};

struct dcp_pdrank {
	const struct dcp_pdpart *part;
	uint64_t number;
	struct dcp_pickle *attr;
	const char *why;             /* not NULL: its tensors cannot be read */
	const struct dcp_copy *held; /* of the key at hand */
};

struct dcp_pdjoin {
	const struct dcp_load *in;
	struct dcp_pdrank *ranks; /* sorted by number */
	size_t nranks;
	struct dcp_copies copies; /* by index of the rank */
	struct dcp_buf entries;   /* struct dcp_pdentry, by number of the key */
	uint32_t at;              /* the rank whose files are being read */
	struct dcp_err *err;
};

/* Emit every key; after all ranks were read. */
int dcp_pdjoin_emit(struct dcp_pdjoin *j);

/* ---- how a tensor was cut ---- */

enum { DCP_PDCUT_MESH = 8 }; /* dimensions; Paddle writes one or two */

struct dcp_pdcut {
	uint64_t mesh[DCP_PDCUT_MESH];
	uint64_t step[DCP_PDCUT_MESH]; /* places from one to the next */
	size_t nmesh;
	const struct dcp_pv *group; /* ranks by place */
	size_t nplaces;
	int8_t by[DCP_MAX_NDIM]; /* mesh dimension that cuts; -1: none */
};

/* Read the attributes @v of a tensor of @ndim dimensions: 0, or -EBADMSG described in @why. */
int dcp_pdcut_read(struct dcp_pdcut *c, struct dcp_pv v, uint32_t ndim, struct dcp_err *why);
bool dcp_pdcut_same(const struct dcp_pdcut *a, const struct dcp_pdcut *b);

/* Number of the part that the rank at @place has: its place in the meshes that cut, row-major
 * over the tensor's dimensions. */
uint64_t dcp_pdcut_part(const struct dcp_pdcut *c, uint32_t ndim, uint64_t place);
