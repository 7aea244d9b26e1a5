/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vm: the stack of the machine, and its errors.
 */
#include "core/parse/pickle/pickle.h"

#include <errno.h>

#include "core/base/text.h"
#include "core/parse/pickle/vm.h"

enum { STACK_MIN = 64 };

int dcp_pkl_no_memory(const struct dcp_pkl_vm *vm)
{
	if (vm->mem->over)
		return dcp_pkl_fail(vm, -E2BIG, "needs more memory than the limit of %zu bytes",
				    vm->mem->limit);
	return dcp_pkl_fail(vm, -ENOMEM, "ran out of memory");
}

int dcp_pkl_too_deep(const struct dcp_pkl_vm *vm)
{
	return dcp_pkl_fail(vm, -E2BIG, "nests deeper than %d levels", DCP_PICKLE_MAX_DEPTH);
}

int dcp_pkl_wrong_type(const struct dcp_pkl_vm *vm, struct dcp_pv v, const char *want)
{
	static const char *const names[] = {
		[DCP_PV_NONE] = "None",        [DCP_PV_BOOL] = "a bool",
		[DCP_PV_INT] = "an int",       [DCP_PV_FLOAT] = "a float",
		[DCP_PV_BIGINT] = "an int",    [DCP_PV_STR] = "a str",
		[DCP_PV_BYTES] = "a bytes",    [DCP_PV_BYTEARRAY] = "a bytearray",
		[DCP_PV_TUPLE] = "a tuple",    [DCP_PV_LIST] = "a list",
		[DCP_PV_SET] = "a set",        [DCP_PV_FROZENSET] = "a frozenset",
		[DCP_PV_DICT] = "a dict",      [DCP_PV_GLOBAL] = "a global",
		[DCP_PV_OBJECT] = "an object", [DCP_PV_PERSID] = "a persistent id",
	};

	return dcp_pkl_fail(vm, -EBADMSG, "finds %s where it needs %s", names[v.type], want);
}

int dcp_pkl_underflow(const struct dcp_pkl_vm *vm, size_t want)
{
	size_t have = (size_t)(vm->sp - vm->fence);

	return dcp_pkl_fail(vm, -EBADMSG, "needs %zu value%s, %zu %s on the stack%s", want,
			    dcp_s(want), have, have == 1 ? "is" : "are",
			    vm->nmarks ? " above the mark" : "");
}

bool dcp_pkl_grow_stack(struct dcp_pkl_vm *vm)
{
	size_t n = (size_t)(vm->stack_end - vm->stack), cap = DCP_MAX(n * 2, (size_t)STACK_MIN);
	size_t fence = (size_t)(vm->fence - vm->stack), used = (size_t)(vm->sp - vm->stack);
	struct dcp_pv *s = dcp_pkl_resize(vm->mem, vm->stack, n * sizeof(*s), cap * sizeof(*s));

	if (!s)
		return false;
	vm->stack = s;
	vm->stack_end = s + cap;
	vm->fence = s + fence;
	vm->sp = s + used;
	return true;
}

int dcp_pkl_push(struct dcp_pkl_vm *vm, struct dcp_pv v)
{
	if (vm->sp == vm->stack_end && !dcp_pkl_grow_stack(vm))
		return dcp_pkl_no_memory(vm);
	*vm->sp++ = v;
	return 0;
}

int dcp_pkl_push_node(struct dcp_pkl_vm *vm, enum dcp_pv_type type, struct dcp_pnode *node)
{
	return node ? dcp_pkl_push(vm, dcp_pkl_node(type, node)) : dcp_pkl_no_memory(vm);
}
