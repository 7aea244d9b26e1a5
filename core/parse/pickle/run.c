/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass two: the loop over opcodes. The position in the window and the top of the stack are kept in
 * local variables, to be fast. Opcodes of a few instructions are in the loop; the others are
 * functions, most of them in build.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/parse/pickle/pickle_int.h"

enum { MARKS_MIN = 16 };

/* ---- marks ---- */

static bool grow_marks(struct dcp_pkl_vm *vm)
{
	size_t cap = DCP_MAX(vm->marks_cap * 2, (size_t)MARKS_MIN);
	uint32_t *m = dcp_pkl_resize(vm->mem, vm->marks, vm->marks_cap * sizeof(*m),
				     cap * sizeof(*m));

	if (!m)
		return false;
	vm->marks = m;
	vm->marks_cap = cap;
	return true;
}

/* POP removes a mark if no value is above the mark, as in Python. */
static int pop_value(struct dcp_pkl_vm *vm)
{
	if (vm->sp > vm->fence)
		dcp_pkl_drop(vm->mem, *--vm->sp);
	else if (vm->nmarks)
		dcp_pkl_pop_mark(vm);
	else
		return dcp_pkl_underflow(vm, 1);
	return 0;
}

/* ---- memo ---- */

/* The memo holds nodes. A plain value is rarely stored; it is put in a list of one item, and the
 * entry in the memo has the type of the value. */
static int store_in_memo(struct dcp_pkl_vm *vm, uintptr_t *slot, struct dcp_pv v)
{
	uintptr_t old = *slot;
	enum dcp_pv_type type = old % DCP_PKL_GRAIN;
	struct dcp_pnode *node = (struct dcp_pnode *)(old - type);

	if (DCP_LIKELY(dcp_pkl_has_node(v))) {
		v.node->refs++;
		*slot = (uintptr_t)v.node | v.type;
	} else {
		struct dcp_pnode *box = dcp_pkl_container(vm->mem);

		if (!box || !dcp_pkl_extend(vm->mem, box, &v, 1))
			return dcp_pkl_no_memory(vm);
		*slot = (uintptr_t)box | v.type;
	}
	if (DCP_UNLIKELY(old))
		dcp_pkl_drop(vm->mem,
			     dcp_pkl_node(type < DCP_PV_BIGINT ? DCP_PV_LIST : type, node));
	return 0;
}

/* PUT, BINPUT and LONG_BINPUT. MEMOIZE uses the number of entries, so the entries must be numbered
 * densely. */
static int put_in_memo(struct dcp_pkl_vm *vm, uint64_t idx)
{
	uintptr_t *slot = dcp_pkl_memo_slot(&vm->memo, idx);

	if (vm->sp == vm->fence)
		return dcp_pkl_underflow(vm, 1);
	if (idx == vm->memo.next)
		vm->memo.next++;
	else if (idx > vm->memo.next)
		vm->memo.gaps = true;
	return slot ? store_in_memo(vm, slot, vm->sp[-1]) : 0;
}

static int fail_unknown_memo(const struct dcp_pkl_vm *vm, uint64_t idx)
{
	return dcp_pkl_fail(vm, -EBADMSG,
			    "fetches memo entry %" PRIu64 ", which was never stored", idx);
}

static inline bool memo_fetch(struct dcp_pkl_vm *vm, uint64_t idx, struct dcp_pv *out)
{
	const uintptr_t *slot = dcp_pkl_memo_slot(&vm->memo, idx);
	struct dcp_pnode *node;

	if (DCP_UNLIKELY(!slot || !*slot))
		return false;
	out->type = (uint8_t)(*slot % DCP_PKL_GRAIN);
	node = (struct dcp_pnode *)(*slot - out->type);
	if (DCP_LIKELY(dcp_pkl_has_node(*out))) {
		node->refs++;
		out->node = node;
	} else {
		dcp_pkl_move(out, node->items);
	}
	return true;
}

