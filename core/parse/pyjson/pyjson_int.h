/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pyjson_int: declarations for the files behind pyjson.h; only they include it.
 *
 *	classes.c  the table of classes; numbers of an array; pickled bytes, dates and times
 *	look.c     the meaning of a value: a list, a dict, bytes, an array, a class; its class name
 *	path.c     key paths; Python's spelling of a key; which of two equal keys counts
 *	walk.c     leaves of nested state
 *	write.c    JSON
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"

struct dcp_jsonw;

/* Nesting depth of values; the pickle machine allows more, JSON readers often less. */
#define DCP_PYJSON_MAX_DEPTH 240
/* Limits for one JSON value: its bytes, and the containers in it. They are needed because a few
 * nested lists that share parts can expand to terabytes. */
#define DCP_PYJSON_MAX_JSON (64u << 20)
#define DCP_PYJSON_MAX_CONTAINERS (1u << 23)
/* Values visited in one walk, limited for the same reason; a scalar counts as 1/32. */
#define DCP_PYJSON_MAX_VISITS (1u << 24)

/*
 * A limit in proportion to the size of a stream, because a checkpoint may hold thousands of
 * streams: @least plus @each for every byte of the pickle, but at most @most. Without a stream,
 * @most.
 */
uint64_t dcp_pyjson_allowed(const struct dcp_pystream *s, uint64_t least, uint64_t each,
			    uint64_t most);
#define DCP_PYJSON_JSON_OF(s) dcp_pyjson_allowed(s, 16384, 32, DCP_PYJSON_MAX_JSON)
#define DCP_PYJSON_CONTAINERS_OF(s) dcp_pyjson_allowed(s, 4096, 8, DCP_PYJSON_MAX_CONTAINERS)
#define DCP_PYJSON_VISITS_OF(s) dcp_pyjson_allowed(s, 4096, 8, DCP_PYJSON_MAX_VISITS)

/* ---- look ---- */

struct dcp_pyjson_array {
	char descr[8]; /* "<f4" */
	const struct dcp_pv *shape;
	size_t ndim;
	bool fortran; /* first index varies fastest */
	bool scalar;
	struct dcp_pv payload; /* as text is for DCP_PYJSON_BYTES */
	uint64_t nbytes;
};

struct dcp_pyjson_look {
	enum dcp_pyjson_form form;
	struct dcp_pv text;
	double seconds;
	char iso[48];
	const struct dcp_pv *items, *pairs;
	size_t nitems, npairs;
	struct dcp_pyjson_array array;
	/* CLASS: items are those appended, pairs those set; a NULL pointer: there are none */
	struct dcp_pv class; /* normally GLOBAL */
	const struct dcp_pv *args;
	size_t nargs;
	struct dcp_pv kwargs, state; /* NONE: there is none */
	bool module;                 /* it is the state of a torch.nn.Module */
	struct dcp_torch_parts parts;
};

/* In the state of a module, do the values below @key get keys without @key ("_parameters")? */
bool dcp_pyjson_unnamed(struct dcp_pv key);

void dcp_pyjson_look(struct dcp_pv v, struct dcp_pyjson_look *out);

/* Find the class whose values a call of @function, a GLOBAL, makes; NULL: none in the table. */
const struct dcp_pyclass *dcp_pyclass_made(struct dcp_pv function);

static inline const struct dcp_pyclass *dcp_pyclass_of(struct dcp_pv v)
{
	return v.type == DCP_PV_OBJECT ? dcp_pyclass_made(v.node->obj->callable) : NULL;
}

/* Is @v a mapping whose pairs are known? */
bool dcp_pyjson_mapping(struct dcp_pv v, const struct dcp_pv **pairs, size_t *n);

/* Is @v bytes, in any of the forms in which Python pickles bytes? Then @out is the value that holds
 * them, as for DCP_PYJSON_BYTES. */
bool dcp_pyjson_look_bytes(struct dcp_pv v, struct dcp_pv *out);

/* The number of bytes in @v, which is the text of a DCP_PYJSON_BYTES. */
uint64_t dcp_pyjson_bytes_len(struct dcp_pv v);

/* Convert a datetime.timedelta to microseconds, and a datetime, date or time to the text of
 * isoformat(). False: @v is none of these, or the text cannot express it (fold, a named time
 * zone). */
bool dcp_pyjson_span(struct dcp_pv v, int64_t *us);
bool dcp_pyjson_time(struct dcp_pv v, char iso[48]);

/* Does @a have few enough numbers to be written one by one? */
bool dcp_pyjson_few(const struct dcp_pyjson_array *a);
/* Write the numbers of @a, as a nested list per dimension; @bytes is the whole payload. */
void dcp_pyjson_numbers(struct dcp_jsonw *w, const struct dcp_pyjson_array *a,
			const void *bytes);

/* ---- path ---- */

struct dcp_pyjson_path {
	struct dcp_buf text; /* struct dcp_buf: a buffer per component, kept when popped */
	struct dcp_buf part; /* const char *: the components */
	size_t n;
	struct dcp_buf key, spelled;
};

/* The @n components of @p; valid until the next component is pushed. */
static inline const char *const *dcp_pyjson_parts(const struct dcp_pyjson_path *p)
{
	return DCP_ITEMS(p->part, const char *const);
}

int dcp_pyjson_path_init(struct dcp_pyjson_path *p, const char *const *prefix, size_t n);
void dcp_pyjson_path_finish(struct dcp_pyjson_path *p);
/* Returns 0 or -ENOMEM. A NUL in the text is spelled \x00, because components are C strings. */
int dcp_pyjson_push(struct dcp_pyjson_path *p, const char *s, size_t n);
int dcp_pyjson_push_index(struct dcp_pyjson_path *p, size_t i);
int dcp_pyjson_push_key(struct dcp_pyjson_path *p, struct dcp_pv key);
void dcp_pyjson_pop(struct dcp_pyjson_path *p);
/* The first @n components joined with '.', valid until the next call; NULL: no memory. */
const char *dcp_pyjson_path_key(struct dcp_pyjson_path *p, size_t n);

/* The nodes that enclose the current value; used to detect a value that contains itself. */
struct dcp_pyjson_trail {
	struct {
		const struct dcp_pnode *node;
		size_t npath;
	} at[DCP_PYJSON_MAX_DEPTH];
	size_t n;
};

/* The index of the node of @v in the trail, or -1. */
int dcp_pyjson_trail_find(const struct dcp_pyjson_trail *t, struct dcp_pv v);

/* Find keys that occur twice in the pairs of a dict. Sets @last so that pair i is shown with the
 * value of pair last[i], or not at all (UINT32_MAX). @last NULL: no key occurs twice. */
int dcp_pyjson_duplicates(const struct dcp_pv *kv, size_t npairs, uint32_t **last);

/* Module and name of a class; only the name for a builtin of Python. */
const char *dcp_pyjson_class(struct dcp_pv global);
