/* SPDX-License-Identifier: Apache-2.0 */
/* storage: the type of a storage, and the part of it that a tensor covers. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/parse/torch/torch_int.h"

/* Types that the table of dtypes does not know: bytes without a numeric value. */
static const struct {
	const char *name;
	uint8_t size;
} others[] = {
	{ "bits8", 1 },    { "bits1x8", 1 },  { "bits2x4", 1 }, { "bits4x2", 1 },
	{ "bits16", 2 },   { "qint8", 1 },    { "quint8", 1 },  { "qint32", 4 },
	{ "quint4x2", 1 }, { "quint2x4", 1 }, { "int1", 1 },    { "int2", 1 },
	{ "int3", 1 },     { "int4", 1 },     { "int5", 1 },    { "int6", 1 },
	{ "int7", 1 },     { "uint1", 1 },    { "uint2", 1 },   { "uint3", 1 },
	{ "uint4", 1 },    { "uint5", 1 },    { "uint6", 1 },   { "uint7", 1 },
};

/* clang-format off */
static const struct {
	const char *class, *dtype;
} storages[] = {
	{ "FloatStorage", "float32" },        { "BFloat16Storage", "bfloat16" },
	{ "HalfStorage", "float16" },         { "DoubleStorage", "float64" },
	{ "LongStorage", "int64" },           { "IntStorage", "int32" },
	{ "ShortStorage", "int16" },          { "CharStorage", "int8" },
	{ "ByteStorage", "uint8" },           { "BoolStorage", "bool" },
	{ "ComplexFloatStorage", "complex64" }, { "ComplexDoubleStorage", "complex128" },
	{ "QInt8Storage", "qint8" },          { "QUInt8Storage", "quint8" },
	{ "QInt32Storage", "qint32" },        { "QUInt4x2Storage", "quint4x2" },
	{ "QUInt2x4Storage", "quint2x4" },
	/* sizes count bytes */
	{ "UntypedStorage", "uint8" },        { "_UntypedStorage", "uint8" },
	{ "TypedStorage", "uint8" },
};
/* clang-format on */

uint32_t dcp_torch_itemsize(const char *name)
{
	enum dcp_dtype t = dcp_dtype_from_torch(name, strlen(name));

	if (t != DCP_DTYPE_OTHER)
		return dcp_dtype_info(t)->size;
	for (size_t i = 0; i < DCP_LEN(others); i++)
		if (strcmp(others[i].name, name) == 0)
			return others[i].size;
	return 0;
}

bool dcp_torch_is_global(struct dcp_pv v)
{
	return v.type == DCP_PV_GLOBAL && strncmp(v.node->module, "torch", 5) == 0 &&
	       (v.node->module[5] == '\0' || v.node->module[5] == '.');
}

const char *dcp_torch_storage_dtype(struct dcp_pv class)
{
	if (!dcp_torch_is_global(class))
		return NULL;
	for (size_t i = 0; i < DCP_LEN(storages); i++)
		if (strcmp(storages[i].class, class.node->name) == 0)
			return storages[i].dtype;
	return NULL;
}

/* Legacy streams append (key of the view, first element, elements) or None. */
static int take_view(struct dcp_pv v, struct dcp_torch_storage *out, struct dcp_err *err)
{
	size_t n = 0;
	const struct dcp_pv *part = dcp_pv_items(v, &n);

	if (v.type == DCP_PV_NONE)
		return 0;
	if (v.type != DCP_PV_TUPLE || n != 3 || !dcp_pv_u64(part[1], &out->view_off) ||
	    !dcp_pv_u64(part[2], &out->view_n) ||
	    !dcp_range_ok(out->view_off, out->view_n, out->numel))
		return dcp_fail(err, -EBADMSG,
				"view of storage \"%s\" does not lie inside its %" PRIu64
				" elements",
				out->key, out->numel);
	return 0;
}

