/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: no crash, a reason with every refusal, cuts that lie inside the tensor,
 * and a print that parses back to an equal layout.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/layout/layout.h"
#include "core/parse/layout/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct {
	const char *key;
	uint32_t ndim;
	uint64_t shape[3];
} tensors[] = {
	{ "model.layers.7.self_attn.q_proj.weight", 2, { 48, 10 } },
	{ "optim.state.layers.0.w.step", 0, { 0 } },
	{ "w", 1, { 13 } },
	{ "a.1.2.b", 3, { 3, 0, 5 } },
	{ "x.3", 2, { UINT64_MAX, UINT64_MAX } },
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check_axis(const struct dcp_axis *axis, uint64_t size)
{
	uint64_t at = 0;

	for (size_t i = 0; i < axis->n; i++) {
		const struct dcp_span *s = &axis->span[i];

		must(s->n > 0 && s->at == at && s->lo < size && s->n <= size - s->lo);
		at += s->n;
	}
	must(at == dcp_axis_filled(axis) && at <= axis->len);
}

static void check_cut(const struct dcp_cut *cut, const uint64_t *shape)
{
	uint64_t whole = 1;

	for (uint32_t d = 0; d < cut->ndim; d++) {
		check_axis(&cut->axis[d], shape[d]);
		whole *= cut->axis[d].len;
	}
	must(!cut->flat || (cut->flat_lo <= whole && cut->flat_n <= whole - cut->flat_lo));
}

static void cut_some(const struct dcp_layout *l)
{
	uint32_t last = dcp_layout_ranks(l) - 1;

	for (size_t t = 0; t < DCP_LEN(tensors); t++)
		for (uint32_t r = 0; r < 4; r++) {
			uint32_t rank = r < 2 ? DCP_MIN(r, last) : r == 2 ? last / 2 : last;
			struct dcp_arena arena;
			struct dcp_err err = { 0 };
			struct dcp_cut cut;
			int rc;

			dcp_arena_init(&arena, 16u << 20);
			rc = dcp_layout_cut(l, rank, tensors[t].key, tensors[t].ndim,
					    tensors[t].shape, &arena, &cut, &err);
			must(rc >= 0 || rc == -ENOMEM || (err.code == rc && err.msg[0]));
			if (rc == 1)
				check_cut(&cut, tensors[t].shape);
			must(dcp_layout_has_object(l, rank, tensors[t].key) == (rc != 0) ||
			     rc < 0);
			dcp_arena_finish(&arena);
		}
}

static void check_print(const struct dcp_layout *l)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
	struct dcp_layout *again = NULL;

	must(dcp_layout_print(l, &text) == 0);
	must(dcp_layout_parse("again", text.p, text.n, &again, NULL) == 0);
	must(dcp_layout_hash(l) == dcp_layout_hash(again));
	dcp_layout_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_layout *l = NULL, *moved = NULL;
	struct dcp_err err = { 0 };
	int rc = dcp_layout_parse("fuzz", (const char *)data, n, &l, &err);

	must(rc == 0 ? l != NULL : err.code == rc && err.msg[0]);
	if (rc < 0)
		return 0;
	cut_some(l);
	check_print(l);
	if (dcp_layout_on_mesh(l, "dp2,tp3,pp2", &moved, NULL) == 0)
		cut_some(moved);
	dcp_layout_free(moved);
	dcp_layout_free(l);
	return 0;
}
