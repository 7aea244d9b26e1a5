/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numpy: its arrays, in files of their own (npy) and in pickles (ndpickle).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model/dtype.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

/*
 * npy: the header before an array's bytes, as numpy.load expects it and as others wrote
 * it.
 *
 *   \x93NUMPY 1 0, u16 LE header length, {'descr': '<f4', 'fortran_order': False,
 *   'shape': (2, 3), }, spaces, newline; data starts at a multiple of 64.
 *   Version 2.0 (u32 length) only when the header is longer than 65535 bytes; 3.0 is 2.0 whose
 *   field names are UTF-8.
 */

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

/*
 * ndpickle: which numpy array does a pickled value stand for, and where do its bytes lie?
 *
 * Three ways numpy pickles an array, under its old and its new module names:
 *
 *   numpy.core.multiarray._reconstruct(ndarray, (0,), b'b') + BUILD (1, shape, dtype, fortran,
 *       payload)                                                     protocols 0 to 4
 *   numpy.core.numeric._frombuffer(payload, dtype, shape, order[, axes])        protocol 5
 *   numpy.core.multiarray.scalar(dtype, payload)                                0-dim values
 *
 * The payload stays where it is: read the pickle with far_bytes and far_text set, and the result
 * is its place in the source. In protocol 2 a payload is a str, the UTF-8 form of the
 * bytes taken as Latin-1; then filter says so, and off and nbytes are those of the text.
 *
 * dtypes are numpy's: what a framework means by u2 (Paddle: bfloat16) is for its reader to say.
 */

struct dcp_err;

/* What a reader of arrays gives in dcp_pickle_opts: the largest payloads worth copying. */
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
	uint64_t off, nbytes;          /* of the payload, in the source of the pickle */
};

/*
 * Is @v a numpy array? Returns 1 and fills @out: its payload has the size that shape and dtype
 * need (as text: may have it). Returns 0: not an array. Negative: an array whose description
 * is damaged (-EBADMSG), or whose elements are not plain numbers or are not stored as such
 * (-ENOTSUP: objects, strings, records, masks; protocol 0's escapes), described in @err.
 */
int dcp_ndarray_read(struct dcp_pv v, struct dcp_ndarray *out, struct dcp_err *err);

/* What is known of the piece that it is: where its bytes lie in the file of the pickle, and how. */
static inline void dcp_ndarray_place(const struct dcp_ndarray *a, struct dcp_piece *p)
{
	p->stride = a->row_major ? NULL : a->stride;
	p->off = a->off;
	p->nbytes = a->nbytes;
	p->filter = (uint8_t)a->filter;
	p->swap = a->swap;
}

/* Would dcp_ndarray_read() give anything but 0? Looks at @v alone. */
bool dcp_ndarray_is(struct dcp_pv v);
