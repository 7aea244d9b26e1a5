/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/format/pdplain.h"

#include <string.h>

#include "tests/unit/t/format/torch.h"

static void put_number(struct dcp_buf *b, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++) {
		uint8_t byte = (uint8_t)(v >> (8 * i));

		dcp_buf_add(b, &byte, 1);
	}
}

/* ---- pickled arrays ---- */

static void push_shape(struct dcp_buf *b, const struct t_pd_array *a)
{
	t_pk_mark(b);
	for (size_t i = 0; i < a->ndim; i++)
		t_pk_int(b, (int64_t)a->shape[i]);
	t_pk_tuple(b);
}

static void push_dtype(struct dcp_buf *b, const struct t_pd_array *a)
{
	const char order[2] = { a->order, '\0' };

	t_pk_global(b, "numpy", "dtype");
	t_pk_mark(b);
	t_pk_str(b, a->code);
	t_pk_bool(b, false);
	t_pk_bool(b, true);
	t_pk_tuple(b);
	t_pk_reduce(b);
	t_pk_mark(b);
	t_pk_int(b, 3);
	t_pk_str(b, order);
	for (int i = 0; i < 3; i++)
		t_pk_none(b);
	t_pk_int(b, -1);
	t_pk_int(b, -1);
	t_pk_int(b, 0);
	t_pk_tuple(b);
	t_pk_build(b);
}

/* _codecs.encode(text, "latin1"): each byte from 0x80 on takes two. */
static void push_text(struct dcp_buf *b, const uint8_t *p, size_t n)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;

	for (size_t i = 0; i < n; i++) {
		if (p[i] >= 0x80)
			put_number(&text, p[i] >= 0xc0 ? 0xc3 : 0xc2, 1);
		put_number(&text, p[i] >= 0x80 ? (p[i] & 0xbf) : p[i], 1);
	}
	t_pk_global(b, "_codecs", "encode");
	t_pk_mark(b);
	t_pk_str_n(b, text.p ? text.p : "", text.n);
	t_pk_str(b, "latin1");
	t_pk_tuple(b);
	t_pk_reduce(b);
}

static void push_payload(struct dcp_buf *b, int protocol, const struct t_pd_array *a)
{
	if (protocol == 2) {
		push_text(b, a->data, a->nbytes);
	} else if (protocol == 5) {
		put_number(b, 0x96, 1); /* BYTEARRAY8 */
		put_number(b, a->nbytes, 8);
		dcp_buf_add(b, a->data, a->nbytes);
	} else {
		t_pk_bytes(b, a->data, a->nbytes);
	}
}

void t_pd_array(struct dcp_buf *b, int protocol, const struct t_pd_array *a)
{
	if (protocol == 5) {
		t_pk_global(b, "numpy._core.numeric", "_frombuffer");
		t_pk_mark(b);
		push_payload(b, protocol, a);
		push_dtype(b, a);
		push_shape(b, a);
		t_pk_str(b, a->fortran ? "F" : "C");
		t_pk_tuple(b);
		t_pk_reduce(b);
		return;
	}
	t_pk_global(b, "numpy.core.multiarray", "_reconstruct");
	t_pk_mark(b);
	t_pk_global(b, "numpy", "ndarray");
	t_pk_mark(b);
	t_pk_int(b, 0);
	t_pk_tuple(b);
	t_pk_bytes(b, "b", 1);
	t_pk_tuple(b);
	t_pk_reduce(b);
	t_pk_mark(b);
	t_pk_int(b, 1);
	push_shape(b, a);
	push_dtype(b, a);
	t_pk_bool(b, a->fortran);
	push_payload(b, protocol, a);
	t_pk_tuple(b);
	t_pk_build(b);
}

void t_pd_row(struct dcp_buf *b, int protocol, const char *code, const void *data, uint64_t n,
	      size_t itemsize)
{
	struct t_pd_array a = { .code = code,
				.order = itemsize == 1 ? '|' : '<',
				.shape = &n,
				.ndim = 1,
				.data = data,
				.nbytes = (size_t)n * itemsize };

	t_pd_array(b, protocol, &a);
}

