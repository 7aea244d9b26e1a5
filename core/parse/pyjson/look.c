/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/pyjson/pyjson_int.h"

#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"

/* ---- numpy ---- */

static bool known_dtype(const char *code, size_t *size)
{
	if (!code || !dcp_pyclass_of_number(code, strlen(code)))
		return false;
	*size = code[2] ? 16 : (size_t)(code[1] - '0');
	return true;
}

/* numpy.dtype("f4", False, True) with state (3, "<", None, None, None, -1, -1, 0). */
static bool look_dtype(struct dcp_pv v, char descr[8], size_t *size)
{
	const struct dcp_pv *arg, *state;
	const char *order = "=", *code;
	size_t n = 0;

	if (!dcp_pv_is_object(v, "numpy", "dtype"))
		return false;
	arg = dcp_pv_items(v.node->obj->args, &n);
	code = n ? dcp_pv_str(arg[0]) : NULL;
	if (!known_dtype(code, size))
		return false;
	if (v.node->obj->state.type != DCP_PV_NONE) {
		state = dcp_pv_items(v.node->obj->state, &n);
		order = n >= 5 ? dcp_pv_str(state[1]) : NULL;
		if (!order || !*order || order[1] || !strchr("<>|=", *order) ||
		    state[2].type != DCP_PV_NONE || state[3].type != DCP_PV_NONE ||
		    state[4].type != DCP_PV_NONE)
			return false;
	}
	snprintf(descr, 8, "%c%s", *size == 1 ? '|' : *order == '>' ? '>' : '<', code);
	return true;
}

static bool payload_fits(struct dcp_pyjson_array *a, size_t itemsize)
{
	uint64_t want = itemsize, have;

	for (size_t i = 0; i < a->ndim; i++) {
		uint64_t dim;

		if (!dcp_pv_u64(a->shape[i], &dim) || dcp_ckd_mul(&want, want, dim))
			return false;
	}
	have = dcp_pyjson_bytes_len(a->payload);
	a->nbytes = have;
	return have == want;
}

/* A call of _reconstruct(ndarray, (0,), b"b") whose state is (1, shape, dtype, fortran, bytes). */
static bool look_reconstruct(const struct dcp_pobj *o, struct dcp_pyjson_array *a,
			     struct dcp_pv *dtype, struct dcp_pv *shape, struct dcp_pv *data)
{
	size_t n = 0;
	const struct dcp_pv *arg = dcp_pv_items(o->args, &n), *state;

	if (n < 1 || !dcp_pv_is_global(arg[0], "numpy", "ndarray"))
		return false;
	state = dcp_pv_items(o->state, &n);
	if (o->state.type != DCP_PV_TUPLE || n != 5 || state[3].type != DCP_PV_BOOL)
		return false;
	*shape = state[1];
	*dtype = state[2];
	a->fortran = state[3].b;
	*data = state[4];
	return true;
}

/* _frombuffer(bytes, dtype, shape, "C" or "F"). */
static bool look_frombuffer(const struct dcp_pobj *o, struct dcp_pyjson_array *a,
			    struct dcp_pv *dtype, struct dcp_pv *shape, struct dcp_pv *data)
{
	size_t n = 0;
	const struct dcp_pv *arg = dcp_pv_items(o->args, &n);

	if (n < 4 || (!dcp_pv_is_str(arg[3], "C") && !dcp_pv_is_str(arg[3], "F")))
		return false;
	*data = arg[0];
	*dtype = arg[1];
	*shape = arg[2];
	a->fortran = dcp_pv_is_str(arg[3], "F");
	return true;
}

/* Get dtype and bytes of a numpy array or scalar, if they are plain numbers of the right length. */
static bool look_array(struct dcp_pv v, const struct dcp_pyclass *c,
		       struct dcp_pyjson_array *out)
{
	struct dcp_pyjson_array a = { 0 };
	struct dcp_pv dtype, shape = { .type = DCP_PV_NONE }, data;
	const struct dcp_pv *arg;
	size_t size = 0, n = 0;

	if (strcmp(c->function, "_reconstruct") == 0) {
		if (!look_reconstruct(v.node->obj, &a, &dtype, &shape, &data))
			return false;
	} else if (strcmp(c->function, "_frombuffer") == 0) {
		if (!look_frombuffer(v.node->obj, &a, &dtype, &shape, &data))
			return false;
	} else {
		arg = dcp_pv_items(v.node->obj->args, &n);
		if (n != 2)
			return false;
		a.scalar = true;
		dtype = arg[0];
		data = arg[1];
	}
	if (!a.scalar && shape.type != DCP_PV_TUPLE)
		return false;
	a.shape = dcp_pv_items(shape, &a.ndim);
	if (!look_dtype(dtype, a.descr, &size) || !dcp_pyjson_look_bytes(data, &a.payload) ||
	    !payload_fits(&a, size))
		return false;
	*out = a;
	return true;
}

/* ---- everything ---- */

