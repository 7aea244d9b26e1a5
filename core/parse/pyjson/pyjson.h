/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pyjson: writes pickled values as JSON, and their paths as keys. It executes nothing and never
 * drops data silently.
 *
 *   None, bool, int, float, str, list      themselves; integers of any size
 *   tuple, torch.Size                      arrays
 *   bytes, bytearray                       {"$bytes": base64}
 *   NaN, infinities                        {"$float": "nan" | "inf" | "-inf"}
 *   dict with str keys, OrderedDict        object; if it has other keys, or a key that begins
 *                                          with '$': {"$dict": [[k, v], ...]}
 *   set, frozenset                         {"$set": [...]}
 *   complex, range, slice                  {"$class": "complex", "args": [1.0, 2.0]}
 *   datetime.timedelta                     its seconds, as total_seconds() gives them
 *   torch.dtype, torch.device              {"$class": "torch.dtype", "args": ["bfloat16"]}
 *   datetime.datetime, date, time          text as isoformat() gives it, which fromisoformat()
 *                                          reads; with fold or a named zone: "$class"
 *   numpy scalar                           its number, as item() gives it; if the value is the
 *                                          scalar alone, "type" has its class
 *   numpy array of up to 1024 numbers      {"$ndarray": {"dtype": "<f4", "shape": [2, 1],
 *                                          "data": [[0.5], [1.0]]}}: numpy.array(data, dtype)
 *                                          gives an equal array, except for payloads of NaN
 *   longer numpy array                     the same with "data": {"$bytes": base64}, and if it
 *                                          is column-major, with "fortran_order": true
 *   a tensor                               {"$tensor": key}
 *   a sparse, quantized, nested or meta    {"$class": "torch.Tensor (torch.sparse_coo)",
 *   tensor                                 "shape": [3, 3], "indices": {"$tensor": key}, ...}
 *   a class or function                    {"$class": "type", "args": ["module.Name"]}
 *   anything else                          {"$class": "module.Name"} and, if the object has
 *                                          them, "args", "kwargs", "state", "items", "dict"
 *   a container inside itself              {"$cycle": key path of the outer occurrence}
 *   bytes that are not in memory, without  {"$bytes_at": [offset in the pickle's source,
 *   a stream to read them from             length]}
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
 * The stream that the values were read from, also for families other than torch.save. @size is the
 * length of the pickle, which limits the length of the JSON that is made of its values. @is_tensor
 * says which values are tensors. @read reads [off, off + n) of bytes that were too long to be
 * copied into memory, and returns 0 or a negative errno.
 */
struct dcp_pystream {
	uint64_t size;
	bool (*is_tensor)(struct dcp_pv v);
	int (*read)(const void *ctx, struct dcp_pv v, uint64_t off, void *buf, size_t n);
	const void *ctx;
};

/* Fill @out for @t with functions of dcp_torch, and return it; NULL if @t is NULL. */
const struct dcp_pystream *dcp_pyjson_torch(const struct dcp_torch *t,
					    struct dcp_pystream *out);

/* Python's name of the value's class, as type(x) would give it without "builtins.": "int",
 * "NoneType", "collections.OrderedDict", "torch.Tensor", "trainer.Info". The name is valid as long
 * as the value. */
const char *dcp_pyjson_type(struct dcp_pv v);