void t_pd_open(struct dcp_buf *b, enum t_pd_wrap wrap, const char *name)
{
	switch (wrap) {
	case T_PD_BARE:
		return;
	case T_PD_PAIR:
		t_pk_global(b, "__builtin__", "tuple");
		t_pk_mark(b);
		t_pk_mark(b);
		t_pk_str(b, name);
		return;
	case T_PD_TUPLE:
		t_pk_mark(b);
		t_pk_str(b, name);
		return;
	case T_PD_EVAL:
		t_pk_global(b, "builtins", "eval");
		t_pk_mark(b);
		t_pk_str(b, "data");
		t_pk_dict(b);
		t_pk_mark(b);
		t_pk_str(b, "data");
		return;
	case T_PD_DENSE:
		t_pk_global(b, "paddle.framework.io_utils", "_reconstruct_dense_tensor_data");
		t_pk_mark(b);
		return;
	}
}

void t_pd_close(struct dcp_buf *b, enum t_pd_wrap wrap)
{
	if (wrap == T_PD_BARE)
		return;
	if (wrap == T_PD_EVAL)
		t_pk_setitems(b);
	if (wrap == T_PD_PAIR)
		t_pk_tuple(b);
	t_pk_tuple(b);
	if (wrap != T_PD_TUPLE)
		t_pk_reduce(b);
}

/* ---- protobuf ---- */

static void put_varint(struct dcp_buf *b, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		put_number(b, (v & 0x7f) | 0x80, 1);
	put_number(b, v, 1);
}

void t_pb_varint(struct dcp_buf *b, uint32_t field, uint64_t value)
{
	put_varint(b, (uint64_t)field << 3);
	put_varint(b, value);
}

void t_pb_bytes(struct dcp_buf *b, uint32_t field, const void *p, size_t n)
{
	put_varint(b, (uint64_t)field << 3 | 2);
	put_varint(b, n);
	dcp_buf_add(b, p, n);
}

static void tensor_desc(struct dcp_buf *b, uint32_t type, const int64_t *dims, size_t ndim)
{
	t_pb_varint(b, 1, type);
	for (size_t i = 0; i < ndim; i++)
		t_pb_varint(b, 2, (uint64_t)dims[i]);
}

/* ---- tensor streams ---- */

void t_lod_tensor(struct dcp_buf *b, uint32_t type, const int64_t *dims, size_t ndim,
		  const void *data, size_t nbytes)
{
	dcp_auto_buf struct dcp_buf desc = DCP_BUF_INIT;

	tensor_desc(&desc, type, dims, ndim);
	put_number(b, 0, 4);
	put_number(b, desc.n, 4);
	dcp_buf_add(b, desc.p, desc.n);
	dcp_buf_add(b, data, nbytes);
}

void t_lod(struct dcp_buf *b, uint32_t type, const int64_t *dims, size_t ndim, const void *data,
	   size_t nbytes)
{
	put_number(b, 0, 4);
	put_number(b, 0, 8);
	t_lod_tensor(b, type, dims, ndim, data, nbytes);
}

/* ---- programs ---- */

void t_pd_var(struct dcp_buf *b, const char *name, uint32_t kind, bool persistable,
	      uint32_t type, const int64_t *dims, size_t ndim)
{
	dcp_auto_buf struct dcp_buf desc = DCP_BUF_INIT, lod = DCP_BUF_INIT;
	dcp_auto_buf struct dcp_buf var_type = DCP_BUF_INIT, var = DCP_BUF_INIT;

	t_pb_varint(&var_type, 1, kind);
	if (dims) {
		tensor_desc(&desc, type, dims, ndim);
		t_pb_bytes(&lod, 1, desc.p, desc.n);
		t_pb_bytes(&var_type, 3, lod.p, lod.n);
	}
	t_pb_bytes(&var, 1, name, strlen(name));
	t_pb_bytes(&var, 2, var_type.p, var_type.n);
	t_pb_varint(&var, 3, persistable);
	t_pb_bytes(b, 3, var.p, var.n);
}
