/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text of rules: refused with its line and column, or what it makes of some tensors is sound:
 * each key once, with a reason or with pieces that tile its shape and lie in what is stored.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/base/intern.h"
#include "core/model/geometry/tiling.h"
#include "core/rules/rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { NDIM = 4 };

/* The presets begin with such keys; a preset that is damaged is a good place to look. */
static const struct {
	const char *key;
	uint32_t ndim;
	uint64_t shape[NDIM];
} tensors[] = {
	{ "a", 2, { 24, 5 } },
	{ "b", 2, { 24, 5 } },
	{ "c", 3, { 4, 3, 5 } },
	{ "e.0.w", 1, { 7 } },
	{ "e.1.w", 1, { 7 } },
	{ "e.x", 0, { 0 } },
	{ "empty", 2, { 0, 4 } },
	{ "layers.1.attention.wq.weight", 2, { 24, 5 } },
	{ "layers.1.moe.experts.w1", 3, { 4, 3, 5 } },
	{ "decoder.layers.self_attention.linear_qkv.weight", 3, { 4, 24, 5 } },
	{ "decoder.layers.mlp.experts.experts.linear_fc1.weight", 4, { 2, 3, 4, 5 } },
	{ "embedding.word_embeddings.weight", 2, { 24, 5 } },
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static int list(void *ctx, int (*fn)(void *, uint64_t, const char *), void *fn_ctx,
		struct dcp_err *err)
{
	int rc = 0;

	(void)ctx;
	(void)err;
	for (uint64_t i = 0; rc == 0 && i < DCP_LEN(tensors); i++)
		rc = fn(fn_ctx, i, tensors[i].key);
	return rc;
}

/* Stored in two boxes, or in two runs; some as items. */
static int tensor(void *ctx, uint64_t number, struct dcp_arena *arena, struct dcp_tensor *out,
		  struct dcp_err *err)
{
	uint64_t *dims = dcp_arena_calloc(arena, 4 * NDIM, sizeof(*dims)), all;
	struct dcp_piece *p = dcp_arena_calloc(arena, 2, sizeof(*p));
	uint32_t ndim = tensors[number].ndim;
	const uint64_t *shape = tensors[number].shape;

	(void)ctx;
	(void)err;
	if (!dims || !p)
		return -ENOMEM;
	must(dcp_shape_volume(shape, ndim, &all));
	memcpy(dims, shape, ndim * sizeof(*dims));
	memcpy(dims + NDIM, shape, ndim * sizeof(*dims));
	p[0] = (struct dcp_piece){
		.lo = dims + 3 * NDIM, .len = dims, .run_n = all, .nbytes = all
	};
	p[1] = p[0];
	*out = (struct dcp_tensor){ .key = tensors[number].key,
				    .dtype = DCP_DTYPE_U8,
				    .dtype_name = "U8",
				    .itemsize = 1,
				    .ndim = ndim,
				    .shape = shape,
				    .pieces = p,
				    .npieces = all > 1 ? 2 : all };
	if (all > 1 && number % 2) { /* runs */
		p[0].run_n = p[0].nbytes = all / 2 - all / 5;
		p[1].run_lo = p[1].off = p[0].run_n;
		p[1].run_n = p[1].nbytes = all - p[0].run_n;
	} else if (all > 1) { /* rows */
		p[1].lo = dims + 2 * NDIM;
		p[1].len = dims + NDIM;
		dims[0] = dims[2 * NDIM] = shape[0] / 2 - 1;
		dims[NDIM] -= dims[0];
		p[0].run_n = p[0].nbytes = p[1].off = all / shape[0] * dims[0];
		p[1].run_n = p[1].nbytes = all - p[0].run_n;
		p[0].enc = p[1].enc = DCP_ENC_TORCH;
	}
	return 0;
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	(void)ctx;
	(void)name;
	*number = 0;
	return 0;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct dcp_tiling tiling;
	struct dcp_arena arena;
	struct dcp_err err = { 0 };
	uint32_t number;
	int rc;

	must(dcp_intern_add(ctx, t->key, strlen(t->key), DCP_INTERN_NONE, &number) == 1);
	must(!t->error || (*t->error && t->npieces == 0));
	if (t->error)
		return 0;
	dcp_arena_init(&arena, 64 << 20);
	rc = dcp_tiling_init(&tiling, t, &arena, &err);
	must(rc == 0 || rc == -E2BIG || rc == -ENOMEM);
	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];
		uint64_t last = 0;

		for (uint32_t d = 0; p->stride && d < t->ndim; d++)
			last += (p->len[d] - 1) * p->stride[d];
		last = p->stride ? last : p->run_n - 1;
		if (p->filter == DCP_FILTER_ZERO) {
			must(!p->stride && !p->off && !p->nbytes);
			continue;
		}
		must(p->item_n ? p->item_lo + last < p->item_n && p->stride
			       : p->enc != DCP_ENC_PLAIN || last < p->nbytes);
		must(p->off + p->nbytes <= 24 * 5 * 4);
	}
	dcp_arena_finish(&arena);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static const struct dcp_rules_config config = {
		.heads = 4, .kv_heads = 2, .head_dim = 3, .hidden = 5, .vocab = 20, .tie = -1
	};
	static const struct dcp_file_id file = { .name = "f" };
	struct dcp_rules_source from = {
		.list = list, .tensor = tensor, .files = &file, .nfiles = 1, .config = &config
	};
	struct dcp_intern told = DCP_INTERN_INIT;
	struct dcp_sink to = { .file = on_file, .tensor = on_tensor, .ctx = &told };
	struct dcp_rules *r = NULL;
	struct dcp_err err = { 0 };
	int rc = dcp_rules_parse((const char *)data, n, "fuzz", &r, &err);

	must(rc == 0 ? r != NULL : err.code == rc && strncmp(err.msg, "fuzz:", 5) == 0);
	if (rc < 0)
		return 0;
	rc = dcp_rules_map(r, &from, &to, NULL, &err);
	must(rc == 0 || rc == -ENOMEM);
	dcp_intern_finish(&told);
	dcp_rules_free(r);
	return 0;
}
