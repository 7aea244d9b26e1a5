/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value: objects, which core holds as JSON (core/parse/pyjson/pyjson.h), as plain Python data.
 *
 * Numbers, text, None, lists, tuples, dicts, OrderedDict, sets, bytes, complex numbers, ranges,
 * slices, dates and times, numbers and arrays of numpy, torch.Size, torch.dtype and torch.device.
 * Instances of other classes have no plain form.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"
#include "core/model/tensor.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/write/pickle.h"

/* Tensors inside objects, by their keys. */
struct dcp_value_tensors {
	/* Add the tensor @key to the pickle. -ENOENT: there is no such tensor. */
	int (*put)(void *ctx, struct dcp_pickler *p, const char *key);
	void *ctx;
};

/* Why the object cannot be pickled, or NULL. @tensors: it may contain tensors. */
const char *dcp_value_refuses(const struct dcp_object *o, bool tensors);

/*
 * A class in the object for which torch.load needs weights_only=False, which may execute any code;
 * NULL: none.
 */
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
 * value_int: declarations that the files of this folder share:
 *
 *	text.c   JSON text, and classes that JSON does not have: numbers and arrays of numpy, dates
 *	         and times
 *	value.c  everything else
 */

/*
 * State of converting JSON text to a pickle. The first failure is sticky: after it no text is left,
 * and values that are taken have no meaning.
 */
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
