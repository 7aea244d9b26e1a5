/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lodtensor: the tensor that Paddle's C++ wrote as a stream (use_binary_format, .pdiparams).
 *
 *	u32 0                                    version of the LoD part
 *	u64 levels, each u64 bytes and them      how rows group into sequences; normally none
 *	u32 0                                    version of the tensor part
 *	i32 length, then that much protobuf      1: dtype, 2: dimensions
 *	the elements                             row-major, little-endian, no padding
 *
 * A .pdiparams consists of consecutive such streams. A SelectedRows (the gradient of a sparse
 * embedding) is u32 0, u64 rows, each i64, i64 height, and then a tensor part.
 *
 * Sources: paddle/phi/core/framework/{dense_tensor_serialize,selected_rows_serialize}.cc,
 * framework.proto.
 */
#pragma once
#include <stdint.h>

#include "core/model/tensor.h"

struct dcp_buf;
struct dcp_err;
struct dcp_pb;
struct dcp_source;

struct dcp_lodtensor {
	enum dcp_dtype dtype;
	const char *dtype_name;
	uint32_t itemsize, ndim;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t off, nbytes; /* the elements; the next stream starts after them */
};

/*
 * The stream at @off of @src: 0, -EBADMSG (something else, or cut: found against expected),
 * -ENOTSUP (a dtype without numbers), or what the source gave. When only the elements are cut,
 * @out is filled in all the same.
 */
int dcp_lodtensor_read(const struct dcp_source *src, uint64_t off, struct dcp_lodtensor *out,
		       struct dcp_err *err);

struct dcp_selected_rows {
	uint64_t nrows, rows_off; /* I64 each */
	uint64_t height;
	struct dcp_lodtensor value;
};

/* The same for a file that is one SelectedRows. */
int dcp_selected_rows_read(const struct dcp_source *src, struct dcp_selected_rows *out,
			   struct dcp_err *err);

/*
 * A TensorDesc of Paddle's framework.proto: field 1 the dtype, field 2 the dimensions, -1 where
 * a program leaves one open. Returns 0 or -EBADMSG.
 */
struct dcp_lodtensor_desc {
	uint64_t dtype;
	uint32_t ndim;
	int64_t dims[DCP_MAX_NDIM];
};
int dcp_lodtensor_desc(struct dcp_pb pb, struct dcp_lodtensor_desc *out, struct dcp_err *err);

/* Append such a TensorDesc, or all of a stream that stands before the elements. -ENOTSUP: Paddle
 * has no number for @dtype. */
int dcp_lodtensor_put_desc(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
			   const uint64_t *shape);
int dcp_lodtensor_put(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
		      const uint64_t *shape);
