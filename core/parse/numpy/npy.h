/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy: the header before an array's bytes, as numpy.load expects it and as others wrote
 * it.
 *
 *   \x93NUMPY 1 0, u16 LE header length, {'descr': '<f4', 'fortran_order': False,
 *   'shape': (2, 3), }, spaces, newline; data starts at a multiple of 64.
 *   Version 2.0 (u32 length) only when the header is longer than 65535 bytes; 3.0 is 2.0 whose
 *   field names are UTF-8.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/model/tensor.h"

struct dcp_buf;
struct dcp_err;
struct dcp_source;

/*
 * Append the header for numbers of @dtype as .npy shows them (dcp_dtype_info()->npy; F4's
 * last dimension doubled, since each byte holds two numbers). A 0-dim F4 gets shape (2,).
 * Returns 0, -ENOTSUP when numpy has no such numbers (DCP_DTYPE_OTHER), or -ENOMEM.
 */
int dcp_npy_header(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
		   const uint64_t *shape);

/* The same for elements as they are stored: BF16 as those who have it write it (V2, see
 * dcp_npy_read()); other types that numpy has not are -ENOTSUP. */
int dcp_npy_header_stored(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
			  const uint64_t *shape);

/* Bytes dcp_npy_header() would append, by arithmetic: a listing asks it of every file. 0: none.
 */
size_t dcp_npy_header_size(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape);

#define DCP_NPY_HEAD_MAX                                                                       \
	(1u << 20) /* of a header; only records of thousands of fields have more */

enum dcp_npy_kind {
	DCP_NPY_NUMBERS, /* or strings, dates, bytes: of a size that is known */
	DCP_NPY_OBJECTS, /* a pickle follows the header */
	DCP_NPY_RECORDS, /* several types in one element */
};

struct dcp_npy {
	enum dcp_npy_kind kind;
	enum dcp_dtype dtype;
	char dtype_name[24]; /* the table's, or for OTHER numpy's without byte order: "U5" */
	uint32_t itemsize;   /* 0 unless NUMBERS */
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t stride[DCP_MAX_NDIM]; /* elements */
	bool row_major;                /* or what is stored like it, as a vector is */
	bool swap;                     /* big-endian elements */
	uint64_t off, nbytes;          /* of the elements; they may extend past the source */
};

/*
 * Read the header at the start of @src, which need not hold more than that. numpy has no
 * bfloat16: libraries that have it write its arrays as two bytes without a type (V2), and nothing
 * else is written so, so V2 is read as BF16. -EBADMSG (not an .npy, or a damaged header),
 * -E2BIG, -ENOTSUP (a version after 3.0), -ENOMEM, or what reading gave.
 */
int dcp_npy_read(const struct dcp_source *src, struct dcp_npy *out, struct dcp_err *err);
