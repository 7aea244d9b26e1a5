/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the same bytes as numpy.save since 1.24: it leaves room for a first dimension of 21
 * digits, then pads by 1 to 64 bytes. */
#include "core/parse/numpy/numpy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/origin.h"

enum { ALIGN = 64, MAGIC = 8, GROWTH = 21 };

/* The length of dimension @i in numpy's count: an element of F4 holds two numbers. */
static uint64_t count_numbers(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape,
			      uint32_t i)
{
	return i + 1 == ndim ? dcp_dtype_info(dtype)->values * shape[i] : shape[i];
}

static void add_dict(struct dcp_buf *out, const char *descr, enum dcp_dtype dtype,
		     uint32_t ndim, const uint64_t *shape)
{
	char digits[24];

	dcp_buf_printf(out, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
	for (uint32_t i = 0; i < ndim; i++)
		dcp_buf_printf(out, "%s%" PRIu64, i ? ", " : "",
			       count_numbers(dtype, ndim, shape, i));
	dcp_buf_str(out, ndim == 1 ? ",), }" : "), }");
	if (ndim)
		dcp_buf_printf(out, "%*s",
			       GROWTH - snprintf(digits, sizeof(digits), "%" PRIu64,
						 count_numbers(dtype, ndim, shape, 0)),
			       "");
}

static size_t digits_of(uint64_t v)
{
	size_t n = 1;

	while (v /= 10)
		n++;
	return n;
}

/* The length of the text from add_dict(). */
static size_t dict_size(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape)
{
	size_t n = strlen("{'descr': '', 'fortran_order': False, 'shape': (), }") +
		   strlen(dcp_dtype_info(dtype)->npy);

	for (uint32_t i = 0; i < ndim; i++)
		n += (i ? 2 : 0) + digits_of(count_numbers(dtype, ndim, shape, i));
	if (ndim)
		n += (ndim == 1) + GROWTH - digits_of(count_numbers(dtype, ndim, shape, 0));
	return n;
}

/* Bytes between the length field and the data for a dict of that length. */
static size_t pad_dict(size_t dict, size_t width)
{
	return (dict + 1 + MAGIC + width) / ALIGN * ALIGN + ALIGN - MAGIC - width;
}

size_t dcp_npy_header_size(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape)
{
	static const uint64_t one_byte[] = { 1 };
	size_t width = 2, n;

	if (!dcp_dtype_info(dtype)->npy)
		return 0;
	if (dcp_dtype_info(dtype)->values > 1 && ndim == 0)
		n = dict_size(dtype, 1, one_byte);
	else
		n = dict_size(dtype, ndim, shape);
	if (pad_dict(n, width) > UINT16_MAX)
		width = 4;
	return MAGIC + width + pad_dict(n, width);
}

static int add_header(struct dcp_buf *out, const char *descr, enum dcp_dtype dtype,
		      uint32_t ndim, const uint64_t *shape)
{
	static const uint64_t one_byte[] = { 1 };
	dcp_auto_buf struct dcp_buf dict = DCP_BUF_INIT;
	size_t n, width = 2;
	uint8_t word[4];

	if (!descr)
		return -ENOTSUP;
	if (dcp_dtype_info(dtype)->values > 1 && ndim == 0) {
		ndim = 1;
		shape = one_byte;
	}
	add_dict(&dict, descr, dtype, ndim, shape);
	if (dcp_buf_error(&dict))
		return -ENOMEM;
	n = pad_dict(dict.n, width);
	if (n > UINT16_MAX) {
		width = 4;
		n = pad_dict(dict.n, width);
	}
	if (n > UINT32_MAX)
		return -ENOTSUP;
	dcp_store_le32(word, (uint32_t)n);
	dcp_buf_add(out, width == 2 ? "\x93NUMPY\x01" : "\x93NUMPY\x02", MAGIC);
	dcp_buf_add(out, word, width);
	dcp_buf_add(out, dict.p, dict.n);
	return dcp_buf_printf(out, "%*s\n", (int)(n - dict.n - 1), "");
}

int dcp_npy_header(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
		   const uint64_t *shape)
{
	return add_header(out, dcp_dtype_info(dtype)->npy, dtype, ndim, shape);
}

int dcp_npy_header_stored(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
			  const uint64_t *shape)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(dtype);
	const char *descr = dtype == DCP_DTYPE_BF16 ? "<V2" : info->widened ? NULL : info->npy;

	return add_header(out, descr, dtype, ndim, shape);
}

