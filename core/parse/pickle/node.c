/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making nodes, and sharing equal nodes: a metadata file may hold a million
 * torch.Size((0, 0)), and those that the memo keeps must not cost 200 bytes each.
 *
 * Tuples of small values are looked up among recent tuples and shared. This is safe, because a
 * tuple never changes. Objects stay nodes of their own, but objects made by the same call with the
 * same arguments share their struct dcp_pobj until one of them is changed (dcp_pkl_own). The tables
 * are small, and new entries replace old ones: a miss costs memory, never correctness, and
 * colliding hashes cannot make a lookup long.
 */
#include "core/parse/pickle/pickle_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/origin/origin.h"

enum {
	TUPLES = 4096,    /* entries of the table of shared tuples */
	CALLS = 1024,     /* of the table of shared calls */
	SHARE_AFTER = 64, /* tuples; pickles with fewer do without tables */
	SHARED_ITEMS = 8, /* longer and deeper tuples are not looked up */
	SHARED_DEPTH = 4,
	TABLES_MEMORY = 1 << 20, /* bytes that must be left of the limit to make the tables */
};

struct dcp_pkl_call {
	const struct dcp_pnode *callable, *args;
	struct dcp_pobj *obj;
};

static void release_table(struct dcp_pkl_mem *m)
{
	for (size_t i = 0; m->tuples && i < TUPLES; i++)
		if (m->tuples[i])
			dcp_pkl_drop(m, dcp_pkl_node(DCP_PV_TUPLE, m->tuples[i]));
	for (size_t i = 0; m->calls && i < CALLS; i++)
		if (m->calls[i].obj)
			dcp_pkl_drop_obj(m, m->calls[i].obj);
}

void dcp_pkl_mem_settle(struct dcp_pkl_mem *m)
{
	release_table(m);
	m->tuples =
		dcp_pkl_resize(m, m->tuples, m->tuples ? TUPLES * sizeof(*m->tuples) : 0, 0);
	m->calls = dcp_pkl_resize(m, m->calls, m->calls ? CALLS * sizeof(*m->calls) : 0, 0);
	m->ntuples = 0;
}

/* The tables only save memory: if memory is short, the pickle is read without them. */
static void make_tables(struct dcp_pkl_mem *m)
{
	if (m->limit - m->used < TABLES_MEMORY)
		return;
	m->tuples = dcp_pkl_resize(m, NULL, 0, TUPLES * sizeof(*m->tuples));
	m->calls = dcp_pkl_resize(m, NULL, 0, CALLS * sizeof(*m->calls));
	if (m->tuples)
		memset(m->tuples, 0, TUPLES * sizeof(*m->tuples));
	if (m->calls)
		memset(m->calls, 0, CALLS * sizeof(*m->calls));
}

/* ---- text ---- */

struct dcp_pnode *dcp_pkl_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off)
{
	struct dcp_pnode *node;

	if (n > m->limit) {
		m->over = true;
		return NULL;
	}
	node = dcp_pkl_alloc(m, sizeof(*node) + (size_t)n + 8);
	if (node)
		*node = (struct dcp_pnode){
			.refs = 1,
			.data = (char *)(node + 1),
			.n = n,
			.src_off = src_off,
		};
	return node;
}

struct dcp_pnode *dcp_pkl_far_text(struct dcp_pkl_mem *m, uint64_t n, uint64_t src_off)
{
	struct dcp_pnode *node = dcp_pkl_alloc(m, sizeof(*node));

	if (node)
		*node = (struct dcp_pnode){ .refs = 1, .n = n, .src_off = src_off };
	return node;
}

/* ---- tuples ---- */

/*
 * May @v be an item of a shared tuple? Yes, if it cannot change and is small, since the tables must
 * not keep anything large alive. If all items of a tuple are such values, its cap, which has no
 * other use, is set.
 */
static bool is_sharable(struct dcp_pv v)
{
	return !dcp_pkl_has_node(v) || v.type == DCP_PV_GLOBAL ||
	       (v.type == DCP_PV_TUPLE && v.node->cap && v.node->depth < SHARED_DEPTH);
}

static bool hash_items(const struct dcp_pv *items, size_t n, uint64_t *hash)
{
	uint64_t h = n;

	if (n > SHARED_ITEMS)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (!is_sharable(items[i]))
			return false;
		h = dcp_pkl_mix(h, (uint64_t)items[i].i + items[i].type);
	}
	*hash = h;
	return true;
}

static bool same_items(const struct dcp_pnode *tuple, const struct dcp_pv *items, size_t n)
{
	if (!tuple || tuple->nitems != n)
		return false;
	for (size_t i = 0; i < n; i++)
		if (tuple->items[i].type != items[i].type || tuple->items[i].i != items[i].i)
			return false;
	return true;
}

