/* SPDX-License-Identifier: Apache-2.0 */
/* Opcodes that combine values of the stack. The types of the values are checked here: only
 * containers and objects take items, only objects take a state, only callables can be called. */
#include "core/parse/pickle/pickle_int.h"

#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/origin/origin.h"

/* Replace the top @n values by the node. */
static int replace_top(struct dcp_pkl_vm *vm, size_t n, enum dcp_pv_type type,
		       struct dcp_pnode *node)
{
	if (DCP_UNLIKELY(!node))
		return dcp_pkl_no_memory(vm);
	if (DCP_UNLIKELY(node->depth > DCP_PICKLE_MAX_DEPTH))
		return dcp_pkl_too_deep(vm);
	/* The loop keeps one place free; INST without arguments needs two. */
	if (DCP_UNLIKELY(vm->sp - n == vm->stack_end) && !dcp_pkl_grow_stack(vm))
		return dcp_pkl_no_memory(vm);
	vm->sp -= n;
	vm->sp->type = (uint8_t)type;
	vm->sp->node = node;
	vm->sp++;
	return 0;
}

int dcp_pkl_build_tuple(struct dcp_pkl_vm *vm, size_t n)
{
	return replace_top(vm, n, DCP_PV_TUPLE, dcp_pkl_tuple(vm->mem, vm->sp - n, n));
}

int dcp_pkl_build_container(struct dcp_pkl_vm *vm, enum dcp_pv_type type, size_t n)
{
	struct dcp_pnode *node = dcp_pkl_container(vm->mem);

	if (node && n && !dcp_pkl_extend(vm->mem, node, vm->sp - n, n))
		node = NULL;
	return replace_top(vm, n, type, node);
}

int dcp_pkl_build_persid(struct dcp_pkl_vm *vm)
{
	return dcp_pkl_build_container(vm, DCP_PV_PERSID, 1);
}

/* ---- classes and objects ---- */

static struct dcp_pnode *dcp_pkl_global(struct dcp_pkl_mem *m, const char *module,
					size_t nmodule, const char *name, size_t nname);

int dcp_pkl_build_global(struct dcp_pkl_vm *vm)
{
	struct dcp_pv module = vm->sp[-2], name = vm->sp[-1];
	int r;

	if (module.type != DCP_PV_STR || name.type != DCP_PV_STR)
		return dcp_pkl_wrong_type(vm, module.type == DCP_PV_STR ? name : module,
					  "a str for module and name");
	if (memchr(module.node->data, '\0', module.node->n) ||
	    memchr(name.node->data, '\0', name.node->n))
		return dcp_pkl_fail(vm, -EBADMSG, "has a name with a NUL in it");
	r = replace_top(vm, 2, DCP_PV_GLOBAL,
			dcp_pkl_global(vm->mem, module.node->data, module.node->n,
				       name.node->data, name.node->n));
	dcp_pkl_drop(vm->mem, module);
	dcp_pkl_drop(vm->mem, name);
	return r;
}

/* May @v be called? Globals are classes and functions by name. A call or a persistent id may stand
 * for a callable. */
static bool is_callable(struct dcp_pv v)
{
	return v.type == DCP_PV_GLOBAL || v.type == DCP_PV_OBJECT || v.type == DCP_PV_PERSID;
}

int dcp_pkl_build_call(struct dcp_pkl_vm *vm, bool called)
{
	struct dcp_pv *top = vm->sp - 2;
	struct dcp_pnode *made;
	int r;

	if (DCP_UNLIKELY(!is_callable(top[0])))
		return dcp_pkl_wrong_type(vm, top[0], "something to call");
	if (DCP_UNLIKELY(top[1].type != DCP_PV_TUPLE))
		return dcp_pkl_wrong_type(vm, top[1], "a tuple of arguments");
	r = replace_top(vm, 2, DCP_PV_OBJECT,
			dcp_pkl_object(vm->mem, top[0], top[1], (struct dcp_pv){ 0 }, called));
	if (DCP_LIKELY(r < 0 ||
		       !dcp_pkl_has_pairs(vm->mem, vm->sp[-1], dcp_pkl_off(&vm->w, vm->p))))
		return r;
	made = vm->sp[-1].node;
	if (!dcp_pkl_take_pairs(vm->mem, made))
		return dcp_pkl_no_memory(vm);
	return made->depth > DCP_PICKLE_MAX_DEPTH ? dcp_pkl_too_deep(vm) : 0;
}

