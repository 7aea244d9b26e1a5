/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle: Python values as pickles, in the opcodes that CPython's own pickler chooses:
 * protocols 2, 3 and 4.
 *
 * A value is an atom, or an opened container followed by its values. A container ends by itself
 * when it has all of its values:
 *
 *	dcp_pickler_init(&p, &out, 2);
 *	dcp_pickler_open(&p, DCP_PICKLE_DICT, 1);     {
 *	dcp_pickler_str(&p, "lr");                        "lr":
 *	dcp_pickler_float(&p, 0.1);                              0.1
 *	rc = dcp_pickler_end(&p);                     }
 *
 * The pickler memoizes the objects that CPython memoizes, with the same numbers, and cuts protocol
 * 4 into the same frames. To get the same bytes as CPython, an object that occurs several times
 * must be a word, a global or a dcp_pickler_get() here.
 *
 * Errors are sticky (as those of a buffer), and dcp_pickler_end() returns them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/model/dtype.h"
#include "core/model/tensor.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/write/write.h"

struct dcp_buf;
struct dcp_writer;

enum dcp_pickle_open {
	DCP_PICKLE_LIST,  /* n values */
	DCP_PICKLE_TUPLE, /* n values */
	DCP_PICKLE_DICT,  /* n times key and value */
	DCP_PICKLE_SET,   /* n values; with protocols 2 and 3 made of a list */
	/* a callable, a tuple of arguments; n is 0 for this and the next three */
	DCP_PICKLE_REDUCE,
	DCP_PICKLE_NEWOBJ, /* a class, a tuple of arguments */
	DCP_PICKLE_BUILD,  /* an object, its state */
	DCP_PICKLE_PERSID, /* a persistent id */
	DCP_PICKLE_ITEMS,  /* an object, then n times key and value that are set in it */
};

#define DCP_PICKLER_DEPTH 192
#define DCP_PICKLER_SHARED 96 /* words and globals */

struct dcp_pickler {
	struct dcp_buf *out;
	unsigned protocol;
	uint32_t memo; /* objects in it */
	size_t frame;  /* offset of the header of the open frame; SIZE_MAX: none is open */
	bool unframed; /* bytes now go outside of frames */
	int rc;
	unsigned depth;
	struct {
		uint8_t kind;
		uint64_t n, i; /* number of values, and how many of them came */
	} level[DCP_PICKLER_DEPTH];
	struct {
		const char *module, *name;
		uint32_t memo;
	} shared[DCP_PICKLER_SHARED];
	unsigned nshared;
};

/* @protocol: 2 to 4. Appends to @out. */
void dcp_pickler_init(struct dcp_pickler *p, struct dcp_buf *out, unsigned protocol);
/* 0; -EINVAL (a container is not full), -E2BIG (too deep, too many words), -ENOMEM. */
int dcp_pickler_end(struct dcp_pickler *p);

void dcp_pickler_none(struct dcp_pickler *p);
void dcp_pickler_bool(struct dcp_pickler *p, bool v);
void dcp_pickler_int(struct dcp_pickler *p, int64_t v);
void dcp_pickler_u64(struct dcp_pickler *p, uint64_t v);
/* Two's complement, little-endian, any length. */
void dcp_pickler_bigint(struct dcp_pickler *p, const uint8_t *le, size_t n);
void dcp_pickler_float(struct dcp_pickler *p, double v);
/* UTF-8, with surrogates encoded as by Python's surrogatepass; in a key, C0 80 is a NUL. */
void dcp_pickler_str(struct dcp_pickler *p, const char *s);
void dcp_pickler_str_n(struct dcp_pickler *p, const char *s, size_t n);
/* Text that is pickled as one object however often it occurs. The pointer must stay valid. */
void dcp_pickler_word(struct dcp_pickler *p, const char *s);
/* A class or function, by module and name, also pickled as one object. Pointers must stay valid. In
 * protocol 2 the module builtins is named __builtin__. */
