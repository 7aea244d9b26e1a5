/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What protocol 0 spells out: numbers in decimal, text in quotes and escapes. All of it
 * is ASCII with rules of its own; the rules are those of CPython's unpickler, without
 * what no pickler writes (hexadecimal, underscores, leading zeros and plus signs).
 */
#include <string.h>
#include <strings.h>

#include "core/base/buf.h"
#include "core/base/endian.h"
#include "core/base/number.h"
#include "core/base/utf8.h"
#include "core/parse/pickle/text.h"

#define ASCII_ONLY 0x8080808080808080ull

bool dcp_pkl_utf8(const void *text, size_t n, bool surrogates)
{
	const char *s = text, *end = s + n;

	while (s < end) {
		size_t len;

		if (end - s >= 8 && !(dcp_load_le64(s) & ASCII_ONLY)) {
			s += 8;
			continue;
		}
		len = dcp_utf8_len(s, (size_t)(end - s));
		if (!len && surrogates && dcp_utf8_surrogate(s, (size_t)(end - s)))
			len = 3;
		if (!len)
			return false;
		s += len;
	}
	return true;
}

/* ---- numbers ---- */

enum {
	CHUNK = 19, /* decimal digits that fit in 64 bits */
	LIMBS = DCP_PICKLE_MAX_INT / 8 + 1,
	MAX_DIGITS = 9865, /* of a number of 4096 bytes */
};

_Static_assert(DCP_PICKLE_MAX_INT == 4096, "MAX_DIGITS is 4096 * log10(256), rounded up");

/* limbs = limbs * mul + add; the caller knows that one more limb is enough. */
static size_t mul_add(uint64_t *limbs, size_t n, uint64_t mul, uint64_t add)
{
	for (size_t i = 0; i < n; i++) {
		unsigned __int128 v = (unsigned __int128)limbs[i] * mul + add;

		limbs[i] = (uint64_t)v;
		add = (uint64_t)(v >> 64);
	}
	if (add)
		limbs[n++] = add;
	return n;
}

static void negate(uint64_t *limbs, size_t n)
{
	bool carry = true;

	for (size_t i = 0; i < n; i++) {
		limbs[i] = ~limbs[i] + carry;
		carry = carry && limbs[i] == 0;
	}
}

static bool all_digits(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (s[i] < '0' || s[i] > '9')
			return false;
	return n > 0;
}

enum dcp_pkl_number dcp_pkl_decimal(const char *s, size_t n, uint8_t *le, size_t *nbytes)
{
	bool minus = n && *s == '-';
	uint64_t limbs[LIMBS + 2] = { 0 };
	size_t used = 0;

	s += minus;
	n -= minus;
	if (!all_digits(s, n) || (n > 1 && *s == '0'))
		return DCP_PKL_NUMBER_BAD;
	if (n > MAX_DIGITS)
		return DCP_PKL_NUMBER_LONG;
	while (n) {
		size_t take = n % CHUNK ? n % CHUNK : CHUNK;
		uint64_t mul = 1, add = 0;

		for (size_t i = 0; i < take; i++) {
			mul *= 10;
			add = add * 10 + (uint64_t)(s[i] - '0');
		}
		used = mul_add(limbs, used, mul, add);
		s += take;
		n -= take;
	}
	if (minus)
		negate(limbs, used + 1);
	*nbytes = (used + 1) * 8;
	memcpy(le, limbs, *nbytes);
	return DCP_PKL_NUMBER_OK;
}

bool dcp_pkl_index(const char *s, size_t n, uint64_t *out)
{
	const char *end = s + n;

	return dcp_take_number(&s, end, DCP_ANY_DIGITS, out) && s == end && *out <= INT64_MAX;
}

bool dcp_pkl_float(const char *s, size_t n, double *out)
{
	char text[512];
	const char *end;

	if (!n || n >= sizeof(text) || memchr(s, '\0', n))
		return false;
	memcpy(text, s, n);
	text[n] = '\0';
	end = text + (*text == '-' || *text == '+');
	if (strcasecmp(end, "inf") && strcasecmp(end, "nan") &&
	    end[strspn(end, "0123456789.eE+-")] != '\0')
		return false;
	*out = dcp_read_float(text, &end);
	return *end == '\0' && end != text;
}