int dcp_pkl_build_newobj_ex(struct dcp_pkl_vm *vm)
{
	struct dcp_pv *top = vm->sp - 3;

	if (!is_callable(top[0]))
		return dcp_pkl_wrong_type(vm, top[0], "a class");
	if (top[1].type != DCP_PV_TUPLE)
		return dcp_pkl_wrong_type(vm, top[1], "a tuple of arguments");
	if (top[2].type != DCP_PV_DICT)
		return dcp_pkl_wrong_type(vm, top[2], "a dict of arguments");
	return replace_top(vm, 3, DCP_PV_OBJECT,
			   dcp_pkl_object(vm->mem, top[0], top[1], top[2], false));
}

/* Raise the depth of @node to one more than the depth @part of a part that it got. */
static int deepen_node(struct dcp_pkl_vm *vm, struct dcp_pnode *node, uint32_t part)
{
	node->depth = DCP_MAX(node->depth, part + 1);
	return DCP_UNLIKELY(node->depth > DCP_PICKLE_MAX_DEPTH) ? dcp_pkl_too_deep(vm) : 0;
}

int dcp_pkl_build_state(struct dcp_pkl_vm *vm)
{
	struct dcp_pv target = vm->sp[-2], state = vm->sp[-1];
	struct dcp_pobj *obj;

	if (DCP_UNLIKELY(target.type != DCP_PV_OBJECT))
		return dcp_pkl_wrong_type(vm, target, "an object to give a state");
	obj = dcp_pkl_own(vm->mem, target.node);
	if (DCP_UNLIKELY(!obj))
		return dcp_pkl_no_memory(vm);
	dcp_pkl_drop(vm->mem, obj->state);
	obj->state = state;
	obj->built = true;
	vm->sp--;
	return deepen_node(vm, target.node, dcp_pkl_depth(state));
}

/* ---- items ---- */

static int extend_node(struct dcp_pkl_vm *vm, struct dcp_pnode *c, size_t n)
{
	if (DCP_UNLIKELY(!dcp_pkl_extend(vm->mem, c, vm->sp - n, n)))
		return dcp_pkl_no_memory(vm);
	vm->sp -= n;
	return DCP_UNLIKELY(c->depth > DCP_PICKLE_MAX_DEPTH) ? dcp_pkl_too_deep(vm) : 0;
}

/* Add items to an object: they go into its list or dict, which is made for the first items. */
static int extend_object(struct dcp_pkl_vm *vm, struct dcp_pnode *node, enum dcp_pv_type type,
			 size_t n)
{
	struct dcp_pobj *obj = dcp_pkl_own(vm->mem, node);
	struct dcp_pv *part;
	int r;

	if (!obj)
		return dcp_pkl_no_memory(vm);
	part = type == DCP_PV_DICT ? &obj->dict : &obj->list;
	if (part->type == DCP_PV_NONE) {
		struct dcp_pnode *c = dcp_pkl_container(vm->mem);

		if (!c)
			return dcp_pkl_no_memory(vm);
		*part = dcp_pkl_node(type, c);
	}
	r = extend_node(vm, part->node, n);
	return r < 0 ? r : deepen_node(vm, node, part->node->depth);
}

int dcp_pkl_build_append(struct dcp_pkl_vm *vm, size_t n)
{
	struct dcp_pv target = vm->sp[-(ptrdiff_t)n - 1];

	if (target.type == DCP_PV_LIST)
		return extend_node(vm, target.node, n);
	if (target.type == DCP_PV_OBJECT)
		return extend_object(vm, target.node, DCP_PV_LIST, n);
	return dcp_pkl_wrong_type(vm, target, "a list to append to");
}

