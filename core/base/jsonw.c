/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/jsonw.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/text.h"

void dcp_jsonw_init(struct dcp_jsonw *w, struct dcp_buf *out, bool pretty)
{
	*w = (struct dcp_jsonw){ .out = out, .pretty = pretty, .fresh = true };
}

static void put_newline(struct dcp_jsonw *w)
{
	if (!w->pretty)
		return;
	dcp_buf_add(w->out, "\n", 1);
	for (unsigned i = 0; i < w->depth; i++)
		dcp_buf_add(w->out, "  ", 2);
}

/* Write the separator before a value or a key: a comma, a line break, or nothing. */
static void put_separator(struct dcp_jsonw *w)
{
	w->values++;
	if (w->after_key) {
		w->after_key = false;
		return;
	}
	if (w->depth == 0)
		return;
	if (!w->fresh)
		dcp_buf_add(w->out, ",", 1);
	put_newline(w);
	w->fresh = false;
}

static void open_level(struct dcp_jsonw *w, bool array)
{
	put_separator(w);
	if (w->depth >= DCP_JSONW_MAX_DEPTH) {
		w->failed = true;
		return;
	}
	dcp_buf_add(w->out, array ? "[" : "{", 1);
	if (array)
		w->is_array[w->depth / 64] |= 1ull << w->depth % 64;
	else
		w->is_array[w->depth / 64] &= ~(1ull << w->depth % 64);
	w->depth++;
	w->fresh = true;
}

void dcp_jsonw_object(struct dcp_jsonw *w)
{
	open_level(w, false);
}

void dcp_jsonw_array(struct dcp_jsonw *w)
{
	open_level(w, true);
}

void dcp_jsonw_end(struct dcp_jsonw *w)
{
	bool array;

	if (w->failed || w->depth == 0)
		return;
	w->depth--;
	array = w->is_array[w->depth / 64] >> w->depth % 64 & 1;
	if (!w->fresh)
		put_newline(w);
	dcp_buf_add(w->out, array ? "]" : "}", 1);
	w->fresh = false;
}

bool dcp_json_can_say(const char *s)
{
	for (size_t left = strlen(s); left;) {
		size_t n = dcp_utf8_len(s, left);

		if (n == 0 && left > 1 && memcmp(s, "\xc0\x80", 2) == 0)
			n = 2;
		if (n == 0)
			return false;
		s += n;
		left -= n;
	}
	return true;
}

static void put_quoted(struct dcp_buf *b, const char *s, size_t n)
{
	const unsigned char *p = (const unsigned char *)s, *end = p + n, *plain = p;

	dcp_buf_add(b, "\"", 1);
	while (p < end) {
		const char *two = NULL;
		size_t len, skip = 1;
		uint32_t code;

		while (p < end && *p >= ' ' && *p < 0x7f && *p != '"' && *p != '\\')
			p++;
		if (p == end)
			break;
		len = dcp_utf8_shown((const char *)p, (size_t)(end - p));
		if (len && *p != '"' && *p != '\\') {
			p += len;
			continue;
		}
		len = dcp_utf8_len((const char *)p, (size_t)(end - p));
		dcp_buf_add(b, plain, (size_t)(p - plain));
		code = len ? dcp_utf8_code((const char *)p, len)
			   : dcp_utf8_surrogate((const char *)p, (size_t)(end - p));
		switch (len == 1 ? (int)*p : -1) {
		case '"':
			two = "\\\"";
			break;
		case '\\':
			two = "\\\\";
			break;
		case '\n':
			two = "\\n";
			break;
		case '\t':
			two = "\\t";
			break;
		case '\r':
			two = "\\r";
			break;
		default:
			break;
		}
		if (two) {
			dcp_buf_add(b, two, 2);
		} else if (code > 0xffff) {
			dcp_buf_printf(b, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10),
				       0xdc00 | (code & 0x3ff));
			skip = len;
		} else if (len || code) {
			dcp_buf_printf(b, "\\u%04x", code);
			skip = len ? len : 3;
		} else if (*p == 0xc0 && end - p > 1 && p[1] == 0x80) {
			dcp_buf_str(b, "\\u0000");
			skip = 2;
		} else {
			dcp_buf_printf(b, "\\udc%02x", *p);
		}
		p += skip;
		plain = p;
	}
	dcp_buf_add(b, plain, (size_t)(p - plain));
	dcp_buf_add(b, "\"", 1);
}

