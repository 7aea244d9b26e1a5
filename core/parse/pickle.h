/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle: what does a Python pickle say, without doing any of it?
 *
 * A stack machine for protocols 0 to 5 that imports nothing and calls nothing. Plain
 * values become plain values; GLOBAL becomes a name; REDUCE, NEWOBJ, NEWOBJ_EX, OBJ,
 * INST and BUILD become inert nodes that remember class, arguments and state. It knows
 * no framework: what "torch._utils _rebuild_tensor_v2" means is for its reader to say.
 *
 * Refused: out-of-band buffers (NEXT_BUFFER, READONLY_BUFFER), extension codes
 * (EXT1/2/4), unknown opcodes.
 *
 * Limits: bytes of memory, nesting depth, digits of an integer; each has a constant or an
 * option below. The input is read through a small window and need not fit in memory.
 *
 * Two passes: the first walks the opcodes, checks every length against what is left, and
 * marks the memo entries that are ever fetched; the second runs the machine and keeps
 * only those. Values are counted, so what a hook takes (see below) is freed at once, and
 * a metadata file of 165 MB with 14 million memo entries is read in a few megabytes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_source;

#define DCP_PICKLE_MAX_DEPTH 500 /* containers inside containers */
#define DCP_PICKLE_MAX_INT 4096  /* bytes of one integer */
#define DCP_PICKLE_INLINE 65536  /* longer bytes objects are referred to, not copied */

enum dcp_pv_type {
	DCP_PV_NONE,
	DCP_PV_BOOL,
	DCP_PV_INT,    /* i */
	DCP_PV_FLOAT,  /* f */
	DCP_PV_BIGINT, /* node bytes: two's complement, little-endian, more than 64 bits */
	DCP_PV_STR,   /* node bytes: UTF-8 with surrogatepass, as pickled; NUL-terminated too */
	DCP_PV_BYTES, /* node bytes, or only src_off and n when longer than DCP_PICKLE_INLINE */
	DCP_PV_BYTEARRAY, /* the same */
	DCP_PV_TUPLE,     /* node items */
	DCP_PV_LIST,      /* node items */
	DCP_PV_SET,       /* node items */
	DCP_PV_FROZENSET, /* node items */
	DCP_PV_DICT,   /* node pairs, insertion order, duplicates kept: the last one counts */
	DCP_PV_GLOBAL, /* node module and name */
	DCP_PV_OBJECT, /* node: what calling or instantiating a class would have made */
	DCP_PV_PERSID, /* node items[0]: the persistent id */
};

struct dcp_pnode;

/* A value: small enough to pass around; the node, if any, belongs to the machine. */
struct dcp_pv {
	uint8_t type; /* enum dcp_pv_type */
	union {
		bool b;
		int64_t i;
		double f;
		struct dcp_pnode *node;
	};
};

/* Field meanings by type are above. Read-only for everybody but pickle.c. */
struct dcp_pnode {
	uint32_t refs;
	uint32_t depth; /* nesting below this node, for the limit */
	union {
		struct {            /* STR, BYTES, BYTEARRAY, BIGINT */
			char *data; /* NULL: not copied, see src_off */
			uint64_t n;
			uint64_t src_off; /* where the bytes lie in the source */
		};
		struct { /* GLOBAL */
			const char *module, *name;
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
	struct dcp_pv state;    /* argument of BUILD; NONE: there was none */
	struct dcp_pv list;     /* LIST of what was appended or added to it, else NONE */
	struct dcp_pv dict;     /* DICT of what was set in it by SETITEM(S), else NONE */
	bool called; /* REDUCE: the result of a call; else an instance (NEWOBJ, OBJ, INST) */
	bool built;  /* BUILD was seen */
};

/*
 * A reader that wants a huge dict a batch at a time gives a hook. Before key/value pairs
 * go into a dict, the machine asks: @where is the value right under that dict on the stack
 * (for a dict inside a dict: its key), @depth the number of values below the dict.
 * Return 1: taken, the machine forgets the pairs; 0: store them as usual; negative: stop,
 * with @err filled in. The values are valid only during the call.
 */
struct dcp_pickle_hook {
	int (*pairs)(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		     size_t npairs, struct dcp_err *err);
	void *ctx;
};

struct dcp_pickle_opts {
	size_t memory;                      /* limit in bytes; 0: 192 MiB */
	const struct dcp_pickle_hook *hook; /* may be NULL */
	uint64_t off;                       /* where the pickle starts in the source */
};

struct dcp_pickle;

/*
 * Read one pickle. @end (may be NULL) receives the offset behind its STOP.
 * Returns 0, -EBADMSG (malformed or cut), -ENOTSUP (an opcode that is refused), -E2BIG (a
 * limit), -ENOMEM, or what the source or the hook gave. @out is written only on success;
 * its values live until dcp_pickle_free().
 */
int dcp_pickle_read(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
		    struct dcp_pickle **out, uint64_t *end, struct dcp_err *err);
struct dcp_pv dcp_pickle_root(const struct dcp_pickle *p);
void dcp_pickle_free(struct dcp_pickle *p);

/* ---- looking at values; all of them accept any value ---- */

/* Is @v the str or the global spelled so? Python 2 module names are taken as their
 * successors: __builtin__ is builtins, copy_reg is copyreg; numpy._core is numpy.core. */
bool dcp_pv_is_str(struct dcp_pv v, const char *s);
bool dcp_pv_is_global(struct dcp_pv v, const char *module, const char *name);

/* Is @v an object (called or instantiated) of that class or function? */
bool dcp_pv_is_object(struct dcp_pv v, const char *module, const char *name);

/* The text of a STR, NULL for anything else. */
const char *dcp_pv_str(struct dcp_pv v);

/* Non-negative INT (or BOOL) into @out; false for anything else. */
bool dcp_pv_u64(struct dcp_pv v, uint64_t *out);

/* Items of TUPLE, LIST, SET, FROZENSET, or of an OBJECT's appended list; n = 0 otherwise. */
const struct dcp_pv *dcp_pv_items(struct dcp_pv v, size_t *n);

/* Key/value pairs of a DICT, or of an OBJECT that had items set (OrderedDict and such). */
const struct dcp_pv *dcp_pv_pairs(struct dcp_pv v, size_t *npairs);

/* Value for a str key, of a DICT, of dict items of an OBJECT, or of its state (a dict, or the
 * second half of a (None, dict) state); NULL when there is none. The last duplicate counts. */
const struct dcp_pv *dcp_pv_get(struct dcp_pv v, const char *key);

/* Is this a mapping as Python's collections.abc sees it: dict, OrderedDict, defaultdict,
 * Counter? */
bool dcp_pv_is_mapping(struct dcp_pv v);
