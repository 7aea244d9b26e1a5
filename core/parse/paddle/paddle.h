/* SPDX-License-Identifier: Apache-2.0 */
/* paddle: the files that Paddle's C++ code writes: streams of tensors, and programs, which name the
 * tensors and are protobuf messages. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/model/tensor.h"

/*
 * protobuf: reads the fields of one message in their order, and writes fields.
 *
 * It knows only the wire format; the caller knows the meaning of the fields. Nothing is copied:
 * strings and inner messages are given by their place in the source. Groups (wire types 3 and
 * 4), which are no longer in use, are refused.
 */

struct dcp_buf;
struct dcp_err;
struct dcp_source;

enum dcp_pb_wire {
	DCP_PB_VARINT = 0,
	DCP_PB_FIXED64 = 1,
	DCP_PB_LEN = 2,
	DCP_PB_FIXED32 = 5,
};

/* The part of a message that was not read yet. */
struct dcp_pb {
	const struct dcp_source *src;
	uint64_t at, end;
};

struct dcp_pb_field {
	uint32_t number;
	enum dcp_pb_wire wire;
	uint64_t value;  /* of VARINT, FIXED64, FIXED32 */
	uint64_t off, n; /* of LEN: the place of its bytes in the source */
};

/* The message at [@off, @off + @n) of @src. */
struct dcp_pb dcp_pb_message(const struct dcp_source *src, uint64_t off, uint64_t n);

/* Returns 1 and fills @f, 0 after the last field, -EBADMSG, or the error of the source. */
int dcp_pb_next(struct dcp_pb *pb, struct dcp_pb_field *f, struct dcp_err *err);

/* Get the next number of a packed repeated field; @pb is made from the bytes of the field by
 * dcp_pb_message(). Returns as dcp_pb_next() does. */
int dcp_pb_packed(struct dcp_pb *pb, uint64_t *value, struct dcp_err *err);

/* Append a field that holds a number or bytes; bytes may be a message. */
void dcp_pb_put_varint(struct dcp_buf *out, uint32_t number, uint64_t value);
void dcp_pb_put(struct dcp_buf *out, uint32_t number, const void *p, size_t n);

/*
 * lodtensor: a tensor that Paddle's C++ wrote as a stream (use_binary_format, .pdiparams).
 *
 *	u32 0                                    version of the LoD part
 *	u64 levels, each u64 n and n bytes       how rows group into sequences; normally none
 *	u32 0                                    version of the tensor part
 *	i32 n, then n bytes of protobuf          field 1: dtype, field 2: dimensions
 *	the elements                             row-major, little-endian, no padding
 *
 * A .pdiparams consists of consecutive such streams. A SelectedRows (the gradient of a sparse
 * embedding) is u32 0, u64 n, n rows (i64 each), i64 height, and a tensor part.
 *
 * Sources: paddle/phi/core/framework/{dense_tensor_serialize,selected_rows_serialize}.cc,
 * framework.proto.
 */

struct dcp_lodtensor {
	enum dcp_dtype dtype;
	const char *dtype_name;
	uint32_t itemsize, ndim;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t off, nbytes; /* the elements; the next stream starts after them */
};

/*
 * Read the stream at @off of @src. Returns 0, -EBADMSG (not such a stream, or it ends early: @err
 * has the size found and the size expected), -ENOTSUP (a dtype without numbers), or the error of
 * the source. If the source ends within the elements, @out is filled in nevertheless.
 */
int dcp_lodtensor_read(const struct dcp_source *src, uint64_t off, struct dcp_lodtensor *out,
		       struct dcp_err *err);

struct dcp_selected_rows {
	uint64_t nrows, rows_off; /* I64 each */
	uint64_t height;
	struct dcp_lodtensor value;
};

/* The same for a file that consists of one SelectedRows. */
int dcp_selected_rows_read(const struct dcp_source *src, struct dcp_selected_rows *out,
			   struct dcp_err *err);

/* Read a TensorDesc of Paddle's framework.proto: field 1 is the dtype, field 2 the dimensions; a
 * dimension that a program leaves open is -1. Returns 0 or -EBADMSG. */
struct dcp_lodtensor_desc {
	uint64_t dtype;
	uint32_t ndim;
	int64_t dims[DCP_MAX_NDIM];
};
int dcp_lodtensor_desc(struct dcp_pb pb, struct dcp_lodtensor_desc *out, struct dcp_err *err);

/* Append a TensorDesc, or everything that precedes the elements in a stream. -ENOTSUP: Paddle has
 * no number for @dtype. */
int dcp_lodtensor_put_desc(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
			   const uint64_t *shape);
int dcp_lodtensor_put(struct dcp_buf *out, enum dcp_dtype dtype, uint32_t ndim,
		      const uint64_t *shape);

/*
 * program: which variables does a Paddle program store, and in which order?
 *
 * A .pdiparams file has tensors without names: they are the persistable variables of the program,
 * sorted by name. A program has one of two forms:
 *
 *   .pdmodel  protobuf ProgramDesc: blocks -> vars; variables of the types feed, fetch, reader
 *             and raw are not stored
 *   .json     PIR: program.regions[].blocks[].ops[]; the operation "p" is a parameter, with its
 *             name in A[3] and its type in O.TT.D
 *
 * Sources: paddle/phi/core/framework/framework.proto, paddle/fluid/pir/serialize_deserialize.
 */

struct dcp_paddle_var {
	const char *name;    /* UTF-8 */
	const int64_t *dims; /* -1: any; NULL: the program does not say */
	uint32_t ndim;
};

struct dcp_paddle_program {
	struct dcp_paddle_var *vars; /* sorted by name, each once */
	size_t n;
	struct dcp_arena arena;
};

/*
 * Read a program of either form: a file that begins with '{' is JSON, any other is protobuf.
 * Returns 0, -EBADMSG, -E2BIG, -ENOMEM, or the error of the source. After success the caller
 * finishes @out.
 */
int dcp_paddle_program_read(const struct dcp_source *src, struct dcp_paddle_program *out,
			    struct dcp_err *err);
void dcp_paddle_program_finish(struct dcp_paddle_program *p);
