/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle: Python values as pickles, in the opcodes that CPython's own pickler chooses:
 * protocols 2, 3 and 4.
 *
 * A value is an atom, or an opened container followed by its values; it ends by itself when it
 * has them:
 *
 *	dcp_pickler_init(&p, &out, 2);
 *	dcp_pickler_open(&p, DCP_PICKLE_DICT, 1);     {
 *	dcp_pickler_str(&p, "lr");                        "lr":
 *	dcp_pickler_float(&p, 0.1);                              0.1
 *	rc = dcp_pickler_end(&p);                     }
 *
 * What CPython memoizes is memoized, with the same numbers, and protocol 4 is cut into the same
 * frames. Equal bytes need that what is one object there is one word, one global or
 * dcp_pickler_get() here.
 *
 * Errors stay (as those of a buffer), and dcp_pickler_end() returns them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/write/write.h"
#include "core/write/zip.h"

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
	size_t frame;  /* where the open one has its header; SIZE_MAX: none is open */
	bool unframed; /* what comes now lies outside of frames */
	int rc;
	unsigned depth;
	struct {
		uint8_t kind;
		uint64_t n, i; /* values it has, and that came */
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
/* UTF-8, surrogates as Python's surrogatepass has them; of a key C0 80 is a NUL. */
void dcp_pickler_str(struct dcp_pickler *p, const char *s);
void dcp_pickler_str_n(struct dcp_pickler *p, const char *s, size_t n);
/* The same text later is the same object. The pointer must stay. */
void dcp_pickler_word(struct dcp_pickler *p, const char *s);
/* A class or function, by module and name; later it is the same object. Pointers must stay.
 * Protocol 2 calls builtins __builtin__. */
void dcp_pickler_global(struct dcp_pickler *p, const char *module, const char *name);
/* With protocol 2, text that is encoded when it is unpickled. */
void dcp_pickler_bytes(struct dcp_pickler *p, const void *bytes, size_t n);

void dcp_pickler_open(struct dcp_pickler *p, enum dcp_pickle_open kind, uint64_t n);

/*
 * What stands in @format, from left to right; blanks in it mean nothing:
 *
 *	N 0 1    None, False, True
 *	i u      a number: int, uint64_t
 *	w s      a word, a text
 *	c        a global: its module, its name
 *	g        dcp_pickler_get(): uint32_t
 *	v        a tuple of numbers: uint32_t, const uint64_t *
 *	R O B P  open REDUCE, NEWOBJ, BUILD, PERSID
 *	( [ {    open a tuple, list or dict of as many as the digit after it says, or of uint64_t where that is *
 *
 *	dcp_pickler_put(p, "R c (1 (*", "torch", "Size", n);  torch.Size((
 */
void dcp_pickler_put(struct dcp_pickler *p, const char *format, ...);

/* The object that was memoized last, and the same one again. */
static inline uint32_t dcp_pickler_last(const struct dcp_pickler *p)
{
	return p->memo - 1;
}
void dcp_pickler_get(struct dcp_pickler *p, uint32_t memo);

/*
 * A bytes object (protocols 3 and 4) or text whose @n bytes the caller writes: between the two
 * calls all that @p->out has is complete, and the bytes follow it.
 */
void dcp_pickler_bytes_open(struct dcp_pickler *p, uint64_t n);
void dcp_pickler_text_open(struct dcp_pickler *p, uint64_t n);
void dcp_pickler_bytes_close(struct dcp_pickler *p);

/* Hand what is complete to @w and drop it from the buffer, which holds nothing but this pickle:
 * so a long one never stands in memory as a whole. */
void dcp_pickler_flush(struct dcp_pickler *p, struct dcp_writer *w);

/*
 * ndarray: numpy arrays in pickles, as numpy pickles them. Modules have the names that they had
 * before numpy 2, which all numpys know.
 */

/* What the arrays of one pickle share. Begin with zeros. */
struct dcp_ndarrays {
	struct dcp_pickler *p;
	struct dcp_writer *w;
	struct {
		bool known;
		uint32_t memo;
	} b, dtype[DCP_DTYPE_COUNT];
};

/* Does Paddle take such arrays? BF16 is u2 in them, F8 i1. */
bool dcp_ndarray_can(enum dcp_dtype dtype);

/* An array but for its dtype, whether it is column-major, and its bytes, which follow. */
void dcp_ndarray_open(struct dcp_ndarrays *a, uint32_t ndim, const uint64_t *shape);
/* The dtype '<', "f4", where it is not in the pickle yet; its number in the memo. @code must
 * stay. */
uint32_t dcp_ndarray_put_dtype(struct dcp_pickler *p, char order, const char *code);

/* Elements of a part from @off bytes on, as many as the shape says. 0, -ENOTSUP (a text is
 * needed and the set cannot count it), or what that gave. */
struct dcp_ndarray_of {
	enum dcp_dtype dtype;
	uint32_t ndim;
	const uint64_t *shape;
	size_t tensor, part;
	uint64_t off, nbytes;
};
int dcp_ndarray_put(struct dcp_ndarrays *a, const struct dcp_ndarray_of *of,
		    struct dcp_err *err);
/* All of a part. */
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

/* Why torch cannot have such a tensor, or NULL. */
const char *dcp_torch_write_refuses(const struct dcp_write_tensor *t);

/* Why a pickle cannot have that key, or NULL: it is not text. */
const char *dcp_torch_write_refuses_key(const char *key);

/* The part as a tensor of its own, in storage number @storage, to the pickle of protocol 2. */
void dcp_torch_write_tensor(struct dcp_pickler *p, const struct dcp_write_tensor *t,
			    const struct dcp_write_part *part, size_t storage);

/* torch.Size(values) */
void dcp_torch_write_size(struct dcp_pickler *p, const uint64_t *values, uint32_t n);

/* An archive: begin with the finished pickle, add storages 0, 1, ..., end. */
void dcp_torch_write_begin(struct dcp_zipper *z, struct dcp_writer *w,
			   const struct dcp_buf *pickle);
void dcp_torch_write_storage(struct dcp_zipper *z, size_t storage, size_t tensor, size_t part);
int dcp_torch_write_end(struct dcp_zipper *z);

/*
 * tree: the tensors and objects of a set nested as their paths say, for formats that hold one
 * nested value.
 *
 * A path does not distinguish lists from dicts: where components are 0, 1, ... without a gap it
 * is a list, but below "state", where optimizers have dicts with integer keys. An item whose
 * path goes through another item, or is not what its key is made of, has its key in the
 * outermost dict.
 */

struct dcp_tree;

/* @skip: tensors that lie in objects; NULL: none. -ENOMEM. */
int dcp_tree_make(const struct dcp_write_set *set, const bool *skip, struct dcp_tree **out);
void dcp_tree_free(struct dcp_tree *t);

/* How many dicts and lists item @i lies in; 0: in none, it was skipped or has no place. */
size_t dcp_tree_depth(const struct dcp_tree *t, size_t i);

/* The key of an item that has no place, because its key is also the path of a container; NULL:
 * all have. */
const char *dcp_tree_lost(const struct dcp_tree *t);

/* Add it all to the pickle; @put adds item number @i of the set: a tensor, or from ntensors on
 * an object. Its negative return ends that and is returned. The outermost dict has room for
 * @more pairs, which the caller adds then. */
int dcp_tree_put(const struct dcp_tree *t, struct dcp_pickler *p, uint64_t more,
		 int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx);

/*
 * For formats that hold a list of objects as one object, as torch does: the first item of the
 * outermost such list that item @i lies in; @i: it lies in none. And bytes of that first item's
 * key that are the key of the list; all of it: there is none.
 */
size_t dcp_tree_first(const struct dcp_tree *t, size_t i);
size_t dcp_tree_key(const struct dcp_tree *t, size_t i);

/* That list, or item @i; returns as dcp_tree_put(). And the path of it as a tuple: str, and int
 * where it counts a list. */
int dcp_tree_put_item(const struct dcp_tree *t, struct dcp_pickler *p, size_t i,
		      int (*put)(void *ctx, struct dcp_pickler *p, size_t i), void *ctx);
void dcp_tree_put_path(const struct dcp_tree *t, struct dcp_pickler *p, size_t i);
