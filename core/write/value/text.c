/* SPDX-License-Identifier: Apache-2.0 */
#include "core/write/pickle.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/base/jsonw.h"
#include "core/base/text.h"
#include "core/model/dtype.h"
#include "core/parse/pyjson/pyjson.h"

void dcp_valuing_fail(struct dcp_valuing *w, int code, const char *why)
{
	if (w->rc)
		return;
	w->rc = code;
	w->why = why;
	w->at = w->end;
}

void dcp_valuing_damaged(struct dcp_valuing *w)
{
	dcp_valuing_fail(w, -EBADMSG, "its JSON is damaged");
}

void dcp_valuing_not_plain(struct dcp_valuing *w, const char *why)
{
	dcp_valuing_fail(w, -EBADMSG, why);
}

/* ---- classes that the JSON does not show ---- */

const struct dcp_pyclass *dcp_valuing_class(const char *name, size_t n)
{
	const struct dcp_pyclass *c = dcp_pyclass_named(name, n);

	return c && c->hidden ? c : NULL;
}

/* The next entry of "1:tuple 4 7:numpy.int64". Unknown entries are ignored. */
static void find_class(struct dcp_valuing *w)
{
	w->next = UINT64_MAX;
	if (!w->classes || !dcp_take_number(&w->classes, NULL, DCP_ANY_DIGITS, &w->next))
		return;
	if (*w->classes == ':') {
		size_t n = strcspn(++w->classes, " ");

		w->class = dcp_valuing_class(w->classes, n);
		w->classes += n;
	}
	w->classes += *w->classes == ' ';
}

const struct dcp_pyclass *dcp_valuing_begin(struct dcp_valuing *w)
{
	const struct dcp_pyclass *class = NULL;

	if (w->values++ == w->next) {
		class = w->class;
		find_class(w);
	}
	return class;
}

/* ---- text ---- */

char dcp_valuing_peek(struct dcp_valuing *w)
{
	while (w->at < w->end && strchr(" \t\r\n", *w->at) && *w->at)
		w->at++;
	return w->at < w->end ? *w->at : '\0';
}

bool dcp_valuing_take(struct dcp_valuing *w, char c)
{
	if (dcp_valuing_peek(w) != c)
		return false;
	w->at++;
	return true;
}

void dcp_valuing_expect(struct dcp_valuing *w, char c)
{
	if (!dcp_valuing_take(w, c))
		dcp_valuing_damaged(w);
}

bool dcp_valuing_word(struct dcp_valuing *w, const char *word)
{
	size_t n = strlen(word);

	if ((size_t)(w->end - w->at) < n || memcmp(w->at, word, n) != 0)
		return false;
	w->at += n;
	return true;
}

static uint32_t read_hex4(struct dcp_valuing *w)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++) {
		int digit = w->at < w->end ? dcp_hex_digit(*w->at++) : -1;

		if (digit < 0)
			dcp_valuing_damaged(w);
		v = v << 4 | (uint32_t)digit;
	}
	return v;
}

/* UTF-8, lone surrogates as Python's surrogatepass has them. */
static void put_utf8(struct dcp_buf *b, uint32_t c)
{
	char s[4];
	size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	for (size_t i = n; i-- > 1; c >>= 6)
		s[i] = (char)(0x80 | (c & 0x3f));
	s[0] = (char)(n == 1 ? c : (0xf00 >> n & 0xff) | c);
	dcp_buf_add(b, s, n);
}

static void take_escape(struct dcp_valuing *w, struct dcp_buf *out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	char c = w->at < w->end ? *w->at++ : '\0';
	const char *plain = c ? strchr(from, c) : NULL, *before;
	uint32_t high, low;

	if (plain) {
		dcp_buf_add(out, &to[plain - from], 1);
		return;
	}
	if (c != 'u')
		dcp_valuing_damaged(w);
	high = read_hex4(w);
	before = w->at;
	if (high >> 10 == 0xd800 >> 10 && w->end - w->at >= 6 && dcp_valuing_word(w, "\\u")) {
		low = read_hex4(w);
		if (low >> 10 == 0xdc00 >> 10)
			high = 0x10000 + ((high & 0x3ff) << 10 | (low & 0x3ff));
		else if (!w->rc)
			w->at = before;
	}
	if (!w->rc)
		put_utf8(out, high);
}

