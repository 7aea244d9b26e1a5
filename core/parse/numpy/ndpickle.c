/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: numpy/core/src/multiarray/methods.c (array_reduce, array_setstate, array_reduce_ex),
 * descriptor.c (arraydescr_reduce), scalartypes.c (gentype_reduce), numpy/core/numeric.py
 * (_frombuffer).
 */
#include "core/parse/numpy/numpy.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/text.h"

#define damaged(err, ...) dcp_fail(err, -EBADMSG, __VA_ARGS__)
#define refused(err, ...) dcp_fail(err, -ENOTSUP, __VA_ARGS__)

/* ---- dtype ---- */

/* The byteorder of numpy.dtype's state: (3, order, subdtype, names, fields, ...). */
static int take_order(struct dcp_pv state, bool *swap, struct dcp_err *err)
{
	const struct dcp_pv *part;
	const char *order;
	size_t n = 0;

	*swap = false;
	if (state.type == DCP_PV_NONE)
		return 0;
	part = dcp_pv_items(state, &n);
	order = n >= 5 ? dcp_pv_str(part[1]) : NULL;
	if (!order || strlen(order) != 1 || !strchr("<>|=", order[0]))
		return damaged(err, "numpy.dtype with a damaged state");
	if (part[2].type != DCP_PV_NONE || part[3].type != DCP_PV_NONE ||
	    part[4].type != DCP_PV_NONE)
		return refused(err, "array of records, not of numbers");
	*swap = order[0] == '>';
	return 0;
}

/* A pickle has a type of ml_dtypes as its class. */
static enum dcp_dtype extension_dtype(struct dcp_pv class)
{
	const char *name = class.node->name;

	if (strcmp(class.node->module, "ml_dtypes") != 0)
		return DCP_DTYPE_OTHER;
	return dcp_dtype_from_torch(name, strlen(name));
}

static int take_dtype(struct dcp_pv v, struct dcp_ndarray *a, struct dcp_err *err)
{
	const struct dcp_pv *arg = NULL;
	const char *code;
	size_t n = 0;
	int r;

	if (dcp_pv_is_object(v, "numpy", "dtype"))
		arg = dcp_pv_items(v.node->obj->args, &n);
	if (!n)
		return damaged(err, "array without a numpy.dtype");
	r = take_order(v.node->obj->state, &a->swap, err);
	if (r < 0)
		return r;
	a->dtype = DCP_DTYPE_OTHER;
	code = dcp_pv_str(arg[0]);
	if (arg[0].type == DCP_PV_GLOBAL)
		a->dtype = extension_dtype(arg[0]);
	else if (code)
		a->dtype = dcp_dtype_from_numpy(code, strlen(code));
	if (a->dtype == DCP_DTYPE_OTHER)
		return refused(err, "array of dtype %.32s, which is not a plain number",
			       code ? code : "outside numpy");
	a->itemsize = dcp_dtype_info(a->dtype)->size;
	a->swap = a->swap && a->itemsize > 1;
	return 0;
}

/* ---- shape ---- */

static int take_shape(struct dcp_pv v, struct dcp_ndarray *a, struct dcp_err *err)
{
	const struct dcp_pv *dim;
	size_t n = 0;

	if (v.type != DCP_PV_TUPLE && v.type != DCP_PV_LIST)
		return damaged(err, "array without a shape");
	dim = dcp_pv_items(v, &n);
	if (n > DCP_MAX_NDIM)
		return damaged(err, "array of %zu dimensions, the limit is %d", n,
			       DCP_MAX_NDIM);
	for (size_t i = 0; i < n; i++)
		if (!dcp_pv_u64(dim[i], &a->shape[i]))
			return damaged(err, "dimension %zu of an array is not a length", i);
	a->ndim = (uint32_t)n;
	return 0;
}

/* Set the strides of @shape for memory in the order @order, slowest dimension first. */
static void lay_out(struct dcp_ndarray *a, const uint32_t *order)
{
	uint64_t step = 1;

	for (uint32_t i = a->ndim; i-- > 0;) {
		a->stride[order[i]] = step;
		/* sizes of 0 count as 1, so this overflows only if the volume does */
		if (a->shape[order[i]])
			step *= a->shape[order[i]];
	}
	a->row_major = dcp_row_major(a->shape, a->stride, a->ndim);
}

