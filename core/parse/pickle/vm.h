/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vm: the state of the machine, for the files that are the machine.
 *
 *	pickle.c       both passes from the outside; the stack
 *	run.c          the loop over opcodes
 *	push.c text.c  opcodes that push what is written after them
 *	build.c        opcodes that combine values of the stack
 *	global.c       names of classes and functions
 *
 * A stack of values, a second stack of marks (positions in the first), and the memo. The
 * fence is the position of the innermost mark: an opcode that takes values from the top
 * may not reach below it.
 *
 * References: a value on the stack owns one. Failure needs no clean-up of values, because
 * all nodes die with the pickle. Every function returns 0 or a code with a message that
 * names the opcode at p.
 */
#pragma once
#include "core/base/buf.h"
#include "core/parse/pickle/pickle_int.h"

struct dcp_pkl_vm {
	struct dcp_pkl_mem *mem;
	struct dcp_pkl_win w;
	struct dcp_pkl_memo memo;
	/*
	 * Not side by side: compilers would load the two as one vector right after they
	 * were stored one by one, and wait for both stores.
	 */
	struct dcp_pv *sp; /* one past the top value; the loop keeps a copy of its own */
	struct dcp_pv *stack, *stack_end, *fence;
	const uint8_t *p; /* the current opcode */
	uint32_t *marks;
	size_t nmarks, marks_cap;
	const struct dcp_pickle_hook *hook;
	uint64_t far_bytes, far_text; /* longer ones are referred to */
	struct dcp_buf scratch;       /* text with its escapes undone */
};

#define dcp_pkl_fail(vm, code, ...) dcp_pkl_win_fail(&(vm)->w, (vm)->p, code, __VA_ARGS__)

int dcp_pkl_no_memory(const struct dcp_pkl_vm *vm);
int dcp_pkl_too_deep(const struct dcp_pkl_vm *vm);
int dcp_pkl_wrong_type(const struct dcp_pkl_vm *vm, struct dcp_pv v, const char *want);
int dcp_pkl_underflow(const struct dcp_pkl_vm *vm, size_t want);

/* Run up to STOP, where it leaves p. */
int dcp_pkl_run(struct dcp_pkl_vm *vm);

/* Double the stack; false: out of memory. */
bool dcp_pkl_grow_stack(struct dcp_pkl_vm *vm);

/* Push a value; or a node, where NULL means that making it ran out of memory. */
int dcp_pkl_push(struct dcp_pkl_vm *vm, struct dcp_pv v);
int dcp_pkl_push_node(struct dcp_pkl_vm *vm, enum dcp_pv_type type, struct dcp_pnode *node);

static inline void dcp_pkl_pop_mark(struct dcp_pkl_vm *vm)
{
	vm->nmarks--;
	vm->fence = vm->stack + (vm->nmarks ? vm->marks[vm->nmarks - 1] : 0);
}

/* ---- push: all of them step over the opcode and its argument ---- */

int dcp_pkl_push_line(struct dcp_pkl_vm *vm);    /* INT LONG FLOAT STRING UNICODE PERSID */
int dcp_pkl_push_global(struct dcp_pkl_vm *vm);  /* GLOBAL */
int dcp_pkl_push_payload(struct dcp_pkl_vm *vm); /* whatever has a length in front */

/* The name after GLOBAL or INST, and the size of opcode and name. Does not advance p. */
int dcp_pkl_read_global(struct dcp_pkl_vm *vm, struct dcp_pnode **out, size_t *size);

/* ---- build: all of them work on the stack only, and leave p alone ---- */

int dcp_pkl_build_tuple(struct dcp_pkl_vm *vm, size_t n);
int dcp_pkl_build_container(struct dcp_pkl_vm *vm, enum dcp_pv_type type, size_t n);
int dcp_pkl_build_persid(struct dcp_pkl_vm *vm);
int dcp_pkl_build_global(struct dcp_pkl_vm *vm);            /* STACK_GLOBAL */
int dcp_pkl_build_call(struct dcp_pkl_vm *vm, bool called); /* callable, args */
int dcp_pkl_build_newobj_ex(struct dcp_pkl_vm *vm);
int dcp_pkl_build_state(struct dcp_pkl_vm *vm); /* BUILD */
/* The top @n values go into the value below them. */
int dcp_pkl_build_append(struct dcp_pkl_vm *vm, size_t n);
int dcp_pkl_build_setitems(struct dcp_pkl_vm *vm, size_t n);
/* An opcode that takes everything above the mark: TUPLE LIST DICT APPENDS and so on. */
int dcp_pkl_build_marked(struct dcp_pkl_vm *vm);
/* INST, which is such an opcode but has an argument: steps over it. */
int dcp_pkl_build_inst(struct dcp_pkl_vm *vm);
