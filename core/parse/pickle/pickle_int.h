/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_int: declarations for the files of the pickle machine; only they include it. The machine
 * itself comes last.
 *
 * Functions that are called for nearly every opcode are inline in this header: at 59 million
 * opcodes in half a second, a call for each opcode is too slow.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/parse/pickle/pickle.h"

/*
 * ops: the opcode table: name, code, and the form of the argument after the code.
 *
 * Names and codes are those of CPython's pickletools. Private to core/parse/pickle*.c.
 */

/* The form of an argument. 1 to 8 are sizes, and nothing else is checked; LEN* are a length and
 * that many bytes; LINE* end at a newline; GET* name a memo entry. */
enum pickle_arg {
	PICKLE_ARG_UNKNOWN,
	PICKLE_ARG_NONE,
	PICKLE_ARG_1,
	PICKLE_ARG_2,
	PICKLE_ARG_4,
	PICKLE_ARG_8,
	PICKLE_ARG_LEN1,
	PICKLE_ARG_LEN4,
	PICKLE_ARG_LEN8,
	PICKLE_ARG_SLEN4, /* signed length */
	PICKLE_ARG_GET1,
	PICKLE_ARG_GET4,
	PICKLE_ARG_GETLINE,
	PICKLE_ARG_LINE,
	PICKLE_ARG_LINE2,
	PICKLE_ARG_FRAME,
	PICKLE_ARG_PROTO,
	PICKLE_ARG_STOP,
	PICKLE_ARG_REFUSED,
};

/* clang-format off */
#define PICKLE_OPS(X)                     \
	/* protocol 0 */                  \
	X(MARK,             0x28, NONE)   \
	X(STOP,             0x2e, STOP)   \
	X(POP,              0x30, NONE)   \
	X(DUP,              0x32, NONE)   \
	X(FLOAT,            0x46, LINE)   \
	X(INT,              0x49, LINE)   \
	X(LONG,             0x4c, LINE)   \
	X(NONE,             0x4e, NONE)   \
	X(PERSID,           0x50, LINE)   \
	X(REDUCE,           0x52, NONE)   \
	X(STRING,           0x53, LINE)   \
	X(UNICODE,          0x56, LINE)   \
	X(APPEND,           0x61, NONE)   \
	X(BUILD,            0x62, NONE)   \
	X(GLOBAL,           0x63, LINE2)  \
	X(DICT,             0x64, NONE)   \
	X(GET,              0x67, GETLINE) \
	X(INST,             0x69, LINE2)  \
	X(LIST,             0x6c, NONE)   \
	X(PUT,              0x70, LINE)   \
	X(SETITEM,          0x73, NONE)   \
	X(TUPLE,            0x74, NONE)   \
	/* protocol 1 */                  \
	X(EMPTY_TUPLE,      0x29, NONE)   \
	X(POP_MARK,         0x31, NONE)   \
	X(BINFLOAT,         0x47, 8)      \
	X(BININT,           0x4a, 4)      \
	X(BININT1,          0x4b, 1)      \
	X(BININT2,          0x4d, 2)      \
	X(BINPERSID,        0x51, NONE)   \
	X(BINSTRING,        0x54, SLEN4)  \
	X(SHORT_BINSTRING,  0x55, LEN1)   \
	X(BINUNICODE,       0x58, LEN4)   \
	X(EMPTY_LIST,       0x5d, NONE)   \
	X(APPENDS,          0x65, NONE)   \
	X(BINGET,           0x68, GET1)   \
	X(LONG_BINGET,      0x6a, GET4)   \
	X(OBJ,              0x6f, NONE)   \
	X(BINPUT,           0x71, 1)      \
	X(LONG_BINPUT,      0x72, 4)      \
	X(SETITEMS,         0x75, NONE)   \
	X(EMPTY_DICT,       0x7d, NONE)   \
	/* protocol 2 */                  \
	X(PROTO,            0x80, PROTO)  \
	X(NEWOBJ,           0x81, NONE)   \
	X(EXT1,             0x82, REFUSED) \
	X(EXT2,             0x83, REFUSED) \
	X(EXT4,             0x84, REFUSED) \
	X(TUPLE1,           0x85, NONE)   \
	X(TUPLE2,           0x86, NONE)   \
	X(TUPLE3,           0x87, NONE)   \
	X(NEWTRUE,          0x88, NONE)   \
	X(NEWFALSE,         0x89, NONE)   \
	X(LONG1,            0x8a, LEN1)   \
	X(LONG4,            0x8b, SLEN4)  \
	/* protocol 3 */                  \
	X(BINBYTES,         0x42, LEN4)   \
	X(SHORT_BINBYTES,   0x43, LEN1)   \
	/* protocol 4 */                  \
	X(SHORT_BINUNICODE, 0x8c, LEN1)   \
	X(BINUNICODE8,      0x8d, LEN8)   \
	X(BINBYTES8,        0x8e, LEN8)   \
	X(EMPTY_SET,        0x8f, NONE)   \
	X(ADDITEMS,         0x90, NONE)   \
	X(FROZENSET,        0x91, NONE)   \
	X(NEWOBJ_EX,        0x92, NONE)   \
	X(STACK_GLOBAL,     0x93, NONE)   \
	X(MEMOIZE,          0x94, NONE)   \
	X(FRAME,            0x95, FRAME)  \
	/* protocol 5 */                  \
	X(BYTEARRAY8,       0x96, LEN8)   \
	X(NEXT_BUFFER,      0x97, REFUSED) \
	X(READONLY_BUFFER,  0x98, REFUSED)