void dcp_valuing_key(struct dcp_valuing *w, struct dcp_buf *out)
{
	dcp_valuing_expect(w, '"');
	while (w->at < w->end && *w->at != '"') {
		size_t n = 0;

		while (w->at + n < w->end && w->at[n] != '"' && w->at[n] != '\\')
			n++;
		dcp_buf_add(out, w->at, n);
		w->at += n;
		if (dcp_valuing_word(w, "\\"))
			take_escape(w, out);
	}
	if (!dcp_valuing_word(w, "\""))
		dcp_valuing_damaged(w);
	dcp_buf_add(out, "", 1); /* it has a text even if it is empty */
	if (dcp_buf_error(out))
		dcp_valuing_fail(w, -ENOMEM, NULL);
	else
		out->n--;
}

void dcp_valuing_string(struct dcp_valuing *w, struct dcp_buf *out)
{
	w->values++;
	dcp_valuing_key(w, out);
}

void dcp_valuing_member(struct dcp_valuing *w, struct dcp_buf *out)
{
	dcp_buf_reset(out);
	dcp_valuing_key(w, out);
	dcp_valuing_expect(w, ':');
}

bool dcp_valuing_is(const struct dcp_buf *b, const char *text)
{
	return b->n == strlen(text) && memcmp(b->p, text, b->n) == 0;
}

bool dcp_valuing_more(struct dcp_valuing *w, char close)
{
	bool more = dcp_valuing_take(w, ',');

	if (!more)
		dcp_valuing_expect(w, close);
	return more;
}

uint64_t dcp_valuing_count(const struct dcp_valuing *w)
{
	struct dcp_valuing c = *w;
	unsigned depth = 0;
	uint64_t n = 0;
	char what = dcp_valuing_peek(&c);

	if (what == ']' || what == '}')
		return 0;
	for (; c.at < c.end; c.at++) {
		what = *c.at;
		if (what == '"') {
			for (c.at++; c.at < c.end && *c.at != '"'; c.at++)
				c.at += *c.at == '\\';
		} else if (what == '[' || what == '{') {
			depth++;
		} else if (what == ']' || what == '}') {
			if (depth-- == 0)
				break;
		}
		n += what == ',' && depth == 0;
	}
	return n + 1;
}

void dcp_valuing_args(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;

	dcp_valuing_expect(w, ',');
	dcp_valuing_member(w, &key);
	if (!dcp_valuing_is(&key, "args"))
		dcp_valuing_damaged(w);
	w->values++;
	dcp_valuing_expect(w, '[');
}

void dcp_valuing_base64(struct dcp_valuing *w, struct dcp_buf *out)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc;

	dcp_valuing_string(w, &text);
	rc = dcp_base64_read(text.p, text.n, out);
	if (rc == -EBADMSG)
		dcp_valuing_damaged(w);
	else if (rc < 0)
		dcp_valuing_fail(w, rc, NULL);
}

void dcp_valuing_start(struct dcp_valuing *w, const struct dcp_object *o)
{
	w->at = o->json;
	w->end = o->json + o->json_len;
	w->classes = o->classes;
	find_class(w);
}

/* Numbers and arrays of numpy, from JSON to what numpy pickles. */

/* ---- numbers of numpy ---- */

double dcp_valuing_special(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;

	dcp_valuing_string(w, &text);
	return dcp_valuing_is(&text, "nan")    ? (double)NAN
	       : dcp_valuing_is(&text, "-inf") ? -HUGE_VAL
					       : HUGE_VAL;
}

