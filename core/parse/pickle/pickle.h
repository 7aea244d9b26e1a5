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
 * Types are checked where Python would have checked them: state goes onto objects only, items
 * into what has items, only names, objects and persistent ids are called. Of two BUILDs on
 * one object the last counts. MEMOIZE after PUTs that left gaps in the memo is refused.
 *
 * Walking the result: values are shared and cycles are legal, so what is a few kilobytes
 * here can be endless when written out. A caller that walks must bound depth and output itself:
 * the depth limit is checked when a value is put somewhere, and what is put into that
 * value later, through the memo, counts nowhere above. A container that holds itself gets
 * deeper with each batch added.
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

#include "core/base/base.h"

struct dcp_err;
struct dcp_source;

#define DCP_PICKLE_MAX_DEPTH 500      /* containers inside containers */
#define DCP_PICKLE_MAX_INT 4096       /* bytes of one integer */
#define DCP_PICKLE_INLINE 65536       /* longer bytes objects are referred to, not copied */
#define DCP_PICKLE_MAX_LINE (1 << 20) /* a newline-terminated argument, without the newline */
#define DCP_PICKLE_NO_SRC UINT64_MAX  /* src_off: written with escapes, lies nowhere as such */

enum dcp_pv_type {
	DCP_PV_NONE,
	DCP_PV_BOOL,
	DCP_PV_INT,    /* i */
	DCP_PV_FLOAT,  /* f */
	DCP_PV_BIGINT, /* node bytes: two's complement, little-endian, more than 64 bits */
	/* node bytes: UTF-8 with surrogatepass, NUL-terminated too; Python 2's str is this
	 * where it is UTF-8, else BYTES */
	DCP_PV_STR,
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
	struct dcp_pv state;    /* argument of BUILD; NONE: there was none */
	struct dcp_pv list;     /* LIST of what was appended or added to it, else NONE */
	struct dcp_pv dict;     /* DICT of what was set in it by SETITEM(S), else NONE */
	uint32_t refs;          /* nodes that share it: equal calls of equal arguments may */
	bool called;            /* REDUCE; else an instance (NEWOBJ, OBJ, INST) */
	bool built;             /* BUILD was seen */
};

/*
 * A reader that wants a huge dict a batch at a time gives a hook. Before key/value pairs
 * go into a dict (not: are set in an object), the machine asks: @where is the value right
 * under that dict on the stack (for a dict inside a dict: its key; NONE for the lowest),
 * @depth the number of values below the dict.
 * Return 1: taken, the machine forgets the pairs; 0: store them as usual; negative: stop,
 * with @err filled in. The values are valid only during the call.
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
	/* For pickles that are mostly payload. Longer bytes than this are referred to, not
	 * copied (0: DCP_PICKLE_INLINE); so is longer text (0: none), which then is BYTES and
	 * has not been found to be UTF-8. */
	uint32_t far_bytes, far_text;
};

struct dcp_pickle;

/*
 * Read one pickle. @end (may be NULL) receives the offset after its STOP.
 * Returns 0, -EBADMSG (malformed or cut), -ENOTSUP (an opcode that is refused), -E2BIG (a
 * limit), -ENOMEM, or what the source or the hook gave. @out is written only on success;
 * its values live until dcp_pickle_free().
 */
int dcp_pickle_read(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
		    struct dcp_pickle **out, uint64_t *end, struct dcp_err *err);
struct dcp_pv dcp_pickle_root(const struct dcp_pickle *p);
void dcp_pickle_free(struct dcp_pickle *p);
DCP_AUTO_PTR(struct dcp_pickle, dcp_pickle_free)
#define dcp_auto_pickle __attribute__((cleanup(dcp_pickle_free_ptr)))

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

/* Bytes [off, off + n) of BYTES or a BYTEARRAY out of the stream @src, where they may have been
 * left. -EINVAL: not that, or not so many; what reading gave. */
int dcp_pv_read(const struct dcp_source *src, struct dcp_pv v, uint64_t off, void *buf,
		size_t n);

/* Items of TUPLE, LIST, SET, FROZENSET, or of an OBJECT's appended list; n = 0 otherwise. */
const struct dcp_pv *dcp_pv_items(struct dcp_pv v, size_t *n);