bool dcp_pyjson_mapping(struct dcp_pv v, const struct dcp_pv **pairs, size_t *n)
{
	const struct dcp_pobj *o;
	const struct dcp_pv *arg;
	size_t nargs = 0;

	*pairs = dcp_pv_pairs(v, n);
	if (v.type == DCP_PV_DICT)
		return true;
	if (v.type != DCP_PV_OBJECT || !dcp_pv_is_mapping(v))
		return false;
	o = v.node->obj;
	arg = dcp_pv_items(o->args, &nargs);
	/* Counter({...}); an argument of any other form is not taken apart. */
	if (nargs == 1 && arg[0].type == DCP_PV_DICT && o->dict.type == DCP_PV_NONE)
		return true;
	for (size_t i = 0; i < nargs; i++)
		if (arg[i].type != DCP_PV_NONE && arg[i].type != DCP_PV_GLOBAL)
			return false;
	return true;
}

/* Is it an OrderedDict with pairs and nothing else? */
static bool is_plain_ordered(struct dcp_pv v)
{
	const struct dcp_pobj *o = v.node->obj;
	size_t nargs = 0, nstate = 0;

	dcp_pv_items(o->args, &nargs);
	dcp_pv_pairs(o->state, &nstate);
	return nargs == 0 && o->kwargs.type == DCP_PV_NONE && o->list.type == DCP_PV_NONE &&
	       (o->state.type == DCP_PV_NONE || (o->state.type == DCP_PV_DICT && nstate == 0));
}

static bool one_sequence(const struct dcp_pobj *o, struct dcp_pyjson_look *l)
{
	size_t n = 0;
	const struct dcp_pv *arg = dcp_pv_items(o->args, &n);

	if (n != 1 || (arg[0].type != DCP_PV_TUPLE && arg[0].type != DCP_PV_LIST) ||
	    o->state.type != DCP_PV_NONE)
		return false;
	l->items = dcp_pv_items(arg[0], &l->nitems);
	return true;
}

bool dcp_pyjson_unnamed(struct dcp_pv key)
{
	return dcp_pv_is_str(key, "_parameters") || dcp_pv_is_str(key, "_buffers") ||
	       dcp_pv_is_str(key, "_modules");
}

/* Is it the __dict__ of a torch.nn.Module of any class? */
static bool is_module_state(struct dcp_pv state)
{
	const struct dcp_pv *kv, *unused;
	size_t n = 0, m, found = 0;

	if (state.type != DCP_PV_DICT)
		return false;
	kv = dcp_pv_pairs(state, &n);
	for (size_t i = 0; i < n; i++)
		if (kv[2 * i].type != DCP_PV_STR)
			return false;
		else if (dcp_pyjson_unnamed(kv[2 * i]) &&
			 dcp_pyjson_mapping(kv[2 * i + 1], &unused, &m))
			found++;
	return found >= 3;
}

/*
 * Turn _reconstructor(class, base, value) of protocols 0 and 1 into the form of protocol 2. A tuple
 * of a single sequence stays as it is, because it would look like a class called with the sequence.
 */
static void look_reconstructed(const struct dcp_pv *arg, struct dcp_pyjson_look *l)
{
	static const char *const one[] = { "int", "float", "complex", "str", "bytes" };
	struct dcp_pv base = arg[1], value = arg[2], first = dcp_pv_item(value, 0);
	bool sequence = first.type == DCP_PV_TUPLE || first.type == DCP_PV_LIST;
	size_t n = 0;
	const struct dcp_pv *item = dcp_pv_items(value, &n);

	l->class = arg[0];
	l->args = arg + 1;
	l->nargs = 2;
	if (dcp_pv_is_global(base, "builtins", "object")) {
		l->nargs = 0;
	} else if (dcp_pv_is_global(base, "builtins", "tuple") && value.type == DCP_PV_TUPLE &&
		   !(n == 1 && sequence)) {
		l->args = item;
		l->nargs = n;
	} else if (dcp_pv_is_global(base, "builtins", "list") && value.type == DCP_PV_LIST &&
		   !l->items) {
		l->items = item;
		l->nitems = n;
		l->nargs = 0;
	} else if (dcp_pv_is_global(base, "builtins", "dict") && value.type == DCP_PV_DICT &&
		   !l->pairs) {
		l->pairs = dcp_pv_pairs(value, &l->npairs);
		l->nargs = 0;
	}
	for (size_t i = 0; base.type == DCP_PV_GLOBAL && i < DCP_LEN(one); i++)
		if (strcmp(dcp_pyjson_class(base), one[i]) == 0) {
			l->args = arg + 2;
			l->nargs = 1;
		}
}