int dcp_torch_storage_id(struct dcp_pv id, struct dcp_torch_storage *out, struct dcp_err *err)
{
	struct dcp_torch_storage s = { 0 };
	const struct dcp_pv *part = NULL;
	size_t n = 0;
	int r = 0;

	if (id.type == DCP_PV_PERSID && id.node->nitems == 1 &&
	    id.node->items[0].type == DCP_PV_TUPLE)
		part = dcp_pv_items(id.node->items[0], &n);
	if ((n != 5 && n != 6) || !dcp_pv_is_str(part[0], "storage") || !dcp_pv_str(part[2]) ||
	    part[1].type != DCP_PV_GLOBAL || !dcp_pv_u64(part[4], &s.numel))
		return dcp_fail(
			err, -EBADMSG,
			"persistent id is not (\"storage\", class, key, location, count)");
	s.key = dcp_pv_str(part[2]);
	s.dtype_name = dcp_torch_storage_dtype(part[1]);
	if (!s.dtype_name)
		return dcp_fail(err, -ENOTSUP, "unknown storage class %s.%s",
				part[1].node->module, part[1].node->name);
	s.itemsize = dcp_torch_itemsize(s.dtype_name);
	s.view_n = s.numel;
	if (n == 6)
		r = take_view(part[5], &s, err);
	if (r < 0)
		return r;
	*out = s;
	return 0;
}

bool dcp_torch_dims(struct dcp_pv v, uint64_t *to, uint32_t *ndim)
{
	if (dcp_pv_is_object(v, "torch", "Size"))
		v = v.node->obj->args.node->nitems == 1 ? dcp_pv_item(v.node->obj->args, 0)
							: (struct dcp_pv){ 0 };
	return dcp_pv_dims(v, DCP_MAX_NDIM, to, ndim);
}

int dcp_torch_place(struct dcp_torch_tensor *x, const struct dcp_torch_storage *s,
		    uint64_t first, uint64_t base, struct dcp_err *err)
{
	uint64_t volume, bytes, n = 1, end, view = s->view_n * s->itemsize;

	/* Strides of zero can describe huge shapes with one element, but no real tensor has 2^63
	 * bytes. */
	if (!dcp_shape_volume(x->shape, x->ndim, &volume) ||
	    dcp_ckd_mul(&bytes, volume, x->itemsize) || bytes > INT64_MAX)
		return dcp_fail(err, -EBADMSG,
				"shape of the tensor in storage \"%s\" overflows", s->key);
	x->off = base;
	x->row_major = dcp_row_major(x->shape, x->stride, x->ndim);
	if (volume == 0)
		return 0;
	if (!dcp_stride_span(x->shape, x->stride, x->ndim, &n) || dcp_ckd_add(&end, first, n) ||
	    dcp_ckd_mul(&end, end, x->itemsize) || end > view)
		return dcp_fail_at(err, -EBADMSG, base,
				   "tensor reaches past the %" PRIu64
				   " bytes of storage \"%s\": first "
				   "element %" PRIu64 ", last one %" PRIu64 " after it",
				   view, s->key, first, n - 1);
	x->off = base + first * x->itemsize;
	return 0;
}

int dcp_torch_take_dtype(struct dcp_torch_tensor *x, const char *name, struct dcp_err *err)
{
	x->dtype = dcp_dtype_from_torch(name, strlen(name));
	x->itemsize = dcp_torch_itemsize(name);
	snprintf(x->dtype_name, sizeof(x->dtype_name), "%s",
		 x->dtype == DCP_DTYPE_OTHER ? name : dcp_dtype_info(x->dtype)->name);
	if (!x->itemsize)
		return dcp_fail(err, -ENOTSUP, "dtype torch.%s has elements of unknown size",
				name);
	return 0;
}

int dcp_torch_sort_records(struct dcp_torch *t, struct dcp_err *err)
{
	bool sorted = true;

	for (size_t i = 1; sorted && i < t->nrecords; i++)
		sorted = dcp_by_text(&t->records[i - 1], &t->records[i]) < 0;
	if (sorted)
		return 0;
	DCP_SORT(t->records, t->nrecords, dcp_by_text);
	for (size_t i = 1; i < t->nrecords; i++)
		if (strcmp(t->records[i - 1].key, t->records[i].key) == 0)
			return dcp_fail(err, -EBADMSG, "two storages with key \"%s\"",
					t->records[i].key);
	return 0;
}

struct dcp_torch_record *dcp_torch_find_record(const struct dcp_torch *t, const char *key)
{
	return DCP_FIND(&key, t->records, t->nrecords, dcp_by_text);
}
