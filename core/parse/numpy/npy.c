/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte for byte what numpy.save has written since 1.24: it leaves room for the first
 * dimension to grow to 21 digits, then pads, a whole 64 bytes where nothing was missing.
 */
#include "core/parse/numpy/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/endian.h"

enum { ALIGN = 64, MAGIC = 8, GROWTH = 21 };

/* The dimension as numpy counts it: an element of F4 holds two numbers. */
static uint64_t dim(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape, uint32_t i)
{
	return i + 1 == ndim ? dcp_dtype_info(dtype)->values * shape[i] : shape[i];
}

static void add_dict(struct dcp_buf *out, const char *descr, enum dcp_dtype dtype,
		     uint32_t ndim, const uint64_t *shape)
{
	char digits[24];

	dcp_buf_printf(out, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
	for (uint32_t i = 0; i < ndim; i++)
		dcp_buf_printf(out, "%s%" PRIu64, i ? ", " : "", dim(dtype, ndim, shape, i));
	dcp_buf_str(out, ndim == 1 ? ",), }" : "), }");
	if (ndim)
		dcp_buf_printf(out, "%*s",
			       GROWTH - snprintf(digits, sizeof(digits), "%" PRIu64,
						 dim(dtype, ndim, shape, 0)),
			       "");
}

static size_t digits_of(uint64_t v)
{
	size_t n = 1;

	while (v /= 10)
		n++;
	return n;
}

/* Length of what add_dict() writes. */
static size_t dict_size(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape)
{
	size_t n = strlen("{'descr': '', 'fortran_order': False, 'shape': (), }") +
		   strlen(dcp_dtype_info(dtype)->npy);

	for (uint32_t i = 0; i < ndim; i++)
		n += (i ? 2 : 0) + digits_of(dim(dtype, ndim, shape, i));
	if (ndim)
		n += (ndim == 1) + GROWTH - digits_of(dim(dtype, ndim, shape, 0));
	return n;
}

/* Bytes between the length field and the data for a dict of that length. */
static size_t padded(size_t dict, size_t width)
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
	if (padded(n, width) > UINT16_MAX)
		width = 4;
	return MAGIC + width + padded(n, width);
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
	n = padded(dict.n, width);
	if (n > UINT16_MAX) {
		width = 4;
		n = padded(dict.n, width);
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
