/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/origin/source.h"
#include "core/parse/pickle/pickle_int.h"

/* A module name as it is spelled now, in two parts. */
struct module {
	const char *head, *tail;
};

static struct module module_now(const char *s)
{
	static const char numpy[] = "numpy._core";
	size_t n = sizeof(numpy) - 1;

	if (!strcmp(s, "__builtin__"))
		return (struct module){ "builtins", "" };
	if (!strcmp(s, "copy_reg"))
		return (struct module){ "copyreg", "" };
	if (!strncmp(s, numpy, n) && (s[n] == '.' || s[n] == '\0'))
		return (struct module){ "numpy.core", s + n };
	return (struct module){ "", s };
}

static bool same_module(const char *a, const char *b)
{
	struct module x, y;
	size_t n, m;

	if (!strcmp(a, b))
		return true;
	x = module_now(a);
	y = module_now(b);
	n = strlen(x.head);
	m = strlen(y.head);
	if (n == m)
		return !strcmp(x.head, y.head) && !strcmp(x.tail, y.tail);
	/* One of them has no head: it is spelled out in the tail. */
	return n ? !strncmp(y.tail, x.head, n) && !strcmp(y.tail + n, x.tail)
		 : !strncmp(x.tail, y.head, m) && !strcmp(x.tail + m, y.tail);
}

bool dcp_pv_is_str(struct dcp_pv v, const char *s)
{
	size_t n = strlen(s);

	return v.type == DCP_PV_STR && v.node->n == n && !memcmp(v.node->data, s, n);
}

bool dcp_pv_is_global(struct dcp_pv v, const char *module, const char *name)
{
	return v.type == DCP_PV_GLOBAL && !strcmp(v.node->name, name) &&
	       same_module(v.node->module, module);
}

bool dcp_pv_is_object(struct dcp_pv v, const char *module, const char *name)
{
	return v.type == DCP_PV_OBJECT && dcp_pv_is_global(v.node->obj->callable, module, name);
}

const char *dcp_pv_str(struct dcp_pv v)
{
	return v.type == DCP_PV_STR ? v.node->data : NULL;
}

bool dcp_pv_u64(struct dcp_pv v, uint64_t *out)
{
	if ((v.type != DCP_PV_INT || v.i < 0) && v.type != DCP_PV_BOOL)
		return false;
	*out = v.type == DCP_PV_BOOL ? v.b : (uint64_t)v.i;
	return true;
}

int dcp_pv_read(const struct dcp_source *src, struct dcp_pv v, uint64_t off, void *buf,
		size_t n)
{
	uint64_t at;

	if ((v.type != DCP_PV_BYTES && v.type != DCP_PV_BYTEARRAY) ||
	    !dcp_range_ok(off, n, v.node->n))
		return -EINVAL;
	if (v.node->data) {
		memcpy(buf, v.node->data + off, n);
		return 0;
	}
	if (dcp_ckd_add(&at, v.node->src_off, off))
		return -EBADMSG;
	return dcp_source_read(src, at, buf, n);
}

const struct dcp_pv *dcp_pv_items(struct dcp_pv v, size_t *n)
{
	if (v.type == DCP_PV_OBJECT)
		v = v.node->obj->list;
	switch ((enum dcp_pv_type)v.type) {
	case DCP_PV_TUPLE:
	case DCP_PV_LIST:
	case DCP_PV_SET:
	case DCP_PV_FROZENSET:
		*n = v.node->nitems;
		return v.node->items;
	case DCP_PV_NONE:
	case DCP_PV_BOOL:
	case DCP_PV_INT:
	case DCP_PV_FLOAT:
	case DCP_PV_BIGINT:
	case DCP_PV_STR:
	case DCP_PV_BYTES:
	case DCP_PV_BYTEARRAY:
	case DCP_PV_DICT:
	case DCP_PV_GLOBAL:
	case DCP_PV_OBJECT:
	case DCP_PV_PERSID:
		break;
	}
	*n = 0;
	return NULL;
}

/* The dict a class was called with, as Counter is pickled; NONE otherwise. */
static struct dcp_pv sole_dict_argument(const struct dcp_pobj *obj)
{
	const struct dcp_pnode *args = obj->args.node;

	if (args->nitems == 1 && args->items[0].type == DCP_PV_DICT)
		return args->items[0];
	return (struct dcp_pv){ 0 };
}

const struct dcp_pv *dcp_pv_pairs(struct dcp_pv v, size_t *npairs)
{
	if (v.type == DCP_PV_OBJECT) {
		const struct dcp_pobj *obj = v.node->obj;

		struct dcp_pv made_of = obj->dict;

		/* the class is asked last: that compares names, and few are called with a dict
		 */
		if (made_of.type == DCP_PV_NONE)
			made_of = sole_dict_argument(obj);
		if (made_of.type != DCP_PV_NONE && obj->dict.type == DCP_PV_NONE &&
		    !dcp_pv_is_mapping(v))
			made_of.type = DCP_PV_NONE;
		v = made_of;
	}
	if (v.type != DCP_PV_DICT) {
		*npairs = 0;
		return NULL;
	}
	*npairs = v.node->nitems / 2;
	return v.node->items;
}

static const struct dcp_pv *find_key(struct dcp_pv v, const char *key)
{
	size_t n;
	const struct dcp_pv *kv = dcp_pv_pairs(v, &n);

	for (; n; n--)
		if (dcp_pv_is_str(kv[2 * n - 2], key))
			return &kv[2 * n - 1];
	return NULL;
}

const struct dcp_pv *dcp_pv_get(struct dcp_pv v, const char *key)
{
	const struct dcp_pv *found = find_key(v, key);
	const struct dcp_pv *state = v.type == DCP_PV_OBJECT ? &v.node->obj->state : NULL;

	if (found || !state)
		return found;
	if (state->type == DCP_PV_DICT)
		return find_key(*state, key);
	if (state->type != DCP_PV_TUPLE || state->node->nitems != 2)
		return NULL;
	/* (None or the __dict__, the __slots__) */
	found = find_key(state->node->items[1], key);
	return found ? found : find_key(state->node->items[0], key);
}

struct dcp_pv dcp_pv_at(struct dcp_pv v, const char *key)
{
	const struct dcp_pv *found = dcp_pv_get(v, key);

	return found ? *found : (struct dcp_pv){ 0 };
}

struct dcp_pv dcp_pv_item(struct dcp_pv v, size_t i)
{
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(v, &n);

	return i < n ? item[i] : (struct dcp_pv){ 0 };
}

bool dcp_pv_dims(struct dcp_pv v, uint32_t max, uint64_t *to, uint32_t *ndim)
{
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(v, &n);

	if ((v.type != DCP_PV_TUPLE && v.type != DCP_PV_LIST) || n > max)
		return false;
	*ndim = (uint32_t)n;
	for (size_t i = 0; i < n; i++)
		if (!dcp_pv_u64(item[i], &to[i]))
			return false;
	return true;
}

bool dcp_pv_is_mapping(struct dcp_pv v)
{
	return v.type == DCP_PV_DICT || dcp_pv_is_object(v, "collections", "OrderedDict") ||
	       dcp_pv_is_object(v, "collections", "defaultdict") ||
	       dcp_pv_is_object(v, "collections", "Counter") ||
	       dcp_pv_is_object(v, "builtins", "dict");
}
