/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/torch/torch_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/origin/archive/archive.h"

/* Nested rebuild calls: a Parameter, a subclass and a tensor from a device make 3. */
enum {
	WRAPPERS_MAX = 8,
	MAX_SETTINGS = 64, /* of a wrapper: torchao's have at most 20 */
	MAX_HASHED = 16 << 20,
};

/* clang-format off */
static const struct rebuild {
	const char *name;
	enum dcp_torch_kind kind;
	const char *what; /* the kind in words, if it has no dense bytes of its own */
} rebuilds[] = {
	{ "_rebuild_tensor_v2",                       DCP_TORCH_V2, NULL },
	{ "_rebuild_parameter",                       DCP_TORCH_WRAPPED, NULL },
	{ "_rebuild_tensor_v3",                       DCP_TORCH_V3, NULL },
	{ "_rebuild_tensor",                          DCP_TORCH_V1, NULL },
	{ "_rebuild_parameter_with_state",            DCP_TORCH_WRAPPED, NULL },
	{ "_rebuild_from_type_v2",                    DCP_TORCH_TYPED, NULL },
	{ "_rebuild_from_type",                       DCP_TORCH_TYPED, NULL },
	{ "_rebuild_device_tensor_from_cpu_tensor",   DCP_TORCH_WRAPPED, NULL },
	{ "_rebuild_sparse_tensor",                   DCP_TORCH_SPARSE, "sparse tensor" },
	{ "_rebuild_sparse_csr_tensor",               DCP_TORCH_SPARSE, "sparse tensor" },
	{ "_rebuild_nested_tensor",                   DCP_TORCH_NESTED, "nested tensor" },
	{ "rebuild_njt",                              DCP_TORCH_JAGGED, "nested tensor" },
	{ "_rebuild_njt",                             DCP_TORCH_JAGGED, "nested tensor" },
	{ "_rebuild_qtensor",                         DCP_TORCH_QUANTIZED, "quantized tensor" },
	{ "_rebuild_meta_tensor_no_storage",          DCP_TORCH_META, "meta tensor" },
	{ "_rebuild_wrapper_subclass",                DCP_TORCH_SUBCLASS, "wrapper subclass of tensor" },
	{ "_rebuild_device_tensor_from_numpy",        DCP_TORCH_REFUSED, "tensor kept as numpy array" },
	{ "_rebuild_xla_tensor",                      DCP_TORCH_REFUSED, "tensor kept as numpy array" },
};
/* clang-format on */

static const struct rebuild none;

static const struct rebuild *rebuild_of(struct dcp_pv callable)
{
	if (!dcp_torch_is_global(callable))
		return &none;
	for (size_t i = 0; i < DCP_LEN(rebuilds); i++)
		if (strcmp(rebuilds[i].name, callable.node->name) == 0)
			return &rebuilds[i];
	return &none;
}

static int locate_record(const struct dcp_torch *t, const struct dcp_torch_storage *s,
			 uint64_t *off, struct dcp_err *err)
{
	struct dcp_torch_record *rec = dcp_torch_find_record(t, s->key);
	uint64_t size;
	int r;

	if (!rec)
		return dcp_fail(err, -EBADMSG, "storage \"%s\" is missing", s->key);
	if (dcp_ckd_mul(&size, s->numel, s->itemsize) || size != rec->size)
		return dcp_fail_at(
			err, -EBADMSG, rec->member ? rec->member->header_off : rec->off,
			"storage \"%s\" has %" PRIu64 " bytes, its tensor expects %" PRIu64
			" elements of %" PRIu32,
			s->key, rec->size, s->numel, s->itemsize);
	if (rec->member && !rec->member->stored)
		return dcp_fail_at(err, -ENOTSUP, rec->member->header_off,
				   "storage \"%s\" is compressed or encrypted: write the file "
				   "again with torch.save(torch.load(...))",
				   s->key);
	if (rec->off == DCP_TORCH_UNLOCATED) {
		r = dcp_zip_data(&t->src, rec->member, &rec->off, err);
		if (r < 0)
			return r;
	}
	*off = rec->off;
	return 0;
}

