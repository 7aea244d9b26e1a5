/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and arrays of numpy, from JSON to what numpy pickles.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/endian.h"
#include "core/base/number.h"
#include "core/model/dtype.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/write/ndarray.h"
#include "core/write/value/value_int.h"

/* ---- numbers of numpy ---- */

double dcp_valuing_special(struct dcp_valuing *w)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;

	dcp_valuing_string(w, &text);
	return dcp_valuing_is(&text, "nan")    ? (double)NAN
	       : dcp_valuing_is(&text, "-inf") ? -HUGE_VAL
					       : HUGE_VAL;
}

double dcp_valuing_float(struct dcp_valuing *w)
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

/* Of the type "f4", little-endian. */
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

void dcp_valuing_scalar(struct dcp_valuing *w, const char *code)
{
	uint8_t bytes[16] = { 0 };

	w->values--; /* it has begun */
	take_number(w, code, bytes);
	dcp_pickler_put(w->p, "R c (2", "numpy.core.multiarray", "scalar");
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

	dcp_valuing_string(w, &text);
	a->code = text.n > 2 && memchr("<>|", text.p[0], 3)
			  ? dcp_pyjson_number(text.p + 1, text.n - 1)
			  : NULL;
	if (a->code)
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

void dcp_valuing_array(struct dcp_valuing *w, const char *class, bool hashable)
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