/* The form of the JSON of a value, and which fields of struct dcp_pyjson_look are then set. */
enum dcp_pyjson_form {
	DCP_PYJSON_SCALAR,  /* None, bool, int, float, str: no field, the value itself */
	DCP_PYJSON_SECONDS, /* a time span: seconds */
	DCP_PYJSON_TIME,    /* a date or time: iso */
	DCP_PYJSON_TEXT,    /* an instance of a subclass of str: text */
	DCP_PYJSON_BYTES,   /* text: BYTES, BYTEARRAY, STR (Latin-1), or NONE (no bytes) */
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
 * A class of Python, numpy or torch, for reading and for writing pickles: @name is its name for
 * dcp_pyjson_type(), and a call of @function in @module makes a value of it. Several functions may
 * make values of one class; a class without a function has opcodes of its own.
 */
struct dcp_pyclass {
	const char *name, *module, *function;
	enum dcp_pyjson_form form; /* of a value that has nothing besides its arguments */
	bool hidden;               /* its JSON looks like another class: "type" names it */
	bool args;                 /* its JSON has the arguments of the call */
	bool code;                 /* torch.load accepts it only with weights_only=False */
	const char *old;           /* Python 2's name of the function, if it is a builtin */
	const char *number;        /* the type of a numpy scalar: "f4" */
};

/* Find the class with the name @name in the table; NULL: none. */
const struct dcp_pyclass *dcp_pyclass_named(const char *name, size_t n);
/* Find the class of numpy scalars with the type @code, "f4"; NULL: none. */
const struct dcp_pyclass *dcp_pyclass_of_number(const char *code, size_t n);

/*
 * Walk nested state by the rule of torch >= 2.4: mappings are opened; a list is opened if it
 * contains a mapping or a tensor at any depth; tuples and all other values are leaves. An empty
 * mapping leaves nothing. @fn is called for each leaf, with its path; keys that are not str are
 * spelled by Python's str().
 *
 * DCP_WALK_INSIDE: @fn also gets the tensors nested in a leaf (a tuple, a class), before the leaf
 * itself. The path to such a tensor has indices and keys as components; for a tensor that
 * consists of several, the names of its parts ("indices"); for a torch.nn.Module, the names that
 * its parameters have in state_dict(); for parts of any other class, "state" or "args".
 * DCP_WALK_TUPLES: tuples are opened like lists.
 * DCP_WALK_LISTS: nodes are those of Composer's ignore_keys: every list is opened, and
 * every tuple that contains tensors; empty mappings and lists are leaves. A list of more than
 * DCP_WALK_MAX_LIST items without mappings and tensors remains a leaf.
 */
enum { DCP_WALK_INSIDE = 1, DCP_WALK_TUPLES = 2, DCP_WALK_LISTS = 4 };
#define DCP_WALK_MAX_LIST 65536u

struct dcp_leaf {
	const char *const *path;
	size_t npath;
	const char *key; /* components joined with '.' */
	struct dcp_pv value;
	bool is_tensor; /* for torch.save: dcp_torch_tensor() returned 1 or an error */
	bool nested;    /* found inside another leaf (only with DCP_WALK_INSIDE) */
};
typedef int (*dcp_leaf_fn)(void *ctx, const struct dcp_leaf *leaf);

/* Every path begins with the components of @prefix. Returns 0, the first non-zero result of @fn,
 * -E2BIG or -ENOMEM. */
int dcp_pyjson_walk_in(const struct dcp_pystream *s, struct dcp_pv root,
		       const char *const *prefix, size_t nprefix, unsigned how, dcp_leaf_fn fn,
		       void *ctx);

/* The same for callers that handle some classes themselves. */
struct dcp_walk {
	const char *const *prefix;
	size_t nprefix;
	unsigned how;
	/* May be NULL. Called with each leaf before it is examined, without is_tensor. It returns 1
	 * if it handled the leaf, 0 to continue as usual, negative to stop. */
	dcp_leaf_fn take;
	/*
	 * May be NULL. Receives a line for each opened container whose class the paths do not
	 * show: the class and the components of the container's path, separated by tabs. Paths
	 * with a tab or newline get no line. After 64 KiB no more lines are written: they are then
	 * too long for a fact. The lines about the keys of a container precede its own line.
	 *
	 *	list	optim	param_groups
	 *	tuple	pair
	 *	dict	model		all keys are text with a digit first, or the root is empty
	 *	3	model		it has no leaves; it is item 3, from 0, of its parent
	 *	keys	optim	state	its keys are not text; paths have them as str() spells them
	 *	text	optim	state	1	this key is text, though it looks like another key
	 *	leaf			the root is not opened
	 *	collections.OrderedDict	model	a mapping other than dict; other lines too
	 *	collections.defaultdict:list	seen	with the function that makes its values
	 */
	struct dcp_buf *containers;
};
int dcp_pyjson_walk_with(const struct dcp_torch *t, struct dcp_pv root,
			 const struct dcp_walk *how, dcp_leaf_fn fn, void *ctx);

/*
 * Append @v as one JSON value. @path is the key path of @v: a tensor inside @v is written as
 * {"$tensor": key} with the key that the walk gave it. If @t is NULL, no value is a tensor.
 * Returns 0, -E2BIG (nested too deep, or too long), -ENOMEM, or the error of reading long bytes;
 * after an error nothing is appended.
 */
int dcp_pyjson_write(struct dcp_buf *out, const struct dcp_torch *t, struct dcp_pv v,
		     const char *const *path, size_t npath);

/* Describe the value @v at @path in @o: type, json, classes, or an error. Their text lies in @out,
 * which is emptied first. @left is the number of bytes that may still be used; the length of the
 * text is subtracted from it. Returns 0 or -ENOMEM. */
int dcp_pyjson_object(struct dcp_buf *out, const struct dcp_pystream *s, struct dcp_pv v,
		      const char *const *path, size_t npath, uint64_t *left,
		      struct dcp_object *o);