/* Is the view of that name on? Any value but a plain "no" counts as yes. */
static bool is_on(struct dcp_pv meta, const char *view)
{
	const struct dcp_pv *set = dcp_pv_get(meta, view);
	uint64_t on = 0;

	return set && !(set->type == DCP_PV_BOOL && !set->b) && (!dcp_pv_u64(*set, &on) || on);
}

/* A conjugation or negation that torch has postponed: the bytes are not yet the values. */
static int take_metadata(struct dcp_torch_tensor *x, struct dcp_pv meta, struct dcp_err *err)
{
	bool conj = is_on(meta, "conj"), neg = is_on(meta, "neg");
	uint8_t halves = dcp_dtype_info(x->dtype)->size / 2;

	if (!conj && !neg)
		return 0;
	if (conj && neg)
		return dcp_fail(err, -ENOTSUP, "a view that is conjugate and negative at once");
	if (!dcp_dtype_can_negate(x->dtype) ||
	    (conj && dcp_dtype_info(x->dtype)->swap_unit != halves))
		return dcp_fail(err, -ENOTSUP,
				"%s view of %s: the stored bytes are not the tensor's values",
				conj ? "conjugate" : "negative", x->dtype_name);
	x->filter = conj ? DCP_FILTER_CONJ : DCP_FILTER_NEG;
	return 0;
}

static int take_dense(const struct dcp_torch *t, enum dcp_torch_kind kind,
		      const struct dcp_pv *arg, size_t n, struct dcp_torch_tensor *out,
		      struct dcp_err *err)
{
	size_t least = kind == DCP_TORCH_V1 ? 4 : kind == DCP_TORCH_V2 ? 6 : 7;
	struct dcp_torch_tensor x = { 0 };
	struct dcp_torch_storage s;
	uint64_t first = 0;
	const char *dtype;
	uint32_t nstride = 0;
	int r;

	if (n < least || !dcp_pv_u64(arg[1], &first) ||
	    !dcp_torch_dims(arg[2], x.shape, &x.ndim) ||
	    !dcp_torch_dims(arg[3], x.stride, &nstride) || nstride != x.ndim)
		return dcp_fail(err, -EBADMSG, "tensor with a damaged offset, size or stride");
	r = dcp_torch_storage_id(arg[0], &s, err);
	if (r < 0)
		return r;
	dtype = s.dtype_name;
	if (kind == DCP_TORCH_V3) {
		if (!dcp_torch_is_global(arg[6]))
			return dcp_fail(err, -EBADMSG,
					"tensor in storage \"%s\" without a dtype", s.key);
		dtype = arg[6].node->name;
	}
	r = dcp_torch_take_dtype(&x, dtype, err);
	if (r == 0 && n > least)
		r = take_metadata(&x, arg[least], err);
	if (r == 0)
		r = locate_record(t, &s, &x.storage_off, err);
	if (r == 0)
		r = dcp_torch_place(&x, &s, first, x.storage_off + s.view_off * s.itemsize,
				    err);
	if (r < 0)
		return r;
	x.swap = t->big_endian && x.itemsize > 1;
	*out = x;
	return 1;
}

/* The integers of a quantized tensor. Packed types have no whole bytes for an element. */
static int take_int_repr(const struct dcp_torch *t, const struct dcp_pv *arg,
			 struct dcp_torch_tensor *out, struct dcp_err *err)
{
	static const struct {
		const char *name;
		enum dcp_dtype dtype;
	} stored[] = { { "qint8", DCP_DTYPE_I8 },
		       { "quint8", DCP_DTYPE_U8 },
		       { "qint32", DCP_DTYPE_I32 } };
	struct dcp_torch_tensor x;
	int r = take_dense(t, DCP_TORCH_V1, arg, 4, &x, err);

