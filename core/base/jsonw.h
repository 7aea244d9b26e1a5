/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jsonw: a JSON writer that appends to a buffer.
 *
 * Reading JSON is jansson's job. Writing is done here because index.json of 100,000
 * keys must not be built as a tree first, and because Python integers have no upper
 * limit: jansson cannot write one that does not fit in 64 bits.
 *
 *	dcp_jsonw_object(&w); dcp_jsonw_key(&w, "shape"); dcp_jsonw_array(&w);
 *	dcp_jsonw_u64(&w, 8); dcp_jsonw_end(&w); dcp_jsonw_end(&w);
 *
 * The writer does commas, escaping and nesting; a caller cannot produce invalid JSON except by
 * leaving an object or array open. Errors are those of the buffer (dcp_buf_error).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_buf;

#define DCP_JSONW_MAX_DEPTH 256

struct dcp_jsonw {
	struct dcp_buf *out;
	bool pretty; /* newline and two spaces per level; set by the caller at init */
	unsigned depth;
	bool fresh; /* no value has been written at this level yet */
	bool after_key;
	uint64_t values; /* values begun so far, without keys; dcp_jsonw_raw() adds one */
	uint64_t is_array[DCP_JSONW_MAX_DEPTH / 64];
	bool failed; /* deeper than DCP_JSONW_MAX_DEPTH */
};

void dcp_jsonw_init(struct dcp_jsonw *w, struct dcp_buf *out, bool pretty);

void dcp_jsonw_object(struct dcp_jsonw *w);
void dcp_jsonw_array(struct dcp_jsonw *w);
void dcp_jsonw_end(struct dcp_jsonw *w);

void dcp_jsonw_key(struct dcp_jsonw *w, const char *key);
void dcp_jsonw_key_n(struct dcp_jsonw *w, const char *key, size_t n);

/* Lone surrogates and control characters are written as escapes, other bytes that are not UTF-8 as
 * \udcXX, as Python's surrogateescape does. */
void dcp_jsonw_str(struct dcp_jsonw *w, const char *s);
void dcp_jsonw_str_n(struct dcp_jsonw *w, const char *s, size_t n);
void dcp_jsonw_i64(struct dcp_jsonw *w, int64_t v);
void dcp_jsonw_u64(struct dcp_jsonw *w, uint64_t v);
/* Shortest form that reads back equal; NaN and infinities become {"$float": "nan"}. */
void dcp_jsonw_f64(struct dcp_jsonw *w, double v);
/* Two's complement, little-endian, any length up to 4096 bytes: a plain JSON number. */
void dcp_jsonw_bigint(struct dcp_jsonw *w, const uint8_t *le, size_t n);
void dcp_jsonw_bool(struct dcp_jsonw *w, bool v);
void dcp_jsonw_null(struct dcp_jsonw *w);
void dcp_jsonw_base64(struct dcp_jsonw *w, const void *p, size_t n);
/* Decode the @n base64 digits at @s, up to the first '=', and append the bytes to @out. -EBADMSG: a
 * character is not a digit. */
int dcp_base64_read(const char *s, size_t n, struct dcp_buf *out);
/* An array of @n texts. */
void dcp_jsonw_strs(struct dcp_jsonw *w, const char *const *v, size_t n);
/* Append @s, which is already one JSON value. */
void dcp_jsonw_raw(struct dcp_jsonw *w, const char *json, size_t n);

/* Can every JSON reader read @s? It must be UTF-8, and may have NULs in dcpfs's form. */
bool dcp_json_can_say(const char *s);

/* A member of the open object: key and value. */
void dcp_jsonw_put_str(struct dcp_jsonw *w, const char *key, const char *v);
void dcp_jsonw_put_str_or_null(struct dcp_jsonw *w, const char *key, const char *v);
void dcp_jsonw_put_u64(struct dcp_jsonw *w, const char *key, uint64_t v);
void dcp_jsonw_put_bool(struct dcp_jsonw *w, const char *key, bool v);
void dcp_jsonw_put_f64(struct dcp_jsonw *w, const char *key, double v);
/* An array of @n values. */
void dcp_jsonw_put_u64s(struct dcp_jsonw *w, const char *key, const uint64_t *v, size_t n);
void dcp_jsonw_put_strs(struct dcp_jsonw *w, const char *key, const char *const *v, size_t n);
/* Begin a member whose value is an object or array; dcp_jsonw_end() ends it. */
void dcp_jsonw_put_object(struct dcp_jsonw *w, const char *key);
void dcp_jsonw_put_array(struct dcp_jsonw *w, const char *key);

/* 0, -ENOMEM, or -E2BIG (nested too deep). */
int dcp_jsonw_error(const struct dcp_jsonw *w);