/* A number, or {"$float": "nan"}. */
static double dcp_valuing_float(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	char number[64];
	const char *end;
	size_t n = 0;
	double v;

	w->values++;
	if (dcp_valuing_take(w, '{')) {
		dcp_valuing_member(w, &key);
		v = dcp_valuing_special(w);
		dcp_valuing_expect(w, '}');
		return v;
	}
	dcp_valuing_peek(w);
	while (w->at < w->end && n + 1 < sizeof(number) && *w->at &&
	       strchr("+-0123456789.eE", *w->at))
		number[n++] = *w->at++;
	number[n] = '\0';
	v = dcp_read_float(number, &end);
	if (!n || *end)
		dcp_valuing_damaged(w);
	return v;
}

static void store_float(uint8_t *to, double v, size_t size)
{
	float single = (float)v;

	if (size == 8)
		memcpy(to, &v, 8);
	else if (size == 4)
		memcpy(to, &single, 4);
	else
		dcp_dtype_cast(DCP_DTYPE_F32, DCP_DTYPE_F16, to, &single, 1);
}

static void take_complex(struct dcp_valuing *w, uint8_t *to, size_t size)
{
	dcp_auto_buf struct dcp_buf word = DCP_BUF_INIT;

	dcp_valuing_expect(w, '{');
	w->values++;
	dcp_valuing_member(w, &word);
	dcp_valuing_string(w, &word);
	dcp_valuing_args(w);
	store_float(to, dcp_valuing_float(w), size / 2);
	dcp_valuing_expect(w, ',');
	store_float(to + size / 2, dcp_valuing_float(w), size / 2);
	dcp_valuing_expect(w, ']');
	dcp_valuing_expect(w, '}');
}

/* Take a number of the type "f4", little-endian. */
static void take_number(struct dcp_valuing *w, const char *code, uint8_t to[16])
{
	size_t size = code[2] ? 16 : (size_t)(code[1] - '0');
	uint64_t bits;
	bool negative;

	if (*code == 'c') {
		take_complex(w, to, size);
		return;
	}
	if (*code == 'f') {
		store_float(to, dcp_valuing_float(w), size);
		return;
	}
	w->values++;
	dcp_valuing_peek(w);
	if (*code == 'b') {
		*to = dcp_valuing_word(w, "true");
		if (!*to && !dcp_valuing_word(w, "false"))
			dcp_valuing_damaged(w);
		return;
	}
	negative = dcp_valuing_take(w, '-');
	if (!dcp_take_number(&w->at, w->end, DCP_ANY_DIGITS, &bits))
		dcp_valuing_damaged(w);
	else
		dcp_store_le64(to, negative ? -bits : bits);
}

void dcp_valuing_scalar(struct dcp_valuing *w, const struct dcp_pyclass *class)
{
	const char *code = class->number;
	uint8_t bytes[16] = { 0 };

	w->values--; /* it has begun */
	take_number(w, code, bytes);
	dcp_pickler_put(w->p, "R c (2", class->module, class->function);
	dcp_ndarray_put_dtype(w->p, code[1] == '1' ? '|' : '<', code);
	dcp_pickler_bytes(w->p, bytes, code[2] ? 16 : (size_t)(code[1] - '0'));
}

/* ---- an array of numpy ---- */

enum { MAX_DIMS = 64 };

struct array {
	char order;
	const char *code; /* "f4" */
	uint64_t shape[MAX_DIMS];
	uint32_t ndim;
	bool fortran;
	struct dcp_buf data;
};

static void take_descr(struct dcp_valuing *w, struct array *a)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	const struct dcp_pyclass *c;

	dcp_valuing_string(w, &text);
	c = text.n > 2 && memchr("<>|", text.p[0], 3)
		    ? dcp_pyclass_of_number(text.p + 1, text.n - 1)
		    : NULL;
	a->code = c ? c->number : NULL;
	if (c)
		a->order = text.p[0];
	else
		dcp_valuing_damaged(w);
}