	for (size_t i = 0; r == 1 && i < DCP_LEN(stored); i++)
		if (strcmp(stored[i].name, x.dtype_name) == 0) {
			x.dtype = stored[i].dtype;
			snprintf(x.dtype_name, sizeof(x.dtype_name), "%s",
				 dcp_dtype_info(x.dtype)->name);
			*out = x;
			return 1;
		}
	return r < 0 ? r
		     : dcp_fail(err, -ENOTSUP, "quantized tensor of %s: its numbers are packed",
				x.dtype_name);
}

/* Is it the part of a tensor on one rank, and not a tensor of several tensors? */
static bool is_distributed(const struct dcp_torch_call *c)
{
	return c->kind == DCP_TORCH_SUBCLASS && c->n > 0 && c->arg[0].type == DCP_PV_GLOBAL &&
	       (strcmp(c->arg[0].node->name, "DTensor") == 0 ||
		strcmp(c->arg[0].node->name, "ShardedTensor") == 0);
}

static bool has_dtype(const struct dcp_torch_call *c, const char *dtype)
{
	struct dcp_torch_storage s;

	if (c->kind == DCP_TORCH_V3)
		return c->n > 6 && dcp_torch_is_global(c->arg[6]) &&
		       strcmp(c->arg[6].node->name, dtype) == 0;
	return c->n > 3 && dcp_torch_storage_id(c->arg[0], &s, NULL) == 0 &&
	       strcmp(s.dtype_name, dtype) == 0;
}

static int unwrap_call(struct dcp_pv v, int depth, struct dcp_torch_call *out,
		       struct dcp_err *err);

/* A wrapper may hold settings and a single tensor with the dtype and shape that it shows
 * (torchao's weights of float8 training). Its elements are those of that tensor: @out becomes
 * the call for it. */
static void look_through(struct dcp_torch_call *out, struct dcp_pv state, int depth)
{
	uint64_t shape[2][DCP_MAX_NDIM];
	struct dcp_torch_call inner, found = { .kind = DCP_TORCH_NONE };
	uint32_t ndim[2];
	size_t n;
	const struct dcp_pv *pair = dcp_pv_pairs(state, &n);

	if (is_distributed(out) || n > MAX_SETTINGS || out->n < 3 ||
	    !dcp_torch_is_global(out->arg[1]) ||
	    !dcp_torch_dims(out->arg[2], shape[0], &ndim[0]))
		return;
	for (size_t i = 0; i < n; i++) {
		int r = unwrap_call(pair[2 * i + 1], depth + 1, &inner, NULL);

		if (r == 0)
			continue;
		if (r < 0 || found.kind != DCP_TORCH_NONE)
			return;
		found = inner;
	}
	if ((found.kind == DCP_TORCH_V1 || found.kind == DCP_TORCH_V2 ||
	     found.kind == DCP_TORCH_V3) &&
	    found.n > 3 && has_dtype(&found, out->arg[1].node->name) &&
	    dcp_torch_dims(found.arg[2], shape[1], &ndim[1]) && ndim[0] == ndim[1] &&
	    memcmp(shape[0], shape[1], ndim[0] * sizeof(**shape)) == 0)
		*out = found;
}

static int unwrap_call(struct dcp_pv v, int depth, struct dcp_torch_call *out,
		       struct dcp_err *err)
{
	struct dcp_pv callable, args, state = { 0 };

