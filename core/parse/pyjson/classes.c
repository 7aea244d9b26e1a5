/* SPDX-License-Identifier: Apache-2.0 */
/* The table of classes, and the meaning of the bytes that some of their values hold. */
#include "core/parse/pyjson/pyjson_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/jsonw.h"
#include "core/parse/parse.h"

enum { MAX_NUMBERS = 1024, MAX_DIMS = 8 };

#define NUMBER(called, of)                                                                     \
	{                                                                                      \
		called, "numpy.core.multiarray", "scalar", DCP_PYJSON_ARRAY,                   \
			.hidden = true, .code = true, .number = of                             \
	}

/* clang-format off */
/* If several classes have the same function or name, the first counts. */
static const struct dcp_pyclass classes[] = {
	{ "int", "builtins", "int", DCP_PYJSON_CLASS, .old = "long" },
	{ "str", "builtins", "str", DCP_PYJSON_CLASS, .old = "unicode" },
	{ "bytes", "builtins", "bytes", DCP_PYJSON_BYTES },
	{ "bytes", "_codecs", "encode", DCP_PYJSON_BYTES },
	{ "bytearray", "builtins", "bytearray", DCP_PYJSON_BYTES, .hidden = true },
	{ "tuple", NULL, NULL, DCP_PYJSON_LIST, .hidden = true },
	{ "set", "builtins", "set", DCP_PYJSON_SET },
	{ "frozenset", "builtins", "frozenset", DCP_PYJSON_SET, .hidden = true, .code = true },
	{ "complex", "builtins", "complex", DCP_PYJSON_CLASS, .args = true },
	{ "range", "builtins", "range", DCP_PYJSON_CLASS, .args = true, .code = true, .old = "xrange" },
	{ "slice", "builtins", "slice", DCP_PYJSON_CLASS, .args = true, .code = true },
	{ "collections.OrderedDict", "collections", "OrderedDict", DCP_PYJSON_DICT, .hidden = true },
	{ "datetime.timedelta", "datetime", "timedelta", DCP_PYJSON_SECONDS, .hidden = true, .code = true },
	{ "datetime.datetime", "datetime", "datetime", DCP_PYJSON_TIME, .hidden = true, .code = true },
	{ "datetime.date", "datetime", "date", DCP_PYJSON_TIME, .hidden = true, .code = true },
	{ "datetime.time", "datetime", "time", DCP_PYJSON_TIME, .hidden = true, .code = true },
	{ "torch.Size", "torch", "Size", DCP_PYJSON_LIST, .hidden = true },
	{ "torch.device", "torch", "device", DCP_PYJSON_CLASS, .args = true },
	{ "torch.dtype", NULL, NULL, DCP_PYJSON_NAME, .args = true },
	{ "torch.layout", "torch.serialization", "_get_layout", DCP_PYJSON_CLASS },
	{ "torch.torch_version.TorchVersion", "torch.torch_version", "TorchVersion", DCP_PYJSON_TEXT },
	{ "numpy.ndarray", "numpy.core.multiarray", "_reconstruct", DCP_PYJSON_ARRAY, .code = true },
	{ "numpy.ndarray", "numpy.core.numeric", "_frombuffer", DCP_PYJSON_ARRAY, .code = true },
	{ "numpy.generic", "numpy.core.multiarray", "scalar", DCP_PYJSON_ARRAY },
	NUMBER("numpy.bool", "b1"), NUMBER("numpy.int8", "i1"), NUMBER("numpy.int16", "i2"),
	NUMBER("numpy.int32", "i4"), NUMBER("numpy.int64", "i8"), NUMBER("numpy.uint8", "u1"),
	NUMBER("numpy.uint16", "u2"), NUMBER("numpy.uint32", "u4"), NUMBER("numpy.uint64", "u8"),
	NUMBER("numpy.float16", "f2"), NUMBER("numpy.float32", "f4"), NUMBER("numpy.float64", "f8"),
	NUMBER("numpy.complex64", "c8"), NUMBER("numpy.complex128", "c16"),
};
/* clang-format on */

const struct dcp_pyclass *dcp_pyclass_made(struct dcp_pv function)
{
	for (size_t i = 0; i < DCP_LEN(classes); i++)
		if (classes[i].function &&
		    dcp_pv_is_global(function, classes[i].module, classes[i].function))
			return &classes[i];
	return NULL;
}

const struct dcp_pyclass *dcp_pyclass_named(const char *name, size_t n)
{
	for (size_t i = 0; i < DCP_LEN(classes); i++)
		if (strlen(classes[i].name) == n && memcmp(classes[i].name, name, n) == 0)
			return &classes[i];
	return NULL;
}

