/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A listing of 100,000 tensors reads as many shapes, and a path component may hold anything a
 * Python string can: both are read here rather than through a JSON library, which is slow for
 * the first and refuses part of the second.
 */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/jsonw.h"
#include "core/base/number.h"
#include "core/store/index/index_int.h"

void dcp_index_put_shape(struct dcp_buf *out, const uint64_t *shape, uint32_t ndim)
{
	char text[24 * DCP_MAX_NDIM + 2], digits[24];
	size_t n = 0;

	text[n++] = '[';
	for (uint32_t d = 0; d < ndim; d++) {
		uint64_t v = shape[d];
		size_t k = sizeof(digits);

		do
			digits[--k] = (char)('0' + v % 10);
		while (v /= 10);
		if (d)
			text[n++] = ',';
		memcpy(text + n, digits + k, sizeof(digits) - k);
		n += sizeof(digits) - k;
	}
	text[n++] = ']';
	dcp_buf_add(out, text, n);
}

bool dcp_index_get_shape(const char *text, size_t n, uint64_t shape[DCP_MAX_NDIM],
			 uint32_t *ndim)
{
	const char *p = text + 1, *end = text + n - 1;
	uint32_t d = 0;

	if (n < 2 || *text != '[' || *end != ']')
		return false;
	while (p < end) {
		if (d == DCP_MAX_NDIM || (d && *p++ != ',') ||
		    !dcp_take_number(&p, end, DCP_ANY_DIGITS, &shape[d]))
			return false;
		d++;
	}
	*ndim = d;
	return true;
}

/* Is @key the components of @path with dots between them? */
static bool is_joined(const char *key, const char *const *path, size_t npath)
{
	for (size_t i = 0; i < npath; i++) {
		size_t n = strlen(path[i]);

		if (strncmp(key, path[i], n) != 0 || key[n] != (i + 1 < npath ? '.' : '\0'))
			return false;
		key += n + 1;
	}
	return npath > 0;
}

void dcp_index_put_path(struct dcp_buf *out, const char *key, const char *const *path,
			size_t npath)
{
	bool joined = is_joined(key, path, npath);
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, out, false);
	dcp_jsonw_array(&w);
	for (size_t i = 0; i < npath; i++)
		if (joined)
			dcp_jsonw_u64(&w, strlen(path[i]));
		else
			dcp_jsonw_str(&w, path[i]);
	dcp_jsonw_end(&w);
}

/* Four hexadecimal digits. */
static bool hex4(const char **p, const char *end, uint32_t *out)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++, (*p)++) {
		int digit = *p < end ? dcp_hex_digit(**p) : -1;

		if (digit < 0)
			return false;
		v = v << 4 | (uint32_t)digit;
	}
	*out = v;
	return true;
}

/*
 * What core/base/jsonw.c wrote as an escape, as bytes again: a NUL as two, U+DC80 to U+DCFF as
 * the byte that was not UTF-8, another lone surrogate as three bytes.
 */
static char *put_escape(char *to, uint32_t c)
{
	if (c == 0) {
		*to++ = (char)0xc0;
		*to++ = (char)0x80;
	} else if (c < 0x80) {
		*to++ = (char)c;
	} else if (c < 0xa0) {
		*to++ = (char)0xc2;
		*to++ = (char)c;
	} else if (c >= 0xdc80 && c <= 0xdcff) {
		*to++ = (char)(c & 0xff);
	} else if (c >= 0xd800 && c <= 0xdfff) {
		*to++ = (char)(0xe0 | c >> 12);
		*to++ = (char)(0x80 | (c >> 6 & 0x3f));
		*to++ = (char)(0x80 | (c & 0x3f));
	} else {
		return NULL;
	}
	return to;
}

/* One escape after its backslash; NULL when it is none of ours. */
static char *unescape(const char **p, const char *end, char *to)
{
	static const char from[] = "\"\\ntr", is[] = "\"\\\n\t\r";
	const char *which = *p < end && **p ? strchr(from, **p) : NULL;
	uint32_t c;

	if (which) {
		(*p)++;
		*to++ = is[which - from];
		return to;
	}
	if (*p >= end || *(*p)++ != 'u' || !hex4(p, end, &c))
		return NULL;
	return put_escape(to, c);
}

/* A string at *p into @to, NUL-terminated; never longer than its text. NULL when malformed. */
static char *get_string(const char **p, const char *end, char *to)
{
	if (*p >= end || *(*p)++ != '"')
		return NULL;
	while (to && *p < end && **p != '"') {
		if (!**p)
			return NULL;
		if (**p != '\\') {
			*to++ = *(*p)++;
			continue;
		}
		(*p)++;
		to = unescape(p, end, to);
	}
	if (!to || *p >= end)
		return NULL;
	(*p)++;
	*to++ = '\0';
	return to;
}

/* Lengths of the components of @key, at least one, up to @end. */
static int cut_key(const char *p, const char *end, const char *key, struct dcp_arena *arena,
		   const char *const **path, size_t *npath)
{
	size_t left = strlen(key), max = 1, used = 0;
	const char **list;
	uint64_t n = 0;
	char *copy;

	for (const char *q = p; q < end; q++)
		max += *q == ',';
	list = dcp_arena_calloc(arena, max, sizeof(*list));
	copy = dcp_arena_strndup(arena, key, left);
	if (!list || !copy)
		return -ENOMEM;
	while (used < max) {
		if (!dcp_take_number(&p, end, DCP_ANY_DIGITS, &n) || n > left ||
		    copy[n] != (used + 1 < max ? '.' : '\0'))
			return -EBADMSG;
		copy[n] = '\0';
		list[used++] = copy;
		if (used < max && *p++ != ',')
			return -EBADMSG;
		copy += n + 1;
		left -= DCP_MIN(left, n + 1);
	}
	if (p != end)
		return -EBADMSG;
	*path = list;
	*npath = used;
	return 0;
}

int dcp_index_get_path(const char *text, size_t n, const char *key, struct dcp_arena *arena,
		       const char *const **path, size_t *npath)
{
	const char *p = text + 1, *end = text + n - 1;
	size_t max = 0, used = 0;
	const char **list;
	char *to;

	if (n < 2 || *text != '[' || *end != ']')
		return -EBADMSG;
	if (p < end && *p != '"')
		return cut_key(p, end, key, arena, path, npath);
	for (const char *q = p; q < end; q++)
		max += *q == '"';
	max = max / 2; /* quotes inside components only make this larger */
	list = dcp_arena_calloc(arena, max + 1, sizeof(*list));
	to = dcp_arena_alloc(arena, n);
	if (!list || !to)
		return -ENOMEM;
	while (p < end) {
		if (used == max || (used && *p++ != ','))
			return -EBADMSG;
		list[used++] = to;
		to = get_string(&p, end, to);
		if (!to)
			return -EBADMSG;
	}
	*path = list;
	*npath = used;
	return 0;
}
