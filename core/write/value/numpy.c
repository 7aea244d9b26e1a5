/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and arrays of numpy, from JSON to what numpy pickles.
 */
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

int dcp_valuing_float(struct dcp_valuing *w, double *out)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	char number[64];
	const char *end;
	size_t n = 0;
	int rc;

	w->values++;
	if (dcp_valuing_take(w, '{')) {
		rc = dcp_valuing_key(w, &text);
		dcp_buf_reset(&text);
		if (rc == 0)
			rc = dcp_valuing_expect(w, ':');
		if (rc == 0)
			rc = dcp_valuing_string(w, &text);
		*out = dcp_valuing_is(&text, "nan")    ? (double)NAN
		       : dcp_valuing_is(&text, "-inf") ? -HUGE_VAL
						       : HUGE_VAL;
		return rc < 0 ? rc : dcp_valuing_expect(w, '}');
	}
	dcp_valuing_peek(w);
	while (w->at < w->end && n + 1 < sizeof(number) && *w->at &&
	       strchr("+-0123456789.eE", *w->at))
		number[n++] = *w->at++;
	number[n] = '\0';
	*out = dcp_read_float(number, &end);
	return n && !*end ? 0 : dcp_valuing_damaged(w);
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

static int take_complex(struct dcp_valuing *w, uint8_t *to, size_t size)
{
	dcp_auto_buf struct dcp_buf word = DCP_BUF_INIT;
	double re = 0, im = 0;
	int rc = dcp_valuing_expect(w, '{');

	w->values++;
	if (rc == 0)
		rc = dcp_valuing_key(w, &word);
	if (rc == 0)
		rc = dcp_valuing_expect(w, ':');
	if (rc == 0)
		rc = dcp_valuing_string(w, &word);
	if (rc == 0)
		rc = dcp_valuing_args(w);
	if (rc == 0)
		rc = dcp_valuing_float(w, &re);
	if (rc == 0)
		rc = dcp_valuing_expect(w, ',');
	if (rc == 0)
		rc = dcp_valuing_float(w, &im);
	if (rc == 0)
		rc = dcp_valuing_expect(w, ']');
	store_float(to, re, size / 2);
	store_float(to + size / 2, im, size / 2);
	return rc < 0 ? rc : dcp_valuing_expect(w, '}');
}

/* Of the type "f4", little-endian. */
static int take_number(struct dcp_valuing *w, const char *code, uint8_t to[16])
{
	size_t size = code[2] ? 16 : (size_t)(code[1] - '0');
	uint64_t bits;
	bool negative;
	double v = 0;
	int rc;

	if (*code == 'c')
		return take_complex(w, to, size);
	if (*code == 'f') {
		rc = dcp_valuing_float(w, &v);
		store_float(to, v, size);
		return rc;
	}
	w->values++;
	dcp_valuing_peek(w);
	if (*code == 'b') {
		*to = dcp_valuing_word(w, "true");
		return *to || dcp_valuing_word(w, "false") ? 0 : dcp_valuing_damaged(w);
	}
	negative = dcp_valuing_take(w, '-');
	if (!dcp_take_number(&w->at, w->end, DCP_ANY_DIGITS, &bits))
		return dcp_valuing_damaged(w);
	dcp_store_le64(to, negative ? -bits : bits);
	return 0;
}

int dcp_valuing_scalar(struct dcp_valuing *w, const char *code)
{
	uint8_t bytes[16] = { 0 };
	int rc;

	w->values--; /* it has begun */
	rc = take_number(w, code, bytes);
	if (rc < 0 || !w->p)
		return rc;
	dcp_pickler_put(w->p, "R c (2", "numpy.core.multiarray", "scalar");
	dcp_ndarray_put_dtype(w->p, code[1] == '1' ? '|' : '<', code);
	dcp_pickler_bytes(w->p, bytes, code[2] ? 16 : (size_t)(code[1] - '0'));
	return 0;
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

static int take_descr(struct dcp_valuing *w, struct array *a)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	int rc = dcp_valuing_string(w, &text);

	if (rc < 0)
		return rc;
	a->code = text.n > 2 && memchr("<>|", text.p[0], 3)
			  ? dcp_pyjson_number(text.p + 1, text.n - 1)
			  : NULL;
	a->order = text.p[0];
	return a->code ? 0 : dcp_valuing_damaged(w);
}

