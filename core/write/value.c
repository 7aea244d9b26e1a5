/* SPDX-License-Identifier: Apache-2.0 */
#include "core/write/value.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/model/dtype.h"

enum { MAX_DEPTH = 128, MAX_DIGITS = 10000 };

/* JSON text on its way into a pickle, or (@p NULL) only looked at. */
struct walk {
	const char *at, *end;
	struct dcp_pickler *p;
	const struct dcp_value_tensors *tensors;
	unsigned depth;
	const char *why; /* it is not plain */
};

static int put_value(struct walk *w, bool is_tuple);

static int damaged(struct walk *w)
{
	w->why = "its JSON is damaged";
	return -EBADMSG;
}

static int not_plain(struct walk *w, const char *why)
{
	w->why = why;
	return -EBADMSG;
}

/* ---- text ---- */

static char peek(struct walk *w)
{
	while (w->at < w->end && strchr(" \t\r\n", *w->at) && *w->at)
		w->at++;
	return w->at < w->end ? *w->at : '\0';
}

static bool take(struct walk *w, char c)
{
	if (peek(w) != c)
		return false;
	w->at++;
	return true;
}

static bool take_word(struct walk *w, const char *word)
{
	size_t n = strlen(word);

	if ((size_t)(w->end - w->at) < n || memcmp(w->at, word, n) != 0)
		return false;
	w->at += n;
	return true;
}

static int hex4(struct walk *w, uint32_t *out)
{
	*out = 0;
	if (w->end - w->at < 4)
		return damaged(w);
	for (int i = 0; i < 4; i++) {
		char c = *w->at++;
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;

		if (digit < 0)
			return damaged(w);
		*out = *out << 4 | (uint32_t)digit;
	}
	return 0;
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

static int take_escape(struct walk *w, struct dcp_buf *out)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	char c = w->at < w->end ? *w->at++ : '\0';
	const char *plain = c ? strchr(from, c) : NULL;
	uint32_t high, low;

	if (plain) {
		dcp_buf_add(out, &to[plain - from], 1);
		return 0;
	}
	if (c != 'u' || hex4(w, &high) < 0)
		return damaged(w);
	if (high >> 10 == 0xd800 >> 10 && w->end - w->at >= 6 && w->at[0] == '\\' &&
	    w->at[1] == 'u') {
		const char *before = w->at;

		w->at += 2;
		if (hex4(w, &low) < 0)
			return -EBADMSG;
		if (low >> 10 == 0xdc00 >> 10)
			high = 0x10000 + ((high & 0x3ff) << 10 | (low & 0x3ff));
		else
			w->at = before;
	}
	put_utf8(out, high);
	return 0;
}

/* A string with its quotes. */
static int take_string(struct walk *w, struct dcp_buf *out)
{
	int rc = 0;

	if (!take(w, '"'))
		return damaged(w);
	while (rc == 0 && w->at < w->end && *w->at != '"') {
		size_t n = 0;

		while (w->at + n < w->end && w->at[n] != '"' && w->at[n] != '\\')
			n++;
		dcp_buf_add(out, w->at, n);
		w->at += n;
		if (w->at < w->end && *w->at == '\\') {
			w->at++;
			rc = take_escape(w, out);
		}
	}
	if (rc == 0 && w->at == w->end)
		rc = damaged(w);
	w->at++;
	dcp_buf_add(out, "", 1); /* it has a text even if it is empty */
	if (dcp_buf_error(out))
		return -ENOMEM;
	out->n--;
	return rc;
}

static bool is_text(const struct dcp_buf *b, const char *text)
{
	return b->n == strlen(text) && memcmp(b->p, text, b->n) == 0;
}

/* Behind a value: where the next one begins. false: the container ends. */
static bool next(struct walk *w, char close, int *rc)
{
	if (take(w, ','))
		return true;
	if (!take(w, close))
		*rc = damaged(w);
	return false;
}

/* How many elements, or members, the container has whose first bracket was taken. */
static int count(const struct walk *w, uint64_t *out)
{
	struct walk c = *w;
	unsigned depth = 0;
	uint64_t n = 0;
	char what = peek(&c);

	if (what == ']' || what == '}') {
		*out = 0;
		return 0;
	}
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
	*out = n + 1;
	return 0;
}

