/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "core/format/paddle/plain/plain_int.h"
#include "core/parse/numpy/ndpickle.h"

static bool is_pair(const struct dcp_pv *item, size_t n)
{
	return n == 2 && item[0].type == DCP_PV_STR && dcp_ndarray_is(item[1]);
}

/* eval("data", {"data": array}), to the letter. */
static bool is_lod(const struct dcp_pv *arg, size_t n, struct dcp_pv *array)
{
	const struct dcp_pv *kv;
	size_t npairs = 0;

	if (n != 2 || !dcp_pv_is_str(arg[0], "data") || arg[1].type != DCP_PV_DICT)
		return false;
	kv = dcp_pv_pairs(arg[1], &npairs);
	if (npairs != 1 || !dcp_pv_is_str(kv[0], "data"))
		return false;
	*array = kv[1];
	return true;
}

struct dcp_pv dcp_pdvalue_array(struct dcp_pv v, enum dcp_pdwrap *wrap)
{
	const struct dcp_pv *item;
	struct dcp_pv in = v;
	size_t n = 0;

	*wrap = DCP_PDWRAP_NONE;
	if (v.type == DCP_PV_TUPLE) {
		item = dcp_pv_items(v, &n);
		if (!is_pair(item, n))
			return v;
		*wrap = DCP_PDWRAP_PAIR;
		return item[1];
	}
	if (v.type != DCP_PV_OBJECT || !v.node->obj->called)
		return v;
	item = dcp_pv_items(v.node->obj->args, &n);
	if (dcp_pv_is_object(v, "builtins", "tuple") && n == 1 &&
	    item[0].type == DCP_PV_TUPLE) {
		in = dcp_pdvalue_array(item[0], wrap);
		return *wrap == DCP_PDWRAP_PAIR ? in : v;
	}
	if (dcp_pv_is_object(v, "builtins", "eval") && is_lod(item, n, &in)) {
		*wrap = DCP_PDWRAP_LOD;
		return in;
	}
	if (dcp_pv_is_object(v, "paddle.framework.io_utils",
			     "_reconstruct_dense_tensor_data") &&
	    n == 1) {
		*wrap = DCP_PDWRAP_LOD;
		return item[0];
	}
	return v;
}

bool dcp_pdvalue_is_tensor(struct dcp_pv v)
{
	enum dcp_pdwrap wrap;
	struct dcp_ndarray a;

	v = dcp_pdvalue_array(v, &wrap);
	return dcp_ndarray_is(v) && !dcp_pv_is_object(v, "numpy.core.multiarray", "scalar") &&
	       dcp_ndarray_read(v, &a, NULL) != -ENOTSUP;
}

void dcp_pdvalue_take(struct dcp_tensor *t, const struct dcp_ndarray *a, bool bf16)
{
	t->dtype = bf16 && a->dtype == DCP_DTYPE_U16 ? DCP_DTYPE_BF16 : a->dtype;
	t->dtype_name = dcp_dtype_info(t->dtype)->name;
	t->itemsize = a->itemsize;
	t->ndim = a->ndim;
	t->shape = a->shape;
}
