/* SPDX-License-Identifier: Apache-2.0 */
/* numpy: arrays of numpy, in .npy files (npy) and in pickles (ndpickle). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

/*
 * npy: the header before the bytes of an array. It is written as numpy.save does, and read in the
 * form of any writer.
 *
 *   \x93NUMPY 1 0, u16 LE header length, {'descr': '<f4', 'fortran_order': False,
 *   'shape': (2, 3), }, spaces, newline; data starts at a multiple of 64.
 *   Version 2.0 (u32 length) is used only if the header is longer than 65535 bytes; version 3.0
 *   is 2.0 with field names in UTF-8.
 */

struct dcp_buf;
struct dcp_err;
struct dcp_source;

/*
 * Append the header for numbers of @dtype, with the type dcp_dtype_info()->npy. The last dimension
 * of an F4 array is doubled, since each byte holds two numbers; an F4 array without dimensions gets
 * the shape (2,).
 * Returns 0, -ENOTSUP if numpy has no such numbers (DCP_DTYPE_OTHER), or -ENOMEM.
 */
int dcp_npy_header(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
		   const uint64_t *shape);

/* The same, for elements that are not converted: BF16 is V2, as in dcp_npy_read(). -ENOTSUP for
 * other types that numpy does not have. */
int dcp_npy_header_stored(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
			  const uint64_t *shape);

/* The number of bytes that dcp_npy_header() would append; 0: it would fail. Computed without
 * writing, because a listing needs the size of every file. */
size_t dcp_npy_header_size(enum dcp_dtype dtype, uint32_t ndim, const uint64_t *shape);

#define DCP_NPY_HEAD_MAX                                                                       \
	(1u << 20) /* bytes of a header; only records of thousands of fields have more */

enum dcp_npy_kind {
	DCP_NPY_NUMBERS, /* or strings, dates, bytes: elements of a fixed size */
	DCP_NPY_OBJECTS, /* a pickle follows the header */
	DCP_NPY_RECORDS, /* several types in one element */
};

struct dcp_npy {
	enum dcp_npy_kind kind;
	enum dcp_dtype dtype;
	char dtype_name[24]; /* dcpfs's name; OTHER: numpy's without byte order, "U5" */
	uint32_t itemsize;   /* 0 unless NUMBERS */
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t stride[DCP_MAX_NDIM]; /* elements */
	bool row_major;                /* also if both orders are the same */
	bool swap;                     /* big-endian elements */
	uint64_t off, nbytes;          /* of the elements; they may extend past the source */
};

/*
 * Read the header at the start of @src, which may end after the header. numpy has no bfloat16:
 * libraries that have it write such arrays as two bytes without a type (V2). No other type is
 * written as V2, so V2 is read as BF16. Returns 0, -EBADMSG (not an .npy, or a damaged header),
 * -E2BIG, -ENOTSUP (a version after 3.0), -ENOMEM, or the error of reading.
 */
int dcp_npy_read(const struct dcp_source *src, struct dcp_npy *out, struct dcp_err *err);

/*
 * ndpickle: which numpy array does a pickled value stand for, and where do its bytes lie?
 *
 * numpy pickles arrays in three ways, each under its old and its new module names:
 *
 *   numpy.core.multiarray._reconstruct(ndarray, (0,), b'b') + BUILD (1, shape, dtype, fortran,
 *       payload)                                                     protocols 0 to 4
 *   numpy.core.numeric._frombuffer(payload, dtype, shape, order[, axes])        protocol 5
 *   numpy.core.multiarray.scalar(dtype, payload)                                0-dim values
 *
 * The payload is not copied: the caller reads the pickle with far_bytes and far_text set, and the
 * result is the place of the payload in the source. In protocol 2 a payload is a str: the bytes
 * as Latin-1 characters, written as UTF-8; the filter is then DCP_FILTER_LATIN1, and off and
 * nbytes give the place of the text.
 *
 * dtypes are numpy's: the caller knows what a framework means by u2 (Paddle: bfloat16).
 */

/* For far_bytes and far_text of dcp_pickle_opts when arrays are read: longer payloads are referred
 * to, not copied. */
#define DCP_NDARRAY_FAR_BYTES 256
#define DCP_NDARRAY_FAR_TEXT 4096

struct dcp_ndarray {
	enum dcp_dtype dtype;
	uint32_t itemsize;
	uint32_t ndim;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t stride[DCP_MAX_NDIM]; /* elements */
	bool row_major;                /* strides are those of a dense row-major array */
	bool swap;                     /* big-endian elements */
	enum dcp_filter filter;        /* DCP_FILTER_NONE or DCP_FILTER_LATIN1 */
	uint64_t off, nbytes;          /* the place of the payload in the pickle's source */
};

/*
 * Is @v a numpy array? Returns 1 and fills @out; the payload then has the size that shape and
 * dtype need (of a payload written as text, this is not certain).
 * Returns 0 if @v is not an array. Negative, with the reason in @err: the description of the
 * array is damaged (-EBADMSG), or its elements are not plain numbers or not stored as such
 * (-ENOTSUP: objects, strings, records, masks; the escapes of protocol 0).
 */
int dcp_ndarray_read(struct dcp_pv v, struct dcp_ndarray *out, struct dcp_err *err);

/* Fill in the fields of @p that say where the bytes of @a lie in the file of the pickle, and in
 * which form. */
static inline void dcp_ndarray_place(const struct dcp_ndarray *a, struct dcp_piece *p)
{
	p->stride = a->row_major ? NULL : a->stride;
	p->off = a->off;
	p->nbytes = a->nbytes;
	p->filter = (uint8_t)a->filter;
	p->swap = a->swap;
}

/* Would dcp_ndarray_read() return anything but 0? Examines only @v, no values inside it. */
bool dcp_ndarray_is(struct dcp_pv v);