/* clang-format on */

#define PICKLE_OP_ENUM(name, code, arg) PICKLE_##name = code,
enum pickle_op { PICKLE_OPS(PICKLE_OP_ENUM) };
#undef PICKLE_OP_ENUM

#define PICKLE_HIGHEST_PROTOCOL 5

/* window: the part of the source that is in memory, and the opcode arguments in it. */

enum {
	DCP_PKL_PAD = 16,           /* readable bytes after the window */
	DCP_PKL_WINDOW = 128 << 10, /* the usual maximum size of the window */
	DCP_PKL_WINDOW_MIN = 4096,  /* first read after a jump; later reads double */
};

struct dcp_pkl_win {
	const struct dcp_source *src;
	uint8_t *buf;
	const uint8_t *end;  /* after the last byte read */
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

/* Continue at offset @off of the source: returns the pointer for it, which the caller passes to
 * dcp_pkl_win_op() before it reads there. */
const uint8_t *dcp_pkl_win_seek(struct dcp_pkl_win *w, uint64_t off);

/* Called if *@p is not before safe: makes sure that the opcode at *@p and its fixed argument are
 * in memory. */
int dcp_pkl_win_op(struct dcp_pkl_win *w, const uint8_t **p);

/* The same for @n bytes at *@p, which the caller knows to be in the source. */
int dcp_pkl_win_need(struct dcp_pkl_win *w, const uint8_t **p, size_t n);

/* Get the length that the opcode at @p claims, and check it against the rest of the source after
 * the opcode's first @head bytes. */
int dcp_pkl_win_length(struct dcp_pkl_win *w, const uint8_t *p, size_t *head, uint64_t *n);

/* Get the length of the line that starts @skip bytes after *@p, without its newline. */
int dcp_pkl_win_line(struct dcp_pkl_win *w, const uint8_t **p, size_t skip, size_t *n);

/* Fail with the message "<NAME> at byte N <message>" about the opcode at @p; returns @code. */
int dcp_pkl_win_fail(const struct dcp_pkl_win *w, const uint8_t *p, int code, const char *fmt,
		     ...) DCP_PRINTF(4, 5);

/* Fail because the opcode at @p is unknown or refused. */
int dcp_pkl_win_refuse(const struct dcp_pkl_win *w, const uint8_t *p);

/* The checks on PROTO and FRAME, the same in both passes. */
int dcp_pkl_win_proto(const struct dcp_pkl_win *w, const uint8_t *p);
int dcp_pkl_win_frame(const struct dcp_pkl_win *w, const uint8_t *p);

/* The enum pickle_arg of each opcode. */
extern const uint8_t dcp_pkl_arg[256];

/* text: decimal numbers, quoted and escaped text, UTF-8. */

struct dcp_buf;

/* Is the text UTF-8? @surrogates: surrogates are allowed, as with Python's surrogatepass. */
bool dcp_pkl_utf8(const void *s, size_t n, bool surrogates);

/* Convert decimal digits with an optional minus sign to two's complement, which may be longer than
 * necessary. */
enum { DCP_PKL_DECIMAL_BYTES = DCP_PICKLE_MAX_INT + 32 }; /* room for @le */
enum dcp_pkl_number { DCP_PKL_NUMBER_OK, DCP_PKL_NUMBER_BAD, DCP_PKL_NUMBER_LONG };
enum dcp_pkl_number dcp_pkl_decimal(const char *s, size_t n, uint8_t *le, size_t *nbytes);
bool dcp_pkl_index(const char *s, size_t n, uint64_t *out);
bool dcp_pkl_float(const char *s, size_t n, double *out);

/* Decode the argument of STRING: quotes and backslash escapes; false if it is malformed. */
bool dcp_pkl_unquote(const char *s, size_t n, struct dcp_buf *out);
/* Decode the argument of UNICODE, Latin-1 with \u and \U, to UTF-8 with surrogatepass. */
bool dcp_pkl_unescape(const char *s, size_t n, struct dcp_buf *out);

/* mem: the memory and the reference counts of the nodes of one pickle. */

enum {
	DCP_PKL_GRAIN = 16,
	DCP_PKL_CLASSES = 33, /* blocks of up to 512 bytes come from the slab */
};

/* With more memory, the 32-bit reference counts could wrap: a reference takes at least 16 bytes. */
#define DCP_PKL_MEMORY_MAX (32ull << 30)

struct dcp_pkl_mem {
	void *free[DCP_PKL_CLASSES]; /* chains through the first word of each free block */
	char *bump, *bump_end;
	struct dcp_pkl_chunk *chunks;
	struct dcp_pkl_large *large;
	size_t used, limit;
	bool over; /* the last NULL came from the limit, not from malloc */
	struct dcp_pnode *empty_tuple;
	struct dcp_pnode **globals; /* open addressing, short probes */
	uint32_t globals_cap, nglobals;
	uint32_t ntuples;           /* made so far; counted only until the tables are made */
	struct dcp_pnode **tuples;  /* recently made small tuples, to be shared */
	struct dcp_pkl_call *calls; /* recently made objects, to share struct dcp_pobj */
	uint64_t paired;            /* list items that were checked for pairs */
};

/* Freed blocks are poisoned, so that a sanitizer build detects a value used after its release. */
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

/* Like realloc() of a block of @old bytes, but counted in used; on NULL, @p is unchanged. */
void *dcp_pkl_resize(struct dcp_pkl_mem *m, void *p, size_t old, size_t n);

void *dcp_pkl_alloc_slow(struct dcp_pkl_mem *m, size_t n);
/* Grow a block of @old bytes to @n bytes, @n > @old; on NULL, @p is unchanged. */
void *dcp_pkl_regrow(struct dcp_pkl_mem *m, void *p, size_t old, size_t n);
void dcp_pkl_free_large(struct dcp_pkl_mem *m, void *p);

/* Allocate @n bytes aligned to 16, or return NULL. The size is not stored: the caller passes it to
 * dcp_pkl_dealloc(). */
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

/* Copies field by field because that is faster: if the type and the payload were just written
 * separately, a copy of all 16 bytes waits until both stores have left the store buffer. */
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

/* Free @v, whose count is zero, and all nodes that only @v referred to. Never recursive. */
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

/* Drop a node's reference to @obj. */
void dcp_pkl_drop_obj(struct dcp_pkl_mem *m, struct dcp_pobj *obj);

/* The node of an object is allocated only up to its pointer obj: it uses no other field. */
#define DCP_PKL_OBJECT_SIZE (offsetof(struct dcp_pnode, obj) + sizeof(struct dcp_pobj *))

/* memo: the memo entries that are ever fetched, and their values. */

/*
 * A bit for each index says whether the entry is ever fetched. A word has 32 bits and the number
 * of bits set in the words before it, so that values are stored only for fetched entries. An index
 * that is too large for the number of bytes before it goes into a sorted list instead, so that the
 * memory depends on the size of the file, not on the numbers in it.
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
	uint64_t next; /* the index that MEMOIZE gives next: the number of entries so far */
	bool gaps;     /* PUT left holes, so next is not known */
};

