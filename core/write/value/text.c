/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/jsonw.h"
#include "core/base/number.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/write/value/value_int.h"

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

const char *dcp_valuing_class(const char *name, size_t n)
{
	static const char *const classes[] = {
		"tuple",
		"torch.Size",
		"frozenset",
		"bytearray",
		"collections.OrderedDict",
		"datetime.timedelta",
		"datetime.datetime",
		"datetime.date",
		"datetime.time",
	};

	for (size_t i = 0; i < DCP_LEN(classes); i++)
		if (strlen(classes[i]) == n && memcmp(classes[i], name, n) == 0)
			return classes[i];
	return dcp_pyjson_scalar(name, n, NULL);
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

const char *dcp_valuing_begin(struct dcp_valuing *w)
{
	const char *class = NULL;

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

static uint32_t hex4(struct dcp_valuing *w)
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
	high = hex4(w);
	before = w->at;
	if (high >> 10 == 0xd800 >> 10 && w->end - w->at >= 6 && dcp_valuing_word(w, "\\u")) {
		low = hex4(w);
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