static int add_items(struct dcp_pkl_vm *vm, size_t n)
{
	struct dcp_pv target = vm->sp[-(ptrdiff_t)n - 1];

	if (target.type == DCP_PV_SET)
		return extend_node(vm, target.node, n);
	if (target.type == DCP_PV_OBJECT)
		return extend_object(vm, target.node, DCP_PV_LIST, n);
	return dcp_pkl_wrong_type(vm, target, "a set to add to");
}

/* Offer the top @n values, which are pairs, to the hook. 1: the hook took them, so they are
 * dropped. */
static int ask_hook(struct dcp_pkl_vm *vm, const struct dcp_pv *dict, size_t n)
{
	size_t depth = (size_t)(dict - vm->stack);
	int r = vm->hook->pairs(vm->hook->ctx, depth ? dict[-1] : (struct dcp_pv){ 0 }, depth,
				vm->sp - n, n / 2, vm->w.err);

	if (r <= 0)
		return r;
	for (; n; n--)
		dcp_pkl_drop(vm->mem, *--vm->sp);
	return 1;
}

int dcp_pkl_build_setitems(struct dcp_pkl_vm *vm, size_t n)
{
	const struct dcp_pv *target = vm->sp - n - 1;

	if (DCP_UNLIKELY(n % 2))
		return dcp_pkl_fail(vm, -EBADMSG,
				    "finds %zu values, which are not key/value pairs", n);
	if (target->type == DCP_PV_DICT) {
		int r = vm->hook && n ? ask_hook(vm, target, n) : 0;

		return r ? DCP_MIN(r, 0) : extend_node(vm, target->node, n);
	}
	if (target->type == DCP_PV_OBJECT)
		return extend_object(vm, target->node, DCP_PV_DICT, n);
	return dcp_pkl_wrong_type(vm, *target, "a dict to set items in");
}

/* ---- opcodes that take everything above the mark ---- */

static int fail_no_mark(const struct dcp_pkl_vm *vm)
{
	return dcp_pkl_fail(vm, -EBADMSG, "needs a mark, none is on the stack");
}

/* Put @v on the stack, below the top @n values. */
static int push_below(struct dcp_pkl_vm *vm, struct dcp_pv v, size_t n)
{
	struct dcp_pv *first;
	int r = dcp_pkl_push(vm, v);

	if (r < 0)
		return r;
	first = vm->sp - 1 - n;
	memmove(first + 1, first, n * sizeof(*first));
	*first = v;
	return 0;
}

/* DICT: put an empty dict below the pairs, so that the hook sees the same stack as for SETITEMS. */
static int make_dict(struct dcp_pkl_vm *vm, size_t n)
{
	struct dcp_pnode *node = dcp_pkl_container(vm->mem);
	int r = node ? push_below(vm, dcp_pkl_node(DCP_PV_DICT, node), n)
		     : dcp_pkl_no_memory(vm);

	return r < 0 ? r : dcp_pkl_build_setitems(vm, n);
}

/* OBJ: the class lies under its arguments. */
static int make_object(struct dcp_pkl_vm *vm, size_t n)
{
	int r = n ? dcp_pkl_build_tuple(vm, n - 1) : dcp_pkl_underflow(vm, 1);

	return r < 0 ? r : dcp_pkl_build_call(vm, false);
}

static int dcp_pkl_read_global(struct dcp_pkl_vm *vm, struct dcp_pnode **out, size_t *size);

int dcp_pkl_build_inst(struct dcp_pkl_vm *vm)
{
	struct dcp_pnode *node;
	size_t size, n = (size_t)(vm->sp - vm->fence);
	int r = vm->nmarks ? dcp_pkl_read_global(vm, &node, &size) : fail_no_mark(vm);

	if (r < 0)
		return r;
	dcp_pkl_pop_mark(vm);
	r = push_below(vm, dcp_pkl_node(DCP_PV_GLOBAL, node), n);
	if (r == 0)
		r = make_object(vm, n + 1);
	vm->p += size;
	return r;
}