/* GET and PUT */
static int take_memo_line(struct dcp_pkl_vm *vm)
{
	struct dcp_pv v;
	uint64_t idx;
	size_t n;
	int r = dcp_pkl_win_line(&vm->w, &vm->p, 1, &n);

	if (r < 0)
		return r;
	if (!dcp_pkl_index((const char *)vm->p + 1, n, &idx))
		return dcp_pkl_fail(vm, -EBADMSG, "has no memo index after it");
	if (*vm->p == PICKLE_PUT)
		r = put_in_memo(vm, idx);
	else if (memo_fetch(vm, idx, &v))
		r = dcp_pkl_push(vm, v);
	else
		r = fail_unknown_memo(vm, idx);
	vm->p += 1 + n + 1;
	return r;
}

/* ---- the loop ---- */

static int prepare_op(struct dcp_pkl_vm *vm)
{
	int r = vm->p >= vm->w.safe ? dcp_pkl_win_op(&vm->w, &vm->p) : 0;

	if (r < 0)
		return r;
	return vm->sp < vm->stack_end || dcp_pkl_grow_stack(vm) ? 0 : dcp_pkl_no_memory(vm);
}

/* Copy text that lies in the window, eight bytes at a time; the bytes after the text are masked
 * off. @odd has a high bit set for each byte that is not ASCII. */
static inline struct dcp_pnode *text_from_window(struct dcp_pkl_mem *m, const uint8_t *s,
						 size_t n, uint64_t src_off, uint64_t *odd)
{
	struct dcp_pnode *node = dcp_pkl_alloc(m, sizeof(*node) + n + 8);
	uint64_t seen = 0, v;
	char *to;

	if (DCP_UNLIKELY(!node))
		return NULL;
	to = (char *)(node + 1);
	node->refs = 1;
	node->depth = 0;
	node->data = to;
	node->n = n;
	node->src_off = src_off;
	for (; n >= 8; n -= 8, s += 8, to += 8) {
		v = dcp_load_le64(s);
		seen |= v;
		dcp_store_le64(to, v);
	}
	v = dcp_load_le64(s) & ((1ull << 8 * n) - 1);
	dcp_store_le64(to, v);
	*odd = (seen | v) & 0x8080808080808080ull;
	return node;
}

static inline int64_t small_long(const uint8_t *le, unsigned n)
{
	return n ? (int64_t)(dcp_load_le64(le) << (64 - 8 * n)) >> (64 - 8 * n) : 0;
}

#define SAVE() (vm->p = p, vm->sp = sp)
#define CALL(expr)                                                                             \
	do {                                                                                   \
		SAVE();                                                                        \
		r = (expr);                                                                    \
		p = vm->p;                                                                     \
		sp = vm->sp;                                                                   \
		if (DCP_UNLIKELY(r < 0))                                                       \
			return r;                                                              \
	} while (0)
#define NEED(n)                                                                                \
	do {                                                                                   \
		if (DCP_UNLIKELY(sp - vm->fence < (n))) {                                      \
			SAVE();                                                                \
			return dcp_pkl_underflow(vm, (n));                                     \
		}                                                                              \
	} while (0)
#define PUSH(t, payload)                                                                       \
	do {                                                                                   \
		sp->type = (t);                                                                \
		sp->i = (payload);                                                             \
		sp++;                                                                          \
	} while (0)

/* Run to STOP, where p is left. The function is long because it is a table; each case has a few
 * lines. */