void dcp_pickler_global(struct dcp_pickler *p, const char *module, const char *name);
/* With protocol 2, bytes are text that is encoded when it is unpickled. */
void dcp_pickler_bytes(struct dcp_pickler *p, const void *bytes, size_t n);

void dcp_pickler_open(struct dcp_pickler *p, enum dcp_pickle_open kind, uint64_t n);

/*
 * Add the values that @format lists from left to right; blanks have no meaning:
 *
 *	N 0 1    None, False, True
 *	i u      a number: int, uint64_t
 *	w s      a word, a text
 *	c        a global: its module, its name
 *	g        dcp_pickler_get(): uint32_t
 *	v        a tuple of numbers: uint32_t, const uint64_t *
 *	R O B P  open REDUCE, NEWOBJ, BUILD, PERSID
 *	( [ {    open a tuple, list or dict; the digit after it is the number of items; *: uint64_t
 *
 *	dcp_pickler_put(p, "R c (1 (*", "torch", "Size", n);  torch.Size((
 */
void dcp_pickler_put(struct dcp_pickler *p, const char *format, ...);

/* dcp_pickler_last(): the memo number of the object that was memoized last. dcp_pickler_get(): add
 * the object of a memo number again. */
static inline uint32_t dcp_pickler_last(const struct dcp_pickler *p)
{
	return p->memo - 1;
}
void dcp_pickler_get(struct dcp_pickler *p, uint32_t memo);

/* A bytes object (protocols 3 and 4) or text whose @n bytes the caller writes: between the two
 * calls the contents of @p->out are complete, and the bytes of the caller follow them. */
void dcp_pickler_bytes_open(struct dcp_pickler *p, uint64_t n);
void dcp_pickler_text_open(struct dcp_pickler *p, uint64_t n);
void dcp_pickler_bytes_close(struct dcp_pickler *p);

/* Pass complete bytes to @w and drop them from the buffer, so that a long pickle is never in memory
 * as a whole. The buffer must hold nothing but this pickle. */
void dcp_pickler_flush(struct dcp_pickler *p, struct dcp_writer *w);

/* ndarray: numpy arrays in pickles, as numpy pickles them. Modules have their names from before
 * numpy 2, which all releases of numpy know. */

/* State that the arrays of one pickle share. Zero it first. */
struct dcp_ndarrays {
	struct dcp_pickler *p;
	struct dcp_writer *w;
	struct {
		bool known;
		uint32_t memo;
	} b, dtype[DCP_DTYPE_COUNT];
};

/* Does Paddle accept arrays of this dtype? It reads BF16 as u2, and F8 as i1. */
bool dcp_ndarray_can(enum dcp_dtype dtype);

/* Open an array; the caller adds its dtype, whether it is column-major, and its bytes. */
void dcp_ndarray_open(struct dcp_ndarrays *a, uint32_t ndim, const uint64_t *shape);
/* Add the dtype (@order '<', @code "f4"), unless the pickle has it already; returns its memo
 * number. @code must stay valid. */
uint32_t dcp_ndarray_put_dtype(struct dcp_pickler *p, char order, const char *code);

/* Elements of a part from byte @off on, as many as the shape has. 0, -ENOTSUP (text is needed, but
 * the set cannot count its bytes), or the error of counting. */
struct dcp_ndarray_of {
	enum dcp_dtype dtype;
	uint32_t ndim;
	const uint64_t *shape;
	size_t tensor, part;
	uint64_t off, nbytes;
};
int dcp_ndarray_put(struct dcp_ndarrays *a, const struct dcp_ndarray_of *of,
		    struct dcp_err *err);
/* Add a whole part. */
int dcp_ndarray_put_part(struct dcp_ndarrays *a, size_t tensor, size_t part,
			 struct dcp_err *err);

/*
 * torch: tensors and archives as torch.save writes them (torch 2.1 to 2.6; all since 1.6 read
 * them).
 *
 *	archive/data.pkl     the value, in which tensors are calls that name storages
 *	archive/byteorder    "little"
 *	archive/data/0 ...   storages: the elements
 *	archive/version      "3\n"
 */

