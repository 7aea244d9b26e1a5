/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json: reads strict JSON through jansson; json.c is the only file that includes jansson.h.
 *
 * A value is a borrowed pointer into its document. Every accessor accepts NULL and any type; it
 * returns NULL, false or 0 if the value is missing or has another type.
 *
 * A parsed tree takes at least a hundred bytes for every value. An object too big for a tree (the
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
 * Parse @n bytes of @text. Any value may be the root. Refused: duplicate names, names and strings
 * that hold U+0000, NaN, Infinity, and integers beyond 64 bits signed. Nesting and the number of
 * values are checked against their limits before anything is allocated.
 * Returns 0, -EBADMSG with the byte offset, -E2BIG (more than DCP_JSON_MAX_VALUES, or 2 GiB),
 * -ENOMEM. If memory runs out for a string, jansson reports a missing string: -EBADMSG.
 */
int dcp_json_parse(const char *text, size_t n, struct dcp_json **root, struct dcp_err *err);

/*
 * Read and parse all of @src. Returns as dcp_json_parse() does, also -E2BIG (more than @max
 * bytes) or the error of reading. @text, if not NULL, receives the text with a NUL after it; the
 * caller frees it.
 */
int dcp_json_read(const struct dcp_source *src, size_t max, char **text, struct dcp_json **root,
		  struct dcp_err *err);

/* Remove the space between the tokens of @text, which is valid JSON, so that it becomes one line.
 * Returns the new length. */
size_t dcp_json_squeeze(char *text, size_t n);

/* Parse a single string. A U+0000 in it becomes the two bytes C0 80. */
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
/* true and false as 1 and 0; any other value leaves @out alone. */
bool dcp_json_bool(const struct dcp_json *v, int *out);

/* The next member in the order of the text. The first call gets @iter NULL; returns NULL after
 * the last member. */
const void *dcp_json_next(const struct dcp_json *object, const void *iter, const char **key,
			  const struct dcp_json **value);

/*
 * Walk the members of an object in its text, in constant memory. The walk checks the commas and
 * colons of the object, but not the names and values: the caller parses each of them, at most
 * once, with dcp_json_parse(), and finds duplicate names itself.
 */
struct dcp_json_walk {
	const char *text;
	size_t n, at;
	size_t members; /* returned so far */
};

/*
 * Get the next member: @name and @value point into the text. @w begins as { text, n }.
 * Returns 1, 0 after the last member (only spaces may follow the object), -EBADMSG with the
 * offset in the text.
 */
int dcp_json_walk(struct dcp_json_walk *w, struct dcp_bytes *name, struct dcp_bytes *value,
		  struct dcp_err *err);

/* The version of the jansson in use: "2.14". */
const char *dcp_json_jansson_version(void);
