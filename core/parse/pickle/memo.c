/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/parse/pickle/memo.h"

#include "core/base/sort.h"

/* Small indices are always dense; so is any number that has been counted up to. */
enum { DENSE_MIN = 1024 };

static int no_memory(const struct dcp_pkl_mem *m)
{
	return m->over ? -E2BIG : -ENOMEM;
}

static int grow_words(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m, uint64_t idx)
{
	size_t n = DCP_MAX(t->nwords * 2, (size_t)(idx / 32) + 1);
	struct dcp_pkl_memo_word *words;

	words = dcp_pkl_resize(m, t->words, t->nwords * sizeof(*words), n * sizeof(*words));
	if (!words)
		return no_memory(m);
	memset(words + t->nwords, 0, (n - t->nwords) * sizeof(*words));
	t->words = words;
	t->nwords = n;
	return 0;
}

static void sort_far(struct dcp_pkl_memo *t)
{
	size_t n = 0;

	DCP_SORT(t->far, t->nfar, dcp_by_u64);
	for (size_t i = 0; i < t->nfar; i++)
		if (!n || t->far[n - 1] != t->far[i])
			t->far[n++] = t->far[i];
	t->nfar = n;
}

static int add_far(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m, uint64_t idx)
{
	if (t->nfar == t->far_cap) {
		sort_far(t);
		if (t->nfar >= t->far_cap / 2) {
			size_t cap = DCP_MAX(t->far_cap * 2, 64);
			uint64_t *far = dcp_pkl_resize(m, t->far, t->far_cap * sizeof(*far),
						       cap * sizeof(*far));

			if (!far)
				return no_memory(m);
			t->far = far;
			t->far_cap = cap;
		}
	}
	t->far[t->nfar++] = idx;
	return 0;
}

int dcp_pkl_memo_want_slow(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m, uint64_t idx,
			   uint64_t seen)
{
	int r;

	/* Each entry took a byte at least: a dense numbering cannot be further than this. */
	if (idx >= DCP_MAX(seen, DENSE_MIN) || idx > UINT32_MAX)
		return add_far(t, m, idx);
	r = grow_words(t, m, idx);
	if (r == 0)
		t->words[idx / 32].bits |= 1u << (idx & 31);
	return r;
}

int dcp_pkl_memo_rank(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m)
{
	size_t n = 0, first = 0;

	sort_far(t);
	for (; first < t->nfar && t->far[first] / 32 < t->nwords; first++)
		t->words[t->far[first] / 32].bits |= 1u << (t->far[first] & 31);
	t->nfar -= first;
	if (first)
		memmove(t->far, t->far + first, t->nfar * sizeof(*t->far));
	for (size_t i = 0; i < t->nwords; i++) {
		t->words[i].rank = (uint32_t)n;
		n += dcp_pkl_popcount(t->words[i].bits);
	}
	t->ndense = n;
	n += t->nfar;
	if (n) {
		t->slots = dcp_pkl_resize(m, NULL, 0, n * sizeof(*t->slots));
		if (!t->slots)
			return no_memory(m);
		memset(t->slots, 0, n * sizeof(*t->slots));
	}
	t->nslots = n;
	return 0;
}

uintptr_t *dcp_pkl_memo_far_slot(struct dcp_pkl_memo *t, uint64_t idx)
{
	const uint64_t *at = DCP_FIND(&idx, t->far, t->nfar, dcp_by_u64);

	return at ? &t->slots[t->ndense + (size_t)(at - t->far)] : NULL;
}

void dcp_pkl_memo_finish(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m)
{
	dcp_pkl_resize(m, t->words, t->nwords * sizeof(*t->words), 0);
	dcp_pkl_resize(m, t->far, t->far_cap * sizeof(*t->far), 0);
	dcp_pkl_resize(m, t->slots, t->nslots * sizeof(*t->slots), 0);
	*t = (struct dcp_pkl_memo){ 0 };
}