static void take_shape(struct dcp_valuing *w, struct array *a)
{
	uint8_t dim[16] = { 0 };

	dcp_valuing_expect(w, '[');
	w->values++;
	if (dcp_valuing_take(w, ']'))
		return;
	do {
		if (a->ndim == MAX_DIMS) {
			dcp_valuing_damaged(w);
			return;
		}
		take_number(w, "u8", dim);
		a->shape[a->ndim++] = dcp_load_le64(dim);
	} while (dcp_valuing_more(w, ']'));
}

/* The numbers of nested lists, in their order. */
static void take_numbers(struct dcp_valuing *w, struct array *a, unsigned depth)
{
	size_t size = a->code[2] ? 16 : (size_t)(a->code[1] - '0');
	size_t unit = a->code[0] == 'c' ? size / 2 : size;
	uint8_t le[16] = { 0 }, bytes[16];

	if (!dcp_valuing_take(w, '[')) {
		take_number(w, a->code, le);
		for (size_t i = 0; i < size; i++)
			bytes[i] =
				le[a->order == '>' ? i / unit * unit + unit - 1 - i % unit : i];
		dcp_buf_add(&a->data, bytes, size);
		return;
	}
	w->values++;
	if (depth == MAX_DIMS)
		dcp_valuing_damaged(w);
	if (w->rc || dcp_valuing_take(w, ']'))
		return;
	do
		take_numbers(w, a, depth + 1);
	while (dcp_valuing_more(w, ']'));
}

static void take_data(struct dcp_valuing *w, struct array *a)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	struct dcp_valuing before = *w;

	if (dcp_valuing_take(w, '{')) {
		dcp_valuing_member(w, &key);
		if (dcp_valuing_is(&key, "$bytes_at"))
			dcp_valuing_not_plain(w, "an array in it is too long to be at hand");
		if (dcp_valuing_is(&key, "$bytes")) {
			w->values++;
			dcp_valuing_base64(w, &a->data);
			dcp_valuing_expect(w, '}');
		}
		if (w->rc || dcp_valuing_is(&key, "$bytes"))
			return;
		*w = before; /* all of it is one number */
	}
	take_numbers(w, a, 0);
}

static void take_member(struct dcp_valuing *w, struct array *a)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;

	dcp_valuing_member(w, &key);
	if (dcp_valuing_is(&key, "dtype")) {
		take_descr(w, a);
	} else if (dcp_valuing_is(&key, "shape")) {
		take_shape(w, a);
	} else if (dcp_valuing_is(&key, "data") && a->code) {
		take_data(w, a);
	} else {
		w->values++;
		a->fortran =
			dcp_valuing_is(&key, "fortran_order") && dcp_valuing_word(w, "true");
		if (!a->fortran)
			dcp_valuing_damaged(w);
	}
}

static bool is_full(const struct array *a)
{
	uint64_t n = a->code[2] ? 16 : (uint64_t)(a->code[1] - '0');

	for (uint32_t i = 0; i < a->ndim; i++)
		if (dcp_ckd_mul(&n, n, a->shape[i]))
			return false;
	return n == a->data.n;
}

void dcp_valuing_array(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	struct array a = { .data = DCP_BUF_INIT };
	struct dcp_ndarrays arrays = { .p = w->p };

	dcp_valuing_expect(w, '{');
	w->values++;
	w->code = "numpy.ndarray";
	do
		take_member(w, &a);
	while (dcp_valuing_more(w, '}'));
	if (dcp_buf_error(&a.data))
		dcp_valuing_fail(w, -ENOMEM, NULL);
	else if (!w->rc && (!a.code || !is_full(&a)))
		dcp_valuing_damaged(w);
	if (!w->rc) {
		dcp_ndarray_open(&arrays, a.ndim, a.shape);
		dcp_ndarray_put_dtype(w->p, a.order, a.code);
		dcp_pickler_bool(w->p, a.fortran);
		dcp_pickler_bytes(w->p, a.data.p, a.data.n);
	}
	dcp_buf_finish(&a.data);
}