int dcp_pkl_build_marked(struct dcp_pkl_vm *vm)
{
	size_t n = (size_t)(vm->sp - vm->fence);
	uint8_t op = *vm->p;

	if (DCP_UNLIKELY(!vm->nmarks))
		return fail_no_mark(vm);
	dcp_pkl_pop_mark(vm);
	if (op == PICKLE_TUPLE)
		return dcp_pkl_build_tuple(vm, n);
	if (op == PICKLE_LIST)
		return dcp_pkl_build_container(vm, DCP_PV_LIST, n);
	if (op == PICKLE_FROZENSET)
		return dcp_pkl_build_container(vm, DCP_PV_FROZENSET, n);
	if (op == PICKLE_DICT)
		return make_dict(vm, n);
	if (op == PICKLE_OBJ)
		return make_object(vm, n);
	if (op == PICKLE_POP_MARK) {
		while (n--)
			dcp_pkl_drop(vm->mem, *--vm->sp);
		return 0;
	}
	/* The other opcodes put the values into the value below the mark. */
	if (DCP_UNLIKELY((size_t)(vm->sp - vm->fence) == n)) {
		vm->sp -= n;
		return dcp_pkl_underflow(vm, 1);
	}
	if (op == PICKLE_SETITEMS)
		return dcp_pkl_build_setitems(vm, n);
	return op == PICKLE_APPENDS ? dcp_pkl_build_append(vm, n) : add_items(vm, n);
}

/*
 * Names of classes and functions, usually stored once each: a hash table with short probes. A
 * name that finds no place in the table gets a node of its own. So names that were made to collide
 * cost memory, which is limited, but no time.
 */

enum { GLOBALS_MIN = 32, GLOBALS_MAX = 1 << 16, PROBES = 8 };

static struct dcp_pnode *new_global(struct dcp_pkl_mem *m, const char *module, size_t nmodule,
				    const char *name, size_t nname)
{
	/* Three strings: "module", "module.name", and "name" as the end of the second. */
	struct dcp_pnode *node = dcp_pkl_alloc(m, sizeof(*node) + 2 * nmodule + nname + 3);
	char *s, *full;

	if (!node)
		return NULL;
	s = (char *)(node + 1);
	memcpy(s, module, nmodule);
	s[nmodule] = '\0';
	full = s + nmodule + 1;
	memcpy(full, module, nmodule);
	full[nmodule] = '.';
	memcpy(full + nmodule + 1, name, nname);
	full[nmodule + 1 + nname] = '\0';
	node->refs = 1;
	node->depth = 0;
	node->module = s;
	node->full = full;
	node->name = full + nmodule + 1;
	return node;
}

static uint64_t hash_global(const char *module, const char *name)
{
	uint64_t h = 0;

	for (; *module; module++)
		h = dcp_pkl_mix(h, (uint8_t)*module);
	for (h = dcp_pkl_mix(h, '.'); *name; name++)
		h = dcp_pkl_mix(h, (uint8_t)*name);
	return h;
}

/* The place of a global equal to @g, or an empty place; NULL: neither within a few steps. */
static struct dcp_pnode **find_global(struct dcp_pkl_mem *m, const struct dcp_pnode *g)
{
	uint64_t h = hash_global(g->module, g->name);

	for (size_t i = 0; m->globals_cap && i < PROBES; i++) {
		struct dcp_pnode **at = &m->globals[(h + i) & (m->globals_cap - 1)];

		if (!*at ||
		    (!strcmp((*at)->module, g->module) && !strcmp((*at)->name, g->name)))
			return at;
	}
	return NULL;
}

/* Double the number of places. Globals that find no new place are merely no longer shared. */
static void grow_globals(struct dcp_pkl_mem *m)
{
	uint32_t old_cap = m->globals_cap, cap = old_cap ? old_cap * 2 : GLOBALS_MIN;
	struct dcp_pnode **old = m->globals, **fresh;

	if (cap > GLOBALS_MAX)
		return;
	fresh = dcp_pkl_resize(m, NULL, 0, cap * sizeof(*fresh));
	if (!fresh)
		return;
	memset(fresh, 0, cap * sizeof(*fresh));
	m->globals = fresh;
	m->globals_cap = cap;
	for (uint32_t i = 0; i < old_cap; i++) {
		struct dcp_pnode **at = old[i] ? find_global(m, old[i]) : NULL;

		if (at) {
			*at = old[i];
		} else if (old[i]) {
			dcp_pkl_drop(m, dcp_pkl_node(DCP_PV_GLOBAL, old[i]));
			m->nglobals--;
		}
	}
	dcp_pkl_resize(m, old, old_cap * sizeof(*old), 0);
}

