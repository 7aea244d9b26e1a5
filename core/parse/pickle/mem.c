/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of nodes. Small blocks are cut from chunks, and freed blocks go to a free list of their
 * size; large blocks are in a list of their own. All memory is freed with the pickle, so cycles of
 * nodes need no collector.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pickle/pickle_int.h"

enum {
	CHUNK_MIN = 4096,
	CHUNK_MAX = 256 << 10,
	SLAB_MAX = (DCP_PKL_CLASSES - 1) * DCP_PKL_GRAIN,
};

struct dcp_pkl_chunk {
	struct dcp_pkl_chunk *next;
	size_t size;
	_Alignas(DCP_PKL_GRAIN) char bytes[];
};

struct dcp_pkl_large {
	struct dcp_pkl_large *prev, *next;
	size_t size;
	_Alignas(DCP_PKL_GRAIN) char bytes[];
};

/* ---- memory ---- */

void dcp_pkl_mem_init(struct dcp_pkl_mem *m, size_t limit)
{
	*m = (struct dcp_pkl_mem){ .limit = limit };
}

void dcp_pkl_mem_finish(struct dcp_pkl_mem *m)
{
	while (m->chunks) {
		struct dcp_pkl_chunk *next = m->chunks->next;

		DCP_PKL_UNPOISON(m->chunks->bytes, m->chunks->size);
		free(m->chunks);
		m->chunks = next;
	}
	while (m->large) {
		struct dcp_pkl_large *next = m->large->next;

		free(m->large);
		m->large = next;
	}
	free(m->globals);
	free(m->tuples);
	free(m->calls);
	*m = (struct dcp_pkl_mem){ 0 };
}

/* Count @n bytes against the limit; false, and over is set, if they exceed it. */
static bool charge_bytes(struct dcp_pkl_mem *m, size_t n)
{
	m->over = n > m->limit - m->used;
	if (!m->over)
		m->used += n;
	return !m->over;
}

static void uncharge_bytes(struct dcp_pkl_mem *m, size_t n)
{
	m->used -= n;
}

void *dcp_pkl_resize(struct dcp_pkl_mem *m, void *p, size_t old, size_t n)
{
	void *q;

	if (n == 0) {
		free(p);
		uncharge_bytes(m, old);
		return NULL;
	}
	if (!charge_bytes(m, n))
		return NULL;
	q = realloc(p, n);
	uncharge_bytes(m, q ? old : n);
	return q;
}

static void *alloc_large(struct dcp_pkl_mem *m, size_t n)
{
	struct dcp_pkl_large *b;

	if (n > m->limit || !charge_bytes(m, sizeof(*b) + n)) {
		m->over = true;
		return NULL;
	}
	b = malloc(sizeof(*b) + n);
	if (!b) {
		uncharge_bytes(m, sizeof(*b) + n);
		return NULL;
	}
	*b = (struct dcp_pkl_large){ .next = m->large, .size = n };
	if (b->next)
		b->next->prev = b;
	m->large = b;
	return b->bytes;
}

static struct dcp_pkl_large *large_of(void *p)
{
	return (struct dcp_pkl_large *)(void *)((char *)p -
						offsetof(struct dcp_pkl_large, bytes));
}

void dcp_pkl_free_large(struct dcp_pkl_mem *m, void *p)
{
	struct dcp_pkl_large *b = large_of(p);

	if (b->next)
		b->next->prev = b->prev;
	if (b->prev)
		b->prev->next = b->next;
	else
		m->large = b->next;
	uncharge_bytes(m, sizeof(*b) + b->size);
	free(b);
}

static void *regrow_large(struct dcp_pkl_mem *m, void *p, size_t n)
{
	struct dcp_pkl_large *b = large_of(p), *q;
	size_t more = n - b->size;

	if (n > m->limit || !charge_bytes(m, more)) {
		m->over = true;
		return NULL;
	}
	q = realloc(b, sizeof(*b) + n);
	if (!q) {
		uncharge_bytes(m, more);
		return NULL;
	}
	q->size = n;
	if (q->next)
		q->next->prev = q;
	if (q->prev)
		q->prev->next = q;
	else
		m->large = q;
	return q->bytes;
}

void *dcp_pkl_regrow(struct dcp_pkl_mem *m, void *p, size_t old, size_t n)
{
	void *q;

	if (old > SLAB_MAX)
		return regrow_large(m, p, n);
	q = dcp_pkl_alloc(m, n);
	if (q && old) {
		memcpy(q, p, old);
		dcp_pkl_dealloc(m, p, old);
	}
	return q;
}

/* Put the rest of the old chunk on the free lists, so that nothing is wasted. */
static void retire_chunk(struct dcp_pkl_mem *m)
{
	while (m->bump_end - m->bump >= DCP_PKL_GRAIN) {
		size_t left = (size_t)(m->bump_end - m->bump);
		size_t n = DCP_MIN(left, (size_t)SLAB_MAX);

		n -= n % DCP_PKL_GRAIN;
		dcp_pkl_dealloc(m, m->bump, n);
		m->bump += n;
	}
}