static struct dcp_pnode *new_tuple(struct dcp_pkl_mem *m, const struct dcp_pv *items, size_t n)
{
	struct dcp_pnode *node = dcp_pkl_alloc(m, sizeof(*node) + n * sizeof(*items));
	uint32_t depth = 0;

	if (!node)
		return NULL;
	node->refs = 1;
	node->items = (struct dcp_pv *)(node + 1);
	node->nitems = (uint32_t)n;
	node->cap = 0;
	for (size_t i = 0; i < n; i++) {
		dcp_pkl_move(&node->items[i], &items[i]);
		depth = DCP_MAX(depth, dcp_pkl_depth(items[i]));
	}
	node->depth = depth + 1;
	return node;
}

static struct dcp_pnode *empty_tuple(struct dcp_pkl_mem *m)
{
	if (!m->empty_tuple) {
		m->empty_tuple = new_tuple(m, NULL, 0);
		if (!m->empty_tuple)
			return NULL;
		m->empty_tuple->cap = 1;
	}
	m->empty_tuple->refs++;
	return m->empty_tuple;
}

struct dcp_pnode *dcp_pkl_tuple(struct dcp_pkl_mem *m, const struct dcp_pv *items, size_t n)
{
	struct dcp_pnode **at, *node;
	uint64_t hash;

	if (n == 0)
		return empty_tuple(m);
	if (DCP_UNLIKELY(m->ntuples < SHARE_AFTER) && ++m->ntuples == SHARE_AFTER)
		make_tables(m);
	if (!m->tuples || !hash_items(items, n, &hash))
		return new_tuple(m, items, n);
	at = &m->tuples[hash % TUPLES];
	if (same_items(*at, items, n)) {
		for (size_t i = 0; i < n; i++)
			if (dcp_pkl_has_node(items[i]))
				items[i].node
					->refs--; /* the shared tuple has its own reference */
		(*at)->refs++;
		return *at;
	}
	node = new_tuple(m, items, n);
	if (!node)
		return NULL;
	if (*at)
		dcp_pkl_drop(m, dcp_pkl_node(DCP_PV_TUPLE, *at));
	node->refs++;
	node->cap = 1;
	*at = node;
	return node;
}

/* ---- containers ---- */

struct dcp_pnode *dcp_pkl_container(struct dcp_pkl_mem *m)
{
	struct dcp_pnode *node = dcp_pkl_alloc(m, sizeof(*node));

	if (node) {
		node->refs = 1;
		node->depth = 1;
		node->items = NULL;
		node->nitems = node->cap = 0;
	}
	return node;
}

static bool make_room(struct dcp_pkl_mem *m, struct dcp_pnode *c, size_t n)
{
	size_t want = (size_t)c->nitems + n, cap = DCP_MAX(want, (size_t)c->cap * 2);
	struct dcp_pv *items;

	if (want <= c->cap)
		return true;
	items = dcp_pkl_regrow(m, c->items, c->cap * sizeof(*items), cap * sizeof(*items));
	if (!items)
		return false;
	c->items = items;
	c->cap = (uint32_t)cap; /* the memory limit keeps it below 2^31 */
	return true;
}

bool dcp_pkl_extend(struct dcp_pkl_mem *m, struct dcp_pnode *c, const struct dcp_pv *items,
		    size_t n)
{
	uint32_t depth = 0;
	struct dcp_pv *to;

	if (!n)
		return true;
	if (!make_room(m, c, n))
		return false;
	to = n ? c->items + c->nitems : NULL; /* without items there may be no array */
	for (size_t i = 0; i < n; i++) {
		dcp_pkl_move(&to[i], &items[i]);
		depth = DCP_MAX(depth, dcp_pkl_depth(items[i]));
	}
	c->nitems += (uint32_t)n;
	c->depth = DCP_MAX(c->depth, depth + 1);
	return true;
}

/* ---- objects ---- */

static struct dcp_pobj *new_obj(struct dcp_pkl_mem *m, struct dcp_pv callable,
				struct dcp_pv args, struct dcp_pv kwargs, bool called)
{
	struct dcp_pobj *obj = dcp_pkl_alloc(m, sizeof(*obj));

	if (obj)
		*obj = (struct dcp_pobj){
			.callable = callable,
			.args = args,
			.kwargs = kwargs,
			.refs = 1,
			.called = called,
		};
	return obj;
}

/* The table's entry for a call whose arguments are a shared tuple; NULL: the call is not looked
 * up. */
static struct dcp_pkl_call *call_of(struct dcp_pkl_mem *m, struct dcp_pv callable,
				    struct dcp_pv args)
{
	if (!m->calls || callable.type != DCP_PV_GLOBAL || !args.node->cap ||
	    !args.node->nitems)
		return NULL;
	return &m->calls[dcp_pkl_mix(dcp_pkl_mix(0, (uintptr_t)callable.node),
				     (uintptr_t)args.node) %
			 CALLS];
}

