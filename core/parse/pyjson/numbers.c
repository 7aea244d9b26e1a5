/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of a numpy array or scalar. Every one is exact: integers by their digits, others
 * as the double that has the same value, by the shortest digits that read back as it.
 */
#include <math.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/endian.h"
#include "core/base/jsonw.h"
#include "core/parse/pyjson/pyjson_int.h"

enum { MAX_NUMBERS = 1024, MAX_DIMS = 8 };

static const struct {
	const char *code, *type;
} numbers[] = {
	{ "b1", "numpy.bool" },      { "i1", "numpy.int8" },        { "i2", "numpy.int16" },
	{ "i4", "numpy.int32" },     { "i8", "numpy.int64" },       { "u1", "numpy.uint8" },
	{ "u2", "numpy.uint16" },    { "u4", "numpy.uint32" },      { "u8", "numpy.uint64" },
	{ "f2", "numpy.float16" },   { "f4", "numpy.float32" },     { "f8", "numpy.float64" },
	{ "c8", "numpy.complex64" }, { "c16", "numpy.complex128" },
};

const char *dcp_pyjson_scalar_of(const char *code)
{
	size_t i = 0;

	while (strcmp(numbers[i].code, code) != 0)
		i++;
	return numbers[i].type;
}

const char *dcp_pyjson_number(const char *code, size_t n)
{
	for (size_t i = 0; i < DCP_LEN(numbers); i++)
		if (strlen(numbers[i].code) == n && memcmp(numbers[i].code, code, n) == 0)
			return numbers[i].code;
	return NULL;
}

const char *dcp_pyjson_scalar(const char *type, size_t n, const char **code)
{
	for (size_t i = 0; i < DCP_LEN(numbers); i++)
		if (strlen(numbers[i].type) == n && memcmp(numbers[i].type, type, n) == 0) {
			if (code)
				*code = numbers[i].code;
			return numbers[i].type;
		}
	return NULL;
}

static double half(uint16_t h)
{
	int exponent = h >> 10 & 0x1f;
	double fraction = h & 0x3ff, sign = h >> 15 ? -1 : 1;

	if (exponent == 0x1f)
		return fraction != 0 ? NAN : sign * HUGE_VAL;
	return sign * (exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24));
}

/* @p: little-endian, @size bytes. */
static double real(const uint8_t *p, size_t size)
{
	uint32_t single = 0;
	uint64_t bits = 0;
	double d;
	float f;

	if (size == 2)
		return half(dcp_load_le16(p));
	if (size == 4) {
		single = dcp_load_le32(p);
		memcpy(&f, &single, sizeof(f));
		return (double)f;
	}
	bits = dcp_load_le64(p);
	memcpy(&d, &bits, sizeof(d));
	return d;
}

static void put_complex(struct dcp_jsonw *w, const uint8_t *p, size_t size)
{
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "$class", "complex");
	dcp_jsonw_put_array(w, "args");
	dcp_jsonw_f64(w, real(p, size / 2));
	dcp_jsonw_f64(w, real(p + size / 2, size / 2));
	dcp_jsonw_end(w);
	dcp_jsonw_end(w);
}

static size_t size_of(const struct dcp_pyjson_array *a)
{
	return a->descr[3] ? 16 : (size_t)(a->descr[2] - '0');
}

static void put_number(struct dcp_jsonw *w, const struct dcp_pyjson_array *a,
		       const uint8_t *from)
{
	char order = a->descr[0], kind = a->descr[1];
	size_t size = size_of(a), unit = kind == 'c' ? size / 2 : size;
	uint8_t p[16] = { 0 };
	uint64_t bits;

	for (size_t i = 0; i < size; i++)
		p[i] = from[order == '>' ? i / unit * unit + (unit - 1 - i % unit) : i];
	bits = dcp_load_le64(p);
	if (kind == 'b')
		dcp_jsonw_bool(w, bits != 0);
	else if (kind == 'u')
		dcp_jsonw_u64(w, bits);
	else if (kind == 'i')
		dcp_jsonw_i64(w, (int64_t)(bits << (64 - 8 * size)) >> (64 - 8 * size));
	else if (kind == 'f')
		dcp_jsonw_f64(w, real(p, size));
	else
		put_complex(w, p, size);
}

bool dcp_pyjson_few(const struct dcp_pyjson_array *a)
{
	return a->ndim <= MAX_DIMS && a->nbytes / size_of(a) <= MAX_NUMBERS &&
	       (a->nbytes || a->ndim == 1);
}

/* One array for each index of dimension @k; @dim and @step are lengths and bytes. */
static void put_dimension(struct dcp_jsonw *w, const struct dcp_pyjson_array *a,
			  const uint8_t *bytes, const uint64_t *dim, const uint64_t *step,
			  size_t k)
{
	if (k == a->ndim) {
		put_number(w, a, bytes);
		return;
	}
	dcp_jsonw_array(w);
	for (uint64_t i = 0; i < dim[k]; i++)
		put_dimension(w, a, bytes + i * step[k], dim, step, k + 1);
	dcp_jsonw_end(w);
}

void dcp_pyjson_numbers(struct dcp_jsonw *w, const struct dcp_pyjson_array *a,
			const void *bytes)
{
	uint64_t dim[MAX_DIMS] = { 0 }, step[MAX_DIMS] = { 0 }, size = size_of(a);

	for (size_t i = 0; i < a->ndim; i++) {
		size_t k = a->fortran ? i : a->ndim - 1 - i;

		dcp_pv_u64(a->shape[k], &dim[k]);
		step[k] = size;
		size *= dim[k];
	}
	put_dimension(w, a, bytes, dim, step, 0);
}
