/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pickle from the outside: both passes over it, and what they have in common: the
 * stack, and how a failure is reported.
 */
#include "core/parse/pickle/pickle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/source.h"
#include "core/parse/pickle/vm.h"

enum { DEFAULT_MEMORY = 192 << 20 };

static int result(struct dcp_pkl_vm *vm, struct dcp_pv *root)
{
	size_t n = (size_t)(vm->sp - vm->stack);

	if (n != 1 || vm->nmarks)
		return dcp_pkl_fail(vm, -EBADMSG,
				    "leaves %zu value%s and %zu mark%s, one value is expected",
				    n, dcp_s(n), vm->nmarks, dcp_s(vm->nmarks));
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
		return dcp_fail_at(err, -EBADMSG, off,
				   "pickle at byte %" PRIu64
				   " starts after the end, byte %" PRIu64,
				   off, src->size);
	pk = calloc(1, sizeof(*pk));
	if (!pk)
		return dcp_fail_at(err, -ENOMEM, off, "out of memory for the pickle");
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
