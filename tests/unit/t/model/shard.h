/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_shard: DTensors and ShardedTensors as torch.save spells them, for pickles made with
 * t_torch.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct t_dtensor {
	const char *storage; /* of the local part: its key; floats */
	const int64_t *shape, *local;
	size_t ndim, nlocal;
	/* Per mesh dimension: its ranks, this rank's place, and "S0", "R", "P" or "T0/2"
	 * (strided, with its split factor). */
	const int64_t *mesh, *at;
	const char *const *placed;
	size_t nmesh;
	/* The mesh as a tensor of ranks in storage "mesh" (torch < 2.9), or as a layout. */
	bool old;
	bool no_place;     /* the mesh does not say where in it the rank is */
	const char *order; /* "10": mesh dimension 1 cuts dimension 0 of the tensor first */
	bool parameter;    /* wrapped in _rebuild_parameter */
};

/* Push one. */
void t_pk_dtensor(struct dcp_buf *b, const struct t_dtensor *d);

/* One of float shards in storages "<i>": @n times offsets[ndim], sizes[ndim]. @before: not a
 * tensor yet (torch 1.12). */
void t_pk_sharded(struct dcp_buf *b, const int64_t *shape, size_t ndim, size_t n,
		  const int64_t *boxes, bool before);