/* ---- text ---- */

static bool hex_number(const char *s, size_t n, size_t digits, uint32_t *out)
{
	*out = 0;
	if (n < digits)
		return false;
	for (size_t i = 0; i < digits; i++) {
		if (dcp_hex_digit(s[i]) < 0)
			return false;
		*out = *out << 4 | (uint32_t)dcp_hex_digit(s[i]);
	}
	return true;
}

static void add_byte(struct dcp_buf *out, uint32_t c)
{
	char byte = (char)(uint8_t)c;

	dcp_buf_add(out, &byte, 1);
}

/* What stands after a backslash in STRING; returns how much of it was used, 0: malformed. */
static size_t unquote_escape(const char *s, size_t n, struct dcp_buf *out)
{
	static const char letters[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
	const char *known = n && *s ? strchr(letters, *s) : NULL;
	uint32_t v = 0;
	size_t used = 0;

	if (known) {
		add_byte(out, (uint8_t)values[known - letters]);
		return 1;
	}
	if (n && *s == 'x') {
		if (!hex_number(s + 1, n - 1, 2, &v))
			return 0;
		add_byte(out, v);
		return 3;
	}
	while (used < 3 && used < n && s[used] >= '0' && s[used] <= '7')
		v = v << 3 | (uint32_t)(s[used++] - '0');
	if (used) {
		add_byte(out, v);
		return used;
	}
	if (!n)
		return 0;
	add_byte(out, '\\'); /* an unknown escape stands for itself */
	dcp_buf_add(out, s, 1);
	return 1;
}

bool dcp_pkl_unquote(const char *s, size_t n, struct dcp_buf *out)
{
	dcp_buf_reset(out);
	dcp_buf_str(out, ""); /* empty text is not NULL */
	if (n < 2 || s[0] != s[n - 1] || (*s != '\'' && *s != '"'))
		return false;
	s++;
	n -= 2;
	while (n) {
		const char *back = memchr(s, '\\', n);
		size_t plain = back ? (size_t)(back - s) : n, used;

		dcp_buf_add(out, s, plain);
		s += plain;
		n -= plain;
		if (!back)
			break;
		used = unquote_escape(s + 1, n - 1, out);
		if (!used)
			return false;
		s += 1 + used;
		n -= 1 + used;
	}
	return true;
}

static void add_utf8(struct dcp_buf *out, uint32_t c)
{
	if (c < 0x80) {
		add_byte(out, c);
	} else if (c < 0x800) {
		add_byte(out, 0xc0 | c >> 6);
		add_byte(out, 0x80 | (c & 0x3f));
	} else if (c < 0x10000) {
		add_byte(out, 0xe0 | c >> 12);
		add_byte(out, 0x80 | (c >> 6 & 0x3f));
		add_byte(out, 0x80 | (c & 0x3f));
	} else {
		add_byte(out, 0xf0 | c >> 18);
		add_byte(out, 0x80 | (c >> 12 & 0x3f));
		add_byte(out, 0x80 | (c >> 6 & 0x3f));
		add_byte(out, 0x80 | (c & 0x3f));
	}
}

bool dcp_pkl_unescape(const char *s, size_t n, struct dcp_buf *out)
{
	dcp_buf_reset(out);
	dcp_buf_str(out, ""); /* empty text is not NULL */
	while (n) {
		size_t digits = n > 1 && s[1] == 'u' ? 4 : n > 1 && s[1] == 'U' ? 8 : 0;
		uint32_t c;

		if (*s != '\\' || n == 1) {
			add_utf8(out, (uint8_t)*s);
			s++;
			n--;
		} else if (digits) {
			if (!hex_number(s + 2, n - 2, digits, &c) || c > 0x10ffff)
				return false;
			add_utf8(out, c);
			s += 2 + digits;
			n -= 2 + digits;
		} else { /* a backslash protects what follows from being an escape */
			add_byte(out, '\\');
			add_utf8(out, (uint8_t)s[1]);
			s += 2;
			n -= 2;
		}
	}
	return true;
}