/* The node of a module and a name, neither of which may contain a NUL. Equal pairs usually share
 * one node. */
static struct dcp_pnode *dcp_pkl_global(struct dcp_pkl_mem *m, const char *module,
					size_t nmodule, const char *name, size_t nname)
{
	struct dcp_pnode *node = new_global(m, module, nmodule, name, nname), **at;

	if (!node)
		return NULL;
	if (m->nglobals >= m->globals_cap / 2)
		grow_globals(m);
	at = find_global(m, node);
	if (!at)
		return node;
	if (!*at) {
		*at = node;
		m->nglobals++;
	} else {
		dcp_pkl_drop(m, dcp_pkl_node(DCP_PV_GLOBAL, node));
	}
	(*at)->refs++;
	return *at;
}

/* Read the name after GLOBAL or INST. @size is the size of opcode and name; p is not advanced. */
static int dcp_pkl_read_global(struct dcp_pkl_vm *vm, struct dcp_pnode **out, size_t *size)
{
	size_t nmodule, nname;
	const char *module;
	int r = dcp_pkl_win_line(&vm->w, &vm->p, 1, &nmodule);

	if (r == 0)
		r = dcp_pkl_win_line(&vm->w, &vm->p, 1 + nmodule + 1, &nname);
	if (r < 0)
		return r;
	module = (const char *)vm->p + 1;
	*size = 1 + nmodule + 1 + nname + 1;
	if (!dcp_pkl_utf8(module, *size - 2, false) || memchr(module, '\0', *size - 2))
		return dcp_pkl_fail(vm, -EBADMSG,
				    "has a name that is not UTF-8 or has a NUL in it");
	*out = dcp_pkl_global(vm->mem, module, nmodule, module + nmodule + 1, nname);
	return *out ? 0 : dcp_pkl_no_memory(vm);
}

/* Opcodes that push the value that is written after them: text lines of protocol 0, and payloads
 * with a length in front. */

/* ---- integers ---- */

/* Push an integer, which is @n bytes of two's complement. Superfluous bytes are cut off. */
static int push_int(struct dcp_pkl_vm *vm, const uint8_t *le, size_t n, uint64_t src_off)
{
	uint8_t sign = n && le[n - 1] & 0x80 ? 0xff : 0;
	uint64_t v = sign ? UINT64_MAX : 0;
	struct dcp_pnode *node;

	while (n > 1 && le[n - 1] == sign && !((le[n - 2] ^ sign) & 0x80))
		n--;
	if (n <= 8) {
		memcpy(&v, le, n);
		return dcp_pkl_push(vm, (struct dcp_pv){ .type = DCP_PV_INT, .i = (int64_t)v });
	}
	if (n > DCP_PICKLE_MAX_INT)
		return dcp_pkl_fail(vm, -E2BIG, "is an integer of %zu bytes, the limit is %d",
				    n, DCP_PICKLE_MAX_INT);
	node = dcp_pkl_text(vm->mem, n, src_off);
	if (node) {
		memcpy(node->data, le, n);
		node->data[n] = '\0';
	}
	return dcp_pkl_push_node(vm, DCP_PV_BIGINT, node);
}

static int push_decimal(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	uint8_t le[DCP_PKL_DECIMAL_BYTES];

	if (*vm->p == PICKLE_INT && n == 2 && s[0] == '0' && (s[1] == '0' || s[1] == '1'))
		return dcp_pkl_push(vm,
				    (struct dcp_pv){ .type = DCP_PV_BOOL, .i = s[1] == '1' });
	if (*vm->p == PICKLE_LONG && n && s[n - 1] == 'L')
		n--;
	switch (dcp_pkl_decimal(s, n, le, &n)) {
	case DCP_PKL_NUMBER_OK:
		return push_int(vm, le, n, DCP_PICKLE_NO_SRC);
	case DCP_PKL_NUMBER_LONG:
		return dcp_pkl_fail(vm, -E2BIG,
				    "is an integer of %zu digits, the limit is %d bytes", n,
				    DCP_PICKLE_MAX_INT);
	case DCP_PKL_NUMBER_BAD:
		break;
	}
	return dcp_pkl_fail(vm, -EBADMSG, "has no decimal integer after it");
}