/* Pass one: mark entry @idx as fetched by an opcode @seen bytes into the pickle. Returns 0, -E2BIG
 * or -ENOMEM. */
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

/* The slot for the value of entry @idx; NULL: the entry is never fetched. */
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

/* node: making nodes, sharing equal ones. */

/*
 * Functions that make nodes. Each returns a node with one reference, or NULL (see over). On
 * success the node takes over the caller's references to its items. The caller checks the depth
 * of a node with items, which can exceed the limit by one.
 */
/* A STR, BYTES, BYTEARRAY or BIGINT of @n bytes, which the caller writes; there is room for 8
 * more. */
struct dcp_pnode *dcp_pkl_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off);
struct dcp_pnode *dcp_pkl_far_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off);
struct dcp_pnode *dcp_pkl_tuple(struct dcp_pkl_mem *m, const struct dcp_pv *items, size_t n);
struct dcp_pnode *dcp_pkl_container(struct dcp_pkl_mem *m);
struct dcp_pnode *dcp_pkl_object(struct dcp_pkl_mem *m, struct dcp_pv callable,
				 struct dcp_pv args, struct dcp_pv kwargs, bool called);

/* Get a struct dcp_pobj that only @node uses, so that it may be changed; NULL: no memory. */
struct dcp_pobj *dcp_pkl_own(struct dcp_pkl_mem *m, struct dcp_pnode *node);