static void lay_out_plain(struct dcp_ndarray *a, bool fortran)
{
	uint32_t order[DCP_MAX_NDIM];

	for (uint32_t d = 0; d < a->ndim; d++)
		order[d] = fortran ? a->ndim - 1 - d : d;
	lay_out(a, order);
}

/* Order 'K': @a->shape is the shape in memory, and the array is its transposition by @axes. */
static int lay_out_axes(struct dcp_ndarray *a, struct dcp_pv axes, struct dcp_err *err)
{
	uint64_t stored[DCP_MAX_NDIM], seen = 0;
	uint32_t order[DCP_MAX_NDIM];
	size_t n = 0;
	const struct dcp_pv *axis = dcp_pv_items(axes, &n);

	memcpy(stored, a->shape, sizeof(stored));
	for (size_t i = 0; i < n && n == a->ndim; i++) {
		uint64_t k;

		if (!dcp_pv_u64(axis[i], &k) || k >= n || seen >> k & 1)
			return damaged(err, "array whose axis order is not a permutation");
		seen |= 1ull << k;
		a->shape[i] = stored[k];
		order[k] = (uint32_t)i;
	}
	if (n != a->ndim)
		return damaged(err, "array of %" PRIu32 " dimension%s with %zu ax%s", a->ndim,
			       dcp_s(a->ndim), n, n == 1 ? "is" : "es");
	lay_out(a, order);
	return 0;
}

/* ---- payload ---- */

/* Get the text in a call of _codecs.encode(text, 'latin1'); a long text is BYTES. */
static bool encoded_text(struct dcp_pv v, struct dcp_pv *text)
{
	const struct dcp_pv *arg;
	size_t n = 0;

	if (!dcp_pv_is_object(v, "_codecs", "encode") || !v.node->obj->called)
		return false;
	arg = dcp_pv_items(v.node->obj->args, &n);
	if (n != 2 || (arg[0].type != DCP_PV_STR && arg[0].type != DCP_PV_BYTES) ||
	    !(dcp_pv_is_str(arg[1], "latin1") || dcp_pv_is_str(arg[1], "latin-1")))
		return false;
	*text = arg[0];
	return true;
}

static bool is_empty_bytes(struct dcp_pv v)
{
	return dcp_pv_is_object(v, "builtins", "bytes") && v.node->obj->called &&
	       v.node->obj->args.node->nitems == 0;
}

/* numpy expects bytes. A str comes from Python 2, and holds the bytes unchanged or as Latin-1 text;
 * the length tells which. */
static int take_payload(struct dcp_pv v, struct dcp_ndarray *a, struct dcp_err *err)
{
	struct dcp_pv at = v;
	bool text;
	uint64_t need;

	if (!dcp_shape_nbytes(a->shape, a->ndim, a->itemsize, &need))
		return damaged(err, "shape of an array overflows");
	text = encoded_text(v, &at) || v.type == DCP_PV_STR;
	if (is_empty_bytes(v)) {
		a->off = a->nbytes = 0;
		return need ? damaged(err, "array of %" PRIu64 " byte%s without bytes", need,
				      dcp_s(need))
			    : 0;
	}
	if (at.type == DCP_PV_LIST)
		return refused(err, "array of Python objects, not of numbers");
	if (!text && at.type != DCP_PV_BYTES && at.type != DCP_PV_BYTEARRAY)
		return damaged(err, "array without bytes");
	if (at.node->src_off == DCP_PICKLE_NO_SRC && need)
		return refused(err, "array written with escapes (pickle protocol 0)");
	a->off = at.node->src_off;
	a->nbytes = at.node->n;
	a->filter = text && at.node->n > need ? DCP_FILTER_LATIN1 : DCP_FILTER_NONE;
	if (at.node->n != need && (a->filter == DCP_FILTER_NONE || at.node->n / 2 > need))
		return dcp_fail_at(err, -EBADMSG, a->off,
				   "array needs %" PRIu64 " byte%s, its payload has %" PRIu64,
				   need, dcp_s(need), at.node->n);
	return 0;
}

/* ---- the three forms ---- */