/* ---- numbers ---- */

/* Decimal digits as two's complement, little-endian. */
static int put_bigint(struct walk *w, const char *digits, size_t n, bool negative)
{
	dcp_auto_buf struct dcp_buf le = DCP_BUF_INIT;
	uint8_t *p;

	if (n > MAX_DIGITS)
		return not_plain(w, "it has an integer of more than 10,000 digits");
	for (size_t i = 0; i < n; i++) {
		unsigned carry = (unsigned)(digits[i] - '0');

		p = (uint8_t *)(void *)le.p;
		for (size_t k = 0; k < le.n; k++) {
			carry += p[k] * 10u;
			p[k] = (uint8_t)carry;
			carry >>= 8;
		}
		if (carry)
			dcp_buf_add(&le, &(char){ (char)carry }, 1);
	}
	dcp_buf_add(&le, "", 1);
	if (dcp_buf_error(&le))
		return -ENOMEM;
	p = (uint8_t *)(void *)le.p;
	for (size_t k = 0, carry = 1; negative && k < le.n; k++) {
		carry += (uint8_t)~p[k];
		p[k] = (uint8_t)carry;
		carry >>= 8;
	}
	if (w->p)
		dcp_pickler_bigint(w->p, p, le.n);
	return 0;
}

static int put_number(struct walk *w)
{
	const char *from = w->at;
	char text[64];
	bool is_float = false;
	size_t n;

	while (w->at < w->end && strchr("+-0123456789.eE", *w->at) && *w->at)
		is_float |= strchr(".eE", *w->at++) != NULL;
	n = (size_t)(w->at - from);
	if (is_float && n < sizeof(text)) {
		memcpy(text, from, n);
		text[n] = '\0';
		if (w->p)
			dcp_pickler_float(w->p, strtod(text, NULL));
		return 0;
	}
	if (is_float || n == 0 || (n == 1 && *from == '-') || memchr(from + 1, '-', n - 1) ||
	    memchr(from, '+', n))
		return damaged(w);
	if (n < 19) {
		memcpy(text, from, n);
		text[n] = '\0';
		if (w->p)
			dcp_pickler_int(w->p, strtoll(text, NULL, 10));
		return 0;
	}
	return put_bigint(w, from + (*from == '-'), n - (*from == '-'), *from == '-');
}

/* ---- what JSON has no form for ---- */

static int put_float(struct walk *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = take_string(w, &text);

	if (rc == 0 && w->p)
		dcp_pickler_float(w->p, is_text(&text, "nan")    ? __builtin_nan("")
					: is_text(&text, "-inf") ? -__builtin_inf()
								 : __builtin_inf());
	return rc;
}

static int base64(struct walk *w, const struct dcp_buf *text, struct dcp_buf *out)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	uint32_t bits = 0;
	unsigned n = 0;

	for (size_t i = 0; i < text->n && text->p[i] != '='; i++) {
		const char *digit = text->p[i] ? strchr(digits, text->p[i]) : NULL;

		if (!digit)
			return damaged(w);
		bits = bits << 6 | (uint32_t)(digit - digits);
		n += 6;
		if (n >= 8) {
			n -= 8;
			dcp_buf_add(out, &(char){ (char)(bits >> n) }, 1);
		}
	}
	return dcp_buf_error(out);
}

static int put_bytes(struct walk *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT, bytes = DCP_BUF_INIT;
	int rc = take_string(w, &text);

	if (rc == 0)
		rc = base64(w, &text, &bytes);
	if (rc == 0 && w->p)
		dcp_pickler_bytes(w->p, bytes.p, bytes.n);
	return rc;
}

/* [[k, v], ...] */
static int put_pairs(struct walk *w)
{
	uint64_t n;
	int rc = take(w, '[') ? count(w, &n) : damaged(w);

	if (rc < 0)
		return rc;
	if (w->p)
		dcp_pickler_open(w->p, DCP_PICKLE_DICT, n);
	if (n == 0)
		return take(w, ']') ? 0 : damaged(w);
	do {
		rc = take(w, '[') ? put_value(w, true) : damaged(w);
		if (rc == 0)
			rc = take(w, ',') ? put_value(w, false) : damaged(w);
		if (rc == 0 && !take(w, ']'))
			rc = damaged(w);
	} while (rc == 0 && next(w, ']', &rc));
	return rc;
}

