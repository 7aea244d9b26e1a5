/* SPDX-License-Identifier: Apache-2.0 */
/* mem: nodes of one pickle: their memory, and who still refers to them. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/parse/pickle/pickle.h"

enum {
	DCP_PKL_GRAIN = 16,
	DCP_PKL_CLASSES = 33, /* blocks of up to 512 bytes come from the slab */
};

/* More would let the 32-bit reference counts wrap: a reference needs 16 bytes at least. */
#define DCP_PKL_MEMORY_MAX (32ull << 30)

struct dcp_pkl_mem {
	void *free[DCP_PKL_CLASSES]; /* chains through the first word of each free block */
	char *bump, *bump_end;
	struct dcp_pkl_chunk *chunks;
	struct dcp_pkl_large *large;
	size_t used, limit;
	bool over; /* the last NULL was the limit's doing, not malloc's */
	struct dcp_pnode *empty_tuple;
	struct dcp_pnode **globals; /* open addressing, short probes */
	uint32_t globals_cap, nglobals;
	uint32_t ntuples; /* made so far, up to when the tables are worth their memory */
	struct dcp_pnode **tuples;  /* recently made small tuples, to be shared */
	struct dcp_pkl_call *calls; /* recently made objects, to share struct dcp_pobj */
};

/* Freed blocks are poisoned, so a sanitizer build notices a value used after its release. */
#if defined(__SANITIZE_ADDRESS__)
#define DCP_PKL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DCP_PKL_ASAN 1
#endif
#endif
#ifdef DCP_PKL_ASAN
void __asan_poison_memory_region(const volatile void *p, size_t n);
void __asan_unpoison_memory_region(const volatile void *p, size_t n);
#define DCP_PKL_POISON(p, n) __asan_poison_memory_region(p, n)
#define DCP_PKL_UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define DCP_PKL_POISON(p, n) ((void)0)
#define DCP_PKL_UNPOISON(p, n) ((void)0)
#endif

void dcp_pkl_mem_init(struct dcp_pkl_mem *m, size_t limit);
void dcp_pkl_mem_finish(struct dcp_pkl_mem *m);

/* realloc() of plain memory of @old bytes that counts; NULL leaves @p as it was. */
void *dcp_pkl_resize(struct dcp_pkl_mem *m, void *p, size_t old, size_t n);

void *dcp_pkl_alloc_slow(struct dcp_pkl_mem *m, size_t n);
/* Make a block of @old bytes @n bytes large, @n > @old; NULL leaves it as it was. */
void *dcp_pkl_regrow(struct dcp_pkl_mem *m, void *p, size_t old, size_t n);
void dcp_pkl_free_large(struct dcp_pkl_mem *m, void *p);

/* @n bytes aligned to 16, or NULL. The size is not remembered: the caller gives it back. */
static inline void *dcp_pkl_alloc(struct dcp_pkl_mem *m, size_t n)
{
	size_t c = (n + DCP_PKL_GRAIN - 1) / DCP_PKL_GRAIN;

	if (DCP_LIKELY(c < DCP_PKL_CLASSES)) {
		void *p = m->free[c];

		if (DCP_LIKELY(p != NULL)) {
			DCP_PKL_UNPOISON(p, c * DCP_PKL_GRAIN);
			m->free[c] = *(void **)p;
			return p;
		}
		if (DCP_LIKELY((size_t)(m->bump_end - m->bump) >= c * DCP_PKL_GRAIN)) {
			p = m->bump;
			m->bump += c * DCP_PKL_GRAIN;
			return p;
		}
	}
	return dcp_pkl_alloc_slow(m, n);
}

static inline void dcp_pkl_dealloc(struct dcp_pkl_mem *m, void *p, size_t n)
{
	size_t c = (n + DCP_PKL_GRAIN - 1) / DCP_PKL_GRAIN;

	if (DCP_UNLIKELY(c >= DCP_PKL_CLASSES)) {
		dcp_pkl_free_large(m, p);
		return;
	}
	*(void **)p = m->free[c];
	m->free[c] = p;
	DCP_PKL_POISON((char *)p + sizeof(void *), c * DCP_PKL_GRAIN - sizeof(void *));
}

/* ---- values ---- */

static inline bool dcp_pkl_has_node(struct dcp_pv v)
{
	return v.type >= DCP_PV_BIGINT;
}

/*
 * Copies field by field: a copy of all 16 bytes right after the type and the payload
 * were written separately waits for both stores to leave the store buffer.
 */
static inline void dcp_pkl_move(struct dcp_pv *to, const struct dcp_pv *from)
{
	to->type = from->type;
	to->i = from->i;
}

static inline struct dcp_pv dcp_pkl_node(enum dcp_pv_type type, struct dcp_pnode *node)
{
	return (struct dcp_pv){ .type = (uint8_t)type, .node = node };
}

static inline void dcp_pkl_keep(struct dcp_pv v)
{
	if (dcp_pkl_has_node(v))
		v.node->refs++;
}

static inline uint64_t dcp_pkl_mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

/* Its count is zero: free it and whatever only it held. Never recursive. */
void dcp_pkl_release(struct dcp_pkl_mem *m, struct dcp_pv v);

static inline void dcp_pkl_drop(struct dcp_pkl_mem *m, struct dcp_pv v)
{
	if (dcp_pkl_has_node(v) && --v.node->refs == 0)
		dcp_pkl_release(m, v);
}

static inline uint32_t dcp_pkl_depth(struct dcp_pv v)
{
	return dcp_pkl_has_node(v) ? v.node->depth : 0;
}

/* One node less refers to it. */
void dcp_pkl_drop_obj(struct dcp_pkl_mem *m, struct dcp_pobj *obj);

/* An object's node holds nothing but the pointer, so that is all there is of it. */
#define DCP_PKL_OBJECT_SIZE (offsetof(struct dcp_pnode, obj) + sizeof(struct dcp_pobj *))