static struct dcp_pobj *shared_obj(struct dcp_pkl_mem *m, struct dcp_pkl_call *at,
				   struct dcp_pv callable, struct dcp_pv args)
{
	struct dcp_pobj *obj;

	if (at->obj && at->callable == callable.node && at->args == args.node) {
		callable.node->refs--; /* the shared object has references of its own */
		args.node->refs--;
		at->obj->refs++;
		return at->obj;
	}
	obj = new_obj(m, callable, args, (struct dcp_pv){ 0 }, true);
	if (!obj)
		return NULL;
	if (at->obj)
		dcp_pkl_drop_obj(m, at->obj);
	obj->refs++;
	*at = (struct dcp_pkl_call){ callable.node, args.node, obj };
	return obj;
}

struct dcp_pnode *dcp_pkl_object(struct dcp_pkl_mem *m, struct dcp_pv callable,
				 struct dcp_pv args, struct dcp_pv kwargs, bool called)
{
	struct dcp_pnode *node = dcp_pkl_alloc(m, DCP_PKL_OBJECT_SIZE);
	struct dcp_pkl_call *at = called ? call_of(m, callable, args) : NULL;
	uint32_t depth = DCP_MAX(dcp_pkl_depth(callable), dcp_pkl_depth(args));

	if (!node)
		return NULL;
	depth = DCP_MAX(depth, dcp_pkl_depth(kwargs));
	node->obj = at ? shared_obj(m, at, callable, args)
		       : new_obj(m, callable, args, kwargs, called);
	if (!node->obj) {
		dcp_pkl_dealloc(m, node, DCP_PKL_OBJECT_SIZE);
		return NULL;
	}
	node->refs = 1;
	node->depth = depth + 1;
	return node;
}

struct dcp_pobj *dcp_pkl_own(struct dcp_pkl_mem *m, struct dcp_pnode *node)
{
	struct dcp_pobj *old = node->obj, *obj;

	if (old->refs == 1)
		return old;
	/* A shared object was only called, so it has no state and no items to copy. */
	obj = new_obj(m, old->callable, old->args, old->kwargs, old->called);
	if (!obj)
		return NULL;
	dcp_pkl_keep(obj->callable);
	dcp_pkl_keep(obj->args);
	dcp_pkl_keep(obj->kwargs);
	old->refs--;
	node->obj = obj;
	return obj;
}

bool dcp_pkl_has_pairs(struct dcp_pkl_mem *m, struct dcp_pv object, uint64_t most)
{
	const struct dcp_pnode *args = object.node->obj->args.node, *list;

	if (args->nitems != 1 || args->items[0].type != DCP_PV_LIST ||
	    !dcp_pv_is_object(object, "collections", "OrderedDict"))
		return false;
	list = args->items[0].node;
	m->paired += list->nitems;
	if (m->paired > most)
		return false;
	for (size_t i = 0; i < list->nitems; i++) {
		const struct dcp_pv *v = &list->items[i];

		if ((v->type != DCP_PV_LIST && v->type != DCP_PV_TUPLE) || v->node->nitems != 2)
			return false;
	}
	return true;
}

bool dcp_pkl_take_pairs(struct dcp_pkl_mem *m, struct dcp_pnode *object)
{
	struct dcp_pobj *obj = dcp_pkl_own(m, object);
	struct dcp_pnode *dict = obj ? dcp_pkl_container(m) : NULL, *none;
	struct dcp_pv args;

	if (!dict)
		return false;
	obj->dict = dcp_pkl_node(DCP_PV_DICT, dict);
	none = dcp_pkl_tuple(m, NULL, 0);
	if (!none)
		return false;
	args = obj->args;
	obj->args = dcp_pkl_node(DCP_PV_TUPLE, none);
	for (size_t i = 0; i < args.node->items[0].node->nitems; i++) {
		const struct dcp_pv *kv = args.node->items[0].node->items[i].node->items;

		if (!dcp_pkl_extend(m, dict, kv, 2)) {
			dcp_pkl_drop(m, args);
			return false;
		}
		dcp_pkl_keep(kv[0]);
		dcp_pkl_keep(kv[1]);
	}
	dcp_pkl_drop(m, args);
	object->depth = DCP_MAX(object->depth, dict->depth + 1);
	return true;
}

/* The current spelling of a module's name, in two parts. */
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
	/* At least one name has no head: its tail is the whole name. */
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

/* The dict that is the only argument of a call, as in a pickled Counter; else NONE. */
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

		/* compare the names of classes last: few are called with a dict */
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
	/* a tuple (None or the __dict__, the __slots__) */
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
