/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scan of our own runs before jansson. It skips strings and counts brackets and values, so that
 * jansson's recursion (up to 2048 levels) and allocations are known to be small. The scan need not
 * be strict, because jansson checks the text again.
 */
#include "core/parse/json.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/err.h"
#include "core/origin/origin.h"

/* struct dcp_json is never defined: it is another name for jansson's json_t. */
static const json_t *value_of(const struct dcp_json *v)
{
	return (const json_t *)(const void *)v;
}

static const struct dcp_json *wrap_value(const json_t *v)
{
	return (const struct dcp_json *)(const void *)v;
}

/* jansson's readers take pointers to non-const but change nothing. */
static json_t *cast_value(const struct dcp_json *v)
{
	union {
		const json_t *in;
		json_t *out;
	} cast = { value_of(v) };

	return cast.out;
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_spaces(const char *text, size_t n, size_t at)
{
	while (at < n && is_space(text[at]))
		at++;
	return at;
}

/* The byte after the string that starts at text[at]; @n if the string does not end. */
static size_t skip_string(const char *text, size_t n, size_t at)
{
	for (at++; at < n && text[at] != '"'; at++)
		if (text[at] == '\\')
			at++;
	return at < n ? at + 1 : n;
}

static bool ends_plain(char c)
{
	return is_space(c) || c == ',' || c == ':' || c == '"' || c == '[' || c == ']' ||
	       c == '{' || c == '}';
}

struct scan {
	const char *text;
	size_t n, at;
	size_t depth, values;
};

/* Step over one string, bracket, number, word or punctuation. False: nested too deep. */
static bool scan_token(struct scan *s)
{
	char c = s->text[s->at];

	if (c == '"') {
		s->at = skip_string(s->text, s->n, s->at);
		s->values++;
		return true;
	}
	if (!ends_plain(c)) {
		while (s->at < s->n && !ends_plain(s->text[s->at]))
			s->at++;
		s->values++;
		return true;
	}
	if (c == '[' || c == '{') {
		s->values++;
		if (++s->depth > DCP_JSON_MAX_DEPTH)
			return false;
	} else if (c == ']' || c == '}') {
		s->depth -= s->depth > 0;
	}
	s->at++;
	return true;
}

static int fail_depth(size_t at, struct dcp_err *err)
{
	return dcp_fail_at(err, -EBADMSG, at,
			   "JSON is nested more than %d levels deep at byte %zu",
			   DCP_JSON_MAX_DEPTH, at);
}

static int check_limits(const char *text, size_t n, struct dcp_err *err)
{
	struct scan s = { .text = text, .n = n };

	if (n > INT_MAX) /* jansson gives positions as int */
		return dcp_fail(err, -E2BIG, "JSON of %zu bytes, more than %d", n, INT_MAX);
	while (s.at < n) {
		if (!scan_token(&s))
			return fail_depth(s.at, err);
		if (s.values > DCP_JSON_MAX_VALUES)
			return dcp_fail_at(err, -E2BIG, s.at,
					   "JSON has more than %u values, counted at byte %zu",
					   DCP_JSON_MAX_VALUES, s.at);
	}
	return 0;
}

static int load_text(const char *text, size_t n, size_t flags, json_t **root,
		     struct dcp_err *err)
{
	json_error_t why;
	json_t *v;
	int r = check_limits(text, n, err);

	if (r < 0)
		return r;
	v = json_loadb(text, n, flags | JSON_DECODE_ANY, &why);
	/* Most of jansson's failed allocations leave no reason. */
	if (!v && (!why.text[0] || json_error_code(&why) == json_error_out_of_memory))
		return dcp_fail(err, -ENOMEM, "out of memory for JSON");
	if (!v)
		return dcp_fail_at(err, -EBADMSG, why.position < 0 ? 0 : (uint64_t)why.position,
				   "not JSON at byte %d: %s", why.position, why.text);
	*root = v;
	return 0;
}

int dcp_json_parse(const char *text, size_t n, struct dcp_json **root, struct dcp_err *err)
{
	json_t *v = NULL;
	int r = load_text(text, n, JSON_REJECT_DUPLICATES, &v, err);

	if (r == 0)
		*root = (struct dcp_json *)(void *)v;
	return r;
}

int dcp_json_read(const struct dcp_source *src, size_t max, char **text, struct dcp_json **root,
		  struct dcp_err *err)
{
	dcp_auto_free char *own = NULL;
	size_t n = (size_t)DCP_MIN(src->size, (uint64_t)max);
	int r;

	if (src->size > max)
		return dcp_fail(err, -E2BIG, "JSON of %llu bytes, at most %zu are read",
				(unsigned long long)src->size, max);
	own = malloc(n + 1);
	if (!own)
		return dcp_fail(err, -ENOMEM, "out of memory for JSON");
	own[n] = '\0';
	r = dcp_source_read(src, 0, own, n);
	if (r < 0)
		return dcp_fail(err, r, "it cannot be read");
	r = dcp_json_parse(own, n, root, err);
	if (r == 0 && text) {
		*text = own;
		own = NULL;
	}
	return r;
}

int dcp_json_text(const char *text, size_t n, struct dcp_arena *arena, const char **out,
		  struct dcp_err *err)
{
	const char *p, *end;
	json_t *v = NULL;
	char *to;
	int r = load_text(text, n, JSON_ALLOW_NUL, &v, err);

	if (r < 0)
		return r;
	p = json_string_value(v);
	if (!p) {
		json_decref(v);
		return dcp_fail_at(err, -EBADMSG, 0, "not a string");
	}
	end = p + json_string_length(v);
	to = dcp_arena_alloc(arena, n + 1); /* a NUL has two bytes here, six in JSON */
	*out = to;
	for (; to && p < end; p++) {
		if (!*p)
			*to++ = (char)0xc0;
		*to++ = *p ? *p : (char)0x80;
	}
	if (to)
		*to = '\0';
	json_decref(v);
	return to ? 0 : dcp_fail(err, -ENOMEM, "out of memory for JSON");
}

void dcp_json_free(struct dcp_json *root)
{
	if (root)
		json_decref((json_t *)(void *)root);
}

const struct dcp_json *dcp_json_get(const struct dcp_json *object, const char *key)
{
	return wrap_value(json_object_get(value_of(object), key));
}

bool dcp_json_is_object(const struct dcp_json *v)
{
	return json_is_object(value_of(v));
}

bool dcp_json_is_array(const struct dcp_json *v)
{
	return json_is_array(value_of(v));
}

size_t dcp_json_len(const struct dcp_json *v)
{
	return dcp_json_is_object(v) ? json_object_size(value_of(v))
				     : json_array_size(value_of(v));
}

const struct dcp_json *dcp_json_at(const struct dcp_json *array, size_t i)
{
	return wrap_value(json_array_get(value_of(array), i));
}

const char *dcp_json_str(const struct dcp_json *v)
{
	return json_string_value(value_of(v));
}

bool dcp_json_u64(const struct dcp_json *v, uint64_t *out)
{
	json_int_t i = json_integer_value(value_of(v));

	if (!json_is_integer(value_of(v)) || i < 0)
		return false;
	*out = (uint64_t)i;
	return true;
}

bool dcp_json_f64(const struct dcp_json *v, double *out)
{
	if (!json_is_number(value_of(v)))
		return false;
	*out = json_number_value(value_of(v));
	return true;
}

bool dcp_json_bool(const struct dcp_json *v, int *out)
{
	if (!json_is_boolean(value_of(v)))
		return false;
	*out = json_is_true(value_of(v));
	return true;
}

const void *dcp_json_next(const struct dcp_json *object, const void *iter, const char **key,
			  const struct dcp_json **value)
{
	json_t *o = cast_value(object);
	union {
		const void *in;
		void *out;
	} cast = { iter };
	void *next = iter ? json_object_iter_next(o, cast.out) : json_object_iter(o);

	if (!next)
		return NULL;
	*key = json_object_iter_key(next);
	*value = wrap_value(json_object_iter_value(next));
	return next;
}

static int fail_expected(const struct dcp_json_walk *w, const char *what, struct dcp_err *err)
{
	if (w->at >= w->n)
		return dcp_fail_at(err, -EBADMSG, w->at, "JSON ends at byte %zu, expected %s",
				   w->at, what);
	return dcp_fail_at(err, -EBADMSG, w->at, "JSON has byte 0x%02x at %zu, expected %s",
			   (unsigned char)w->text[w->at], w->at, what);
}

/* Step over one value, even a damaged one, and leave w->at after it. */
static int walk_value(struct dcp_json_walk *w, struct dcp_bytes *value, struct dcp_err *err)
{
	struct scan s = { .text = w->text, .n = w->n, .at = w->at };

	if (s.at >= s.n || (ends_plain(s.text[s.at]) && !strchr("\"[{", s.text[s.at])))
		return fail_expected(w, "a value", err);
	do {
		if (!scan_token(&s))
			return fail_depth(s.at, err);
	} while (s.depth && s.at < s.n);
	*value = (struct dcp_bytes){ (const uint8_t *)w->text + w->at, s.at - w->at };
	w->at = s.at;
	return 0;
}

static int walk_end(struct dcp_json_walk *w, struct dcp_err *err)
{
	w->at = skip_spaces(w->text, w->n, w->at + 1);
	return w->at == w->n ? 0 : fail_expected(w, "nothing after the object", err);
}

/* Step over the bracket or comma before a member. Returns 1, or 0 at the end of the object. */
static int walk_to_name(struct dcp_json_walk *w, struct dcp_err *err)
{
	bool first = w->members == 0;

	w->at = skip_spaces(w->text, w->n, w->at);
	if (!first && w->at < w->n && w->text[w->at] == '}')
		return walk_end(w, err);
	if (w->at >= w->n || w->text[w->at] != (first ? '{' : ','))
		return fail_expected(w, first ? "'{'" : "',' or '}'", err);
	w->at = skip_spaces(w->text, w->n, w->at + 1);
	if (first && w->at < w->n && w->text[w->at] == '}')
		return walk_end(w, err);
	return 1;
}

int dcp_json_walk(struct dcp_json_walk *w, struct dcp_bytes *name, struct dcp_bytes *value,
		  struct dcp_err *err)
{
	int r = walk_to_name(w, err);
	size_t start = w->at;

	if (r <= 0)
		return r;
	if (w->at >= w->n || w->text[w->at] != '"')
		return fail_expected(w, "a name in quotes", err);
	w->at = skip_string(w->text, w->n, w->at);
	*name = (struct dcp_bytes){ (const uint8_t *)w->text + start, w->at - start };
	w->at = skip_spaces(w->text, w->n, w->at);
	if (w->at >= w->n || w->text[w->at] != ':')
		return fail_expected(w, "':'", err);
	w->at = skip_spaces(w->text, w->n, w->at + 1);
	r = walk_value(w, value, err);
	if (r < 0)
		return r;
	w->members++;
	return 1;
}

const char *dcp_json_jansson_version(void)
{
	return jansson_version_str();
}

size_t dcp_json_squeeze(char *text, size_t n)
{
	bool inside = false; /* a string */
	size_t to = 0;

	for (size_t i = 0; i < n; i++) {
		if (!inside && strchr(" \t\r\n", text[i]))
			continue;
		inside ^= text[i] == '"';
		text[to++] = text[i];
		if (inside && text[i] == '\\')
			text[to++] = text[++i];
	}
	return to;
}
