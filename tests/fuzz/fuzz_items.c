/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metadata.pkl of torch_checkpointing: whatever the bytes, every entry has a key and a path,
 * every group a reason or all of what it needs, and what ranks hold can be asked for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/format/torch_checkpointing/items_int.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST = 300, RANKS = 8, MEMORY = 16 << 20 };

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check_list(const struct dcp_items_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		must(l->by_rank[i].at < l->n && l->by_rank[i].rank < DCP_ITEMS_MAX_RANKS &&
		     (!i || l->by_rank[i - 1].rank < l->by_rank[i].rank));
}

/* A tensor of the whole's shape, as a rank that holds all of it would have it. */
static void ask(const struct dcp_items_group *g, uint32_t rank, struct dcp_arena *arena)
{
	static const uint64_t origin[DCP_MAX_NDIM];
	enum dcp_dtype dtype = dcp_dtype_from_torch(g->dtype, strlen(g->dtype));
	struct dcp_piece p = { .lo = origin, .len = g->shape };
	struct dcp_tensor t = {
		.dtype = dtype,
		.dtype_name = dtype == DCP_DTYPE_OTHER ? g->dtype : dcp_dtype_info(dtype)->name,
		.itemsize = 4,
		.ndim = g->ndim,
		.shape = g->shape,
		.pieces = &p,
	};
	struct dcp_tensor out;
	struct dcp_err err = { 0 };
	uint64_t volume;
	int rc;

	t.npieces = dcp_shape_volume(t.shape, t.ndim, &p.run_n) && p.run_n > 0;
	rc = dcp_items_place(g, rank, &t, arena, &out, &err);
	must(rc == 0 || err.msg[0]);
	for (size_t i = 0; rc == 0 && i < out.npieces; i++)
		for (uint32_t k = 0; k < g->ndim; k++)
			must(out.pieces[i].len[k] > 0 && out.pieces[i].lo[k] <= g->shape[k] &&
			     out.pieces[i].len[k] <= g->shape[k] - out.pieces[i].lo[k]);
	for (size_t i = 0; rc == 0 && i < out.npieces; i++)
		must(dcp_shape_volume(out.pieces[i].len, g->ndim, &volume) &&
		     volume == out.pieces[i].run_n);
	if (rc == 0)
		must(dcp_items_compare(g, rank, &out, arena, &err) == 0 || err.code == -ENOMEM);
	dcp_arena_reset(arena);
}

static void check_group(const struct dcp_items_group *g, struct dcp_arena *arena)
{
	if (g->ranks)
		check_list(g->ranks);
	if (g->error) {
		must(g->error[0]);
		return;
	}
	must(g->ranks && g->dtype && g->shape && (g->mesh || g->box));
	for (size_t i = 0; i < g->ranks->n && i < RANKS; i++)
		ask(g, g->ranks->by_rank[i].rank, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_items_meta m;
	struct dcp_arena arena;
	struct dcp_err err = { 0 };
	int rc = dcp_items_meta_read(&m, &src, &err);

	must(rc == 0 || err.msg[0]);
	dcp_arena_init(&arena, MEMORY);
	for (size_t i = 0; rc == 0 && i < dcp_items_nentries(&m) && i < MOST; i++) {
		const struct dcp_items_entry *e = dcp_items_entry(&m, i);

		must(e->key && e->npath && dcp_items_find(&m, e->key) == e);
		for (size_t k = 0; k < e->npath; k++)
			must(e->path[k] != NULL);
		for (const struct dcp_items_group *g = e->first; g; g = g->next)
			check_group(g, &arena);
	}
	dcp_arena_finish(&arena);
	dcp_items_meta_finish(&m);
	return 0;
}
