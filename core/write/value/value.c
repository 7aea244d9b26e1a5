/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "core/base/text.h"
#include "core/model/dtype.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/write/pickle.h"

enum { MAX_DEPTH = 128, MAX_DIGITS = 10000 };

/* Put the next value. @hashable: it is a key or in a set, so a list or set without a class is a
 * tuple or a frozenset. */
static void put_next(struct dcp_valuing *w, bool hashable);

/* ---- numbers ---- */

/* Decimal digits as two's complement, little-endian. */
static void put_bigint(struct dcp_valuing *w, const char *digits, size_t n, bool negative)
{
	dcp_auto_buf struct dcp_buf le = DCP_BUF_INIT;
	uint8_t *p;

	if (n > MAX_DIGITS) {
		dcp_valuing_not_plain(w, "it has an integer of more than 10,000 digits");
		return;
	}
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
	if (dcp_buf_add(&le, "", 1) < 0) {
		dcp_valuing_fail(w, -ENOMEM, NULL);
		return;
	}
	p = (uint8_t *)(void *)le.p;
	for (size_t k = 0, carry = 1; negative && k < le.n; k++) {
		carry += (uint8_t)~p[k];
		p[k] = (uint8_t)carry;
		carry >>= 8;
	}
	dcp_pickler_bigint(w->p, p, le.n);
}

static void put_number(struct dcp_valuing *w)
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
		dcp_pickler_float(w->p, dcp_read_float(text, &end));
	} else if (is_float || n == 0 || (n == 1 && *from == '-') ||
		   memchr(from + 1, '-', n - 1) || memchr(from, '+', n)) {
		dcp_valuing_damaged(w);
	} else if (!dcp_take_number(&digits, w->at, 18, &v)) {
		put_bigint(w, digits, (size_t)(w->at - digits), *from == '-');
	} else {
		dcp_pickler_int(w->p, *from == '-' ? -(int64_t)v : (int64_t)v);
	}
}

/* Put a value that is not a container, of a class that its JSON does not show. False: the value is
 * of another kind. */
static bool put_as(struct dcp_valuing *w, const struct dcp_pyclass *class)
{
	if (class->code)
		w->code = class->name;
	if (class->number)
		dcp_valuing_scalar(w, class);
	else if (class->form == DCP_PYJSON_SECONDS)
		dcp_valuing_seconds(w);
	else if (class->form == DCP_PYJSON_TIME && dcp_valuing_peek(w) == '"')
		dcp_valuing_time(w, class);
	else
		return false;
	return true;
}

/* ---- objects whose first key begins with '$' ---- */

static void put_bytes(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf bytes = DCP_BUF_INIT;

	dcp_valuing_base64(w, &bytes);
	if (class && class->form == DCP_PYJSON_BYTES)
		dcp_pickler_put(w->p, "R c (1", class->module, class->function);
	dcp_pickler_bytes(w->p, bytes.p, bytes.n);
}

/* A dict that has @n pairs. */
static void open_dict(struct dcp_valuing *w, const struct dcp_pyclass *class, uint64_t n)
{
	bool ordered = class && class->form == DCP_PYJSON_DICT;

	dcp_pickler_open(w->p, ordered ? DCP_PICKLE_ITEMS : DCP_PICKLE_DICT, n);
	if (ordered)
		dcp_pickler_put(w->p, "R c (0", class->module, class->function);
}

/* After an opening bracket: put values up to the closing bracket. */
static void put_items(struct dcp_valuing *w, bool hashable)
{
	if (dcp_valuing_take(w, ']'))
		return;
	do
		put_next(w, hashable);
	while (dcp_valuing_more(w, ']'));
}

static void put_float(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	dcp_pickler_float(w->p, dcp_valuing_special(w));
}

/* [[k, v], ...] */
static void put_pairs(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	dcp_valuing_expect(w, '[');
	w->values++;
	open_dict(w, class, dcp_valuing_count(w));
	if (dcp_valuing_take(w, ']'))
		return;
	do {
		w->values++;
		dcp_valuing_expect(w, '[');
		put_next(w, true);
		dcp_valuing_expect(w, ',');
		put_next(w, false);
		dcp_valuing_expect(w, ']');
	} while (dcp_valuing_more(w, ']'));
}

static void put_set(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	bool frozen = class ? class->form == DCP_PYJSON_SET : hashable;
	const struct dcp_pyclass *c = dcp_pyclass_named("frozenset", 9);

	dcp_valuing_expect(w, '[');
	w->values++;
	w->code = frozen ? c->name : w->code;
	if (frozen)
		dcp_pickler_put(w->p, "R c (1", c->module, c->function);
	dcp_pickler_open(w->p, frozen ? DCP_PICKLE_LIST : DCP_PICKLE_SET, dcp_valuing_count(w));
	put_items(w, true);
}

static void put_tensor(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	int rc;

	dcp_valuing_string(w, &key);
	if (!w->tensors)
		dcp_valuing_not_plain(w, "it has tensors in it, which are keys of their own");
	if (w->rc || !w->tensors->put)
		return;
	rc = w->tensors->put(w->tensors->ctx, w->p, key.p);
	if (rc < 0)
		dcp_valuing_fail(w, rc, NULL);
}

/* torch.bfloat16 */
static void put_dtype(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	enum dcp_dtype t;

	dcp_valuing_string(w, &name);
	t = w->rc ? DCP_DTYPE_OTHER : dcp_dtype_from_torch(name.p, name.n);
	if (t == DCP_DTYPE_OTHER)
		dcp_valuing_not_plain(w, "it has a dtype that dcpfs does not know");
	else
		dcp_pickler_global(w->p, "torch", dcp_dtype_info(t)->torch);
	dcp_valuing_expect(w, ']');
}