	if (v.type != DCP_PV_OBJECT || !v.node->obj->called)
		return 0;
	callable = v.node->obj->callable;
	args = v.node->obj->args;
	for (; depth < WRAPPERS_MAX; depth++) {
		const struct rebuild *how = rebuild_of(callable);
		size_t n = 0;
		const struct dcp_pv *arg = dcp_pv_items(args, &n);

		*out = (struct dcp_torch_call){ how->kind, how->what, arg, n, state };
		if (how->kind == DCP_TORCH_NONE)
			return 0;
		if (how->kind == DCP_TORCH_SUBCLASS)
			look_through(out, state, depth);
		if (how->kind != DCP_TORCH_WRAPPED && how->kind != DCP_TORCH_TYPED)
			return 1;
		if (how->kind == DCP_TORCH_WRAPPED && n > 0 && arg[0].type == DCP_PV_OBJECT) {
			callable = arg[0].node->obj->callable;
			args = arg[0].node->obj->args;
		} else if (how->kind == DCP_TORCH_TYPED && n > 2) {
			callable = arg[0];
			args = arg[2];
			state = n > 3 ? arg[3] : state;
		} else {
			return dcp_fail(err, -EBADMSG, "%s without a tensor", how->name);
		}
	}
	return dcp_fail(err, -EBADMSG, "tensor wrapped more than %d times", WRAPPERS_MAX);
}

/* Find the innermost rebuild call of @v. Returns 1, 0 (not a tensor), or -EBADMSG. */
static int dcp_torch_unwrap(struct dcp_pv v, struct dcp_torch_call *out, struct dcp_err *err)
{
	return unwrap_call(v, 0, out, err);
}

/* Do tensors of this kind lie in a storage, even if damaged? */
static bool is_dense(enum dcp_torch_kind kind)
{
	return kind == DCP_TORCH_V1 || kind == DCP_TORCH_V2 || kind == DCP_TORCH_V3 ||
	       kind == DCP_TORCH_REFUSED;
}

/* In the tar of torch 0.1, a tensor is a persistent id with its name. */
static const char *tar_name(struct dcp_pv v)
{
	return v.type == DCP_PV_PERSID && v.node->nitems == 1 ? dcp_pv_str(v.node->items[0])
							      : NULL;
}

bool dcp_torch_is_tensor(struct dcp_pv v)
{
	struct dcp_torch_call c;
	int r = dcp_torch_unwrap(v, &c, NULL);

	return tar_name(v) || r < 0 || (r > 0 && (is_dense(c.kind) || is_distributed(&c)));
}

int dcp_torch_tensor(const struct dcp_torch *t, struct dcp_pv v, struct dcp_torch_tensor *out,
		     struct dcp_err *err)
{
	struct dcp_torch_call c;
	int r = dcp_torch_unwrap(v, &c, err);

	if (r == 0 && tar_name(v))
		return dcp_torch_tar_tensor(t, tar_name(v), out, err);
	if (r <= 0)
		return r;
	if (c.kind == DCP_TORCH_QUANTIZED && c.n > 4)
		return take_int_repr(t, c.arg, out, err);
	if (!is_dense(c.kind) || c.kind == DCP_TORCH_REFUSED)
		return dcp_fail(err, -ENOTSUP, "%s: no dense strided bytes", c.what);
	return take_dense(t, c.kind, c.arg, c.n, out, err);
}

int dcp_torch_tensor_hash(const struct dcp_torch *t, const struct dcp_torch_tensor *tt,
			  uint64_t *hash)
{
	unsigned char block[4096];
	uint64_t n;

	if (!tt->row_major || !dcp_shape_volume(tt->shape, tt->ndim, &n) ||
	    dcp_ckd_mul(&n, n, tt->itemsize) || n > MAX_HASHED)
		return -ENOTSUP;
	*hash = 0;
	for (uint64_t at = 0; at < n; at += sizeof(block)) {
		size_t some = DCP_MIN(sizeof(block), n - at);
		int rc = dcp_source_read(&t->src, tt->off + at, block, some);

		if (rc < 0)
			return rc;
		*hash = dcp_hash64_more(*hash, block, some);
	}
	return 0;
}