void *dcp_pkl_alloc_slow(struct dcp_pkl_mem *m, size_t n)
{
	size_t size = m->chunks ? DCP_MIN(m->chunks->size * 2, (size_t)CHUNK_MAX) : CHUNK_MIN;
	struct dcp_pkl_chunk *c;
	char *p;

	if (n > (size_t)SLAB_MAX)
		return alloc_large(m, n);
	n = (n + DCP_PKL_GRAIN - 1) & ~(size_t)(DCP_PKL_GRAIN - 1);
	if (!charge_bytes(m, size)) {
		size = CHUNK_MIN;
		if (!charge_bytes(m, size))
			return NULL;
	}
	c = malloc(sizeof(*c) + size);
	if (!c) {
		uncharge_bytes(m, size);
		return NULL;
	}
	retire_chunk(m);
	c->next = m->chunks;
	c->size = size;
	m->chunks = c;
	p = c->bytes;
	m->bump = p + n;
	m->bump_end = p + size;
	return p;
}

/* ---- release ---- */

static size_t text_size(const struct dcp_pnode *n)
{
	return sizeof(*n) + (n->data ? (size_t)n->n + 8 : 0);
}

static size_t global_size(const struct dcp_pnode *n)
{
	return sizeof(*n) + 2 * strlen(n->module) + strlen(n->name) + 3;
}

/*
 * Nodes whose count is zero, but whose items were not released yet. They are chained through the
 * eight bytes of refs and depth, which are no longer needed. A node does not know its own type, so
 * the type is in the low four bits of the link to it.
 */
struct dying {
	uintptr_t head;
};

_Static_assert((int)DCP_PV_PERSID < (int)DCP_PKL_GRAIN,
	       "a type fits into the low bits of an address");

static void defer_release(struct dying *d, struct dcp_pv v)
{
	memcpy(v.node, &d->head, sizeof(d->head));
	d->head = (uintptr_t)v.node | v.type;
}

static void drop_items(struct dcp_pkl_mem *m, struct dying *d, const struct dcp_pv *items,
		       size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct dcp_pnode *node = items[i].node;

		if (!dcp_pkl_has_node(items[i]) || --node->refs)
			continue;
		if (items[i].type <= DCP_PV_BYTEARRAY)
			dcp_pkl_dealloc(m, node, text_size(node));
		else
			defer_release(d, items[i]);
	}
}

static void drop_obj(struct dcp_pkl_mem *m, struct dying *d, struct dcp_pobj *obj)
{
	const struct dcp_pv parts[] = { obj->callable, obj->args, obj->kwargs,
					obj->state,    obj->list, obj->dict };

	if (--obj->refs)
		return;
	drop_items(m, d, parts, DCP_LEN(parts));
	dcp_pkl_dealloc(m, obj, sizeof(*obj));
}

static void release_one(struct dcp_pkl_mem *m, struct dying *d, enum dcp_pv_type type,
			struct dcp_pnode *node)
{
	switch (type) {
	case DCP_PV_BIGINT:
	case DCP_PV_STR:
	case DCP_PV_BYTES:
	case DCP_PV_BYTEARRAY:
		dcp_pkl_dealloc(m, node, text_size(node));
		break;
	case DCP_PV_TUPLE:
		drop_items(m, d, node->items, node->nitems);
		dcp_pkl_dealloc(m, node, sizeof(*node) + node->nitems * sizeof(*node->items));
		break;
	case DCP_PV_LIST:
	case DCP_PV_SET:
	case DCP_PV_FROZENSET:
	case DCP_PV_DICT:
	case DCP_PV_PERSID:
		drop_items(m, d, node->items, node->nitems);
		if (node->cap)
			dcp_pkl_dealloc(m, node->items, node->cap * sizeof(*node->items));
		dcp_pkl_dealloc(m, node, sizeof(*node));
		break;
	case DCP_PV_GLOBAL:
		dcp_pkl_dealloc(m, node, global_size(node));
		break;
	case DCP_PV_OBJECT:
		drop_obj(m, d, node->obj);
		dcp_pkl_dealloc(m, node, DCP_PKL_OBJECT_SIZE);
		break;
	case DCP_PV_NONE:
	case DCP_PV_BOOL:
	case DCP_PV_INT:
	case DCP_PV_FLOAT:
		break;
	}
}

static void release_deferred(struct dcp_pkl_mem *m, struct dying *d)
{
	while (d->head) {
		enum dcp_pv_type type = d->head % DCP_PKL_GRAIN;
		struct dcp_pnode *node = (struct dcp_pnode *)(d->head - type);

		memcpy(&d->head, node, sizeof(d->head));
		release_one(m, d, type, node);
	}
}

