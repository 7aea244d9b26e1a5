/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pyjson_int: what the files behind pyjson.h share; only they include it.
 *
 *	classes.c  the table of classes; numbers of an array; what Python pickles bytes as; dates and times
 *	look.c   what a value means: a list, a dict, bytes, an array, a class; the name of its class
 *	path.c   key paths, how Python spells a key, which duplicate counts
 *	walk.c   leaves of nested state
 *	write.c  JSON
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

/* Values inside values; the pickle machine allows more, JSON readers often less. */
#define DCP_PYJSON_MAX_DEPTH 240
/*
 * Bytes of one JSON value, and containers in it: a few nested lists that share parts can stand
 * for terabytes.
 */
#define DCP_PYJSON_MAX_JSON (64u << 20)
#define DCP_PYJSON_MAX_CONTAINERS (1u << 23)
/* Values looked at in one walk, for the same reason; numbers and the like count a 32nd. */
#define DCP_PYJSON_MAX_VISITS (1u << 24)

/*
 * A checkpoint may hold thousands of such streams, so each is also held to what its own bytes
 * can honestly stand for: @least and @each for every byte of its pickle, @most at most. Without
 * a stream @most.
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
	struct dcp_pv payload; /* as for DCP_PYJSON_BYTES */
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
	/* CLASS: items and pairs are what was appended and set; NULL pointers: not there */
	struct dcp_pv class; /* normally GLOBAL */
	const struct dcp_pv *args;
	size_t nargs;
	struct dcp_pv kwargs, state; /* NONE: not there */
	bool module;                 /* state is that of a torch.nn.Module */
	struct dcp_torch_parts parts;
};

/* Of the state of a module: does what is in @key go by its own names ("_parameters")? */
bool dcp_pyjson_unnamed(struct dcp_pv key);

void dcp_pyjson_look(struct dcp_pv v, struct dcp_pyjson_look *out);

/* The class of the table of which the call of @function, a GLOBAL, makes a value; NULL: none. */
const struct dcp_pyclass *dcp_pyclass_made(struct dcp_pv function);

static inline const struct dcp_pyclass *dcp_pyclass_of(struct dcp_pv v)
{
	return v.type == DCP_PV_OBJECT ? dcp_pyclass_made(v.node->obj->callable) : NULL;
}

/* Is it a mapping whose pairs are known? */
bool dcp_pyjson_mapping(struct dcp_pv v, const struct dcp_pv **pairs, size_t *n);

/* bytes in all their disguises: what holds them, as for DCP_PYJSON_BYTES. */
bool dcp_pyjson_look_bytes(struct dcp_pv v, struct dcp_pv *out);

/* Number of bytes in the text of DCP_PYJSON_BYTES. */
uint64_t dcp_pyjson_bytes_len(struct dcp_pv v);

/* datetime.timedelta in microseconds, and datetime, date and time as isoformat() gives them;
 * false: nothing of the kind, or more than that says (fold, a named time zone). */
bool dcp_pyjson_span(struct dcp_pv v, int64_t *us);
bool dcp_pyjson_time(struct dcp_pv v, char iso[48]);

/* Is it few enough numbers to be shown one by one? */
bool dcp_pyjson_few(const struct dcp_pyjson_array *a);
/* Write them, in lists by dimension; @bytes are all of the payload. */
void dcp_pyjson_numbers(struct dcp_jsonw *w, const struct dcp_pyjson_array *a,
			const void *bytes);

/* ---- path ---- */

struct dcp_pyjson_path {
	struct dcp_buf text; /* struct dcp_buf: a component each, kept when popped */
	struct dcp_buf part; /* const char *: those as they stand */
	size_t n;
	struct dcp_buf key, spelled;
};

/* Its components, n of them; valid until the next is pushed. */
static inline const char *const *dcp_pyjson_parts(const struct dcp_pyjson_path *p)
{
	return DCP_ITEMS(p->part, const char *const);
}

int dcp_pyjson_path_init(struct dcp_pyjson_path *p, const char *const *prefix, size_t n);
void dcp_pyjson_path_finish(struct dcp_pyjson_path *p);
/* 0 or -ENOMEM. A NUL in the text is spelled \x00: components are C strings. */
int dcp_pyjson_push(struct dcp_pyjson_path *p, const char *s, size_t n);
int dcp_pyjson_push_index(struct dcp_pyjson_path *p, size_t i);
int dcp_pyjson_push_key(struct dcp_pyjson_path *p, struct dcp_pv key);
void dcp_pyjson_pop(struct dcp_pyjson_path *p);
/* The first @n components joined with '.', or NULL when memory is out. Valid until the next
 * call. */
const char *dcp_pyjson_path_key(struct dcp_pyjson_path *p, size_t n);

/* Nodes that the value at hand lies in, to notice that it contains itself. */
struct dcp_pyjson_trail {
	struct {
		const struct dcp_pnode *node;
		size_t npath;
	} at[DCP_PYJSON_MAX_DEPTH];
	size_t n;
};

/* Index in the trail of the value that @v is, or -1. */
int dcp_pyjson_trail_find(const struct dcp_pyjson_trail *t, struct dcp_pv v);

/*
 * Pairs of a dict in which a key may occur twice: pair i is to be shown with the value of
 * pair last[i], or not at all (UINT32_MAX). NULL: all as they stand.
 */
int dcp_pyjson_duplicates(const struct dcp_pv *kv, size_t npairs, uint32_t **last);

/* Module and name of a class with Python's builtins stripped of their module. */
const char *dcp_pyjson_class(struct dcp_pv global);
