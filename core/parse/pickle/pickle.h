/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle: reads the values of a Python pickle without executing it.
 *
 * A stack machine for protocols 0 to 5 that imports nothing and calls nothing. Plain values
 * become plain values; GLOBAL becomes a name; REDUCE, NEWOBJ, NEWOBJ_EX, OBJ, INST and BUILD
 * become inert nodes that hold the class, the arguments and the state. The machine knows no
 * framework: the caller knows what "torch._utils _rebuild_tensor_v2" means.
 *
 * Refused: out-of-band buffers (NEXT_BUFFER, READONLY_BUFFER), extension codes
 * (EXT1/2/4), unknown opcodes.
 *
 * Types are checked where Python checks them: only objects get a state, only containers and
 * objects get items, and only names, objects and persistent ids are called. If an object has two
 * BUILDs, the last one counts. MEMOIZE is refused after PUTs that left gaps in the memo.
 *
 * Walking the result: values can be shared, and cycles are legal, so that a pickle of a few
 * kilobytes can be endless when it is written out. A caller that walks the values must limit the
 * depth and the output itself. The machine checks the depth limit only when a value is put into a
 * container; items that are later added to the value, through the memo, do not change the depth of
 * the containers above it. A container that contains itself gets deeper with each added batch.
 *
 * Limits: bytes of memory, nesting depth, bytes of an integer; each has a constant or an option
 * below. The input is read through a small window and need not fit in memory.
 *
 * Two passes: the first walks the opcodes, checks every length against the rest of the input, and
 * marks the memo entries that are ever fetched; the second runs the machine and stores only those
 * entries. Values have reference counts, so values that a hook takes (see below) are freed at
 * once: a metadata file of 165 MB with 14 million memo entries is read in a few megabytes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"

struct dcp_err;
struct dcp_source;

#define DCP_PICKLE_MAX_DEPTH 500      /* containers inside containers */
#define DCP_PICKLE_MAX_INT 4096       /* bytes of one integer */
#define DCP_PICKLE_INLINE 65536       /* longer bytes objects are referred to, not copied */
#define DCP_PICKLE_MAX_LINE (1 << 20) /* a newline-terminated argument, without the newline */
#define DCP_PICKLE_NO_SRC UINT64_MAX  /* src_off of text that has escapes in the source */

enum dcp_pv_type {
	DCP_PV_NONE,
	DCP_PV_BOOL,
	DCP_PV_INT,    /* i */
	DCP_PV_FLOAT,  /* f */
	DCP_PV_BIGINT, /* node bytes: two's complement, little-endian, more than 64 bits */
	/* node bytes: UTF-8 with surrogatepass, with a NUL after it; a str of Python 2 is STR if
	 * it is UTF-8, else BYTES */
	DCP_PV_STR,
	DCP_PV_BYTES,     /* node bytes; if longer than DCP_PICKLE_INLINE, only src_off and n */
	DCP_PV_BYTEARRAY, /* the same */
	DCP_PV_TUPLE,     /* node items */
	DCP_PV_LIST,      /* node items */
	DCP_PV_SET,       /* node items */
	DCP_PV_FROZENSET, /* node items */
	DCP_PV_DICT,   /* node pairs, insertion order, duplicates kept: the last one counts */
	DCP_PV_GLOBAL, /* node module and name */
	DCP_PV_OBJECT, /* node obj: the result of a call, or an instance of a class */
	DCP_PV_PERSID, /* node items[0]: the persistent id */
};

struct dcp_pnode;

/* A value, small enough to pass by value; the node, if any, belongs to the machine. */
struct dcp_pv {
	uint8_t type; /* enum dcp_pv_type */
	union {
		bool b;
		int64_t i;
		double f;
		struct dcp_pnode *node;
	};
};

/* The fields that a type uses are listed above. Only the machine may change a node. */
struct dcp_pnode {
	uint32_t refs;
	uint32_t depth; /* nesting below this node, for the limit */
	union {
		struct {            /* STR, BYTES, BYTEARRAY, BIGINT */
			char *data; /* NULL: not copied, see src_off */
			uint64_t n;
			uint64_t src_off; /* where the bytes lie in the source; see NO_SRC */
		};
		struct { /* GLOBAL */
			const char *module, *name;
			const char *full; /* "module.name" */
		};
		struct { /* TUPLE, LIST, SET, FROZENSET, PERSID (1 item), DICT (pairs) */
			struct dcp_pv *items; /* DICT: key, value, key, value, ... */
			uint32_t nitems;      /* DICT: twice the number of pairs */
			uint32_t cap;
		};
		struct dcp_pobj *obj; /* OBJECT */
	};
};