/* Python 2 pickles an OrderedDict as a call with the list of its pairs, Python 3 as a call without
 * arguments whose pairs are then set. dcp_pkl_has_pairs(): was the OBJECT @object made in the way
 * of Python 2? Then dcp_pkl_take_pairs() converts it to the way of Python 3; false: no memory.
 * dcp_pkl_has_pairs() returns false if all converted pairs would be more than @most, the number of
 * bytes of the pickle so far: many calls then share a list, and a copy for each would take memory
 * quadratic in the size of the pickle. */
bool dcp_pkl_has_pairs(struct dcp_pkl_mem *m, struct dcp_pv object, uint64_t most);
bool dcp_pkl_take_pairs(struct dcp_pkl_mem *m, struct dcp_pnode *object);

/* Move @n items to the end of the container @c; its depth follows the deepest of them. */
bool dcp_pkl_extend(struct dcp_pkl_mem *m, struct dcp_pnode *c, const struct dcp_pv *items,
		    size_t n);

/* Free the tables that serve only sharing, and the nodes that only these tables referred to. */
void dcp_pkl_mem_settle(struct dcp_pkl_mem *m);

struct dcp_pickle {
	struct dcp_pv root;
	struct dcp_pkl_mem mem;
};

/* ---- the passes ---- */

/* dcp_pickle_read() with a window of @window bytes, for tests. */
int dcp_pickle_read_windowed(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
			     size_t window, struct dcp_pickle **out, uint64_t *end,
			     struct dcp_err *err);

/*
 * vm: the state of the machine, for its files:
 *
 *	pickle.c  runs both passes
 *	run.c     the loop over opcodes
 *	build.c   opcodes that push their argument or combine values of the stack; names of
 *	          classes and functions
 *	mem.c     memory of nodes, the memo, the stack
 *	window.c  the part of the source that is in memory, and the text in it
 *
 * A stack of values, a second stack of marks (positions in the first), and the memo. The
 * fence is the position of the innermost mark: an opcode that takes values from the top
 * may not reach below it.
 *
 * Each value on the stack owns a reference. Values need no clean-up after a failure, because
 * all nodes are freed with the pickle. Every function returns 0, or an error code with a message
 * that names the opcode at p.
 */