static void put_class(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT;
	const struct dcp_pyclass *c;

	dcp_valuing_string(w, &name);
	c = dcp_pyclass_named(name.p ? name.p : "", name.n);
	if (!c || !c->args) {
		dcp_valuing_not_plain(w,
				      "it has instances of classes in it, not only plain data");
		return;
	}
	dcp_valuing_args(w);
	if (!c->function) {
		put_dtype(w);
		return;
	}
	if (c->code)
		w->code = c->name;
	dcp_pickler_put(w->p, "R c (*", c->module,
			w->p->protocol < 3 && c->old ? c->old : c->function,
			dcp_valuing_count(w));
	put_items(w, false);
}

static void put_special(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable,
			const struct dcp_buf *key)
{
	static const struct {
		const char *key;
		void (*put)(struct dcp_valuing *w, const struct dcp_pyclass *class,
			    bool hashable);
	} forms[] = {
		{ "$float", put_float },
		{ "$bytes", put_bytes },
		{ "$dict", put_pairs },
		{ "$set", put_set },
		{ "$class", put_class },
		{ "$tensor", put_tensor },
		{ "$ndarray", dcp_valuing_array },
	};
	size_t i = 0;

	while (i < DCP_LEN(forms) && !dcp_valuing_is(key, forms[i].key))
		i++;
	if (i < DCP_LEN(forms))
		forms[i].put(w, class, hashable);
	else
		dcp_valuing_not_plain(w, "it has values in it that are not plain data");
	dcp_valuing_expect(w, '}');
}

/* ---- containers ---- */

static void put_array(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	bool is_tuple = class ? class->form == DCP_PYJSON_LIST : hashable;

	if (is_tuple && class && class->function) /* torch.Size */
		dcp_pickler_put(w->p, "R c (1", class->module, class->function);
	dcp_pickler_open(w->p, is_tuple ? DCP_PICKLE_TUPLE : DCP_PICKLE_LIST,
			 dcp_valuing_count(w));
	put_items(w, hashable);
}

static void put_object(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	uint64_t n = dcp_valuing_count(w);
	bool first = true;

	if (dcp_valuing_take(w, '}')) {
		open_dict(w, class, 0);
		return;
	}
	do {
		dcp_valuing_member(w, &key);
		if (first && key.n && key.p[0] == '$') {
			put_special(w, class, hashable, &key);
			return;
		}
		if (first)
			open_dict(w, class, n);
		first = false;
		dcp_pickler_str_n(w->p, key.p, key.n);
		put_next(w, false);
	} while (dcp_valuing_more(w, '}'));
}

static void put_text(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;

	dcp_valuing_key(w, &text);
	dcp_pickler_str_n(w->p, text.p, text.n);
}

static void put_word(struct dcp_valuing *w)
{
	if (dcp_valuing_word(w, "null"))
		dcp_pickler_none(w->p);
	else if (dcp_valuing_word(w, "true"))
		dcp_pickler_bool(w->p, true);
	else if (dcp_valuing_word(w, "false"))
		dcp_pickler_bool(w->p, false);
	else
		put_number(w);
}

static void put_value(struct dcp_valuing *w, const struct dcp_pyclass *class, bool hashable)
{
	char c = dcp_valuing_peek(w);

	if (++w->depth > MAX_DEPTH)
		dcp_valuing_not_plain(w, "it is nested too deep");
	if (!w->rc && !(class && put_as(w, class))) {
		if (c == '[' || c == '{')
			w->at++;
		if (c == '[')
			put_array(w, class, hashable);
		else if (c == '{')
			put_object(w, class, hashable);
		else if (c == '"')
			put_text(w);
		else
			put_word(w);
	}
	w->depth--;
}

static void put_next(struct dcp_valuing *w, bool hashable)
{
	const struct dcp_pyclass *class = dcp_valuing_begin(w);

	put_value(w, class, hashable);
}

/* ---- the whole ---- */

/* Put the whole value. @p NULL: only check it. */
static int put_all(struct dcp_valuing *w, struct dcp_pickler *p, const struct dcp_object *o)
{
	struct dcp_pickler none = { .protocol = 4, .frame = SIZE_MAX, .rc = -ECANCELED };

	w->p = p ? p : &none; /* the pickler @none discards its input */
	dcp_valuing_start(w, o);
	dcp_valuing_begin(w);
	put_value(w, o->type ? dcp_valuing_class(o->type, strlen(o->type)) : NULL, false);
	if (dcp_valuing_peek(w))
		dcp_valuing_damaged(w);
	return w->rc;
}

const char *dcp_value_refuses(const struct dcp_object *o, bool tensors)
{
	static const struct dcp_value_tensors any = { 0 };
	struct dcp_valuing w = { .tensors = tensors ? &any : NULL };

	return put_all(&w, NULL, o) == 0 ? NULL : w.why ? w.why : "there is no memory for it";
}

const char *dcp_value_class(const struct dcp_object *o)
{
	static const struct dcp_value_tensors any = { 0 };
	struct dcp_valuing w = { .tensors = &any };

	return put_all(&w, NULL, o) == 0 ? w.code : NULL;
}

int dcp_value_put(struct dcp_pickler *p, const struct dcp_object *o,
		  const struct dcp_value_tensors *tensors)
{
	struct dcp_valuing w = { .tensors = tensors };

	return put_all(&w, p, o);
}

int dcp_value_tensors(const struct dcp_object *o, const struct dcp_value_tensors *tensors)
{
	struct dcp_valuing w = { .tensors = tensors };

	return put_all(&w, NULL, o);
}