/* ---- lines ---- */

static int push_text(struct dcp_pkl_vm *vm, enum dcp_pv_type type, const void *s, size_t n,
		     uint64_t src_off)
{
	struct dcp_pnode *node = dcp_pkl_text(vm->mem, n, src_off);

	if (node) {
		if (n)
			memcpy(node->data, s, n);
		node->data[n] = '\0';
	}
	return dcp_pkl_push_node(vm, type, node);
}

/* Push the text in scratch, which was unescaped from @s. If @s has no escapes, the text is also
 * found in the source. */
static int push_unescaped(struct dcp_pkl_vm *vm, enum dcp_pv_type type, const char *s, size_t n)
{
	const struct dcp_buf *b = &vm->scratch;
	bool same = b->n == n && (n == 0 || !memcmp(b->p, s, n));

	if (dcp_buf_error(b) < 0)
		return dcp_pkl_fail(vm, -ENOMEM, "ran out of memory");
	return push_text(vm, type, b->p, b->n,
			 same ? dcp_pkl_off(&vm->w, (const uint8_t *)s) : DCP_PICKLE_NO_SRC);
}

static int push_quoted(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	bool utf8;

	if (!dcp_pkl_unquote(s, n, &vm->scratch))
		return dcp_pkl_fail(vm, -EBADMSG, "has no well-formed quoted string after it");
	utf8 = dcp_pkl_utf8(vm->scratch.p, vm->scratch.n, false);
	return push_unescaped(vm, utf8 ? DCP_PV_STR : DCP_PV_BYTES, s + 1, n - 2);
}

static int push_float(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	double f;

	if (!dcp_pkl_float(s, n, &f))
		return dcp_pkl_fail(vm, -EBADMSG, "has no decimal number after it");
	return dcp_pkl_push(vm, (struct dcp_pv){ .type = DCP_PV_FLOAT, .f = f });
}

static int push_persid(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	int r;

	if (!dcp_pkl_utf8(s, n, false))
		return dcp_pkl_fail(vm, -EBADMSG, "is not UTF-8");
	r = push_text(vm, DCP_PV_STR, s, n, dcp_pkl_off(&vm->w, (const uint8_t *)s));
	return r < 0 ? r : dcp_pkl_build_persid(vm);
}

int dcp_pkl_push_line(struct dcp_pkl_vm *vm)
{
	const char *s;
	size_t n;
	int r = dcp_pkl_win_line(&vm->w, &vm->p, 1, &n);

	if (r < 0)
		return r;
	s = (const char *)vm->p + 1;
	switch (*vm->p) {
	case PICKLE_INT:
	case PICKLE_LONG:
		r = push_decimal(vm, s, n);
		break;
	case PICKLE_FLOAT:
		r = push_float(vm, s, n);
		break;
	case PICKLE_STRING:
		r = push_quoted(vm, s, n);
		break;
	case PICKLE_UNICODE:
		if (!dcp_pkl_unescape(s, n, &vm->scratch))
			return dcp_pkl_fail(vm, -EBADMSG, "has a malformed escape");
		r = push_unescaped(vm, DCP_PV_STR, s, n);
		break;
	default:
		r = push_persid(vm, s, n);
	}
	vm->p += 1 + n + 1;
	return r;
}

int dcp_pkl_push_global(struct dcp_pkl_vm *vm)
{
	struct dcp_pnode *node;
	size_t size;
	int r = dcp_pkl_read_global(vm, &node, &size);

	if (r < 0)
		return r;
	r = dcp_pkl_push_node(vm, DCP_PV_GLOBAL, node);
	vm->p += size;
	return r;
}