int dcp_pkl_run(struct dcp_pkl_vm *vm)
{
	const uint8_t *p = vm->p;
	struct dcp_pv *sp = vm->sp;
	struct dcp_pnode *node;
	uint64_t idx, odd;
	uintptr_t *slot;
	size_t n, head;
	double f;
	int r;

	for (;;) {
		if (DCP_UNLIKELY(p >= vm->w.safe || sp == vm->stack_end))
			CALL(prepare_op(vm));
		switch (*p) {
		case PICKLE_MARK:
			SAVE();
			if (DCP_UNLIKELY(vm->nmarks == vm->marks_cap) && !grow_marks(vm))
				return dcp_pkl_no_memory(vm);
			vm->marks[vm->nmarks++] = (uint32_t)(sp - vm->stack);
			vm->fence = sp;
			p += 1;
			break;
		case PICKLE_NONE:
			PUSH(DCP_PV_NONE, 0);
			p += 1;
			break;
		case PICKLE_NEWTRUE:
		case PICKLE_NEWFALSE:
			PUSH(DCP_PV_BOOL, *p == PICKLE_NEWTRUE);
			p += 1;
			break;
		case PICKLE_BININT1:
			PUSH(DCP_PV_INT, p[1]);
			p += 2;
			break;
		case PICKLE_BININT2:
			PUSH(DCP_PV_INT, dcp_load_le16(p + 1));
			p += 3;
			break;
		case PICKLE_BININT:
			PUSH(DCP_PV_INT, (int32_t)dcp_load_le32(p + 1));
			p += 5;
			break;
		case PICKLE_LONG1:
			n = p[1];
			if (DCP_UNLIKELY(n > 8 || n + 2 > (size_t)(vm->w.end - p))) {
				CALL(dcp_pkl_push_payload(vm));
				break;
			}
			PUSH(DCP_PV_INT, small_long(p + 2, (unsigned)n));
			p += n + 2;
			break;
		case PICKLE_BINFLOAT:
			idx = dcp_load_be64(p + 1);
			memcpy(&f, &idx, sizeof(f));
			sp->type = DCP_PV_FLOAT;
			sp->f = f;
			sp++;
			p += 9;
			break;
		case PICKLE_SHORT_BINUNICODE:
			n = p[1];
			head = 2;
			goto text;
		case PICKLE_BINUNICODE:
			n = dcp_load_le32(p + 1);
			head = 5;
		text:
			if (DCP_UNLIKELY(n + head > (size_t)(vm->w.end - p))) {
				CALL(dcp_pkl_push_payload(vm));
				break;
			}
			node = text_from_window(vm->mem, p + head, n,
						dcp_pkl_off(&vm->w, p) + head, &odd);
			SAVE();
			if (DCP_UNLIKELY(!node))
				return dcp_pkl_no_memory(vm);
			if (DCP_UNLIKELY(odd) && !dcp_pkl_utf8(p + head, n, true))
				return dcp_pkl_fail(vm, -EBADMSG, "is not UTF-8");
			sp->type = DCP_PV_STR;
			sp->node = node;
			sp++;
			p += n + head;
			break;
		case PICKLE_BINGET:
			idx = p[1];
			head = 2;
			goto get;
		case PICKLE_LONG_BINGET:
			idx = dcp_load_le32(p + 1);
			head = 5;
		get:
			if (DCP_UNLIKELY(!memo_fetch(vm, idx, sp))) {
				SAVE();
				return fail_unknown_memo(vm, idx);
			}
			sp++;
			p += head;
			break;
		case PICKLE_MEMOIZE:
			NEED(1);
			SAVE();
			if (DCP_UNLIKELY(vm->memo.gaps))
				return dcp_pkl_fail(
					vm, -ENOTSUP,
					"follows PUT opcodes that left holes in the memo");
			slot = dcp_pkl_memo_slot(&vm->memo, vm->memo.next++);
			if (DCP_UNLIKELY(slot != NULL))
				CALL(store_in_memo(vm, slot, sp[-1]));
			p += 1;
			break;
		case PICKLE_BINPUT:
			CALL(put_in_memo(vm, p[1]));
			p += 2;
			break;
		case PICKLE_LONG_BINPUT:
			CALL(put_in_memo(vm, dcp_load_le32(p + 1)));
			p += 5;
			break;
		case PICKLE_EMPTY_TUPLE:
			CALL(dcp_pkl_build_tuple(vm, 0));
			p += 1;
			break;
		case PICKLE_TUPLE1:
		case PICKLE_TUPLE2:
		case PICKLE_TUPLE3:
			n = (size_t)(*p - PICKLE_TUPLE1) + 1;
			NEED((ptrdiff_t)n);
			CALL(dcp_pkl_build_tuple(vm, n));
			p += 1;
			break;
		case PICKLE_EMPTY_LIST:
			CALL(dcp_pkl_build_container(vm, DCP_PV_LIST, 0));
			p += 1;
			break;
		case PICKLE_EMPTY_DICT:
			CALL(dcp_pkl_build_container(vm, DCP_PV_DICT, 0));
			p += 1;
			break;
		case PICKLE_EMPTY_SET:
			CALL(dcp_pkl_build_container(vm, DCP_PV_SET, 0));
			p += 1;
			break;
		case PICKLE_TUPLE:
		case PICKLE_LIST:
		case PICKLE_DICT:
		case PICKLE_FROZENSET:
		case PICKLE_APPENDS:
		case PICKLE_SETITEMS:
		case PICKLE_ADDITEMS:
		case PICKLE_OBJ:
		case PICKLE_POP_MARK:
			CALL(dcp_pkl_build_marked(vm));
			p += 1;
			break;
		case PICKLE_APPEND:
			NEED(2);
			CALL(dcp_pkl_build_append(vm, 1));
			p += 1;
			break;
		case PICKLE_SETITEM:
			NEED(3);
			CALL(dcp_pkl_build_setitems(vm, 2));
			p += 1;
			break;
		case PICKLE_REDUCE:
		case PICKLE_NEWOBJ:
			NEED(2);
			CALL(dcp_pkl_build_call(vm, *p == PICKLE_REDUCE));
			p += 1;
			break;
		case PICKLE_NEWOBJ_EX:
			NEED(3);
			CALL(dcp_pkl_build_newobj_ex(vm));
			p += 1;
			break;
		case PICKLE_BUILD:
			NEED(2);
			CALL(dcp_pkl_build_state(vm));
			p += 1;
			break;
		case PICKLE_STACK_GLOBAL:
			NEED(2);
			CALL(dcp_pkl_build_global(vm));
			p += 1;
			break;
		case PICKLE_BINPERSID:
			NEED(1);
			CALL(dcp_pkl_build_persid(vm));
			p += 1;
			break;
		case PICKLE_DUP:
			NEED(1);
			dcp_pkl_keep(sp[-1]);
			dcp_pkl_move(sp, sp - 1);
			sp++;
			p += 1;
			break;
		case PICKLE_POP:
			CALL(pop_value(vm));
			p += 1;
			break;
		case PICKLE_PROTO:
			CALL(dcp_pkl_win_proto(&vm->w, p));
			p += 2;
			break;
		case PICKLE_FRAME:
			CALL(dcp_pkl_win_frame(&vm->w, p));
			p += 9;
			break;
		case PICKLE_STOP:
			SAVE();
			return 0;
		case PICKLE_GET:
		case PICKLE_PUT:
			CALL(take_memo_line(vm));
			break;
		case PICKLE_GLOBAL:
			CALL(dcp_pkl_push_global(vm));
			break;
		case PICKLE_INST:
			CALL(dcp_pkl_build_inst(vm));
			break;
		case PICKLE_INT:
		case PICKLE_LONG:
		case PICKLE_FLOAT:
		case PICKLE_STRING:
		case PICKLE_UNICODE:
		case PICKLE_PERSID:
			CALL(dcp_pkl_push_line(vm));
			break;
		case PICKLE_LONG4:
		case PICKLE_BINSTRING:
		case PICKLE_SHORT_BINSTRING:
		case PICKLE_BINUNICODE8:
		case PICKLE_SHORT_BINBYTES:
		case PICKLE_BINBYTES:
		case PICKLE_BINBYTES8:
		case PICKLE_BYTEARRAY8:
			CALL(dcp_pkl_push_payload(vm));
			break;
		default:
			SAVE();
			return dcp_pkl_win_refuse(&vm->w, p);
		}
	}
}
