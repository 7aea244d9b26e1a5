/* SPDX-License-Identifier: Apache-2.0 */
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
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

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