/* The reason why torch cannot hold the tensor, or NULL. */
const char *dcp_torch_write_refuses(const struct dcp_write_tensor *t);

/* The reason why a pickle cannot hold the key (it is not text), or NULL. */
const char *dcp_torch_write_refuses_key(const char *key);

/* Add a part to a pickle of protocol 2, as a tensor in storage number @storage. */
void dcp_torch_write_tensor(struct dcp_pickler *p, const struct dcp_write_tensor *t,
			    const struct dcp_write_part *part, size_t storage);

/* torch.Size(values) */
void dcp_torch_write_size(struct dcp_pickler *p, const uint64_t *values, uint32_t n);

/* Write an archive: begin with the finished pickle, add storages 0, 1, ..., end. */
void dcp_torch_write_begin(struct dcp_zipper *z, struct dcp_writer *w,
			   const struct dcp_buf *pickle);
void dcp_torch_write_storage(struct dcp_zipper *z, size_t storage, size_t tensor, size_t part);
int dcp_torch_write_end(struct dcp_zipper *z);

/*
 * tree: the tensors and objects of a set nested as their paths say, for formats that hold one
 * nested value.
 *
 * A path does not distinguish lists from dicts: components 0, 1, ... without a gap make a list,
 * except below "state", where optimizers have dicts with integer keys. An item goes into the
 * outermost dict, under its key, if its path goes through another item, or its path joined with
 * dots is not the key.
 */

struct dcp_tree;

/* Make a tree. @skip: by tensor, it is inside an object; NULL: none is. -ENOMEM. */
int dcp_tree_make(const struct dcp_write_set *set, const bool *skip, struct dcp_tree **out);
void dcp_tree_free(struct dcp_tree *t);

/* The number of dicts and lists around item @i; 0: it was skipped or has no place. */
size_t dcp_tree_depth(const struct dcp_tree *t, size_t i);

/* The key of an item that has no place, because its key is also the path of a container; NULL:
 * every item has a place. */
const char *dcp_tree_lost(const struct dcp_tree *t);

/*
 * Add the whole tree to the pickle; @put adds item number @i of the set: a tensor, or from ntensors
 * on, an object. A negative return of @put ends the call and is returned. The outermost dict has
 * room for @more pairs, which the caller adds afterwards.
 */
int dcp_tree_put(const struct dcp_tree *t, struct dcp_pickler *p, uint64_t more,
		 int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx);

/*
 * For formats that hold a list of objects as one object, as torch does. dcp_tree_first(): the first
 * item of the outermost such list around item @i, or @i if there is none. dcp_tree_key(): how many
 * bytes of the key of this item are the key of the list; without a list, all.
 */
size_t dcp_tree_first(const struct dcp_tree *t, size_t i);
size_t dcp_tree_key(const struct dcp_tree *t, size_t i);

/* Add that list, or item @i; returns as dcp_tree_put(). And add its path as a tuple: str
 * components, and int for positions in lists. */
int dcp_tree_put_item(const struct dcp_tree *t, struct dcp_pickler *p, size_t i,
		      int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx);
void dcp_tree_put_path(const struct dcp_tree *t, struct dcp_pickler *p, size_t i);

/*
 * value: objects, which core holds as JSON (core/parse/pyjson/pyjson.h), as plain Python data.
 *
 * Numbers, text, None, lists, tuples, dicts, OrderedDict, sets, bytes, complex numbers, ranges,
 * slices, dates and times, numbers and arrays of numpy, torch.Size, torch.dtype and torch.device.
 * Instances of other classes have no plain form.
 */

/* Tensors inside objects, by their keys. */
struct dcp_value_tensors {
	/* Add the tensor @key to the pickle. -ENOENT: there is no such tensor. */
	int (*put)(void *ctx, struct dcp_pickler *p, const char *key);
	void *ctx;
};

/* Why the object cannot be pickled, or NULL. @tensors: it may contain tensors. */
const char *dcp_value_refuses(const struct dcp_object *o, bool tensors);

