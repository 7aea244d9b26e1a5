/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pickle from the outside: both passes over it, and what they have in common: the
 * stack, and how a failure is told.
 */
#include "core/parse/pickle/pickle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/base/text.h"
#include "core/parse/pickle/vm.h"
#include "core/parse/source.h"

enum { DEFAULT_MEMORY = 192 << 20, STACK_MIN = 64 };

#define fail dcp_pkl_vm_fail

/* ---- what goes wrong ---- */

int dcp_pkl_no_memory(const struct dcp_pkl_vm *vm)
{
	if (vm->mem->over)
		return fail(vm, -E2BIG, "needs more memory than the limit of %zu bytes",
			    vm->mem->limit);
	return fail(vm, -ENOMEM, "found no memory");
}

int dcp_pkl_too_deep(const struct dcp_pkl_vm *vm)
{
	return fail(vm, -E2BIG, "nests deeper than %d levels", DCP_PICKLE_MAX_DEPTH);
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

	return fail(vm, -EBADMSG, "finds %s where it needs %s", names[v.type], want);
}

int dcp_pkl_underflow(const struct dcp_pkl_vm *vm, size_t want)
{
	size_t have = (size_t)(vm->sp - vm->fence);

	return fail(vm, -EBADMSG, "needs %zu value%s, %zu %s on the stack%s", want, dcp_s(want),
		    have, have == 1 ? "is" : "are", vm->nmarks ? " above the mark" : "");
}

/* ---- stack ---- */

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

/* ---- both passes ---- */

static int result(struct dcp_pkl_vm *vm, struct dcp_pv *root)
{
	size_t n = (size_t)(vm->sp - vm->stack);

	if (n != 1 || vm->nmarks)
		return fail(vm, -EBADMSG,
			    "leaves %zu value%s and %zu mark%s, one value is expected", n,
			    dcp_s(n), vm->nmarks, dcp_s(vm->nmarks));
	*root = vm->stack[0];
	return 0;
}

/* Values that only the memo or a table holds are freed; the rest stays with the pickle. */
static void settle(struct dcp_pkl_vm *vm)
{
	for (size_t i = 0; i < vm->memo.nslots; i++) {
		enum dcp_pv_type type = vm->memo.slots[i] % DCP_PKL_GRAIN;
		struct dcp_pnode *node = (struct dcp_pnode *)(vm->memo.slots[i] - type);

		if (node)
			dcp_pkl_drop(
				vm->mem,
				dcp_pkl_node(type < DCP_PV_BIGINT ? DCP_PV_LIST : type, node));
	}
	dcp_pkl_mem_settle(vm->mem);
}

static int both_passes(struct dcp_pkl_vm *vm, uint64_t off, struct dcp_pv *root)
{
	int r = dcp_pkl_scan(&vm->w, vm->mem, off, &vm->memo);

	if (r == 0)
		r = dcp_pkl_memo_rank(&vm->memo, vm->mem);
	if (r < 0)
		return r;
	vm->p = dcp_pkl_win_seek(&vm->w, off);
	r = dcp_pkl_run(vm);
	return r < 0 ? r : result(vm, root);
}

int dcp_pickle_read_windowed(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
			     size_t window, struct dcp_pickle **out, uint64_t *end,
			     struct dcp_err *err)
{
	size_t limit = opts && opts->memory ? opts->memory : DEFAULT_MEMORY;
	uint64_t off = opts ? opts->off : 0;
	struct dcp_pkl_vm vm = {
		.hook = opts ? opts->hook : NULL,
		.far_bytes = opts && opts->far_bytes ? opts->far_bytes : DCP_PICKLE_INLINE,
		.far_text = opts && opts->far_text ? opts->far_text : UINT64_MAX,
	};
	struct dcp_pickle *pk;
	int r;

	if (off > src->size)
		return dcp_fail(err, -EBADMSG, off,
				"pickle at byte %" PRIu64
				" starts behind the end, byte %" PRIu64,
				off, src->size);
	pk = calloc(1, sizeof(*pk));
	if (!pk)
		return dcp_fail(err, -ENOMEM, off, "found no memory to read the pickle");
	dcp_pkl_mem_init(&pk->mem, (size_t)DCP_MIN((uint64_t)limit, DCP_PKL_MEMORY_MAX));
	vm.mem = &pk->mem;
	r = dcp_pkl_win_init(&vm.w, src, window, err);
	if (r == 0)
		r = both_passes(&vm, off, &pk->root);
	if (r == 0) {
		settle(&vm);
		if (end)
			*end = dcp_pkl_off(&vm.w, vm.p) + 1;
		*out = pk;
	}
	dcp_pkl_memo_finish(&vm.memo, vm.mem);
	dcp_pkl_resize(vm.mem, vm.stack, (size_t)(vm.stack_end - vm.stack) * sizeof(*vm.stack),
		       0);
	dcp_pkl_resize(vm.mem, vm.marks, vm.marks_cap * sizeof(*vm.marks), 0);
	dcp_buf_finish(&vm.scratch);
	dcp_pkl_win_finish(&vm.w);
	if (r < 0)
		dcp_pickle_free(pk);
	return r;
}

int dcp_pickle_read(const struct dcp_source *src, const struct dcp_pickle_opts *opts,
		    struct dcp_pickle **out, uint64_t *end, struct dcp_err *err)
{
	return dcp_pickle_read_windowed(src, opts, 0, out, end, err);
}

struct dcp_pv dcp_pickle_root(const struct dcp_pickle *p)
{
	return p->root;
}

void dcp_pickle_free(struct dcp_pickle *p)
{
	if (!p)
		return;
	dcp_pkl_mem_finish(&p->mem);
	free(p);
}
