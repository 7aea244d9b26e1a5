/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key: what the files that emit one key of a Paddle distributed checkpoint share; only they
 * include it.
 *
 *	key.c                 the key, from its entries to the sink
 *	head.c                what its entries have in common: dtype and shape
 *	find.c                the array that an entry means
 *	fault.c               why an array is not the one that an entry means
 *	pieces.c              the pieces, and which of those that overlap counts
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "core/format/paddle/dist/dist_int.h"
#include "core/model/tensor.h"

struct dcp_pjoin {
	const struct dcp_pmeta_key *key;
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	const uint64_t *len; /* of the box of the entry at hand, as far as it lies in shape */
	struct dcp_err why;  /* the key is broken */
	bool sized;          /* its dtype has been looked up */
};

#define dcp_pjoin_fail(j, ...) dcp_fail(&(j)->why, -EBADMSG, __VA_ARGS__)

static inline bool dcp_pjoin_broken(const struct dcp_pjoin *j)
{
	return j->why.msg[0] != '\0';
}

/* ---- head.c ---- */

/* What the entries of @k say of dtype and shape. */
void dcp_pjoin_head(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_key *k);

/* Where metadata says nothing: the dtype is that of the array. */
void dcp_pjoin_stored_dtype(struct dcp_pdist *d, struct dcp_pjoin *j,
			    const struct dcp_parray *loc);

/* ---- find.c ---- */

/* The records of @k in order, for dcp_pjoin_find(); @n of them. 0 or -ENOMEM. */
int dcp_pjoin_sort(struct dcp_pdist *d, const struct dcp_pmeta_key *k, size_t *n);

/*
 * Number of the record whose array is the piece @e, or DCP_PMETA_NONE, and why in d->join. *@other:
 * that of another in another file, or DCP_PMETA_NONE.
 */
uint32_t dcp_pjoin_find(struct dcp_pdist *d, struct dcp_pjoin *j,
			const struct dcp_pmeta_entry *e, size_t n, uint32_t *other);

/* ---- fault.c ---- */

/* Describe in d->join that the array of @r has another shape than @e says. */
void dcp_pjoin_misfit(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_entry *e,
		      const struct dcp_pmeta_record *r, const struct dcp_parray *loc);

/* ---- pieces.c ---- */

/* Find the pieces that the entries of @k list. 0 or -ENOMEM. */
int dcp_pjoin_collect(struct dcp_pdist *d, struct dcp_pjoin *j, const struct dcp_pmeta_key *k);

/* Make them pieces that do not overlap; a missing one then shows as missing elements. */
int dcp_pjoin_settle(struct dcp_pdist *d, struct dcp_pjoin *j);