const char *dcp_torch_one_piece(const struct dcp_torch_tensor *tt, uint64_t base,
				struct dcp_tensor *t, struct dcp_piece *p)
{
	t->dtype = tt->dtype;
	t->dtype_name = tt->dtype_name;
	t->itemsize = tt->itemsize;
	t->ndim = tt->ndim;
	t->shape = tt->shape;
	p->stride = tt->row_major ? NULL : tt->stride;
	p->filter = (uint8_t)tt->filter;
	p->swap = tt->swap;
	if (!dcp_tensor_one_piece(t, p))
		return "its number of elements does not fit in 64 bits";
	if (t->npieces == 0 || (dcp_stride_span(tt->shape, tt->stride, tt->ndim, &p->nbytes) &&
				!dcp_ckd_mul(&p->nbytes, p->nbytes, tt->itemsize) &&
				!dcp_ckd_add(&p->off, base, tt->off)))
		return NULL;
	t->npieces = 0;
	return "its place in the file does not fit in 64 bits";
}

/*
 * Tensors that consist of several tensors: the arguments of the calls that rebuild them.
 *
 *	_rebuild_sparse_tensor        layout, (indices, values, size[, is_coalesced]) of COO,
 *	                              else (compressed, plain, values, size)
 *	_rebuild_sparse_csr_tensor    layout, (crow_indices, col_indices, values, size)
 *	_rebuild_qtensor              storage, offset, size, stride, (scheme, scale, zero_point
 *	                              [, axis]), requires_grad, hooks
 *	_rebuild_nested_tensor        buffer, sizes, strides, storage_offsets
 *	_rebuild_njt                  {"values":, "offsets":, "lengths":, "_ragged_idx":, ...}
 *	_rebuild_meta_tensor_no_storage   dtype, size, stride, requires_grad
 *	_rebuild_wrapper_subclass     class, dtype, size, ...; its parts are the attributes
 *	                              that _rebuild_from_type_v2 gets: {"qdata":, "scale":, ...}
 */

static void add_part(struct dcp_torch_parts *p, const char *name, struct dcp_pv value)
{
	if (p->n < DCP_LEN(p->part))
		p->part[p->n++] = (struct dcp_torch_part){ .name = name, .value = value };
}

/* ---- sparse ---- */

/* The name of a layout, "torch.sparse_coo"; it is pickled as a call of _get_layout. */
static const char *layout_of(struct dcp_pv v)
{
	const struct dcp_pv *arg;
	size_t n = 0;

	if (!dcp_pv_is_object(v, "torch.serialization", "_get_layout"))
		return NULL;
	arg = dcp_pv_items(v.node->obj->args, &n);
	return n == 1 ? dcp_pv_str(arg[0]) : NULL;
}

/* clang-format off */
static const struct {
	const char *layout, *kind, *first, *second, *third;
} layouts[] = {
	{ "torch.sparse_coo", "torch.Tensor (torch.sparse_coo)", "indices", "values", NULL },
	{ "torch.sparse_csr", "torch.Tensor (torch.sparse_csr)", "crow_indices", "col_indices", "values" },
	{ "torch.sparse_csc", "torch.Tensor (torch.sparse_csc)", "ccol_indices", "row_indices", "values" },
	{ "torch.sparse_bsr", "torch.Tensor (torch.sparse_bsr)", "crow_indices", "col_indices", "values" },
	{ "torch.sparse_bsc", "torch.Tensor (torch.sparse_bsc)", "ccol_indices", "row_indices", "values" },
};
/* clang-format on */