/* The header is a Python literal, which numpy evaluates. Only the forms that arrays have are read;
 * all others are refused. */

enum { MAX_DEEP = 64 };

/* The position of the reader in the literal. */
struct cursor {
	const char *p, *end;
	bool bad;
};

static void skip_blanks(struct cursor *c)
{
	while (c->p < c->end && *c->p && strchr(" \t\r\n", *c->p))
		c->p++;
}

/* Step over @what if it comes next. */
static bool take_text(struct cursor *c, const char *what)
{
	size_t n = strlen(what);

	skip_blanks(c);
	if ((size_t)(c->end - c->p) < n || memcmp(c->p, what, n) != 0)
		return false;
	c->p += n;
	return true;
}

static void expect_text(struct cursor *c, const char *what)
{
	if (!c->bad && !take_text(c, what))
		c->bad = true;
}

/* Take a string without escapes: the bytes between its quotes. */
static const char *take_string(struct cursor *c, size_t *n)
{
	const char *start;
	char quote;

	skip_blanks(c);
	quote = c->p < c->end ? *c->p : 0;
	start = ++c->p;
	while (c->p < c->end && *c->p != quote && *c->p != '\\')
		c->p++;
	if ((quote != '\'' && quote != '"') || c->p >= c->end || *c->p != quote) {
		c->bad = true;
		c->p = c->end;
		return "";
	}
	*n = (size_t)(c->p++ - start);
	return start;
}

/* Python 2 wrote some numbers as 3L. */
static uint64_t take_number(struct cursor *c)
{
	uint64_t v = 0;

	skip_blanks(c);
	if (!dcp_take_number(&c->p, c->end, DCP_ANY_DIGITS, &v))
		c->bad = true;
	if (c->p < c->end && *c->p == 'L')
		c->p++;
	return v;
}

/* Step over the list of fields in the dtype of records; only its brackets are checked. */
static void skip_list(struct cursor *c)
{
	char open[MAX_DEEP];
	size_t deep = 0, n;

	do {
		skip_blanks(c);
		if (c->p == c->end || !*c->p)
			c->bad = true;
		else if (*c->p == '\'' || *c->p == '"')
			take_string(c, &n);
		else if (strchr("[(", *c->p) && deep < MAX_DEEP)
			open[deep++] = *c->p++ == '[' ? ']' : ')';
		else if (strchr("[()]", *c->p))
			c->bad |= deep == 0 || open[--deep] != *c->p++;
		else
			c->p++;
	} while (!c->bad && deep > 0);
}

/* ---- the three entries ---- */

/* The size of an element of a type outside our table: "U5" has four bytes for each character. */
static bool other_size(const char *code, size_t n, uint32_t *size)
{
	struct cursor c = { code + 1, code + n, false };
	uint64_t v = take_number(&c);

	if (c.bad || v == 0 || v > UINT32_MAX / 4 || !strchr("iufcbSaUVmM", *code))
		return false;
	*size = (uint32_t)(*code == 'U' ? 4 * v : v);
	return strchr("mM", *code) || c.p == c.end;
}

static void take_descr(struct cursor *c, struct dcp_npy *a)
{
	const char *text, *code;
	size_t n = 0;
	bool big;

	skip_blanks(c);
	if (c->p < c->end && *c->p == '[') {
		a->kind = DCP_NPY_RECORDS;
		skip_list(c);
		return;
	}
	text = take_string(c, &n);
	big = n > 0 && *text == '>';
	code = text + (n > 0 && strchr("<>|=", *text));
	n -= (size_t)(code - text);
	if (c->bad || n == 0 || n >= sizeof(a->dtype_name) || memchr(code, 0, n)) {
		c->bad = true;
		return;
	}
	snprintf(a->dtype_name, sizeof(a->dtype_name), "%.*s", (int)n, code);
	if (*code == 'O') {
		a->kind = DCP_NPY_OBJECTS;
		return;
	}
	a->dtype = strcmp(a->dtype_name, "V2") == 0 ? DCP_DTYPE_BF16
						    : dcp_dtype_from_numpy(code, n);
	a->itemsize = dcp_dtype_info(a->dtype)->size;
	if (a->dtype == DCP_DTYPE_OTHER)
		c->bad |= !other_size(code, n, &a->itemsize);
	else
		snprintf(a->dtype_name, sizeof(a->dtype_name), "%s",
			 dcp_dtype_info(a->dtype)->name);
	a->swap = big && a->itemsize > 1;
}