const struct dcp_pyclass *dcp_pyclass_of_number(const char *code, size_t n)
{
	for (size_t i = 0; i < DCP_LEN(classes); i++)
		if (classes[i].number && strlen(classes[i].number) == n &&
		    memcmp(classes[i].number, code, n) == 0)
			return &classes[i];
	return NULL;
}

/* Protocol 2 uses Python 2's names of some builtins. */
const char *dcp_pyjson_class(struct dcp_pv v)
{
	bool builtin = strcmp(v.node->module, "builtins") == 0 ||
		       strcmp(v.node->module, "__builtin__") == 0;

	for (size_t i = 0; builtin && i < DCP_LEN(classes); i++)
		if (classes[i].old && strcmp(classes[i].old, v.node->name) == 0)
			return classes[i].name;
	return builtin ? v.node->name : v.node->full;
}

/* ---- numbers ---- */

/* Numbers of a numpy array or scalar are written exactly: integers by all their digits, others by
 * the shortest digits that a double of the same value has. */

static double read_half(uint16_t h)
{
	int exponent = h >> 10 & 0x1f;
	double fraction = h & 0x3ff, sign = h >> 15 ? -1 : 1;

	if (exponent == 0x1f)
		return fraction != 0 ? NAN : sign * HUGE_VAL;
	return sign * (exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24));
}

/* @p: little-endian, @size bytes. */
static double read_real(const uint8_t *p, size_t size)
{
	uint32_t single = 0;
	uint64_t bits = 0;
	double d;
	float f;

	if (size == 2)
		return read_half(dcp_load_le16(p));
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
	dcp_jsonw_f64(w, read_real(p, size / 2));
	dcp_jsonw_f64(w, read_real(p + size / 2, size / 2));
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
		dcp_jsonw_f64(w, read_real(p, size));
	else
		put_complex(w, p, size);
}

bool dcp_pyjson_few(const struct dcp_pyjson_array *a)
{
	return a->ndim <= MAX_DIMS && a->nbytes / size_of(a) <= MAX_NUMBERS &&
	       (a->nbytes || a->ndim == 1);
}

/* Write an array for each index of dimension @k; @dim and @step are lengths and bytes. */
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

/* bytes: the forms in which Python pickles bytes. */

/* The length of bytes kept as Latin-1 text; false: the text has other characters. */
static bool latin1_length(struct dcp_pv str, uint64_t *n)
{
	size_t count = 0;

	if (str.type != DCP_PV_STR || dcp_latin1_narrow(str.node->data, str.node->n, NULL,
							&count) != (ptrdiff_t)str.node->n)
		return false;
	*n = count;
	return true;
}

uint64_t dcp_pyjson_bytes_len(struct dcp_pv v)
{
	uint64_t n = 0;

	if (v.type == DCP_PV_BYTES || v.type == DCP_PV_BYTEARRAY)
		return v.node->n;
	return latin1_length(v, &n) ? n : 0;
}

static bool is_latin1_name(struct dcp_pv v)
{
	return dcp_pv_is_str(v, "latin1") || dcp_pv_is_str(v, "latin-1");
}

/*
 * Find bytes and bytearray in all their forms. Protocol 2 has neither, and calls
 * _codecs.encode(text, "latin1"), bytes() or bytearray(text, "latin-1"). The argument
 * may have such a form itself, but not its argument in turn (@inner).
 */
static bool look_bytes(struct dcp_pv v, struct dcp_pv *out, bool inner)
{
	const struct dcp_pyclass *c = dcp_pyclass_of(v);
	const struct dcp_pv *arg;
	uint64_t len;
	bool encode;
	size_t n = 0;

	if (v.type == DCP_PV_BYTES || v.type == DCP_PV_BYTEARRAY) {
		*out = v;
		return true;
	}
	if (!c || c->form != DCP_PYJSON_BYTES || !v.node->obj->called)
		return false;
	encode = strcmp(c->function, "encode") == 0;
	arg = dcp_pv_items(v.node->obj->args, &n);
	if (!encode && n == 0) {
		*out = (struct dcp_pv){ .type = DCP_PV_NONE };
		return true;
	}
	if (!encode && n == 1 && !inner)
		return look_bytes(arg[0], out, true);
	if (n == 2 && is_latin1_name(arg[1]) && latin1_length(arg[0], &len)) {
		*out = arg[0];
		return true;
	}
	return false;
}

bool dcp_pyjson_look_bytes(struct dcp_pv v, struct dcp_pv *out)
{
	return look_bytes(v, out, false);
}

