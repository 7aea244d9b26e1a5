/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_pdplain: what Paddle writes, byte by byte: pickled numpy arrays, tensor streams, programs.
 * The rest of a pickle is written with t_torch's t_pk functions.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

/* ---- pickled arrays ---- */

struct t_pd_array {
	const char *code; /* numpy's: "f4" */
	char order;       /* '<', '>', '|' */
	bool fortran;
	const uint64_t *shape;
	size_t ndim;
	const void *data;
	size_t nbytes;
};

/* Push the array as numpy does in pickle protocol @protocol, 2 to 5. */
void t_pd_array(struct dcp_buf *b, int protocol, const struct t_pd_array *a);

/* The same for little-endian numbers, row-major; @n of them for one dimension. */
void t_pd_row(struct dcp_buf *b, int protocol, const char *code, const void *data, uint64_t n,
	      size_t itemsize);

/* Wrap what the functions between the two calls push: tuple((name, x)), eval("data", {"data":
 * x}), _reconstruct_dense_tensor_data(x). */
enum t_pd_wrap { T_PD_BARE, T_PD_PAIR, T_PD_TUPLE, T_PD_EVAL, T_PD_DENSE };
void t_pd_open(struct dcp_buf *b, enum t_pd_wrap wrap, const char *name);
void t_pd_close(struct dcp_buf *b, enum t_pd_wrap wrap);

/* ---- protobuf ---- */

void t_pb_varint(struct dcp_buf *b, uint32_t field, uint64_t value);
void t_pb_bytes(struct dcp_buf *b, uint32_t field, const void *p, size_t n);

/* ---- tensor streams ---- */

/* A whole stream; @type as in framework.proto. */
void t_lod(struct dcp_buf *b, uint32_t type, const int64_t *dims, size_t ndim, const void *data,
	   size_t nbytes);
/* Its part behind the levels, which a SelectedRows has, too. */
void t_lod_tensor(struct dcp_buf *b, uint32_t type, const int64_t *dims, size_t ndim,
		  const void *data, size_t nbytes);

/* ---- programs ---- */

/* A VarDesc, as field 3 of the block @b. */
void t_pd_var(struct dcp_buf *b, const char *name, uint32_t kind, bool persistable,
	      uint32_t type, const int64_t *dims, size_t ndim);
enum { T_PD_LOD_TENSOR = 7 };
