/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value: objects, which core holds as JSON (core/parse/pyjson/pyjson.h), as the plain Python
 * data they are.
 *
 * Numbers, text, None, lists, tuples, dicts, OrderedDict, sets, bytes, complex numbers, ranges,
 * slices, dates and times, numbers and arrays of numpy, torch.Size, torch.dtype and
 * torch.device. What is an instance of anything else has no plain form.
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
	/* Add one to the pickle. -ENOENT: there is no tensor of that key. */
	int (*put)(void *ctx, struct dcp_pickler *p, const char *key);
	void *ctx;
};

/* Why it cannot be pickled, or NULL. @tensors: it may have tensors in it. */
const char *dcp_value_refuses(const struct dcp_object *o, bool tensors);

/* A class in it for which torch.load wants weights_only=False, as it may execute any code then;
 * NULL: none. */
const char *dcp_value_class(const struct dcp_object *o);

/* Add the value to the pickle. @tensors NULL: there are none in it. -EBADMSG
 * (dcp_value_refuses() says why, or the text is not JSON), -ENOMEM, or what tensors->put()
 * gave. */
int dcp_value_put(struct dcp_pickler *p, const struct dcp_object *o,
		  const struct dcp_value_tensors *tensors);

/* Call tensors->put(), with a pickle that takes nothing, for every tensor in it. */
int dcp_value_tensors(const struct dcp_object *o, const struct dcp_value_tensors *tensors);

/*
 * value_int: what the files of this folder share:
 *
 *	text.c   JSON text, and the classes that it does not show: numbers and arrays of numpy, dates
 *	         and times
 *	value.c  everything else
 */

/* JSON text on its way into a pickle. The first failure stays: after it no text is left, and
 * nothing that is taken means anything. */
struct dcp_valuing {
	const char *at, *end;
	struct dcp_pickler *p;
	const struct dcp_value_tensors *tensors;
	int rc;
	unsigned depth;
	uint64_t values;     /* that began */
	const char *classes; /* what follows the next one */
	uint64_t next;       /* that has a class: number and class */
	const struct dcp_pyclass *class;
	const char *why; /* it is not plain */
	/* a class in it that torch.load takes with weights_only=False alone; NULL: none */
	const char *code;
};

void dcp_valuing_fail(struct dcp_valuing *w, int code, const char *why);
void dcp_valuing_damaged(struct dcp_valuing *w);
void dcp_valuing_not_plain(struct dcp_valuing *w, const char *why);

void dcp_valuing_start(struct dcp_valuing *w, const struct dcp_object *o);
/* The class called so, if JSON has its values as those of another; NULL. */
const struct dcp_pyclass *dcp_valuing_class(const char *name, size_t n);
/* A value begins. Its class, if it is not what its JSON would be read as. */
const struct dcp_pyclass *dcp_valuing_begin(struct dcp_valuing *w);

/* The next character after spaces; NUL: there is none. */
char dcp_valuing_peek(struct dcp_valuing *w);
bool dcp_valuing_take(struct dcp_valuing *w, char c);
/* Without it the text is damaged. */
void dcp_valuing_expect(struct dcp_valuing *w, char c);
bool dcp_valuing_word(struct dcp_valuing *w, const char *word);
/* A string with its quotes, a key or a value. */
void dcp_valuing_key(struct dcp_valuing *w, struct dcp_buf *out);
void dcp_valuing_string(struct dcp_valuing *w, struct dcp_buf *out);
/* A key that is next, and the colon. */
void dcp_valuing_member(struct dcp_valuing *w, struct dcp_buf *out);
bool dcp_valuing_is(const struct dcp_buf *b, const char *text);
/* After a value: where the next one begins. false: the container ends. */
bool dcp_valuing_more(struct dcp_valuing *w, char close);
/* How many elements, or members, the container has whose first bracket was taken. */
uint64_t dcp_valuing_count(const struct dcp_valuing *w);

/* ,"args":[ of an object whose first member was read. */
void dcp_valuing_args(struct dcp_valuing *w);
/* A string of bytes. */
void dcp_valuing_base64(struct dcp_valuing *w, struct dcp_buf *out);

/* ---- text.c ---- */

/* What stands for it in "$float": "nan", "-inf" or "inf". */
double dcp_valuing_special(struct dcp_valuing *w);
/* A scalar of numpy. It has begun. */
void dcp_valuing_scalar(struct dcp_valuing *w, const struct dcp_pyclass *class);
/* After {"$ndarray": */
void dcp_valuing_array(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable);

/* ---- text.c: they have begun ---- */

void dcp_valuing_seconds(struct dcp_valuing *w);
void dcp_valuing_time(struct dcp_valuing *w, const struct dcp_pyclass *class);