static int take_shape(struct dcp_valuing *w, struct array *a)
{
	uint8_t dim[16];
	int rc = dcp_valuing_expect(w, '[');

	w->values++;
	if (rc < 0 || dcp_valuing_take(w, ']'))
		return rc;
	do {
		rc = a->ndim < MAX_DIMS ? take_number(w, "u8", dim) : dcp_valuing_damaged(w);
		if (rc == 0)
			a->shape[a->ndim++] = dcp_load_le64(dim);
	} while (rc == 0 && dcp_valuing_more(w, ']', &rc));
	return rc;
}

/* The numbers of nested lists, in their order. */
static int take_numbers(struct dcp_valuing *w, struct array *a, unsigned depth)
{
	size_t size = a->code[2] ? 16 : (size_t)(a->code[1] - '0');
	size_t unit = a->code[0] == 'c' ? size / 2 : size;
	uint8_t le[16] = { 0 }, bytes[16];
	int rc = 0;

	if (dcp_valuing_peek(w) != '[') {
		rc = take_number(w, a->code, le);
		for (size_t i = 0; i < size; i++)
			bytes[i] =
				le[a->order == '>' ? i / unit * unit + unit - 1 - i % unit : i];
		dcp_buf_add(&a->data, bytes, size);
		return rc < 0 ? rc : dcp_buf_error(&a->data);
	}
	w->values++;
	w->at++;
	if (depth == MAX_DIMS)
		return dcp_valuing_damaged(w);
	if (dcp_valuing_take(w, ']'))
		return 0;
	do
		rc = take_numbers(w, a, depth + 1);
	while (rc == 0 && dcp_valuing_more(w, ']', &rc));
	return rc;
}

static int take_data(struct dcp_valuing *w, struct array *a)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	const char *from;
	int rc;

	dcp_valuing_peek(w);
	from = w->at;
	if (!dcp_valuing_take(w, '{'))
		return take_numbers(w, a, 0);
	rc = dcp_valuing_key(w, &key);
	if (rc == 0 && dcp_valuing_is(&key, "$bytes_at"))
		return dcp_valuing_not_plain(w, "an array in it is too long to be at hand");
	if (rc == 0 && !dcp_valuing_is(&key, "$bytes")) { /* all of it is one number */
		w->at = from;
		return take_numbers(w, a, 0);
	}
	w->values++;
	if (rc == 0)
		rc = dcp_valuing_expect(w, ':');
	if (rc == 0)
		rc = dcp_valuing_base64(w, &a->data);
	return rc < 0 ? rc : dcp_valuing_expect(w, '}');
}

static int take_member(struct dcp_valuing *w, struct array *a)
{
	dcp_auto_buf struct dcp_buf key = DCP_BUF_INIT;
	int rc = dcp_valuing_key(w, &key);

	if (rc == 0)
		rc = dcp_valuing_expect(w, ':');
	if (rc < 0)
		return rc;
	if (dcp_valuing_is(&key, "dtype"))
		return take_descr(w, a);
	if (dcp_valuing_is(&key, "shape"))
		return take_shape(w, a);
	if (dcp_valuing_is(&key, "data"))
		return a->code ? take_data(w, a) : dcp_valuing_damaged(w);
	w->values++;
	a->fortran = dcp_valuing_is(&key, "fortran_order") && dcp_valuing_word(w, "true");
	return a->fortran ? 0 : dcp_valuing_damaged(w);
}

static bool is_full(const struct array *a)
{
	uint64_t n = a->code[2] ? 16 : (uint64_t)(a->code[1] - '0');

	for (uint32_t i = 0; i < a->ndim; i++)
		if (dcp_ckd_mul(&n, n, a->shape[i]))
			return false;
	return n == a->data.n;
}

int dcp_valuing_array(struct dcp_valuing *w, const char *class, bool hashable)
{
	struct array a = { .data = DCP_BUF_INIT };
	struct dcp_ndarrays arrays = { .p = w->p };
	int rc = dcp_valuing_expect(w, '{');

	w->values++;
	w->code = "numpy.ndarray";
	if (rc == 0)
		do
			rc = take_member(w, &a);
		while (rc == 0 && dcp_valuing_more(w, '}', &rc));
	if (rc == 0 && (!a.code || !is_full(&a)))
		rc = dcp_valuing_damaged(w);
	if (rc == 0 && w->p) {
		dcp_ndarray_open(&arrays, a.ndim, a.shape);
		dcp_ndarray_put_dtype(w->p, a.order, a.code);
		dcp_pickler_bool(w->p, a.fortran);
		dcp_pickler_bytes(w->p, a.data.p, a.data.n);
	}
	dcp_buf_finish(&a.data);
	return rc;
}