void dcp_jsonw_key_n(struct dcp_jsonw *w, const char *key, size_t n)
{
	put_separator(w);
	w->values--; /* a key is not a value */
	put_quoted(w->out, key, n);
	dcp_buf_add(w->out, ": ", w->pretty ? 2 : 1);
	w->after_key = true;
}

void dcp_jsonw_key(struct dcp_jsonw *w, const char *key)
{
	dcp_jsonw_key_n(w, key, strlen(key));
}

void dcp_jsonw_str_n(struct dcp_jsonw *w, const char *s, size_t n)
{
	put_separator(w);
	put_quoted(w->out, s, n);
}

void dcp_jsonw_str(struct dcp_jsonw *w, const char *s)
{
	dcp_jsonw_str_n(w, s, strlen(s));
}

void dcp_jsonw_raw(struct dcp_jsonw *w, const char *json, size_t n)
{
	put_separator(w);
	dcp_buf_add(w->out, json, n);
}

/* Numbers are most of an index, so they are spelled by hand: printf costs four times as much. */
void dcp_jsonw_u64(struct dcp_jsonw *w, uint64_t v)
{
	char text[20], *p = text + sizeof(text);

	do
		*--p = (char)('0' + v % 10);
	while (v /= 10);
	dcp_jsonw_raw(w, p, (size_t)(text + sizeof(text) - p));
}

void dcp_jsonw_i64(struct dcp_jsonw *w, int64_t v)
{
	char text[24];
	int n = snprintf(text, sizeof(text), "%lld", (long long)v);

	dcp_jsonw_raw(w, text, (size_t)n);
}