enum form { FORM_NONE, FORM_RECONSTRUCT, FORM_FROMBUFFER, FORM_SCALAR, FORM_MASKED };

static enum form form_of(struct dcp_pv v)
{
	if (v.type != DCP_PV_OBJECT || !v.node->obj->called ||
	    v.node->obj->callable.type != DCP_PV_GLOBAL ||
	    strncmp(v.node->obj->callable.node->module, "numpy.", 6) != 0)
		return FORM_NONE;
	if (dcp_pv_is_object(v, "numpy.core.multiarray", "_reconstruct"))
		return FORM_RECONSTRUCT;
	if (dcp_pv_is_object(v, "numpy.core.numeric", "_frombuffer"))
		return FORM_FROMBUFFER;
	if (dcp_pv_is_object(v, "numpy.core.multiarray", "scalar"))
		return FORM_SCALAR;
	if (dcp_pv_is_object(v, "numpy.ma.core", "_mareconstruct"))
		return FORM_MASKED;
	return FORM_NONE;
}

bool dcp_ndarray_is(struct dcp_pv v)
{
	return form_of(v) != FORM_NONE;
}

/* State ([version,] shape, dtype, is_fortran, payload). */
static int read_state(struct dcp_pv state, struct dcp_ndarray *a, struct dcp_err *err)
{
	size_t n = 0;
	const struct dcp_pv *part = dcp_pv_items(state, &n);
	uint64_t fortran = 0;
	int r;

	if (state.type != DCP_PV_TUPLE || (n != 4 && n != 5))
		return damaged(err, "array without its state of shape, dtype and bytes");
	part += n - 4;
	r = take_shape(part[0], a, err);
	if (r == 0)
		r = take_dtype(part[1], a, err);
	if (r < 0)
		return r;
	if (!dcp_pv_u64(part[2], &fortran) || fortran > 1)
		return damaged(err, "array without a truth value for its order");
	r = take_payload(part[3], a, err);
	if (r == 0)
		lay_out_plain(a, fortran);
	return r;
}

/* (payload, dtype, shape, order[, axes]) */
static int read_buffer(struct dcp_pv args, struct dcp_ndarray *a, struct dcp_err *err)
{
	size_t n = 0;
	const struct dcp_pv *part = dcp_pv_items(args, &n);
	const char *order = n >= 4 ? dcp_pv_str(part[3]) : NULL;
	int r;

	if (!order || strlen(order) != 1 || !strchr("CFK", order[0]) ||
	    (order[0] == 'K' && n < 5))
		return damaged(err, "array made of a buffer in no known order");
	r = take_dtype(part[1], a, err);
	if (r == 0)
		r = take_shape(part[2], a, err);
	if (r == 0)
		r = take_payload(part[0], a, err);
	if (r == 0 && order[0] == 'K')
		return lay_out_axes(a, part[4], err);
	if (r == 0)
		lay_out_plain(a, order[0] == 'F');
	return r;
}

/* (dtype, payload) */
static int read_scalar(struct dcp_pv args, struct dcp_ndarray *a, struct dcp_err *err)
{
	size_t n = 0;
	const struct dcp_pv *part = dcp_pv_items(args, &n);
	int r;

	if (n != 2)
		return damaged(err, "numpy scalar without its dtype and bytes");
	r = take_dtype(part[0], a, err);
	if (r == 0)
		r = take_payload(part[1], a, err);
	a->row_major = true;
	return r;
}

int dcp_ndarray_read(struct dcp_pv v, struct dcp_ndarray *out, struct dcp_err *err)
{
	struct dcp_ndarray a = { 0 };
	int r = 0;

	switch (form_of(v)) {
	case FORM_NONE:
		return 0;
	case FORM_RECONSTRUCT:
		r = read_state(v.node->obj->state, &a, err);
		break;
	case FORM_FROMBUFFER:
		r = read_buffer(v.node->obj->args, &a, err);
		break;
	case FORM_SCALAR:
		r = read_scalar(v.node->obj->args, &a, err);
		break;
	case FORM_MASKED:
		r = refused(err, "masked array: two arrays in one");
		break;
	}
	if (r < 0)
		return r;
	*out = a;
	return 1;
}