struct dcp_pobj {
	struct dcp_pv callable; /* normally GLOBAL */
	struct dcp_pv args;     /* TUPLE */
	struct dcp_pv kwargs;   /* DICT (NEWOBJ_EX), else NONE */
	struct dcp_pv state;    /* argument of BUILD; NONE without BUILD */
	struct dcp_pv list; /* LIST of the items appended or added to the object, else NONE */
	struct dcp_pv dict; /* DICT of the pairs set by SETITEM(S), else NONE */
	uint32_t refs;      /* nodes that share it, made by equal calls with equal arguments */
	bool called;        /* made by REDUCE; else an instance (NEWOBJ, OBJ, INST) */
	bool built;         /* BUILD was seen */
};

/*
 * A hook lets the caller receive a huge dict in batches. The machine calls it before it adds
 * key/value pairs to a dict (but not before it sets items of an object). @where is the value
 * directly below the dict on the stack (for a dict inside a dict: its key; NONE if the dict is the
 * lowest value), @depth the number of values below the dict.
 * The hook returns 1 if it took the pairs, which the machine then drops; 0 to store them as usual;
 * a negative code to stop, with @err filled in. The values are valid only during the call.
 */
struct dcp_pickle_hook {
	int (*pairs)(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		     size_t npairs, struct dcp_err *err);
	void *ctx;
};

struct dcp_pickle_opts {
	size_t memory;                      /* limit in bytes; 0: 192 MiB; at most 32 GiB */
	const struct dcp_pickle_hook *hook; /* may be NULL */
	uint64_t off;                       /* where the pickle starts in the source */
	/* For pickles that are mostly payload. Bytes longer than far_bytes are referred to, not
	 * copied (0: DCP_PICKLE_INLINE). Text longer than far_text is also referred to (0: no text
	 * is); it becomes BYTES, and is not checked to be UTF-8. */
	uint32_t far_bytes, far_text;
};

struct dcp_pickle;

/*
 * Read one pickle. @end (may be NULL) receives the offset after its STOP.
 * Returns 0, -EBADMSG (malformed or truncated), -ENOTSUP (a refused opcode), -E2BIG (a limit),
 * -ENOMEM, or the error of the source or the hook. @out is written only on success; its values
 * live until dcp_pickle_free().
 */
int dcp_pickle_read(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
		    struct dcp_pickle **out, uint64_t *end, struct dcp_err *err);
struct dcp_pv dcp_pickle_root(const struct dcp_pickle *p);
void dcp_pickle_free(struct dcp_pickle *p);
DCP_AUTO_PTR(struct dcp_pickle, dcp_pickle_free)
#define dcp_auto_pickle __attribute__((cleanup(dcp_pickle_free_ptr)))

/* ---- looking at values; all of them accept any value ---- */

/* Is @v this str, or this global? Module names of Python 2 count as their successors: __builtin__
 * is builtins, copy_reg is copyreg; numpy._core is numpy.core. */
bool dcp_pv_is_str(struct dcp_pv v, const char *s);
bool dcp_pv_is_global(struct dcp_pv v, const char *module, const char *name);

/* Is @v an object made by this class or function (called or instantiated)? */
bool dcp_pv_is_object(struct dcp_pv v, const char *module, const char *name);

/* The text of a STR; NULL for any other value. */
const char *dcp_pv_str(struct dcp_pv v);

/* Copy a non-negative INT, or a BOOL, to @out; false for any other value. */
bool dcp_pv_u64(struct dcp_pv v, uint64_t *out);

/* Read bytes [off, off + n) of a BYTES or BYTEARRAY; bytes that were not copied are read from @src.
 * Returns 0, -EINVAL (another type, or fewer bytes), or the error of reading. */
int dcp_pv_read(const struct dcp_source *src, struct dcp_pv v, uint64_t off, void *buf,
		size_t n);