void dcp_jsonw_f64(struct dcp_jsonw *w, double v)
{
	char text[DCP_FLOAT_CHARS + sizeof(".0")];

	if (!isfinite(v)) {
		dcp_jsonw_object(w);
		dcp_jsonw_key(w, "$float");
		dcp_jsonw_str(w, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
		dcp_jsonw_end(w);
		return;
	}
	dcp_print_float(text, v);
	if (!strpbrk(text, ".e"))
		strcat(text, ".0"); /* a float stays a float for the next reader */
	dcp_jsonw_raw(w, text, strlen(text));
}

void dcp_jsonw_bigint(struct dcp_jsonw *w, const uint8_t *le, size_t n)
{
	enum { MAX = 4096 };
	uint32_t limbs[MAX / 4] = { 0 };
	char text[MAX * 5 / 2 + 4], *p = text + sizeof(text);
	bool negative = n && le[n - 1] & 0x80;
	size_t used = (n + 3) / 4;
	uint64_t carry = negative;

	if (n > MAX) {
		w->failed = true;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		uint64_t b = (negative ? (uint8_t)~le[i] : le[i]) + carry;

		carry = b >> 8;
		limbs[i / 4] |= (uint32_t)(b & 0xff) << i % 4 * 8;
	}
	do {
		uint64_t rest = 0;

		for (size_t i = used; i-- > 0;) {
			rest = rest << 32 | limbs[i];
			limbs[i] = (uint32_t)(rest / 1000000000);
			rest %= 1000000000;
		}
		while (used && !limbs[used - 1])
			used--;
		for (int d = 0; d < 9 && (used || rest || d == 0); d++, rest /= 10)
			*--p = (char)('0' + rest % 10);
	} while (used);
	if (negative)
		*--p = '-';
	dcp_jsonw_raw(w, p, (size_t)(text + sizeof(text) - p));
}

void dcp_jsonw_bool(struct dcp_jsonw *w, bool v)
{
	dcp_jsonw_raw(w, v ? "true" : "false", v ? 4 : 5);
}

void dcp_jsonw_null(struct dcp_jsonw *w)
{
	dcp_jsonw_raw(w, "null", 4);
}

static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void dcp_jsonw_base64(struct dcp_jsonw *w, const void *bytes, size_t n)
{
	const uint8_t *p = bytes;

	put_separator(w);
	dcp_buf_add(w->out, "\"", 1);
	for (size_t i = 0; i < n; i += 3) {
		uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
			     (i + 2 < n ? p[i + 2] : 0);
		char four[4] = { digit[v >> 18], digit[v >> 12 & 63],
				 i + 1 < n ? digit[v >> 6 & 63] : '=',
				 i + 2 < n ? digit[v & 63] : '=' };

		dcp_buf_add(w->out, four, 4);
	}
	dcp_buf_add(w->out, "\"", 1);
}

int dcp_base64_read(const char *s, size_t n, struct dcp_buf *out)
{
	uint32_t bits = 0;
	unsigned have = 0;

	for (size_t i = 0; i < n && s[i] != '='; i++) {
		const char *at = memchr(digit, s[i], sizeof(digit) - 1);

		if (!at)
			return -EBADMSG;
		bits = bits << 6 | (uint32_t)(at - digit);
		have += 6;
		if (have >= 8) {
			have -= 8;
			dcp_buf_add(out, &(char){ (char)(bits >> have) }, 1);
		}
	}
	return dcp_buf_error(out);
}

void dcp_jsonw_put_str(struct dcp_jsonw *w, const char *key, const char *v)
{
	dcp_jsonw_key(w, key);
	dcp_jsonw_str(w, v);
}

void dcp_jsonw_put_str_or_null(struct dcp_jsonw *w, const char *key, const char *v)
{
	dcp_jsonw_key(w, key);
	if (v)
		dcp_jsonw_str(w, v);
	else
		dcp_jsonw_null(w);
}

void dcp_jsonw_put_u64(struct dcp_jsonw *w, const char *key, uint64_t v)
{
	dcp_jsonw_key(w, key);
	dcp_jsonw_u64(w, v);
}

void dcp_jsonw_put_bool(struct dcp_jsonw *w, const char *key, bool v)
{
	dcp_jsonw_key(w, key);
	dcp_jsonw_bool(w, v);
}

void dcp_jsonw_put_f64(struct dcp_jsonw *w, const char *key, double v)
{
	dcp_jsonw_key(w, key);
	dcp_jsonw_f64(w, v);
}

void dcp_jsonw_put_object(struct dcp_jsonw *w, const char *key)
{
	dcp_jsonw_key(w, key);
	dcp_jsonw_object(w);
}

void dcp_jsonw_put_array(struct dcp_jsonw *w, const char *key)
{
	dcp_jsonw_key(w, key);
	dcp_jsonw_array(w);
}

void dcp_jsonw_put_u64s(struct dcp_jsonw *w, const char *key, const uint64_t *v, size_t n)
{
	dcp_jsonw_put_array(w, key);
	for (size_t i = 0; i < n; i++)
		dcp_jsonw_u64(w, v[i]);
	dcp_jsonw_end(w);
}

void dcp_jsonw_strs(struct dcp_jsonw *w, const char *const *v, size_t n)
{
	dcp_jsonw_array(w);
	for (size_t i = 0; i < n; i++)
		dcp_jsonw_str(w, v[i]);
	dcp_jsonw_end(w);
}

void dcp_jsonw_put_strs(struct dcp_jsonw *w, const char *key, const char *const *v, size_t n)
{
	dcp_jsonw_key(w, key);
	dcp_jsonw_strs(w, v, n);
}

int dcp_jsonw_error(const struct dcp_jsonw *w)
{
	return w->failed ? -E2BIG : dcp_buf_error(w->out);
}