static int put_tensor(struct walk *w)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	int rc = take_string(w, &key);

	if (rc < 0)
		return rc;
	if (!w->tensors)
		return not_plain(w, "it has tensors in it, which are keys of their own");
	return w->tensors->put ? w->tensors->put(w->tensors->ctx, w->p, key.p) : 0;
}

/* complex(re, im) */
static int put_complex(struct walk *w)
{
	int rc;

	if (w->p) {
		dcp_pickler_open(w->p, DCP_PICKLE_REDUCE, 0);
		dcp_pickler_global(w->p, "builtins", "complex");
		dcp_pickler_open(w->p, DCP_PICKLE_TUPLE, 2);
	}
	rc = put_value(w, false);
	return rc < 0 ? rc : take(w, ',') ? put_value(w, false) : damaged(w);
}

/* torch.bfloat16 */
static int put_dtype(struct walk *w)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	enum dcp_dtype t;
	int rc = take_string(w, &name);

	if (rc < 0)
		return rc;
	t = dcp_dtype_from_torch(name.p, name.n);
	if (t == DCP_DTYPE_OTHER)
		return not_plain(w, "it has a dtype that dcpfs does not know");
	if (w->p)
		dcp_pickler_global(w->p, "torch", dcp_dtype_info(t)->torch);
	return 0;
}

/* torch.device("cuda", 0) */
static int put_device(struct walk *w)
{
	uint64_t n;
	int rc = count(w, &n);

	if (w->p) {
		dcp_pickler_open(w->p, DCP_PICKLE_REDUCE, 0);
		dcp_pickler_global(w->p, "torch", "device");
		dcp_pickler_open(w->p, DCP_PICKLE_TUPLE, n);
	}
	for (uint64_t i = 0; rc == 0 && i < n; i++)
		rc = i == 0 || take(w, ',') ? put_value(w, false) : damaged(w);
	return rc;
}

static int put_class(struct walk *w)
{
	static const struct {
		const char *name;
		int (*put)(struct walk *w);
	} classes[] = {
		{ "complex", put_complex },
		{ "torch.dtype", put_dtype },
		{ "torch.device", put_device },
	};
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT, key = DCP_BUF_INIT;
	int rc = take_string(w, &name);

	for (size_t i = 0; rc == 0 && i < DCP_LEN(classes); i++) {
		if (!is_text(&name, classes[i].name) || !take(w, ','))
			continue;
		rc = take_string(w, &key);
		if (rc == 0 && (!is_text(&key, "args") || !take(w, ':') || !take(w, '[')))
			rc = damaged(w);
		if (rc == 0)
			rc = classes[i].put(w);
		return rc < 0 ? rc : take(w, ']') ? 0 : damaged(w);
	}
	return rc < 0 ? rc
		      : not_plain(w, "it has instances of classes in it, not only plain data");
}

static int put_set(struct walk *w)
{
	uint64_t n;
	int rc = take(w, '[') ? count(w, &n) : damaged(w);

	if (rc < 0)
		return rc;
	if (w->p)
		dcp_pickler_open(w->p, DCP_PICKLE_SET, n);
	if (n == 0)
		return take(w, ']') ? 0 : damaged(w);
	do
		rc = put_value(w, true);
	while (rc == 0 && next(w, ']', &rc));
	return rc;
}

static int put_special(struct walk *w, const struct dcp_buf *key)
{
	static const struct {
		const char *key;
		int (*put)(struct walk *w);
	} forms[] = {
		{ "$float", put_float }, { "$bytes", put_bytes },   { "$dict", put_pairs },
		{ "$set", put_set },     { "$tensor", put_tensor }, { "$class", put_class },
	};

	for (size_t i = 0; i < DCP_LEN(forms); i++)
		if (is_text(key, forms[i].key)) {
			int rc = forms[i].put(w);

			return rc < 0 ? rc : take(w, '}') ? 0 : damaged(w);
		}
	return is_text(key, "$ndarray")
		       ? not_plain(w, "it has numpy arrays in it")
		       : not_plain(w, "it has values in it that are not plain data");
}

