/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "core/base/number.h"
#include "core/model/dtype.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/write/value/value_int.h"

enum { MAX_DEPTH = 128, MAX_DIGITS = 10000 };

/* The next value. @hashable: it is a key or in a set, so what has no class is a tuple, or a frozenset. */
static int put_next(struct dcp_valuing *w, bool hashable);

/* ---- numbers ---- */

/* Decimal digits as two's complement, little-endian. */
static int put_bigint(struct dcp_valuing *w, const char *digits, size_t n, bool negative)
{
	dcp_auto_buf struct dcp_buf le = DCP_BUF_INIT;
	uint8_t *p;

	if (n > MAX_DIGITS)
		return dcp_valuing_not_plain(w, "it has an integer of more than 10,000 digits");
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
	if (dcp_buf_add(&le, "", 1) < 0)
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

static int put_number(struct dcp_valuing *w)
{
	const char *from = w->at;
	const char *digits = from + (*from == '-');
	const char *end;
	char text[64];
	bool is_float = false;
	uint64_t v;
	size_t n;

	while (w->at < w->end && strchr("+-0123456789.eE", *w->at) && *w->at)
		is_float |= strchr(".eE", *w->at++) != NULL;
	n = (size_t)(w->at - from);
	if (is_float && n < sizeof(text)) {
		memcpy(text, from, n);
		text[n] = '\0';
		if (w->p)
			dcp_pickler_float(w->p, dcp_read_float(text, &end));
		return 0;
	}
	if (is_float || n == 0 || (n == 1 && *from == '-') || memchr(from + 1, '-', n - 1) ||
	    memchr(from, '+', n))
		return dcp_valuing_damaged(w);
	if (!dcp_take_number(&digits, w->at, 18, &v))
		return put_bigint(w, digits, (size_t)(w->at - digits), *from == '-');
	if (w->p)
		dcp_pickler_int(w->p, *from == '-' ? -(int64_t)v : (int64_t)v);
	return 0;
}

/* A value that is not a container, of a class that its JSON does not show. 1: it is something else. */
static int put_as(struct dcp_valuing *w, const char *class)
{
	const char *code;

	if (dcp_pyjson_scalar(class, strlen(class), &code)) {
		w->code = class;
		return dcp_valuing_scalar(w, code);
	}
	if (strncmp(class, "datetime.", 9) != 0)
		return 1;
	w->code = class;
	if (strcmp(class, "datetime.timedelta") == 0)
		return dcp_valuing_seconds(w);
	return dcp_valuing_peek(w) == '"' ? dcp_valuing_time(w, class) : 1;
}

/* ---- objects whose first key begins with '$' ---- */

static int put_bytes(struct dcp_valuing *w, const char *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf bytes = DCP_BUF_INIT;
	int rc = dcp_valuing_base64(w, &bytes);

	if (rc < 0 || !w->p)
		return rc;
	if (class && strcmp(class, "bytearray") == 0)
		dcp_pickler_put(w->p, "R c (1", "builtins", "bytearray");
	dcp_pickler_bytes(w->p, bytes.p, bytes.n);
	return 0;
}

/* A dict that has @n pairs. */
static void open_dict(struct dcp_valuing *w, const char *class, uint64_t n)
{
	bool ordered = class && strcmp(class, "collections.OrderedDict") == 0;

	if (!w->p)
		return;
	dcp_pickler_open(w->p, ordered ? DCP_PICKLE_ITEMS : DCP_PICKLE_DICT, n);
	if (ordered)
		dcp_pickler_put(w->p, "R c (0", "collections", "OrderedDict");
}

static int put_float(struct dcp_valuing *w, const char *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = dcp_valuing_string(w, &text);

	if (rc == 0 && w->p)
		dcp_pickler_float(w->p, dcp_valuing_is(&text, "nan")    ? (double)NAN
					: dcp_valuing_is(&text, "-inf") ? -HUGE_VAL
									: HUGE_VAL);
	return rc;
}

/* [[k, v], ...] */
static int put_pairs(struct dcp_valuing *w, const char *class, bool hashable)
{
	int rc = dcp_valuing_expect(w, '[');
	uint64_t n = rc < 0 ? 0 : dcp_valuing_count(w);

	w->values++;
	open_dict(w, class, n);
	if (rc < 0 || n == 0)
		return rc < 0 ? rc : dcp_valuing_expect(w, ']');
	do {
		w->values++;
		rc = dcp_valuing_expect(w, '[');
		if (rc == 0)
			rc = put_next(w, true);
		if (rc == 0)
			rc = dcp_valuing_expect(w, ',');
		if (rc == 0)
			rc = put_next(w, false);
		if (rc == 0)
			rc = dcp_valuing_expect(w, ']');
	} while (rc == 0 && dcp_valuing_more(w, ']', &rc));
	return rc;
}

static int put_set(struct dcp_valuing *w, const char *class, bool hashable)
{
	bool frozen = class ? strcmp(class, "frozenset") == 0 : hashable;
	int rc = dcp_valuing_expect(w, '[');
	uint64_t n = rc < 0 ? 0 : dcp_valuing_count(w);

	w->values++;
	w->code = frozen ? "frozenset" : w->code;
	if (w->p && frozen)
		dcp_pickler_put(w->p, "R c (1", "builtins", "frozenset");
	if (w->p)
		dcp_pickler_open(w->p, frozen ? DCP_PICKLE_LIST : DCP_PICKLE_SET, n);
	if (rc < 0 || n == 0)
		return rc < 0 ? rc : dcp_valuing_expect(w, ']');
	do
		rc = put_next(w, true);
	while (rc == 0 && dcp_valuing_more(w, ']', &rc));
	return rc;
}

static int put_tensor(struct dcp_valuing *w, const char *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	int rc = dcp_valuing_string(w, &key);

	if (rc < 0)
		return rc;
	if (!w->tensors)
		return dcp_valuing_not_plain(
			w, "it has tensors in it, which are keys of their own");
	return w->tensors->put ? w->tensors->put(w->tensors->ctx, w->p, key.p) : 0;
}

/* torch.bfloat16 */
static int put_dtype(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	enum dcp_dtype t;
	int rc = dcp_valuing_string(w, &name);

	if (rc < 0)
		return rc;
	t = dcp_dtype_from_torch(name.p, name.n);
	if (t == DCP_DTYPE_OTHER)
		return dcp_valuing_not_plain(w, "it has a dtype that dcpfs does not know");
	if (w->p)
		dcp_pickler_global(w->p, "torch", dcp_dtype_info(t)->torch);
	return dcp_valuing_expect(w, ']');
}

static int put_class(struct dcp_valuing *w, const char *class, bool hashable)
{
	static const struct {
		const char *class, *module, *name;
		bool code; /* for torch.load it is */
	} calls[] = {
		{ "complex", "builtins", "complex", false },
		{ "range", "builtins", "range", true },
		{ "slice", "builtins", "slice", true },
		{ "torch.device", "torch", "device", false },
		{ "torch.dtype", NULL, NULL, false },
	};
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	int rc = dcp_valuing_string(w, &name);
	uint64_t n;
	size_t i = 0;

	while (rc == 0 && i < DCP_LEN(calls) && !dcp_valuing_is(&name, calls[i].class))
		i++;
	if (rc == 0 && i == DCP_LEN(calls))
		return dcp_valuing_not_plain(
			w, "it has instances of classes in it, not only plain data");
	if (rc == 0)
		rc = dcp_valuing_args(w);
	if (rc < 0 || !calls[i].name)
		return rc < 0 ? rc : put_dtype(w);
	n = dcp_valuing_count(w);
	if (calls[i].code)
		w->code = calls[i].class;
	if (w->p)
		dcp_pickler_put(w->p, "R c (*", calls[i].module,
				w->p->protocol < 3 && calls[i].name[0] == 'r' ? "xrange"
									      : calls[i].name,
				n);
	if (n == 0)
		return dcp_valuing_expect(w, ']');
	do
		rc = put_next(w, false);
	while (rc == 0 && dcp_valuing_more(w, ']', &rc));
	return rc;
}

static int put_special(struct dcp_valuing *w, const char *class, bool hashable,
		       const struct dcp_buf *key)
{
	static const struct {
		const char *key;
		int (*put)(struct dcp_valuing *w, const char *class, bool hashable);
	} forms[] = {
		{ "$float", put_float },
		{ "$bytes", put_bytes },
		{ "$dict", put_pairs },
		{ "$set", put_set },
		{ "$class", put_class },
		{ "$tensor", put_tensor },
		{ "$ndarray", dcp_valuing_array },
	};

	for (size_t i = 0; i < DCP_LEN(forms); i++)
		if (dcp_valuing_is(key, forms[i].key)) {
			int rc = forms[i].put(w, class, hashable);

			return rc < 0 ? rc : dcp_valuing_expect(w, '}');
		}
	return dcp_valuing_not_plain(w, "it has values in it that are not plain data");
}

/* ---- containers ---- */

static int put_array(struct dcp_valuing *w, const char *class, bool hashable)
{
	bool is_size = class && strcmp(class, "torch.Size") == 0;
	bool is_tuple = is_size || (class ? strcmp(class, "tuple") == 0 : hashable);
	uint64_t n = dcp_valuing_count(w);
	int rc = 0;

	if (is_size && w->p)
		dcp_pickler_put(w->p, "R c (1", "torch", "Size");
	if (w->p)
		dcp_pickler_open(w->p, is_tuple ? DCP_PICKLE_TUPLE : DCP_PICKLE_LIST, n);
	if (n == 0)
		return dcp_valuing_expect(w, ']');
	do
		rc = put_next(w, hashable);
	while (rc == 0 && dcp_valuing_more(w, ']', &rc));
	return rc;
}

static int put_object(struct dcp_valuing *w, const char *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	uint64_t n = dcp_valuing_count(w);
	bool first = true;
	int rc = 0;

	if (n == 0) {
		open_dict(w, class, 0);
		return dcp_valuing_expect(w, '}');
	}
	do {
		dcp_buf_reset(&key);
		rc = dcp_valuing_key(w, &key);
		if (rc == 0 && !dcp_valuing_take(w, ':'))
			rc = dcp_valuing_damaged(w);
		if (rc == 0 && first && key.n && key.p[0] == '$')
			return put_special(w, class, hashable, &key);
		if (rc == 0 && first)
			open_dict(w, class, n);
		first = false;
		if (rc == 0 && w->p)
			dcp_pickler_str_n(w->p, key.p, key.n);
		if (rc == 0)
			rc = put_next(w, false);
	} while (rc == 0 && dcp_valuing_more(w, '}', &rc));
	return rc;
}

static int put_text(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = dcp_valuing_key(w, &text);

	if (rc == 0 && w->p)
		dcp_pickler_str_n(w->p, text.p, text.n);
	return rc;
}

static int put_word(struct dcp_valuing *w)
{
	bool is_true;

	if (dcp_valuing_word(w, "null")) {
		if (w->p)
			dcp_pickler_none(w->p);
		return 0;
	}
	is_true = dcp_valuing_word(w, "true");
	if (!is_true && !dcp_valuing_word(w, "false"))
		return put_number(w);
	if (w->p)
		dcp_pickler_bool(w->p, is_true);
	return 0;
}

static int put_value(struct dcp_valuing *w, const char *class, bool hashable)
{
	char c = dcp_valuing_peek(w);
	int rc = 1;

	if (++w->depth > MAX_DEPTH)
		return dcp_valuing_not_plain(w, "it is nested too deep");
	if (class)
		rc = put_as(w, class);
	w->at += rc == 1 && (c == '[' || c == '{');
	if (rc == 1)
		rc = c == '['   ? put_array(w, class, hashable)
		     : c == '{' ? put_object(w, class, hashable)
		     : c == '"' ? put_text(w)
				: put_word(w);
	w->depth--;
	return rc;
}

static int put_next(struct dcp_valuing *w, bool hashable)
{
	const char *class = dcp_valuing_begin(w);

	return put_value(w, class, hashable);
}

/* ---- the whole ---- */

static int put_all(struct dcp_valuing *w, const struct dcp_object *o)
{
	int rc;

	dcp_valuing_start(w, o);
	dcp_valuing_begin(w);
	rc = put_value(w, o->type ? dcp_valuing_class(o->type, strlen(o->type)) : NULL, false);
	return rc == 0 && dcp_valuing_peek(w) ? dcp_valuing_damaged(w) : rc;
}

const char *dcp_value_refuses(const struct dcp_object *o, bool tensors)
{
	static const struct dcp_value_tensors any = { 0 };
	struct dcp_valuing w = { .tensors = tensors ? &any : NULL };
	int rc = put_all(&w, o);

	return rc == 0 ? NULL : w.why ? w.why : "there is no memory for it";
}

const char *dcp_value_class(const struct dcp_object *o)
{
	static const struct dcp_value_tensors any = { 0 };
	struct dcp_valuing w = { .tensors = &any };

	return put_all(&w, o) == 0 ? w.code : NULL;
}

int dcp_value_put(struct dcp_pickler *p, const struct dcp_object *o,
		  const struct dcp_value_tensors *tensors)
{
	struct dcp_valuing w = { .p = p, .tensors = tensors };

	return put_all(&w, o);
}

int dcp_value_tensors(const struct dcp_object *o, const struct dcp_value_tensors *tensors)
{
	struct dcp_valuing w = { .tensors = tensors };

	return put_all(&w, o);
}
