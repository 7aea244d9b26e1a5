/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paddle: what Paddle's C++ writes: streams of tensors, and the programs that name them, which are
 * messages of protobuf.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "core/base/arena.h"
#include "core/model/tensor.h"

/*
 * protobuf: the fields of one message, in the order they are written; and such fields written.
 *
 * The wire format and nothing else: which field means what is for the reader of a schema to
 * say. Nothing is copied: strings and messages inside are given by their place in the source.
 * Groups (wire types 3 and 4), which are no longer in use, are refused.
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
	uint64_t value;  /* of the fixed and varint ones */
	uint64_t off, n; /* of LEN: its bytes in the source */
};

/* The message at [@off, @off + @n) of @src. */
struct dcp_pb dcp_pb_message(const struct dcp_source *src, uint64_t off, uint64_t n);

/* Returns 1 and fills @f, 0 after the last field, -EBADMSG, or what the source gave. */
int dcp_pb_next(struct dcp_pb *pb, struct dcp_pb_field *f, struct dcp_err *err);

/*
 * The next number of a packed repeated field; @pb is the message that the field's bytes are.
 * Returns as dcp_pb_next() does.
 */
int dcp_pb_packed(struct dcp_pb *pb, uint64_t *value, struct dcp_err *err);

/* Append a field: a number; bytes, which may be a message. */
void dcp_pb_put_varint(struct dcp_buf *out, uint32_t number, uint64_t value);
void dcp_pb_put(struct dcp_buf *out, uint32_t number, const void *p, size_t n);

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

/*
 * program: which variables does a Paddle program store, and in which order?
 *
 * A .pdiparams has tensors and no names: they are the program's persistable variables, sorted
 * by name. Two forms of program name them:
 *
 *   .pdmodel  protobuf ProgramDesc: blocks -> vars; feed, fetch, readers and raw ones are not
 *             stored
 *   .json     PIR: program.regions[].blocks[].ops[], operation "p" is a parameter, its name is
 *             A[3], its type O.TT.D
 *
 * Sources: paddle/phi/core/framework/framework.proto, paddle/fluid/pir/serialize_deserialize.
 */

struct dcp_err;
struct dcp_source;

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
 * Read a program of either form: JSON begins with '{', anything else is taken as protobuf.
 * Returns 0, -EBADMSG, -E2BIG, -ENOMEM, or what the source gave. @out is to be finished after
 * success.
 */
int dcp_paddle_program_read(const struct dcp_source *src, struct dcp_paddle_program *out,
			    struct dcp_err *err);
void dcp_paddle_program_finish(struct dcp_paddle_program *p);