static void take_shape(struct cursor *c, struct dcp_npy *a)
{
	expect_text(c, "(");
	while (!c->bad && !take_text(c, ")")) {
		if (a->ndim == DCP_MAX_NDIM) {
			c->bad = true;
			return;
		}
		a->shape[a->ndim++] = take_number(c);
		if (!take_text(c, ",")) {
			expect_text(c, ")");
			return;
		}
	}
}

static bool take_order(struct cursor *c)
{
	if (take_text(c, "True"))
		return true;
	expect_text(c, "False");
	return false;
}

/* Read the three entries, in any order, each once. */
static bool take_dict(struct cursor *c, struct dcp_npy *a, bool *fortran)
{
	static const char *const names[] = { "descr", "fortran_order", "shape" };
	unsigned seen = 0;

	expect_text(c, "{");
	while (!c->bad && !take_text(c, "}")) {
		size_t n = 0;
		const char *name = take_string(c, &n);
		unsigned k = 0;

		while (k < DCP_LEN(names) &&
		       (n != strlen(names[k]) || memcmp(name, names[k], n) != 0))
			k++;
		expect_text(c, ":");
		if (c->bad || k == DCP_LEN(names) || seen >> k & 1)
			return false;
		seen |= 1u << k;
		if (k == 0)
			take_descr(c, a);
		else if (k == 1)
			*fortran = take_order(c);
		else
			take_shape(c, a);
		if (!take_text(c, ",")) {
			expect_text(c, "}");
			break;
		}
	}
	skip_blanks(c);
	return !c->bad && c->p == c->end && seen == 7;
}

/* ---- the header ---- */

static void lay_out(struct dcp_npy *a, bool fortran)
{
	uint64_t step = 1;

	for (uint32_t i = 0; i < a->ndim; i++) {
		uint32_t d = fortran ? i : a->ndim - 1 - i;

		a->stride[d] = step;
		step *= DCP_MAX(a->shape[d], 1);
	}
	a->row_major = dcp_row_major(a->shape, a->stride, a->ndim);
}

int dcp_npy_read(const struct dcp_source *src, struct dcp_npy *out, struct dcp_err *err)
{
	dcp_auto_free char *text = NULL;
	struct dcp_npy a = { 0 };
	uint8_t head[MAGIC + 4];
	struct cursor c;
	size_t n, width;
	bool fortran = false;
	int rc = src->size < sizeof(head) ? -EBADMSG
					  : dcp_source_read(src, 0, head, sizeof(head));

	if (rc == -EBADMSG || (rc == 0 && memcmp(head, "\x93NUMPY", 6) != 0))
		return dcp_fail_at(err, -EBADMSG, 0,
				   "not an .npy array: it does not begin as one");
	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "the header of an array cannot be read");
	if (head[6] < 1 || head[6] > 3 || head[7] != 0)
		return dcp_fail_at(err, -ENOTSUP, 6, "version %u.%u of .npy, expected 1 to 3",
				   head[6], head[7]);
	width = head[6] == 1 ? 2 : 4;
	n = width == 2 ? dcp_load_le16(head + MAGIC) : dcp_load_le32(head + MAGIC);
	if (n > DCP_NPY_HEAD_MAX)
		return dcp_fail_at(err, -E2BIG, MAGIC,
				   "an array's header of %zu bytes, expected at most %u", n,
				   DCP_NPY_HEAD_MAX);
	text = malloc(n + 1);
	if (!text)
		return dcp_fail(err, -ENOMEM, "out of memory");
	rc = dcp_source_read(src, MAGIC + width, text, n);
	if (rc < 0)
		return dcp_fail_at(err, rc, MAGIC,
				   "an array's header of %zu bytes is cut short", n);
	c = (struct cursor){ text, text + n, false };
	if (!take_dict(&c, &a, &fortran))
		return dcp_fail_at(err, -EBADMSG, MAGIC + width + (uint64_t)(c.p - text),
				   "an array's header has another form than numpy's");
	if (!dcp_shape_nbytes(a.shape, a.ndim, a.itemsize, &a.nbytes))
		return dcp_fail_at(err, -EBADMSG, MAGIC, "shape of an array overflows");
	lay_out(&a, fortran);
	a.off = MAGIC + width + n;
	*out = a;
	return 0;
}