/* Key/value pairs of a DICT, or of an OBJECT that had items set (OrderedDict and such), or of a
 * mapping OBJECT called with one dict (Counter). */
const struct dcp_pv *dcp_pv_pairs(struct dcp_pv v, size_t *npairs);

/* Value for a str key, of a DICT, of dict items of an OBJECT, or of its state (a dict, or the
 * halves of a (None or dict, dict) state); NULL when there is none. The last duplicate
 * counts. */
const struct dcp_pv *dcp_pv_get(struct dcp_pv v, const char *key);

/* The same by value, and element @i of what dcp_pv_items() gives; NONE when there is none. */
struct dcp_pv dcp_pv_at(struct dcp_pv v, const char *key);
struct dcp_pv dcp_pv_item(struct dcp_pv v, size_t i);

/* A TUPLE or LIST of at most @max numbers that are not negative, into @to, and how many. */
bool dcp_pv_dims(struct dcp_pv v, uint32_t max, uint64_t *to, uint32_t *n);

/* Is this a mapping as Python's collections.abc sees it: dict, OrderedDict, defaultdict,
 * Counter? */
bool dcp_pv_is_mapping(struct dcp_pv v);

/*
 * sections: a pickled object whose fields are huge dicts, taken pair by pair.
 *
 * Metadata of a checkpoint is one object of a few dicts with millions of entries. Most pairs are
 * handed over while the machine reads, which then forgets them; those of a dict that was already
 * complete, or of an OrderedDict, follow at the end. So pairs of different sections come in any
 * order, those of one section in their own.
 */

struct dcp_err;
struct dcp_source;

struct dcp_section {
	const char *name; /* of the field */
	bool optional;    /* it may be missing, or None */
	/* Called for each pair; a negative return ends the reading. */
	int (*add)(void *ctx, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err);
};

#define DCP_SECTIONS_MAX 8

struct dcp_sections {
	const struct dcp_section *section;
	size_t n;
	/* Can the dict above @where on the stack be skipped, whatever it holds? May be NULL. */
	bool (*skip)(struct dcp_pv where);
	/* Called with the object, before the rest of its sections is handed over. */
	int (*root)(void *ctx, struct dcp_pv root, struct dcp_err *err);
	void *ctx;
};

/* Returns 0, -EBADMSG (a section is not a dict), what a callback gave, or what the pickle gave. */
int dcp_sections_read(const struct dcp_sections *s, const struct dcp_source *src,
		      struct dcp_err *err);

/* Copy the text of @v, if it is one and fits, into the @n bytes of @out; else leave @out alone. */
void dcp_sections_fact(char *out, size_t n, struct dcp_pv v);

/*
 * globals: which classes and functions would a Python pickle import, without doing any of it?
 *
 * For judging pickles, also those that pickle.h refuses: opcodes are followed up to the first
 * that is damaged or unknown, as Python does what stands before it. Of values only texts are
 * followed, through the stack and the memo, since they become names. Memory is bounded by
 * DCP_GLOBALS_MAX_STACK and DCP_GLOBALS_MAX_MEMO, whatever the input.
 */

struct dcp_err;
struct dcp_source;

#define DCP_GLOBALS_MAX_STACK (1u << 22)
#define DCP_GLOBALS_MAX_MEMO (1u << 22) /* entries; later ones are taken to be no texts */
#define DCP_GLOBALS_MAX_NAME 512        /* bytes of a longer name are left out */

/*
 * A name that the opcode at @off imports. @module NULL: it is computed, or is an extension
 * code, so nothing can be said of it. Not 0 ends the walk and is returned.
 */
typedef int dcp_globals_fn(void *ctx, const char *module, const char *name, uint64_t off);

/*
 * Walk the pickle at @off of @src; *end is set past its last byte. 0; -EBADMSG: it is damaged
 * from there on, with the reason in @err, after everything before it was reported; -ENOMEM; or
 * what reading or @fn gave.
 */
int dcp_globals(const struct dcp_source *src, uint64_t off, uint64_t *end, dcp_globals_fn *fn,
		void *ctx, struct dcp_err *err);
