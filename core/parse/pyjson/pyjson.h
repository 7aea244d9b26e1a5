/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pyjson: pickled values as JSON and as keys. Nothing is executed, nothing is lost silently.
 *
 *   None, bool, int, float, str, list      themselves; integers of any size
 *   tuple, torch.Size                      arrays
 *   bytes, bytearray                       {"$bytes": base64}
 *   NaN, infinities                        {"$float": "nan" | "inf" | "-inf"}
 *   dict with str keys, OrderedDict        object; with other keys, or one that begins with
 *                                          '$': {"$dict": [[k, v], ...]}
 *   set, frozenset                         {"$set": [...]}
 *   complex, range, slice                  {"$class": "complex", "args": [1.0, 2.0]}
 *   datetime.timedelta                     its seconds, as total_seconds() gives them
 *   torch.dtype, torch.device              {"$class": "torch.dtype", "args": ["bfloat16"]}
 *   datetime.datetime, date, time          as isoformat() gives them, which fromisoformat()
 *                                          reads; with fold or a named zone: "$class"
 *   numpy scalar                           its number, as item() gives it; "type" has its
 *                                          class where it is an object by itself
 *   numpy array of up to 1024 numbers      {"$ndarray": {"dtype": "<f4", "shape": [2, 1],
 *                                          "data": [[0.5], [1.0]]}}: numpy.array(data, dtype)
 *                                          is equal to it, NaN's payload left aside
 *   longer ones                            "data": {"$bytes": base64}, and those that are
 *                                          column-major "fortran_order": true
 *   a tensor                               {"$tensor": key}
 *   a sparse, quantized, nested or meta    {"$class": "torch.Tensor (torch.sparse_coo)",
 *   tensor                                 "shape": [3, 3], "indices": {"$tensor": key}, ...}
 *   a class or function                    {"$class": "type", "args": ["module.Name"]}
 *   anything else                          {"$class": "module.Name"} and, where it has them,
 *                                          "args", "kwargs", "state", "items", "dict"
 *   a container inside itself              {"$cycle": key path of the outer one}
 *   bytes too long to be in memory, and    {"$bytes_at": [offset in the pickle's source,
 *   no stream to read them from            length]}
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/parse/pickle/pickle.h"

struct dcp_buf;
struct dcp_object;
struct dcp_torch;

/*
 * What the values were read from, for families other than torch.save: how long the pickle is
 * (what is made of its values is held to that), which values are tensors, and how to get
 * [off, off + n) of bytes that were too long to be copied (0, or a negative errno).
 */
struct dcp_pystream {
	uint64_t size;
	bool (*is_tensor)(struct dcp_pv v);
	int (*read)(const void *ctx, struct dcp_pv v, uint64_t off, void *buf, size_t n);
	const void *ctx;
};

/* What dcp_torch functions say of @t; NULL for NULL. */
const struct dcp_pystream *dcp_pyjson_torch(const struct dcp_torch *t,
					    struct dcp_pystream *out);

/* Python's name of the value's class, as type(x) would give it without "builtins.": "int",
 * "NoneType", "collections.OrderedDict", "torch.Tensor", "trainer.Info". Valid while the value
 * is. */
const char *dcp_pyjson_type(struct dcp_pv v);

/* How the JSON of a value looks; and which fields of what looking at it gives count. */
enum dcp_pyjson_form {
	DCP_PYJSON_SCALAR,  /* None, bool, int, float, str: as it stands */
	DCP_PYJSON_SECONDS, /* a time span: seconds */
	DCP_PYJSON_TIME,    /* a date or time: iso */
	DCP_PYJSON_TEXT,    /* an instance of a subclass of str: text */
	DCP_PYJSON_BYTES,   /* text: BYTES, BYTEARRAY, a STR holding Latin-1, or NONE (no bytes)
			     */
	DCP_PYJSON_LIST,    /* items */
	DCP_PYJSON_SET,     /* items */
	DCP_PYJSON_DICT,    /* pairs */
	DCP_PYJSON_ARRAY,   /* array */
	DCP_PYJSON_NAME,    /* a GLOBAL */
	DCP_PYJSON_PARTS,   /* parts: a tensor that consists of several */
	DCP_PYJSON_CLASS,   /* the other fields */
	DCP_PYJSON_STORAGE, /* PERSID */
};

/*
 * A class of Python, numpy or torch, as pickles are read and as they are written: dcp_pyjson_type()
 * calls it @name, and a call of @function in @module makes a value of it. Several functions may
 * make values of one class; without one they have opcodes of their own.
 */
struct dcp_pyclass {
	const char *name, *module, *function;
	enum dcp_pyjson_form form; /* of a value that is nothing more */
	bool hidden;     /* its JSON is that of another class: what it is, is said beside */
	bool args;       /* its JSON has the arguments of the call */
	bool code;       /* torch.load takes it with weights_only=False alone */
	const char *old; /* what Python 2 called the function, if it is one of its builtins */
	const char *number; /* "f4": a scalar of numpy, and its type */
};

