/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window, a buffer with a stretch of the source. A read always starts at the opcode that needs
 * it, so an opcode and the needed bytes of its argument are contiguous. After a jump over a payload
 * the first read is small, and reads grow again, so little is read of a file with many tensors.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle_int.h"

#define ARG_OF(name, code, arg) [code] = PICKLE_ARG_##arg,
const uint8_t dcp_pkl_arg[256] = { PICKLE_OPS(ARG_OF) };
#undef ARG_OF

static const char *name_of(uint8_t op)
{
#define NAME_OF(name, code, arg) [code] = #name,
	static const char *const names[256] = { PICKLE_OPS(NAME_OF) };
#undef NAME_OF

	return names[op];
}

/* The least number of argument bytes of opcodes of the kind of @op. */
static size_t fixed_size(uint8_t op)
{
	static const uint8_t sizes[] = {
		[PICKLE_ARG_1] = 1,       [PICKLE_ARG_2] = 2,     [PICKLE_ARG_4] = 4,
		[PICKLE_ARG_8] = 8,       [PICKLE_ARG_LEN1] = 1,  [PICKLE_ARG_LEN4] = 4,
		[PICKLE_ARG_LEN8] = 8,    [PICKLE_ARG_GET1] = 1,  [PICKLE_ARG_GET4] = 4,
		[PICKLE_ARG_SLEN4] = 4,   [PICKLE_ARG_FRAME] = 8, [PICKLE_ARG_PROTO] = 1,
		[PICKLE_ARG_REFUSED] = 0,
	};

	return sizes[dcp_pkl_arg[op]];
}

int dcp_pkl_win_init(struct dcp_pkl_win *w, const struct dcp_source *src, size_t window,
		     struct dcp_err *err)
{
	*w = (struct dcp_pkl_win){ .src = src, .err = err };
	w->ahead_max = window ? DCP_MAX(window, 16) : DCP_PKL_WINDOW;
	w->ahead_min = DCP_MIN(w->ahead_max, DCP_PKL_WINDOW_MIN);
	w->ahead = w->ahead_max;
	if (src->size < w->ahead_max)
		w->ahead_max = w->ahead_min = w->ahead = DCP_MAX(src->size, 16);
	w->cap = w->ahead_max;
	w->buf = calloc(1, w->cap + DCP_PKL_PAD);
	w->end = w->safe = w->buf;
	return w->buf ? 0 : -ENOMEM;
}

void dcp_pkl_win_finish(struct dcp_pkl_win *w)
{
	free(w->buf);
	*w = (struct dcp_pkl_win){ 0 };
}

/* Fill the window with @n bytes from @off on, or to the end of the source. */
static int load_window(struct dcp_pkl_win *w, uint64_t off, size_t n)
{
	int r;

	n = (size_t)DCP_MIN((uint64_t)n, w->src->size - off);
	if (n > w->cap) {
		uint8_t *buf = calloc(1, n + DCP_PKL_PAD);

		if (!buf)
			return dcp_fail_at(w->err, -ENOMEM, off,
					   "no memory for %zu bytes of it", n);
		free(w->buf);
		w->buf = buf;
		w->cap = n;
	}
	w->base = off;
	w->end = w->safe = w->buf;
	r = dcp_source_read(w->src, off, w->buf, n);
	if (r < 0)
		return dcp_fail_at(w->err, r, off, "reading %zu bytes at byte %" PRIu64 ": %s",
				   n, off, dcp_err_noted(r));
	memset(w->buf + n, 0, DCP_PKL_PAD);
	w->end = w->buf + n;
	w->safe = n > 8 ? w->end - 8 : w->buf;
	return 0;
}

const uint8_t *dcp_pkl_win_seek(struct dcp_pkl_win *w, uint64_t off)
{
	if (off >= w->base && off - w->base <= (uint64_t)(w->end - w->buf))
		return w->buf + (off - w->base);
	w->base = off;
	w->end = w->safe = w->buf;
	w->ahead = w->ahead_min;
	return w->buf;
}

/* Is the end of the window the end of the source? */
static bool at_end(const struct dcp_pkl_win *w)
{
	return dcp_pkl_off(w, w->end) >= w->src->size;
}

int dcp_pkl_win_op(struct dcp_pkl_win *w, const uint8_t **p)
{
	uint64_t off = dcp_pkl_off(w, *p);
	size_t left, fixed;
	int r;

	if (off >= w->src->size)
		return dcp_fail_at(w->err, -EBADMSG, off,
				   "pickle ends at byte %" PRIu64 " without STOP",
				   w->src->size);
	if (!at_end(w)) {
		r = load_window(w, off, w->ahead);
		if (r < 0)
			return r;
		w->ahead = DCP_MIN(w->ahead * 2, w->ahead_max);
		*p = w->buf;
	}
	fixed = fixed_size(**p);
	left = (size_t)(w->end - *p) - 1;
	if (left < fixed)
		return dcp_pkl_win_fail(w, *p, -EBADMSG, "needs %zu byte%s, has %zu", fixed,
					dcp_s(fixed), left);
	return 0;
}

int dcp_pkl_win_need(struct dcp_pkl_win *w, const uint8_t **p, size_t n)
{
	int r;

	if (n <= (size_t)(w->end - *p))
		return 0;
	r = load_window(w, dcp_pkl_off(w, *p), DCP_MAX(n + DCP_PKL_PAD, w->ahead_max));
	if (r < 0)
		return r;
	*p = w->buf;
	if (n > (size_t)(w->end - *p))
		return dcp_pkl_win_fail(w, *p, -EBADMSG, "needs %zu byte%s, has %zu", n,
					dcp_s(n), (size_t)(w->end - *p));
	return 0;
}

