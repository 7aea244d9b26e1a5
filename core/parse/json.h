/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json: strict JSON in, through jansson; json.c is the only file that sees jansson.h.
 *
 * A value is a borrowed pointer into its document. Every accessor accepts NULL and
 * any type, and answers NULL, false or 0 for what is not there.
 *
 * A tree costs a hundred bytes and more for every value. An object too big for that (the
 * header of a safetensors file) is walked member by member instead: struct dcp_json_walk.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/base.h"
#include "core/base/bytes.h"

struct dcp_arena;
struct dcp_err;
struct dcp_source;
struct dcp_json; /* opaque; a document's root or a value inside it */

#define DCP_JSON_MAX_DEPTH 64        /* arrays and objects inside each other */
#define DCP_JSON_MAX_VALUES 4000000u /* values and names in one document: under a gigabyte */

/*
 * Duplicate names are refused, and names or strings holding U+0000, NaN, Infinity and integers
 * beyond 64 bits signed. Any value may be the root. Nesting and the number of values are checked
 * against their limits before anything is allocated.
 * -EBADMSG with the byte offset, -E2BIG (more than DCP_JSON_MAX_VALUES, or 2 GiB), -ENOMEM;
 * out of memory for a string inside, jansson reports a missing string instead: -EBADMSG.
 */
int dcp_json_parse(const char *text, size_t n, struct dcp_json **root, struct dcp_err *err);

/*
 * All of @src, which has at most @max bytes (else -E2BIG), parsed; what reading it gave. @text, if
 * not NULL, gets what was read, which the caller frees, with a NUL after it.
 */
int dcp_json_read(const struct dcp_source *src, size_t max, char **text, struct dcp_json **root,
		  struct dcp_err *err);

/* Take the space between the tokens of @text, which is valid JSON, out of it: then it is one
 * line. How long that is. */
size_t dcp_json_squeeze(char *text, size_t n);

/* One string by itself, which may hold U+0000: as the two bytes C0 80. */
int dcp_json_text(const char *text, size_t n, struct dcp_arena *arena, const char **out,
		  struct dcp_err *err);
void dcp_json_free(struct dcp_json *root);
DCP_AUTO_PTR(struct dcp_json, dcp_json_free)
#define dcp_auto_json __attribute__((cleanup(dcp_json_free_ptr)))

const struct dcp_json *dcp_json_get(const struct dcp_json *object, const char *key);
bool dcp_json_is_object(const struct dcp_json *v);
bool dcp_json_is_array(const struct dcp_json *v);
size_t dcp_json_len(const struct dcp_json *v); /* array elements or object members */
const struct dcp_json *dcp_json_at(const struct dcp_json *array, size_t i);
const char *dcp_json_str(const struct dcp_json *v);
/* Non-negative integer. */
bool dcp_json_u64(const struct dcp_json *v, uint64_t *out);
/* Any number. */
bool dcp_json_f64(const struct dcp_json *v, double *out);
/* true and false as 1 and 0; what is neither leaves @out alone. */
bool dcp_json_bool(const struct dcp_json *v, int *out);

/* Members in the order of the text: start with iter = NULL, ends with NULL. */
const void *dcp_json_next(const struct dcp_json *object, const void *iter, const char **key,
			  const struct dcp_json **value);

/*
 * Walk the members of an object in its text, in constant memory. The commas and colons of
 * that object are checked; what stands between them is not: the caller parses each name and
 * value, at most once each, with dcp_json_parse(), and finds duplicate names itself.
 */
struct dcp_json_walk {
	const char *text;
	size_t n, at;
	size_t members; /* returned so far */
};

/*
 * The next member, as views into the text. Start with { text, n }.
 * Returns 1, 0 after the last one (only spaces may follow the object), -EBADMSG with the
 * offset in the text.
 */
int dcp_json_walk(struct dcp_json_walk *w, struct dcp_bytes *name, struct dcp_bytes *value,
		  struct dcp_err *err);

/* "2.14": the library in use. */
const char *dcp_json_jansson_version(void);
