/* SPDX-License-Identifier: Apache-2.0 */
/* The functions for callers, which read a pickle in two passes, and pass one. */
#include "core/parse/pickle/pickle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle_int.h"

enum { DEFAULT_MEMORY = 192 << 20 };

static int take_result(struct dcp_pkl_vm *vm, struct dcp_pv *root)
{
	size_t n = (size_t)(vm->sp - vm->stack);

	if (n != 1 || vm->nmarks)
		return dcp_pkl_fail(vm, -EBADMSG,
				    "leaves %zu value%s and %zu mark%s, one value is expected",
				    n, dcp_s(n), vm->nmarks, dcp_s(vm->nmarks));
	*root = vm->stack[0];
	return 0;
}

/* Free the values that only the memo or a table holds; all others stay with the pickle. */
static void settle_values(struct dcp_pkl_vm *vm)
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

static int dcp_pkl_scan(struct dcp_pkl_win *w, struct dcp_pkl_mem *m, uint64_t off,
			struct dcp_pkl_memo *memo);

static int run_passes(struct dcp_pkl_vm *vm, uint64_t off, struct dcp_pv *root)
{
	int r = dcp_pkl_scan(&vm->w, vm->mem, off, &vm->memo);

	if (r == 0)
		r = dcp_pkl_memo_rank(&vm->memo, vm->mem);
	if (r < 0)
		return r;
	vm->p = dcp_pkl_win_seek(&vm->w, off);
	r = dcp_pkl_run(vm);
	return r < 0 ? r : take_result(vm, root);
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
		r = run_passes(&vm, off, &pk->root);
	if (r == 0) {
		settle_values(&vm);
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

/*
 * Pass one: goes from opcode to opcode without reading values, to learn which memo entries are
 * fetched at all. An opcode that pass one refuses would be refused by pass two with the same
 * message.
 */

static int skip_payload(struct dcp_pkl_win *w, const uint8_t **p)
{
	uint64_t n;
	size_t head;
	int r = dcp_pkl_win_length(w, *p, &head, &n);

	if (r < 0)
		return r;
	*p = dcp_pkl_win_seek(w, dcp_pkl_off(w, *p) + head + n);
	return 0;
}

static int skip_lines(struct dcp_pkl_win *w, const uint8_t **p, int lines)
{
	size_t n, skip = 1;
	int r;

	for (; lines; lines--) {
		r = dcp_pkl_win_line(w, p, skip, &n);
		if (r < 0)
			return r;
		skip += n + 1;
	}
	*p += skip;
	return 0;
}

static int want_index(struct dcp_pkl_win *w, const uint8_t *p, struct dcp_pkl_memo *memo,
		      struct dcp_pkl_mem *m, uint64_t idx, uint64_t start)
{
	int r = dcp_pkl_memo_want(memo, m, idx, dcp_pkl_off(w, p) - start);

	if (DCP_UNLIKELY(r < 0))
		return dcp_pkl_win_fail(w, p, r,
					"needs more memory for memo indices than the "
					"limit of %zu bytes",
					m->limit);
	return 0;
}

static int want_line(struct dcp_pkl_win *w, const uint8_t **p, struct dcp_pkl_memo *memo,
		     struct dcp_pkl_mem *m, uint64_t start)
{
	uint64_t idx;
	size_t n;
	int r = dcp_pkl_win_line(w, p, 1, &n);

	if (r < 0)
		return r;
	if (!dcp_pkl_index((const char *)*p + 1, n, &idx))
		return dcp_pkl_win_fail(w, *p, -EBADMSG, "has no memo index after it");
	r = want_index(w, *p, memo, m, idx, start);
	*p += 1 + n + 1;
	return r;
}

/* Step over an opcode of a less frequent kind; 1 at STOP. */
static int step_op(struct dcp_pkl_win *w, const uint8_t **p, struct dcp_pkl_memo *memo,
		   struct dcp_pkl_mem *m, uint64_t start)
{
	int r;

	switch (dcp_pkl_arg[**p]) {
	case PICKLE_ARG_LEN1:
	case PICKLE_ARG_LEN4:
	case PICKLE_ARG_LEN8:
	case PICKLE_ARG_SLEN4:
		return skip_payload(w, p);
	case PICKLE_ARG_GETLINE:
		return want_line(w, p, memo, m, start);
	case PICKLE_ARG_LINE:
		return skip_lines(w, p, 1);
	case PICKLE_ARG_LINE2:
		return skip_lines(w, p, 2);
	case PICKLE_ARG_FRAME:
		r = dcp_pkl_win_frame(w, *p);
		*p += 9;
		return r;
	case PICKLE_ARG_PROTO:
		r = dcp_pkl_win_proto(w, *p);
		*p += 2;
		return r;
	case PICKLE_ARG_STOP:
		return 1;
	default:
		return dcp_pkl_win_refuse(w, *p);
	}
}

/* Pass one over the pickle at @off. */
static int dcp_pkl_scan(struct dcp_pkl_win *w, struct dcp_pkl_mem *m, uint64_t off,
			struct dcp_pkl_memo *memo)
{
	const uint8_t *p = dcp_pkl_win_seek(w, off);
	int r = 0;

	for (;;) {
		if (DCP_UNLIKELY(p >= w->safe)) {
			r = dcp_pkl_win_op(w, &p);
			if (r < 0)
				return r;
		}
		switch (dcp_pkl_arg[*p]) {
		case PICKLE_ARG_NONE:
			p += 1;
			break;
		case PICKLE_ARG_1:
			p += 2;
			break;
		case PICKLE_ARG_2:
			p += 3;
			break;
		case PICKLE_ARG_4:
			p += 5;
			break;
		case PICKLE_ARG_8:
			p += 9;
			break;
		case PICKLE_ARG_LEN1:
			if (DCP_LIKELY((size_t)p[1] + 2 <= (size_t)(w->end - p)))
				p += 2 + p[1];
			else
				r = skip_payload(w, &p);
			break;
		case PICKLE_ARG_GET1:
			r = want_index(w, p, memo, m, p[1], off);
			p += 2;
			break;
		case PICKLE_ARG_GET4:
			r = want_index(w, p, memo, m, dcp_load_le32(p + 1), off);
			p += 5;
			break;
		default:
			r = step_op(w, &p, memo, m, off);
		}
		if (DCP_UNLIKELY(r))
			return DCP_MIN(r, 0);
	}
}
