/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are several: what the call that rebuilds one is given.
 *
 *	_rebuild_sparse_tensor        layout, (indices, values, size[, is_coalesced]) of COO,
 *	                              else (compressed, plain, values, size)
 *	_rebuild_sparse_csr_tensor    layout, (crow_indices, col_indices, values, size)
 *	_rebuild_qtensor              storage, offset, size, stride, (scheme, scale, zero_point
 *	                              [, axis]), requires_grad, hooks
 *	_rebuild_nested_tensor        buffer, sizes, strides, storage_offsets
 *	_rebuild_njt                  {"values":, "offsets":, "lengths":, "_ragged_idx":, ...}
 *	_rebuild_meta_tensor_no_storage   dtype, size, stride, requires_grad
 *	_rebuild_wrapper_subclass     class, dtype, size, ...; what it consists of are the attributes
 *	                              that _rebuild_from_type_v2 gets: {"qdata":, "scale":, ...}
 */
#include <string.h>

#include "core/base/base.h"
#include "core/parse/torch/torch_int.h"

static void add(struct dcp_torch_parts *p, const char *name, struct dcp_pv value)
{
	if (p->n < DCP_LEN(p->part))
		p->part[p->n++] = (struct dcp_torch_part){ .name = name, .value = value };
}

/* ---- sparse ---- */

/* "torch.sparse_coo" out of the call of _get_layout that a layout is pickled as. */
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

static bool sparse(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
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
	add(p, "shape", in[size]);
	if (nin > size + 1)
		add(p, "is_coalesced", in[size + 1]);
	add(p, layouts[at].first, in[0]);
	add(p, layouts[at].second, in[1]);
	if (layouts[at].third)
		add(p, layouts[at].third, in[2]);
	return true;
}

/* ---- the others ---- */

static bool quantized(const struct dcp_pv *arg, size_t n, struct dcp_pv self,
		      struct dcp_torch_parts *p)
{
	size_t nin = 0;
	const struct dcp_pv *in = n > 4 ? dcp_pv_items(arg[4], &nin) : NULL;

	if (n < 5 || arg[4].type != DCP_PV_TUPLE || nin < 3)
		return false;
	p->kind = "torch.Tensor (quantized)";
	add(p, "shape", arg[2]);
	add(p, "qscheme", in[0]);
	add(p, "scale", in[1]);
	add(p, "zero_point", in[2]);
	if (nin > 3)
		add(p, "axis", in[3]);
	add(p, "int_repr", self);
	p->part[p->n - 1].self = true;
	return true;
}

static bool nested(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
{
	static const char *const names[] = { "buffer", "sizes", "strides", "storage_offsets" };

	p->kind = "torch.Tensor (nested)";
	for (size_t i = 0; i < DCP_MIN(n, DCP_LEN(names)); i++)
		add(p, names[i], arg[i]);
	return n > 1;
}

static bool jagged(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
{
	static const char *const names[] = { "values", "offsets", "lengths", "_ragged_idx" };

	p->kind = "torch.Tensor (torch.jagged)";
	for (size_t i = 0; n > 0 && i < DCP_LEN(names); i++) {
		const struct dcp_pv *value = dcp_pv_get(arg[0], names[i]);

		if (value)
			add(p, names[i], *value);
	}
	return p->n > 1;
}

static bool meta(const struct dcp_pv *arg, size_t n, struct dcp_torch_parts *p)
{
	p->kind = "torch.Tensor (meta)";
	if (n < 2)
		return false;
	add(p, "dtype", arg[0]);
	add(p, "shape", arg[1]);
	return true;
}

static bool subclass(const struct dcp_torch_call *c, struct dcp_torch_parts *p)
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
		add(p, name, pair[2 * i + 1]);
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
		ok = sparse(c.arg, c.n, &p);
		break;
	case DCP_TORCH_QUANTIZED:
		ok = quantized(c.arg, c.n, v, &p);
		break;
	case DCP_TORCH_NESTED:
		ok = nested(c.arg, c.n, &p);
		break;
	case DCP_TORCH_JAGGED:
		ok = jagged(c.arg, c.n, &p);
		break;
	case DCP_TORCH_META:
		ok = meta(c.arg, c.n, &p);
		break;
	case DCP_TORCH_SUBCLASS:
		ok = subclass(&c, &p);
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