void dcp_pkl_release(struct dcp_pkl_mem *m, struct dcp_pv v)
{
	struct dying d = { 0 };

	release_one(m, &d, v.type, v.node);
	release_deferred(m, &d);
}

void dcp_pkl_drop_obj(struct dcp_pkl_mem *m, struct dcp_pobj *obj)
{
	struct dying d = { 0 };

	drop_obj(m, &d, obj);
	release_deferred(m, &d);
}

/* ---- memo ---- */

/* Small indices are always dense, and so is an index below the number of bytes read so far. */
enum { DENSE_MIN = 1024 };

static int fail_no_memory(const struct dcp_pkl_mem *m)
{
	return m->over ? -E2BIG : -ENOMEM;
}

static int grow_words(struct dcp_pkl_memo *t, struct dcp_pkl_mem *m, uint64_t idx)
{
	size_t n = DCP_MAX(t->nwords * 2, (size_t)(idx / 32) + 1);
	struct dcp_pkl_memo_word *words;

	words = dcp_pkl_resize(m, t->words, t->nwords * sizeof(*words), n * sizeof(*words));
	if (!words)
		return fail_no_memory(m);
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
				return fail_no_memory(m);
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

	/* Each entry takes a byte or more, so a dense numbering cannot have reached @idx yet. */
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
			return fail_no_memory(m);
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

/* vm: the stack of the machine, and its errors. */

enum { STACK_MIN = 64 };

int dcp_pkl_no_memory(const struct dcp_pkl_vm *vm)
{
	if (vm->mem->over)
		return dcp_pkl_fail(vm, -E2BIG, "needs more memory than the limit of %zu bytes",
				    vm->mem->limit);
	return dcp_pkl_fail(vm, -ENOMEM, "ran out of memory");
}

int dcp_pkl_too_deep(const struct dcp_pkl_vm *vm)
{
	return dcp_pkl_fail(vm, -E2BIG, "nests deeper than %d levels", DCP_PICKLE_MAX_DEPTH);
}

int dcp_pkl_wrong_type(const struct dcp_pkl_vm *vm, struct dcp_pv v, const char *want)
{
	static const char *const names[] = {
		[DCP_PV_NONE] = "None",        [DCP_PV_BOOL] = "a bool",
		[DCP_PV_INT] = "an int",       [DCP_PV_FLOAT] = "a float",
		[DCP_PV_BIGINT] = "an int",    [DCP_PV_STR] = "a str",
		[DCP_PV_BYTES] = "a bytes",    [DCP_PV_BYTEARRAY] = "a bytearray",
		[DCP_PV_TUPLE] = "a tuple",    [DCP_PV_LIST] = "a list",
		[DCP_PV_SET] = "a set",        [DCP_PV_FROZENSET] = "a frozenset",
		[DCP_PV_DICT] = "a dict",      [DCP_PV_GLOBAL] = "a global",
		[DCP_PV_OBJECT] = "an object", [DCP_PV_PERSID] = "a persistent id",
	};

	return dcp_pkl_fail(vm, -EBADMSG, "finds %s where it needs %s", names[v.type], want);
}

int dcp_pkl_underflow(const struct dcp_pkl_vm *vm, size_t want)
{
	size_t have = (size_t)(vm->sp - vm->fence);

	return dcp_pkl_fail(vm, -EBADMSG, "needs %zu value%s, %zu %s on the stack%s", want,
			    dcp_s(want), have, have == 1 ? "is" : "are",
			    vm->nmarks ? " above the mark" : "");
}

bool dcp_pkl_grow_stack(struct dcp_pkl_vm *vm)
{
	size_t n = (size_t)(vm->stack_end - vm->stack), cap = DCP_MAX(n * 2, (size_t)STACK_MIN);
	size_t fence = (size_t)(vm->fence - vm->stack), used = (size_t)(vm->sp - vm->stack);
	struct dcp_pv *s = dcp_pkl_resize(vm->mem, vm->stack, n * sizeof(*s), cap * sizeof(*s));

	if (!s)
		return false;
	vm->stack = s;
	vm->stack_end = s + cap;
	vm->fence = s + fence;
	vm->sp = s + used;
	return true;
}

int dcp_pkl_push(struct dcp_pkl_vm *vm, struct dcp_pv v)
{
	if (vm->sp == vm->stack_end && !dcp_pkl_grow_stack(vm))
		return dcp_pkl_no_memory(vm);
	*vm->sp++ = v;
	return 0;
}

int dcp_pkl_push_node(struct dcp_pkl_vm *vm, enum dcp_pv_type type, struct dcp_pnode *node)
{
	return node ? dcp_pkl_push(vm, dcp_pkl_node(type, node)) : dcp_pkl_no_memory(vm);
}