struct dcp_pkl_vm {
	struct dcp_pkl_mem *mem;
	struct dcp_pkl_win w;
	struct dcp_pkl_memo memo;
	/* sp and p are not neighbours: compilers would load two neighbours as one vector directly
	 * after they were stored separately, and such a load waits for both stores. */
	struct dcp_pv *sp; /* after the top value; the loop in run.c keeps a copy of it */
	struct dcp_pv *stack, *stack_end, *fence;
	const uint8_t *p; /* the current opcode */
	uint32_t *marks;
	size_t nmarks, marks_cap;
	const struct dcp_pickle_hook *hook;
	uint64_t far_bytes, far_text; /* longer bytes and texts are referred to */
	struct dcp_buf scratch;       /* text with its escapes undone */
};

#define dcp_pkl_fail(vm, code, ...) dcp_pkl_win_fail(&(vm)->w, (vm)->p, code, __VA_ARGS__)

int dcp_pkl_no_memory(const struct dcp_pkl_vm *vm);
int dcp_pkl_too_deep(const struct dcp_pkl_vm *vm);
int dcp_pkl_wrong_type(const struct dcp_pkl_vm *vm, struct dcp_pv v, const char *want);
int dcp_pkl_underflow(const struct dcp_pkl_vm *vm, size_t want);

/* Run up to STOP; p then points to STOP. */
int dcp_pkl_run(struct dcp_pkl_vm *vm);

/* Double the stack; false: out of memory. */
bool dcp_pkl_grow_stack(struct dcp_pkl_vm *vm);

/* Push a value; or a node, where NULL means that there was no memory to make it. */
int dcp_pkl_push(struct dcp_pkl_vm *vm, struct dcp_pv v);
int dcp_pkl_push_node(struct dcp_pkl_vm *vm, enum dcp_pv_type type, struct dcp_pnode *node);

static inline void dcp_pkl_pop_mark(struct dcp_pkl_vm *vm)
{
	vm->nmarks--;
	vm->fence = vm->stack + (vm->nmarks ? vm->marks[vm->nmarks - 1] : 0);
}

/* ---- push: these functions step over the opcode and its argument ---- */

int dcp_pkl_push_line(struct dcp_pkl_vm *vm);    /* INT LONG FLOAT STRING UNICODE PERSID */
int dcp_pkl_push_global(struct dcp_pkl_vm *vm);  /* GLOBAL */
int dcp_pkl_push_payload(struct dcp_pkl_vm *vm); /* any argument with a length before it */

/* ---- build: these functions change only the stack, not p ---- */

int dcp_pkl_build_tuple(struct dcp_pkl_vm *vm, size_t n);
int dcp_pkl_build_container(struct dcp_pkl_vm *vm, enum dcp_pv_type type, size_t n);
int dcp_pkl_build_persid(struct dcp_pkl_vm *vm);
int dcp_pkl_build_global(struct dcp_pkl_vm *vm);            /* STACK_GLOBAL */
int dcp_pkl_build_call(struct dcp_pkl_vm *vm, bool called); /* callable, args */
int dcp_pkl_build_newobj_ex(struct dcp_pkl_vm *vm);
int dcp_pkl_build_state(struct dcp_pkl_vm *vm); /* BUILD */
/* Add the top @n values to the value below them. */
int dcp_pkl_build_append(struct dcp_pkl_vm *vm, size_t n);
int dcp_pkl_build_setitems(struct dcp_pkl_vm *vm, size_t n);
/* An opcode that takes everything above the mark: TUPLE LIST DICT APPENDS and so on. */
int dcp_pkl_build_marked(struct dcp_pkl_vm *vm);
/* INST also takes everything above the mark, but has an argument: the function steps over it. */
int dcp_pkl_build_inst(struct dcp_pkl_vm *vm);
