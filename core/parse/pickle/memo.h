/* SPDX-License-Identifier: Apache-2.0 */
/* memo: which memo entries are ever fetched, and their values. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/parse/pickle/mem.h"

/*
 * A bit for each index that is ever fetched, with the number of bits before it, 32 to a
 * word; values only for those. Indices that no dense numbering could have reached at
 * that point of the file stand in a sorted list instead, so memory follows what the file
 * holds and not what it claims.
 */
struct dcp_pkl_memo {
	struct dcp_pkl_memo_word {
		uint32_t bits, rank;
	} * words;
	size_t nwords;
	uint64_t *far;
	size_t nfar, far_cap;
	uintptr_t *slots; /* node with its type in the low four bits; 0: nothing stored yet */
	size_t nslots, ndense;
	uint64_t next; /* what MEMOIZE numbers by: entries so far */
	bool gaps;     /* PUT left holes, so next is not known */
};

/* Pass one: @idx is fetched, @seen bytes into the pickle. Returns 0, -E2BIG or -ENOMEM. */
int dcp_pkl_memo_want_slow(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m, uint64_t idx,
			   uint64_t seen);

static inline int dcp_pkl_memo_want(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m, uint64_t idx,
				    uint64_t seen)
{
	if (DCP_UNLIKELY(idx / 32 >= t->nwords))
		return dcp_pkl_memo_want_slow(t, m, idx, seen);
	t->words[idx / 32].bits |= 1u << (idx & 31);
	return 0;
}

/* Between the passes: number the wanted entries and make room for their values. */
int dcp_pkl_memo_rank(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m);

uintptr_t *dcp_pkl_memo_far_slot(struct dcp_pkl_memo *t, uint64_t idx);

static inline uint32_t dcp_pkl_popcount(uint32_t v)
{
	v -= (v >> 1) & 0x55555555u;
	v = (v & 0x33333333u) + ((v >> 2) & 0x33333333u);
	return (((v + (v >> 4)) & 0x0f0f0f0fu) * 0x01010101u) >> 24;
}

/* Where the value of @idx is kept; NULL: it is never fetched. */
static inline uintptr_t *dcp_pkl_memo_slot(struct dcp_pkl_memo *t, uint64_t idx)
{
	const struct dcp_pkl_memo_word *w;

	if (DCP_UNLIKELY(idx / 32 >= t->nwords))
		return t->nfar ? dcp_pkl_memo_far_slot(t, idx) : NULL;
	w = &t->words[idx / 32];
	if (!(w->bits >> (idx & 31) & 1))
		return NULL;
	return &t->slots[w->rank + dcp_pkl_popcount(w->bits & ((1u << (idx & 31)) - 1))];
}

void dcp_pkl_memo_finish(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m);