/* That of the table which is called so; NULL: none. */
const struct dcp_pyclass *dcp_pyclass_named(const char *name, size_t n);
/* The scalars of numpy of the type @code, "f4"; NULL: none is of it. */
const struct dcp_pyclass *dcp_pyclass_of_number(const char *code, size_t n);

/*
 * Walk nested state by torch >= 2.4's rule: mappings are opened; a list is opened when a
 * mapping or a tensor lies in it at any depth; tuples and everything else are leaves. An empty
 * mapping vanishes. @fn is called for each leaf, with its path; keys that are not str are spelled
 * as Python's str() does.
 *
 * DCP_WALK_INSIDE: @fn also gets tensors nested in a leaf (a tuple, a class), before the leaf
 * itself, with the path to them: indices and keys as components; names of the parts of a
 * tensor that consists of several ("indices"); in a torch.nn.Module the names its parameters
 * have in state_dict(); else "state" or "args" for parts of a class.
 * DCP_WALK_TUPLES: tuples are opened like lists.
 * DCP_WALK_LISTS: as Composer's ignore_keys count nodes: every list is opened, and a tuple that
 * holds tensors; mappings and lists that are empty are leaves. A list of more than
 * DCP_WALK_MAX_LIST items in which neither mappings nor tensors are stays a leaf.
 */
enum { DCP_WALK_INSIDE = 1, DCP_WALK_TUPLES = 2, DCP_WALK_LISTS = 4 };
#define DCP_WALK_MAX_LIST 65536u

struct dcp_leaf {
	const char *const *path;
	size_t npath;
	const char *key; /* components joined with '.' */
	struct dcp_pv value;
	bool is_tensor; /* of torch.save: dcp_torch_tensor() gave 1 or an error for it */
	bool nested;    /* found inside another leaf (only with DCP_WALK_INSIDE) */
};
typedef int (*dcp_leaf_fn)(void *ctx, const struct dcp_leaf *leaf);

/* @prefix components are put in front of every path. Returns 0, the first non-zero of @fn,
 * -E2BIG, -ENOMEM. */
int dcp_pyjson_walk_in(const struct dcp_pystream *s, struct dcp_pv root,
		       const char *const *prefix, size_t nprefix, unsigned how, dcp_leaf_fn fn,
		       void *ctx);

/* The same for callers that handle some classes themselves. */
struct dcp_walk {
	const char *const *prefix;
	size_t nprefix;
	unsigned how;
	/* May be NULL. Called with each leaf before it is examined; is_tensor is not set. 1: the
	 * leaf is handled; 0: go on as usual; negative: stop. */
	dcp_leaf_fn take;
	/*
	 * May be NULL. Gets a line for each opened container of which paths do not show the
	 * class: its class and the components of its path, with tabs between; none of those
	 * with a tab or newline in them. After 64 KiB there are no more, and they are too long
	 * for a fact. Lines of its keys stand before it.
	 *
	 *	list	optim	param_groups
	 *	tuple	pair
	 *	dict	model		keys that are text begin with digits, or the root is empty
	 *	3	model		nothing is in it, or only such: item 3, from 0, of what it lies in
	 *	keys	optim	state	keys are not text: as Python's str() spells them
	 *	text	optim	state	1	but this one is text, though it looks like another key
	 *	leaf			the root is not opened
	 *	collections.OrderedDict	model	a mapping that is no dict; beside the lines above
	 *	collections.defaultdict:list	seen	what makes its values
	 */
	struct dcp_buf *containers;
};
int dcp_pyjson_walk_with(const struct dcp_torch *t, struct dcp_pv root,
			 const struct dcp_walk *how, dcp_leaf_fn fn, void *ctx);

/*
 * Append @v as one JSON value. @path is its key path: a tensor inside it is written as
 * {"$tensor": key} with the key that the walk gave. @t may be NULL: then nothing
 * is a tensor. Returns 0, -E2BIG (nested too deep, or too long), -ENOMEM, or what reading long
 * bytes gave; then nothing was appended.
 */
int dcp_pyjson_write(struct dcp_buf *out, const struct dcp_torch *t, struct dcp_pv v,
		     const char *const *path, size_t npath);

/* Give @o what is known of the value @v at @path: type, json, classes, or an error. They lie in
 * @out, which is emptied first. @left: bytes that it may have; what it has is taken off. 0,
 * -ENOMEM. */
int dcp_pyjson_object(struct dcp_buf *out, const struct dcp_pystream *s, struct dcp_pv v,
		      const char *const *path, size_t npath, uint64_t *left,
		      struct dcp_object *o);