/* Dates, times and time spans, from text to Python's pickled form: see
 * core/parse/pyjson/classes.c. */

/* Days, seconds and microseconds, each with the sign of @us: Python takes them so. */
static void put_span(struct dcp_pickler *p, int64_t us)
{
	int64_t day = 86400ll * 1000000;

	dcp_pickler_put(p, "R c (3", "datetime", "timedelta");
	dcp_pickler_int(p, us / day);
	dcp_pickler_int(p, us % day / 1000000);
	dcp_pickler_int(p, us % 1000000);
}

void dcp_valuing_seconds(struct dcp_valuing *w)
{
	double v;

	w->values--; /* it has begun */
	v = dcp_valuing_float(w);
	if (fabs(v) < 9e12)
		put_span(w->p, llround(v * 1e6));
	else
		dcp_valuing_damaged(w);
}

/* "2024-01-02T03:04:05.000006+01:00" into a packed state, and the zone in microseconds. */
struct clock {
	uint8_t state[10];
	size_t n;
	bool zone;
	int64_t shift;
};

/* Scan "%2u:%2u:%2u.%6u", with the fraction in microseconds. Returns the length; 0: not a time. */
static int scan_clock(const char *s, unsigned *hms, unsigned *us)
{
	int n = 0, more = 0;

	*us = 0;
	hms[2] = 0;
	if (sscanf(s, "%2u:%2u%n:%2u%n", &hms[0], &hms[1], &n, &hms[2], &n) < 2)
		return 0;
	if (hms[0] > 23 || hms[1] > 59 || hms[2] > 59)
		return 0;
	if (s[n] == '.' && sscanf(s + n, ".%6u%n", us, &more) == 1)
		n += more;
	return n;
}

static bool parse_time(const struct dcp_pyclass *class, const char *s, struct clock *c)
{
	bool is_time = strcmp(class->function, "time") == 0;
	unsigned ymd[3], hms[3] = { 0 }, us;
	int n = 0;

	if (!is_time) {
		if (sscanf(s, "%4u-%2u-%2u%n", &ymd[0], &ymd[1], &ymd[2], &n) != 3 ||
		    ymd[0] > 9999 || ymd[1] > 12 || ymd[2] > 31)
			return false;
		c->state[c->n++] = (uint8_t)(ymd[0] >> 8);
		for (int i = 0; i < 3; i++)
			c->state[c->n++] = (uint8_t)ymd[i];
		s += n;
		if (strcmp(class->function, "date") == 0)
			return *s == '\0';
		if (*s++ != 'T')
			return false;
	}
	n = scan_clock(s, hms, &us);
	for (int i = 0; i < 3; i++)
		c->state[c->n++] = (uint8_t)hms[i];
	for (int i = 16; i >= 0; i -= 8)
		c->state[c->n++] = (uint8_t)(us >> i);
	s += n;
	c->zone = n && (*s == '+' || *s == '-');
	if (c->zone) {
		int sign = *s == '-' ? -1 : 1, len = scan_clock(s + 1, hms, &us);

		if (len == 0)
			return false;
		c->shift = sign * ((hms[0] * 3600ll + hms[1] * 60 + hms[2]) * 1000000 + us);
		s += 1 + len;
	}
	return n && *s == '\0';
}

void dcp_valuing_time(struct dcp_valuing *w, const struct dcp_pyclass *class)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct clock c = { .n = 0 };

	dcp_valuing_key(w, &text);
	if (w->rc)
		return;
	if (!parse_time(class, text.p, &c))
		dcp_valuing_damaged(w);
	dcp_pickler_put(w->p, c.zone ? "R c (2" : "R c (1", class->module, class->function);
	dcp_pickler_bytes(w->p, c.state, c.n);
	if (!c.zone)
		return;
	dcp_pickler_put(w->p, "R c (1", "datetime", "timezone");
	put_span(w->p, c.shift);
}