/*
 * Python's datetime module pickles its classes as calls with a packed state:
 *
 *	datetime(b"\x07\xe8\x01\x02\x03\x04\x05\x00\x00\x06", timezone(timedelta(0, 3600)))
 *	         year, 2 bytes; month, day, hour, minute, second; microsecond, 3 bytes
 *	date     year, month, day
 *	time     hour, minute, second, microsecond
 *
 * The highest bit of the month (of the hour in time) is fold.
 */

enum { MAX_STATE = 10 };

bool dcp_pyjson_span(struct dcp_pv v, int64_t *us)
{
	const struct dcp_pyclass *c = dcp_pyclass_of(v);
	size_t n = 0;
	const struct dcp_pv *arg;

	if (!c || c->form != DCP_PYJSON_SECONDS)
		return false;
	arg = dcp_pv_items(v.node->obj->args, &n);
	/* Python's limit: at most 999999999 days. */
	return n == 3 && arg[0].type == DCP_PV_INT && arg[1].type == DCP_PV_INT &&
	       arg[2].type == DCP_PV_INT && !__builtin_mul_overflow(arg[0].i, 86400, us) &&
	       !__builtin_add_overflow(*us, arg[1].i, us) &&
	       !__builtin_mul_overflow(*us, 1000000, us) &&
	       !__builtin_add_overflow(*us, arg[2].i, us);
}

/* Copy the bytes of @v, if there are @n. */
static bool take_state(struct dcp_pv v, uint8_t *out, size_t n)
{
	struct dcp_pv bytes;

	if (v.type == DCP_PV_STR) /* of Python 2, which has no other bytes */
		bytes = v;
	else if (!dcp_pyjson_look_bytes(v, &bytes))
		return false;
	if (dcp_pyjson_bytes_len(bytes) != n || n == 0 || !bytes.node->data)
		return false;
	if (bytes.type == DCP_PV_STR)
		dcp_latin1_narrow(bytes.node->data, bytes.node->n, out, &n);
	else
		memcpy(out, bytes.node->data, n);
	return true;
}

static bool put_date(char out[48], const uint8_t *p)
{
	unsigned year = (unsigned)p[0] << 8 | p[1];

	if (year < 1 || year > 9999 || p[2] < 1 || p[2] > 12 || p[3] < 1 || p[3] > 31)
		return false;
	snprintf(out, 48, "%04u-%02u-%02u", year, p[2], p[3]);
	return true;
}

static bool put_clock(char *out, const uint8_t *p)
{
	unsigned us = (unsigned)p[3] << 16 | (unsigned)p[4] << 8 | p[5];

	if (p[0] > 23 || p[1] > 59 || p[2] > 59 || us > 999999)
		return false;
	out += sprintf(out, "%02u:%02u:%02u", p[0], p[1], p[2]);
	if (us)
		sprintf(out, ".%06u", us);
	return true;
}

/* Write "+01:00"; a class other than timezone gives only its name. */
static bool put_zone(char *out, struct dcp_pv zone)
{
	const int64_t day = 86400ll * 1000000;
	const struct dcp_pv *arg;
	int64_t us, rest;
	size_t n = 0;

	if (!dcp_pv_is_object(zone, "datetime", "timezone"))
		return false;
	arg = dcp_pv_items(zone.node->obj->args, &n);
	if (n != 1 || !dcp_pyjson_span(arg[0], &us) || us <= -day || us >= day)
		return false;
	rest = us < 0 ? -us : us;
	out += sprintf(out, "%c%02d:%02d", us < 0 ? '-' : '+', (int)(rest / 3600000000ll),
		       (int)(rest / 60000000 % 60));
	if (rest % 60000000)
		out += sprintf(out, ":%02d", (int)(rest / 1000000 % 60));
	if (rest % 1000000)
		sprintf(out, ".%06d", (int)(rest % 1000000));
	return true;
}

bool dcp_pyjson_time(struct dcp_pv v, char iso[48])
{
	const struct dcp_pyclass *class = dcp_pyclass_of(v);
	size_t n = 0, date, clock; /* bytes of its state */
	uint8_t p[MAX_STATE];
	const struct dcp_pv *arg;

	if (!class || class->form != DCP_PYJSON_TIME || v.node->obj->state.type != DCP_PV_NONE)
		return false;
	date = strcmp(class->function, "time") == 0 ? 0 : 4;
	clock = strcmp(class->function, "date") == 0 ? 0 : 6;
	arg = dcp_pv_items(v.node->obj->args, &n);
	if (n < 1 || n > (clock ? 2u : 1u) || !take_state(arg[0], p, date + clock))
		return false;
	*iso = '\0';
	if (date && !put_date(iso, p))
		return false;
	if (date && clock)
		strcat(iso, "T");
	if (clock && !put_clock(iso + strlen(iso), p + date))
		return false;
	return n == 1 || put_zone(iso + strlen(iso), arg[1]);
}