/* Items of a TUPLE, LIST, SET, FROZENSET, or those appended to an OBJECT; otherwise @n is 0. */
const struct dcp_pv *dcp_pv_items(struct dcp_pv v, size_t *n);

/* Key/value pairs of a DICT, of an OBJECT in which items were set (such as OrderedDict), or of a
 * mapping OBJECT made by a call with one dict (Counter). */
const struct dcp_pv *dcp_pv_pairs(struct dcp_pv v, size_t *npairs);

/* The value for a str key in a DICT, in the items set in an OBJECT, or in the state of an OBJECT
 * (a dict, or a tuple (None or dict, dict)); NULL if there is no such key. If the key occurs more
 * than once, the last value counts. */
const struct dcp_pv *dcp_pv_get(struct dcp_pv v, const char *key);

/* dcp_pv_get() by value, and element @i of dcp_pv_items(). NONE: there is none. */
struct dcp_pv dcp_pv_at(struct dcp_pv v, const char *key);
struct dcp_pv dcp_pv_item(struct dcp_pv v, size_t i);

/* Copy a TUPLE or LIST of at most @max non-negative numbers to @to, and their number to @n; false:
 * @v is something else. */
bool dcp_pv_dims(struct dcp_pv v, uint32_t max, uint64_t *to, uint32_t *n);

/* Is @v a mapping by Python's collections.abc: dict, OrderedDict, defaultdict, Counter? */
bool dcp_pv_is_mapping(struct dcp_pv v);

/*
 * sections: reads a pickled object whose fields are huge dicts, pair by pair.
 *
 * The metadata of a checkpoint is one object of a few dicts with millions of entries. Most pairs
 * are passed to the caller while the machine reads, and then dropped. The pairs of an OrderedDict,
 * and of a dict that is complete before its field is known, follow at the end. So the pairs of
 * one section come in their order, but the sections come in any order.
 */

struct dcp_section {
	const char *name; /* the field's name */
	bool optional;    /* the field may be missing or None */
	/* Called for each pair; a negative return ends the reading. */
	int (*add)(void *ctx, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err);
};

#define DCP_SECTIONS_MAX 8

struct dcp_sections {
	const struct dcp_section *section;
	size_t n;
	/* Can the dict above @where on the stack be skipped without a look at it? May be NULL. */
	bool (*skip)(struct dcp_pv where);
	/* Called with the object, before the pairs that follow at the end. */
	int (*root)(void *ctx, struct dcp_pv root, struct dcp_err *err);
	void *ctx;
};

/* Returns 0, -EBADMSG (a section is not a dict), the error of a callback, or that of the pickle. */
int dcp_sections_read(const struct dcp_sections *s, const struct dcp_source *src,
		      struct dcp_err *err);

/* Copy @v into the @n bytes of @out if it is a text and fits; else leave @out alone. */
void dcp_sections_fact(char *out, size_t n, struct dcp_pv v);

/*
 * globals: finds the classes and functions that a Python pickle would import, without executing
 * it.
 *
 * It is used to judge whether a pickle is safe, also if pickle.h refuses the pickle. Opcodes are
 * followed up to the first damaged or unknown opcode, because Python executes everything before
 * that opcode. Only texts are followed through the stack and the memo, since texts become names.
 * DCP_GLOBALS_MAX_STACK and DCP_GLOBALS_MAX_MEMO bound the memory for every input.
 */

#define DCP_GLOBALS_MAX_STACK (1u << 22)
#define DCP_GLOBALS_MAX_MEMO (1u << 22) /* entries; later entries do not count as texts */
#define DCP_GLOBALS_MAX_NAME 512        /* a longer name counts as unknown */

/*
 * Called for each name that an opcode, at @off, imports. @module is NULL if the name is computed
 * or is an extension code, so that it is unknown. A result other than 0 ends the walk and is
 * returned.
 */
typedef int dcp_globals_fn(void *ctx, const char *module, const char *name, uint64_t off);

/*
 * Walk the pickle at @off of @src; *@end is set to the offset after its last byte. Returns 0,
 * -EBADMSG (the pickle is damaged from *@end on, for the reason in @err; everything before was
 * reported), -ENOMEM, or the error of reading or @fn.
 */
int dcp_globals(const struct dcp_source *src, uint64_t off, uint64_t *end, dcp_globals_fn *fn,
		void *ctx, struct dcp_err *err);