int dcp_pkl_win_length(struct dcp_pkl_win *w, const uint8_t *p, size_t *head, uint64_t *n)
{
	uint64_t left;

	*head = 1 + fixed_size(*p);
	if (*head == 2)
		*n = p[1];
	else if (*head == 5)
		*n = dcp_load_le32(p + 1);
	else
		*n = dcp_load_le64(p + 1);
	if (dcp_pkl_arg[*p] == PICKLE_ARG_SLEN4 && *n > INT32_MAX)
		return dcp_pkl_win_fail(w, p, -EBADMSG, "claims a negative length, %d",
					(int)(int32_t)*n);
	left = w->src->size - dcp_pkl_off(w, p) - *head;
	if (*n > left)
		return dcp_pkl_win_fail(w, p, -EBADMSG,
					"claims %" PRIu64 " byte%s, has %" PRIu64, *n,
					dcp_s(*n), left);
	if (*p == PICKLE_LONG4 && *n > DCP_PICKLE_MAX_INT)
		return dcp_pkl_win_fail(w, p, -E2BIG,
					"is an integer of %" PRIu64 " bytes, the limit is %d",
					*n, DCP_PICKLE_MAX_INT);
	return 0;
}

int dcp_pkl_win_line(struct dcp_pkl_win *w, const uint8_t **p, size_t skip, size_t *n)
{
	size_t done = skip, want = w->ahead_max;
	const uint8_t *nl;
	int r;

	for (;;) {
		size_t have = (size_t)(w->end - *p);

		nl = have > done ? memchr(*p + done, '\n', have - done) : NULL;
		if (nl && (size_t)(nl - *p) - skip <= DCP_PICKLE_MAX_LINE) {
			*n = (size_t)(nl - *p) - skip;
			return 0;
		}
		if (nl || have > DCP_PICKLE_MAX_LINE + skip)
			return dcp_pkl_win_fail(w, *p, -E2BIG,
						"has a line of more than %d bytes",
						DCP_PICKLE_MAX_LINE);
		if (at_end(w))
			return dcp_pkl_win_fail(w, *p, -EBADMSG,
						"has a line that does not end, %zu "
						"bytes are left",
						have - DCP_MIN(have, skip));
		done = DCP_MAX(done, have);
		while (want <= have)
			want *= 2;
		r = load_window(w, dcp_pkl_off(w, *p), want);
		if (r < 0)
			return r;
		*p = w->buf;
	}
}

int dcp_pkl_win_fail(const struct dcp_pkl_win *w, const uint8_t *p, int code, const char *fmt,
		     ...)
{
	const char *name = name_of(*p);
	uint64_t off = dcp_pkl_off(w, p);
	char what[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (!name)
		return dcp_fail_at(w->err, code, off, "opcode 0x%02x at byte %" PRIu64 " %s",
				   *p, off, what);
	return dcp_fail_at(w->err, code, off, "%s at byte %" PRIu64 " %s", name, off, what);
}

int dcp_pkl_win_refuse(const struct dcp_pkl_win *w, const uint8_t *p)
{
	if (dcp_pkl_arg[*p] == PICKLE_ARG_UNKNOWN)
		return dcp_pkl_win_fail(w, p, -ENOTSUP, "is unknown");
	if (*p == PICKLE_NEXT_BUFFER || *p == PICKLE_READONLY_BUFFER)
		return dcp_pkl_win_fail(w, p, -ENOTSUP,
					"is refused: its bytes are not in the pickle");
	return dcp_pkl_win_fail(w, p, -ENOTSUP,
				"is refused: it needs the writer's extension registry");
}

int dcp_pkl_win_proto(const struct dcp_pkl_win *w, const uint8_t *p)
{
	if (p[1] <= PICKLE_HIGHEST_PROTOCOL)
		return 0;
	return dcp_pkl_win_fail(w, p, -ENOTSUP, "has protocol %u, expected at most %d", p[1],
				PICKLE_HIGHEST_PROTOCOL);
}

int dcp_pkl_win_frame(const struct dcp_pkl_win *w, const uint8_t *p)
{
	uint64_t left = w->src->size - dcp_pkl_off(w, p) - 9, n = dcp_load_le64(p + 1);

	if (n <= left)
		return 0;
	return dcp_pkl_win_fail(w, p, -EBADMSG, "claims %" PRIu64 " byte%s, has %" PRIu64, n,
				dcp_s(n), left);
}

/*
 * The text forms of protocol 0: numbers in decimal, text in quotes and with escapes, all in ASCII.
 * The rules are those of CPython's unpickler, except for forms that no pickler writes
 * (hexadecimal, underscores, leading zeros and plus signs).
 */

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

static void negate_limbs(uint64_t *limbs, size_t n)
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
		negate_limbs(limbs, used + 1);
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

/* Append the meaning of the characters @s after a backslash in STRING. Returns the number of
 * characters used; 0: malformed. */
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
		} else { /* the character after this backslash begins no escape */
			add_byte(out, '\\');
			add_utf8(out, (uint8_t)s[1]);
			s += 2;
			n -= 2;
		}
	}
	return true;
}