/* Find the class of an object that a function made. */
static void look_class(const struct dcp_pobj *o, struct dcp_pyjson_look *l)
{
	struct dcp_pv self = { .type = DCP_PV_NONE };
	size_t n = 0;
	const struct dcp_pv *arg = dcp_pv_items(o->args, &n);

	l->form = DCP_PYJSON_CLASS;
	l->class = o->callable;
	l->args = arg;
	l->nargs = n;
	l->kwargs = o->kwargs;
	l->state = o->state;
	l->module = is_module_state(o->state);
	if (o->list.type == DCP_PV_LIST)
		l->items = dcp_pv_items(o->list, &l->nitems);
	if (o->dict.type == DCP_PV_DICT)
		l->pairs = dcp_pv_pairs(o->dict, &l->npairs);
	if (n > 0)
		self = arg[0];
	if (self.type != DCP_PV_GLOBAL || !o->called)
		return;
	if (dcp_pv_is_global(o->callable, "builtins", "getattr") && n == 2) {
		l->class = self; /* a member of an enum, by name */
		l->args++;
		l->nargs--;
	} else if (dcp_pv_is_global(o->callable, "copyreg", "__newobj__")) {
		l->class = self;
		l->args++;
		l->nargs--;
	} else if (dcp_pv_is_global(o->callable, "copyreg", "_reconstructor") && n == 3) {
		look_reconstructed(arg, l);
	}
}

/* Is it a value of class @c without other contents? */
static bool look_plain(struct dcp_pv v, const struct dcp_pyclass *c, struct dcp_pyjson_look *l)
{
	const struct dcp_pobj *o = v.node->obj;
	size_t n = 0;
	int64_t us = 0;
	const struct dcp_pv *arg = dcp_pv_items(o->args, &n);
	bool fits = false;

	if (c->form == DCP_PYJSON_BYTES) {
		fits = dcp_pyjson_look_bytes(v, &l->text);
	} else if (c->form == DCP_PYJSON_DICT && is_plain_ordered(v)) {
		fits = true;
		l->pairs = dcp_pv_pairs(v, &l->npairs);
	} else if (c->form == DCP_PYJSON_LIST || (c->form == DCP_PYJSON_SET && n)) {
		fits = one_sequence(o, l);
	} else if (c->form == DCP_PYJSON_SET) {
		fits = true;
	} else if (c->form == DCP_PYJSON_TEXT && n == 1 && arg[0].type == DCP_PV_STR) {
		fits = true;
		l->text = arg[0];
	} else if (c->form == DCP_PYJSON_ARRAY) {
		fits = look_array(v, c, &l->array);
	} else if (c->form == DCP_PYJSON_SECONDS) {
		fits = dcp_pyjson_span(v, &us);
		l->seconds = (double)us / 1e6;
	} else if (c->form == DCP_PYJSON_TIME) {
		fits = dcp_pyjson_time(v, l->iso);
	}
	return fits;
}

static void look_object(struct dcp_pv v, struct dcp_pyjson_look *l)
{
	const struct dcp_pyclass *c = dcp_pyclass_of(v);

	look_class(v.node->obj, l);
	if (dcp_torch_parts(v, &l->parts))
		l->form = DCP_PYJSON_PARTS;
	else if (c && look_plain(v, c, l))
		l->form = c->form;
}

void dcp_pyjson_look(struct dcp_pv v, struct dcp_pyjson_look *l)
{
	memset(l, 0, sizeof(*l));
	switch ((enum dcp_pv_type)v.type) {
	case DCP_PV_NONE:
	case DCP_PV_BOOL:
	case DCP_PV_INT:
	case DCP_PV_FLOAT:
	case DCP_PV_BIGINT:
	case DCP_PV_STR:
		l->form = DCP_PYJSON_SCALAR;
		return;
	case DCP_PV_BYTES:
	case DCP_PV_BYTEARRAY:
		l->form = DCP_PYJSON_BYTES;
		l->text = v;
		return;
	case DCP_PV_TUPLE:
	case DCP_PV_LIST:
		l->form = DCP_PYJSON_LIST;
		l->items = dcp_pv_items(v, &l->nitems);
		return;
	case DCP_PV_SET:
	case DCP_PV_FROZENSET:
		l->form = DCP_PYJSON_SET;
		l->items = dcp_pv_items(v, &l->nitems);
		return;
	case DCP_PV_DICT:
		l->form = DCP_PYJSON_DICT;
		l->pairs = dcp_pv_pairs(v, &l->npairs);
		return;
	case DCP_PV_GLOBAL:
		l->form = DCP_PYJSON_NAME;
		return;
	case DCP_PV_PERSID:
		l->form = DCP_PYJSON_STORAGE;
		return;
	case DCP_PV_OBJECT:
		look_object(v, l);
		return;
	}
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
	const char *code = a->descr + 1;

	return a->scalar ? dcp_pyclass_of_number(code, strlen(code))->name : "numpy.ndarray";
}

/* A tensor's own class is an argument of the call that rebuilds it, or follows from the call's
 * name. */
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
	const struct dcp_pyclass *c;
	struct dcp_pyjson_look l;

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
	c = v.node->obj->called ? dcp_pyclass_made(l.class) : NULL;
	return c ? c->name : dcp_pyjson_class(l.class);
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