/* A class in the object for which torch.load needs weights_only=False, which may execute any code;
 * NULL: none. */
const char *dcp_value_class(const struct dcp_object *o);

/*
 * Add the value to the pickle. @tensors NULL: the value contains no tensors. -EBADMSG
 * (dcp_value_refuses() says why, or the text is not JSON), -ENOMEM, or the error of tensors->put().
 */
int dcp_value_put(struct dcp_pickler *p, const struct dcp_object *o,
		  const struct dcp_value_tensors *tensors);

/* Call tensors->put() for every tensor in the object, with a pickler that discards its input. */
int dcp_value_tensors(const struct dcp_object *o, const struct dcp_value_tensors *tensors);

/*
 * valuing: declarations that the files of value/ share:
 *
 *	text.c   JSON text, and classes that JSON does not have: numbers and arrays of numpy, dates
 *	         and times
 *	value.c  everything else
 */

/* State of converting JSON text to a pickle. The first failure is sticky: after it no text is left,
 * and values that are taken have no meaning. */
struct dcp_valuing {
	const char *at, *end;
	struct dcp_pickler *p;
	const struct dcp_value_tensors *tensors;
	int rc;
	unsigned depth;
	uint64_t values;     /* that began */
	const char *classes; /* the list of classes after the next class */
	uint64_t next;       /* number of the next value that has a class, and the class */
	const struct dcp_pyclass *class;
	const char *why; /* why the object is not plain */
	/* a class for which torch.load needs weights_only=False; NULL: none */
	const char *code;
};

void dcp_valuing_fail(struct dcp_valuing *w, int code, const char *why);
void dcp_valuing_damaged(struct dcp_valuing *w);
void dcp_valuing_not_plain(struct dcp_valuing *w, const char *why);

void dcp_valuing_start(struct dcp_valuing *w, const struct dcp_object *o);
/* The class @name, if JSON represents its values as those of another class; otherwise NULL. */
const struct dcp_pyclass *dcp_valuing_class(const char *name, size_t n);
/* Begin a value. Returns its class, if it differs from the class that its JSON means. */
const struct dcp_pyclass *dcp_valuing_begin(struct dcp_valuing *w);

/* The next character after spaces; NUL: end of the text. */
char dcp_valuing_peek(struct dcp_valuing *w);
bool dcp_valuing_take(struct dcp_valuing *w, char c);
/* Take the character @c; without it the text is damaged. */
void dcp_valuing_expect(struct dcp_valuing *w, char c);
bool dcp_valuing_word(struct dcp_valuing *w, const char *word);
/* Take a string and its quotes, a key or a value. */
void dcp_valuing_key(struct dcp_valuing *w, struct dcp_buf *out);
void dcp_valuing_string(struct dcp_valuing *w, struct dcp_buf *out);
/* Take the next key and the colon. */
void dcp_valuing_member(struct dcp_valuing *w, struct dcp_buf *out);
bool dcp_valuing_is(const struct dcp_buf *b, const char *text);
/* Called after a value: move to the next value. False: the container ends. */
bool dcp_valuing_more(struct dcp_valuing *w, char close);
/* The number of elements or members of the container whose opening bracket was just taken. */
uint64_t dcp_valuing_count(const struct dcp_valuing *w);

/* Take ,"args":[ of an object whose first member was read. */
void dcp_valuing_args(struct dcp_valuing *w);
/* Take a base64 string. */
void dcp_valuing_base64(struct dcp_valuing *w, struct dcp_buf *out);

/* ---- text.c ---- */

/* Take the value of "$float": "nan", "-inf" or "inf". */
double dcp_valuing_special(struct dcp_valuing *w);
/* Convert a scalar of numpy that has begun. */
void dcp_valuing_scalar(struct dcp_valuing *w, const struct dcp_pyclass *class);
/* After {"$ndarray": */
void dcp_valuing_array(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable);

/* ---- text.c: they have begun ---- */

void dcp_valuing_seconds(struct dcp_valuing *w);
void dcp_valuing_time(struct dcp_valuing *w, const struct dcp_pyclass *class);
