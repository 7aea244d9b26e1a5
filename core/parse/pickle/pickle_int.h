/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_int: what the files of the pickle machine share, and nobody else includes.
 *
 *	window.c        a window sliding over the source, and opcode arguments in it
 *	memo.c          which memo entries are ever fetched, and their values
 *	scan.c          pass one
 *	text.c          decimal numbers, quoted and escaped text, UTF-8
 *	mem.c           memory of nodes, and their release
 *	node.c          making nodes, sharing equal ones
 *	global.c        names of classes and functions, each once
 *	pickle.c        both passes from the outside; the machine: see vm.h
 *	value.c         accessors
 *
 * The functions here that are called for nearly every opcode are inline: 59 million
 * opcodes in half a second leave no room for a call each.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/endian.h"
#include "core/parse/pickle/ops.h"
#include "core/parse/pickle/pickle.h"

struct dcp_buf;
struct dcp_err;
struct dcp_source;

/* ---- mem: nodes of one pickle ---- */

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

struct dcp_pickle {
	struct dcp_pv root;
	struct dcp_pkl_mem mem;
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

/* Forget the tables that only serve sharing; what they alone held is released. */
void dcp_pkl_mem_settle(struct dcp_pkl_mem *m);

/* Count @n bytes against the limit; false (and over) when they do not fit. */
bool dcp_pkl_charge(struct dcp_pkl_mem *m, size_t n);
void dcp_pkl_uncharge(struct dcp_pkl_mem *m, size_t n);

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

/*
 * Makers. All give a node with one reference, or NULL (see over). Items move in: the
 * node takes over the references of the caller, on success only. The depth of what has
 * items is the caller's to check: it may come out larger than the limit by one.
 */
/* STR and its like of @n bytes, which the caller writes; there is room for 8 more. */
struct dcp_pnode *dcp_pkl_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off);
struct dcp_pnode *dcp_pkl_far_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off);
struct dcp_pnode *dcp_pkl_tuple(struct dcp_pkl_mem *m, const struct dcp_pv *items, size_t n);
struct dcp_pnode *dcp_pkl_container(struct dcp_pkl_mem *m);
struct dcp_pnode *dcp_pkl_object(struct dcp_pkl_mem *m, struct dcp_pv callable,
				 struct dcp_pv args, struct dcp_pv kwargs, bool called);
/* The same pair gives the same node as a rule. Neither may contain a NUL. */
struct dcp_pnode *dcp_pkl_global(struct dcp_pkl_mem *m, const char *module, size_t nmodule,
				 const char *name, size_t nname);

/* The object's own struct dcp_pobj, which may be changed; NULL when memory is out. */
struct dcp_pobj *dcp_pkl_own(struct dcp_pkl_mem *m, struct dcp_pnode *node);

/* Move @n items behind those of a container; the deepest of them counts for its depth. */
bool dcp_pkl_extend(struct dcp_pkl_mem *m, struct dcp_pnode *c, const struct dcp_pv *items,
		    size_t n);

/* ---- win: the part of the source that is in memory ---- */

enum {
	DCP_PKL_PAD = 16,           /* readable bytes behind the window */
	DCP_PKL_WINDOW = 128 << 10, /* as large as it normally gets */
	DCP_PKL_WINDOW_MIN = 4096,  /* first read after a jump; doubles from there */
};

struct dcp_pkl_win {
	const struct dcp_source *src;
	uint8_t *buf;
	const uint8_t *end;  /* behind the last byte read */
	const uint8_t *safe; /* opcodes before this have 8 bytes of argument in the window */
	uint64_t base;       /* offset of buf[0] in the source */
	size_t cap;
	size_t ahead; /* size of the next sequential read */
	size_t ahead_min, ahead_max;
	struct dcp_err *err;
};

/* Returns 0 or -ENOMEM. @window: 0 for the usual size; tests give small ones. */
int dcp_pkl_win_init(struct dcp_pkl_win *w, const struct dcp_source *src, size_t window,
		     struct dcp_err *err);