static bool take_sparse(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
{
	const char *layout = n > 1 ? layout_of(arg[0]) : NULL;
	size_t nin = 0, at, size;
	const struct dcp_pv *in = n > 1 ? dcp_pv_items(arg[1], &nin) : NULL;

	for (at = 0; layout && at < DCP_LEN(layouts); at++)
		if (strcmp(layouts[at].layout, layout) == 0)
			break;
	if (!layout || at == DCP_LEN(layouts) || arg[1].type != DCP_PV_TUPLE)
		return false;
	size = layouts[at].third ? 3 : 2;
	if (nin <= size)
		return false;
	p->kind = layouts[at].kind;
	add_part(p, "shape", in[size]);
	if (nin > size + 1)
		add_part(p, "is_coalesced", in[size + 1]);
	add_part(p, layouts[at].first, in[0]);
	add_part(p, layouts[at].second, in[1]);
	if (layouts[at].third)
		add_part(p, layouts[at].third, in[2]);
	return true;
}

/* ---- the others ---- */

static bool take_quantized(const struct dcp_pv *arg, size_t n, struct dcp_pv self,
			   struct dcp_torch_parts *p)
{
	size_t nin = 0;
	const struct dcp_pv *in = n > 4 ? dcp_pv_items(arg[4], &nin) : NULL;

	if (n < 5 || arg[4].type != DCP_PV_TUPLE || nin < 3)
		return false;
	p->kind = "torch.Tensor (quantized)";
	add_part(p, "shape", arg[2]);
	add_part(p, "qscheme", in[0]);
	add_part(p, "scale", in[1]);
	add_part(p, "zero_point", in[2]);
	if (nin > 3)
		add_part(p, "axis", in[3]);
	add_part(p, "int_repr", self);
	p->part[p->n - 1].self = true;
	return true;
}

static bool take_nested(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
{
	static const char *const names[] = { "buffer", "sizes", "strides", "storage_offsets" };

	p->kind = "torch.Tensor (nested)";
	for (size_t i = 0; i < DCP_MIN(n, DCP_LEN(names)); i++)
		add_part(p, names[i], arg[i]);
	return n > 1;
}

static bool take_jagged(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
{
	static const char *const names[] = { "values", "offsets", "lengths", "_ragged_idx" };

	p->kind = "torch.Tensor (torch.jagged)";
	for (size_t i = 0; n > 0 && i < DCP_LEN(names); i++) {
		const struct dcp_pv *value = dcp_pv_get(arg[0], names[i]);

		if (value)
			add_part(p, names[i], *value);
	}
	return p->n > 1;
}

static bool take_meta(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
{
	p->kind = "torch.Tensor (meta)";
	if (n < 2)
		return false;
	add_part(p, "dtype", arg[0]);
	add_part(p, "shape", arg[1]);
	return true;
}

static bool take_subclass(const struct dcp_torch_call *c, struct dcp_torch_parts *p)
{
	size_t n;
	const struct dcp_pv *pair = dcp_pv_pairs(c->state, &n);

	if (n == 0 || n > DCP_LEN(p->part) || c->n == 0 || c->arg[0].type != DCP_PV_GLOBAL)
		return false;
	p->kind = c->arg[0].node->full;
	for (size_t i = 0; i < n; i++) {
		const char *name = dcp_pv_str(pair[2 * i]);

		if (!name || !*name)
			return false;
		add_part(p, name, pair[2 * i + 1]);
	}
	p->wraps = c->n > 2 && dcp_torch_dims(c->arg[2], p->shape, &p->ndim);
	return true;
}

bool dcp_torch_parts(struct dcp_pv v, struct dcp_torch_parts *out)
{
	struct dcp_torch_call c;
	struct dcp_torch_parts p = { 0 };
	bool ok = false;

	if (dcp_torch_unwrap(v, &c, NULL) != 1)
		return false;
	switch (c.kind) {
	case DCP_TORCH_SPARSE:
		ok = take_sparse(c.arg, c.n, &p);
		break;
	case DCP_TORCH_QUANTIZED:
		ok = take_quantized(c.arg, c.n, v, &p);
		break;
	case DCP_TORCH_NESTED:
		ok = take_nested(c.arg, c.n, &p);
		break;
	case DCP_TORCH_JAGGED:
		ok = take_jagged(c.arg, c.n, &p);
		break;
	case DCP_TORCH_META:
		ok = take_meta(c.arg, c.n, &p);
		break;
	case DCP_TORCH_SUBCLASS:
		ok = take_subclass(&c, &p);
		break;
	case DCP_TORCH_NONE:
	case DCP_TORCH_V1:
	case DCP_TORCH_V2:
	case DCP_TORCH_V3:
	case DCP_TORCH_WRAPPED:
	case DCP_TORCH_TYPED:
	case DCP_TORCH_REFUSED:
		break;
	}
	if (ok)
		*out = p;
	return ok;
}