/* ---- payloads ---- */

static enum dcp_pv_type payload_type(uint8_t op)
{
	switch (op) {
	case PICKLE_SHORT_BINUNICODE:
	case PICKLE_BINUNICODE:
	case PICKLE_BINUNICODE8:
	case PICKLE_SHORT_BINSTRING: /* bytes if the contents are not UTF-8 */
	case PICKLE_BINSTRING:
		return DCP_PV_STR;
	case PICKLE_BYTEARRAY8:
		return DCP_PV_BYTEARRAY;
	default:
		return DCP_PV_BYTES;
	}
}

static bool is_string(uint8_t op)
{
	return op == PICKLE_SHORT_BINSTRING || op == PICKLE_BINSTRING;
}

/* Copy the @n bytes at @off into a new node, through the window if they are few. */
static int read_text(struct dcp_pkl_vm *vm, size_t head, uint64_t n, uint64_t off,
		     struct dcp_pnode **out)
{
	struct dcp_pnode *node = dcp_pkl_text(vm->mem, n, off);
	int r;

	if (!node)
		return dcp_pkl_no_memory(vm);
	if (n <= DCP_PICKLE_INLINE) {
		r = dcp_pkl_win_need(&vm->w, &vm->p, head + (size_t)n);
		if (r < 0)
			return r;
		memcpy(node->data, vm->p + head, (size_t)n);
	} else {
		r = dcp_source_read(vm->w.src, off, node->data, (size_t)n);
		if (r < 0)
			return dcp_pkl_fail(vm, r, "needs %zu bytes: %s", (size_t)n,
					    dcp_err_noted(r));
	}
	node->data[n] = '\0';
	*out = node;
	return 0;
}

/* Push text. Text of any length is copied, because it must be checked, unless it is longer than
 * far_text: then the caller takes it for bytes. */
static int push_str(struct dcp_pkl_vm *vm, size_t head, uint64_t n, uint64_t off)
{
	struct dcp_pnode *node = NULL;
	bool string = is_string(*vm->p);
	int r;

	if (n > vm->far_text)
		return dcp_pkl_push_node(vm, DCP_PV_BYTES, dcp_pkl_far_text(vm->mem, n, off));
	r = read_text(vm, head, n, off, &node);
	if (r < 0)
		return r;
	if (dcp_pkl_utf8(node->data, (size_t)n, !string))
		return dcp_pkl_push_node(vm, DCP_PV_STR, node);
	if (!string)
		return dcp_pkl_fail(vm, -EBADMSG, "is not UTF-8");
	if (n > DCP_PICKLE_INLINE) {
		dcp_pkl_drop(vm->mem, dcp_pkl_node(DCP_PV_BYTES, node));
		node = dcp_pkl_far_text(vm->mem, n, off);
	}
	return dcp_pkl_push_node(vm, DCP_PV_BYTES, node);
}

int dcp_pkl_push_payload(struct dcp_pkl_vm *vm)
{
	enum dcp_pv_type type = payload_type(*vm->p);
	struct dcp_pnode *node = NULL;
	uint64_t n, off;
	size_t head;
	int r = dcp_pkl_win_length(&vm->w, vm->p, &head, &n);

	if (r < 0)
		return r;
	off = dcp_pkl_off(&vm->w, vm->p) + head;
	if (*vm->p == PICKLE_LONG1 || *vm->p == PICKLE_LONG4) {
		r = dcp_pkl_win_need(&vm->w, &vm->p, head + (size_t)n);
		if (r == 0)
			r = push_int(vm, vm->p + head, (size_t)n, off);
	} else if (type == DCP_PV_STR) {
		r = push_str(vm, head, n, off);
	} else if (n > vm->far_bytes) {
		r = dcp_pkl_push_node(vm, type, dcp_pkl_far_text(vm->mem, n, off));
	} else {
		r = read_text(vm, head, n, off, &node);
		if (r == 0)
			r = dcp_pkl_push_node(vm, type, node);
	}
	vm->p = dcp_pkl_win_seek(&vm->w, off + n);
	return r;
}