void dcp_pkl_win_finish(struct dcp_pkl_win *w);

static inline uint64_t dcp_pkl_off(const struct dcp_pkl_win *w, const uint8_t *p)
{
	return w->base + (uint64_t)(p - w->buf);
}

/* Where to go on reading for offset @off; what is there is checked by dcp_pkl_win_op(). */
const uint8_t *dcp_pkl_win_seek(struct dcp_pkl_win *w, uint64_t off);

/* Called when *@p is not before safe: after it, the opcode and its fixed argument are in
 * memory. */
int dcp_pkl_win_op(struct dcp_pkl_win *w, const uint8_t **p);

/* The same for @n bytes at *@p, which the caller knows to be in the source. */
int dcp_pkl_win_need(struct dcp_pkl_win *w, const uint8_t **p, size_t n);

/* Length that the opcode at @p claims, checked against what is left behind its @head bytes. */
int dcp_pkl_win_length(struct dcp_pkl_win *w, const uint8_t *p, size_t *head, uint64_t *n);

/* Length of the line that starts @skip bytes behind *@p, without its newline. */
int dcp_pkl_win_line(struct dcp_pkl_win *w, const uint8_t **p, size_t skip, size_t *n);

/* "<NAME> at byte N <message>" about the opcode at @p; returns @code. */
int dcp_pkl_win_fail(const struct dcp_pkl_win *w, const uint8_t *p, int code, const char *fmt,
		     ...) DCP_PRINTF(4, 5);

/* Refuse the opcode at @p, which is unknown or on the list of the refused. */
int dcp_pkl_win_refuse(const struct dcp_pkl_win *w, const uint8_t *p);

/* The checks on PROTO and FRAME, the same in both passes. */
int dcp_pkl_win_proto(const struct dcp_pkl_win *w, const uint8_t *p);
int dcp_pkl_win_frame(const struct dcp_pkl_win *w, const uint8_t *p);

/* By opcode: enum pickle_arg, and the name. */
extern const uint8_t dcp_pkl_arg[256];
const char *dcp_pkl_name(uint8_t op);

/* ---- memo ---- */

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

/* ---- text ---- */

/* Is it UTF-8? @surrogates: those of Python's surrogatepass are allowed. */
bool dcp_pkl_utf8(const void *s, size_t n, bool surrogates);

/* Decimal digits with an optional minus sign, to two's complement that may be longer than
 * needed. */
enum { DCP_PKL_DECIMAL_BYTES = DCP_PICKLE_MAX_INT + 32 }; /* room for @le */
enum dcp_pkl_number { DCP_PKL_NUMBER_OK, DCP_PKL_NUMBER_BAD, DCP_PKL_NUMBER_LONG };
enum dcp_pkl_number dcp_pkl_decimal(const char *s, size_t n, uint8_t *le, size_t *nbytes);
bool dcp_pkl_index(const char *s, size_t n, uint64_t *out);
bool dcp_pkl_float(const char *s, size_t n, double *out);

/* Argument of STRING: quoted, backslash escapes; false when it is not well-formed. */
bool dcp_pkl_unquote(const char *s, size_t n, struct dcp_buf *out);
/* Argument of UNICODE: Latin-1 with \u and \U; the result is UTF-8 with surrogatepass. */
bool dcp_pkl_unescape(const char *s, size_t n, struct dcp_buf *out);

/* ---- the passes ---- */

/* Pass one over the pickle at @off. */
int dcp_pkl_scan(struct dcp_pkl_win *w, struct dcp_pkl_mem *m, uint64_t off,
		 struct dcp_pkl_memo *memo);

/* dcp_pickle_read() with a window of @window bytes, for tests. */
int dcp_pickle_read_windowed(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
			     size_t window, struct dcp_pickle **out, uint64_t *end,
			     struct dcp_err *err);