/* ---- containers ---- */

static int put_array(struct walk *w, bool is_tuple)
{
	uint64_t n;
	int rc = count(w, &n);

	if (rc < 0)
		return rc;
	if (w->p)
		dcp_pickler_open(w->p, is_tuple ? DCP_PICKLE_TUPLE : DCP_PICKLE_LIST, n);
	if (n == 0)
		return take(w, ']') ? 0 : damaged(w);
	do
		rc = put_value(w, false);
	while (rc == 0 && next(w, ']', &rc));
	return rc;
}

static int put_object(struct walk *w)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	bool first = true;
	uint64_t n;
	int rc = count(w, &n);

	if (rc == 0 && n == 0) {
		if (w->p)
			dcp_pickler_open(w->p, DCP_PICKLE_DICT, 0);
		return take(w, '}') ? 0 : damaged(w);
	}
	do {
		dcp_buf_reset(&key);
		rc = take_string(w, &key);
		if (rc == 0 && !take(w, ':'))
			rc = damaged(w);
		if (rc == 0 && first && key.n && key.p[0] == '$')
			return put_special(w, &key);
		if (rc == 0 && first && w->p)
			dcp_pickler_open(w->p, DCP_PICKLE_DICT, n);
		first = false;
		if (rc == 0 && w->p)
			dcp_pickler_str_n(w->p, key.p, key.n);
		if (rc == 0)
			rc = put_value(w, false);
	} while (rc == 0 && next(w, '}', &rc));
	return rc;
}

static int put_text(struct walk *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = take_string(w, &text);

	if (rc == 0 && w->p)
		dcp_pickler_str_n(w->p, text.p, text.n);
	return rc;
}

static int put_value(struct walk *w, bool is_tuple)
{
	char c = peek(w);
	int rc = 0;

	if (++w->depth > MAX_DEPTH)
		return not_plain(w, "it is nested too deep");
	if (c == '[' || c == '{')
		w->at++;
	if (c == '[')
		rc = put_array(w, is_tuple);
	else if (c == '{')
		rc = put_object(w);
	else if (c == '"')
		rc = put_text(w);
	else if (take_word(w, "null")) {
		if (w->p)
			dcp_pickler_none(w->p);
	} else if (take_word(w, "true")) {
		if (w->p)
			dcp_pickler_bool(w->p, true);
	} else if (take_word(w, "false")) {
		if (w->p)
			dcp_pickler_bool(w->p, false);
	} else
		rc = put_number(w);
	w->depth--;
	return rc;
}

/* ---- the whole ---- */

static int put_all(struct walk *w, const struct dcp_object *o)
{
	bool is_size = strcmp(o->type, "torch.Size") == 0;
	int rc;

	w->at = o->json;
	w->end = o->json + o->json_len;
	if (is_size && w->p) {
		dcp_pickler_open(w->p, DCP_PICKLE_REDUCE, 0);
		dcp_pickler_global(w->p, "torch", "Size");
		dcp_pickler_open(w->p, DCP_PICKLE_TUPLE, 1);
	}
	rc = put_value(w, is_size || strcmp(o->type, "tuple") == 0);
	return rc == 0 && peek(w) ? damaged(w) : rc;
}

const char *dcp_value_refuses(const struct dcp_object *o, bool tensors)
{
	static const struct dcp_value_tensors any = { 0 };
	struct walk w = { .tensors = tensors ? &any : NULL };
	int rc = put_all(&w, o);

	return rc == 0 ? NULL : w.why ? w.why : "there is no memory for it";
}

int dcp_value_put(struct dcp_pickler *p, const struct dcp_object *o,
		  const struct dcp_value_tensors *tensors)
{
	struct walk w = { .p = p, .tensors = tensors };

	return put_all(&w, o);
}

int dcp_value_tensors(const struct dcp_object *o, const struct dcp_value_tensors *tensors)
{
	struct walk w = { .tensors = tensors };

	return put_all(&w, o);
}
