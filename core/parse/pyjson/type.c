/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/base/base.h"
#include "core/parse/pyjson/pyjson_int.h"

static bool in_builtins(struct dcp_pv v)
{
	return strcmp(v.node->module, "builtins") == 0 ||
	       strcmp(v.node->module, "__builtin__") == 0;
}

/* Protocol 2 spells some builtins as Python 2 called them. */
static const char *builtin_name(const char *name)
{
	static const struct {
		const char *old, *now;
	} names[] = { { "long", "int" }, { "unicode", "str" }, { "xrange", "range" } };

	for (size_t i = 0; i < DCP_LEN(names); i++)
		if (strcmp(names[i].old, name) == 0)
			return names[i].now;
	return name;
}

const char *dcp_pyjson_class(struct dcp_pv v)
{
	return in_builtins(v) ? builtin_name(v.node->name) : v.node->full;
}

static const char *type_of_name(struct dcp_pv v)
{
	static const struct {
		const char *name, *type;
	} constants[] = {
		{ "strided", "torch.layout" },
		{ "sparse_coo", "torch.layout" },
		{ "sparse_csr", "torch.layout" },
		{ "contiguous_format", "torch.memory_format" },
		{ "channels_last", "torch.memory_format" },
		{ "preserve_format", "torch.memory_format" },
		{ "per_tensor_affine", "torch.qscheme" },
		{ "per_channel_affine", "torch.qscheme" },
	};

	if (strcmp(v.node->module, "torch") != 0)
		return "type";
	if (dcp_torch_itemsize(v.node->name))
		return "torch.dtype";
	for (size_t i = 0; i < DCP_LEN(constants); i++)
		if (strcmp(constants[i].name, v.node->name) == 0)
			return constants[i].type;
	return "type";
}

static const char *type_of_array(const struct dcp_pyjson_array *a)
{
	return a->scalar ? dcp_pyjson_scalar_of(a->descr + 1) : "numpy.ndarray";
}

/* Functions that make something of another name than their own. */
static const char *type_by_function(struct dcp_pv f)
{
	static const struct {
		const char *module, *name, *type;
	} functions[] = {
		{ "_codecs", "encode", "bytes" },
		{ "numpy.core.multiarray", "_reconstruct", "numpy.ndarray" },
		{ "numpy.core.numeric", "_frombuffer", "numpy.ndarray" },
		{ "numpy.core.multiarray", "scalar", "numpy.generic" },
		{ "torch.serialization", "_get_layout", "torch.layout" },
	};

	for (size_t i = 0; i < DCP_LEN(functions); i++)
		if (dcp_pv_is_global(f, functions[i].module, functions[i].name))
			return functions[i].type;
	return NULL;
}

/* A tensor's own class is an argument of the call that rebuilds it, or follows from the call's
 * name.
 */
static const char *type_of_tensor(struct dcp_pv v)
{
	struct dcp_pv f = v.node->obj->callable;
	size_t n = 0;
	const struct dcp_pv *arg = dcp_pv_items(v.node->obj->args, &n);

	if (strncmp(f.node->name, "_rebuild_parameter", 18) == 0)
		return "torch.nn.parameter.Parameter";
	if (strncmp(f.node->name, "_rebuild_from_type", 18) == 0 && n > 1 &&
	    arg[1].type == DCP_PV_GLOBAL && !dcp_pv_is_global(arg[1], "torch", "Tensor"))
		return arg[1].node->full;
	return "torch.Tensor";
}

static const char *type_of_object(struct dcp_pv v)
{
	struct dcp_pyjson_look l;
	const char *type;

	if (dcp_torch_is_tensor(v))
		return type_of_tensor(v);
	dcp_pyjson_look(v, &l);
	if (l.form == DCP_PYJSON_PARTS)
		return l.parts.kind;
	if (l.form == DCP_PYJSON_ARRAY)
		return type_of_array(&l.array);
	if (l.class.type != DCP_PV_GLOBAL)
		return "object";
	if (strncmp(l.class.node->full, "torch._tensor._rebuild_from_type", 32) == 0)
		return type_of_tensor(v); /* a subclass that rebuilds itself */
	type = v.node->obj->called ? type_by_function(l.class) : NULL;
	return type ? type : dcp_pyjson_class(l.class);
}

const char *dcp_pyjson_type(struct dcp_pv v)
{
	static const char *const names[] = {
		[DCP_PV_NONE] = "NoneType", [DCP_PV_BOOL] = "bool",
		[DCP_PV_INT] = "int",       [DCP_PV_FLOAT] = "float",
		[DCP_PV_BIGINT] = "int",    [DCP_PV_STR] = "str",
		[DCP_PV_BYTES] = "bytes",   [DCP_PV_BYTEARRAY] = "bytearray",
		[DCP_PV_TUPLE] = "tuple",   [DCP_PV_LIST] = "list",
		[DCP_PV_SET] = "set",       [DCP_PV_FROZENSET] = "frozenset",
		[DCP_PV_DICT] = "dict",
	};
	const struct dcp_pv *id;
	size_t n = 0;

	if (v.type < DCP_LEN(names))
		return names[v.type];
	if (v.type == DCP_PV_GLOBAL)
		return type_of_name(v);
	if (v.type == DCP_PV_OBJECT)
		return type_of_object(v);
	if (v.type != DCP_PV_PERSID || v.node->nitems != 1)
		return "object";
	id = dcp_pv_items(v.node->items[0], &n);
	return n > 1 && id[1].type == DCP_PV_GLOBAL ? id[1].node->full : "object";
}
