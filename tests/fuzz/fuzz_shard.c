/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams with DTensors and ShardedTensors in them: whatever the bytes, every piece that is
 * told lies inside the stream and inside its tensor, and what is not told has a reason.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/format/gather/join.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"
#include "core/parse/torch/torch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MEMORY = 8 << 20, MOST = 20000 };

struct seen {
	uint64_t size;
	size_t told;
	struct dcp_copies copies;
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check_piece(const struct seen *s, const struct dcp_tensor *t,
			const struct dcp_piece *p)
{
	uint64_t volume, last = 0;

	must(p->file == 0 && dcp_range_ok(p->off, p->nbytes, s->size));
	must(dcp_shape_volume(p->len, t->ndim, &volume) && volume == p->run_n && volume > 0);
	for (uint32_t k = 0; p->stride && k < t->ndim; k++)
		last += (p->len[k] - 1) * p->stride[k];
	if (p->stride)
		must(p->nbytes == (last + 1) * t->itemsize);
	else
		must(p->nbytes == volume * t->itemsize);
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct seen *s = ctx;

	must(t->key && t->npath && t->dtype_name && t->ndim <= DCP_MAX_NDIM);
	must(!t->error || (t->error[0] && t->npieces == 0));
	for (size_t i = 0; i < t->npieces; i++)
		check_piece(s, t, &t->pieces[i]);
	return ++s->told > MOST ? -E2BIG : 0;
}

static int on_shard(void *ctx, const struct dcp_tensor *t)
{
	struct seen *s = ctx;
	int rc = on_tensor(ctx, t);

	return rc < 0 ? rc : dcp_copies_add(&s->copies, t, (uint32_t)s->told, "a file");
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	struct seen *s = ctx;

	must(o->key && o->type && !o->json == !!o->error);
	return ++s->told > MOST ? -E2BIG : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct seen s = { .size = n };
	const struct dcp_sink sink = { .tensor = on_tensor, .object = on_object, .ctx = &s };
	struct dcp_err err = { 0 };
	struct dcp_torch *t;

	if (dcp_torch_open(&src, MEMORY, &t, &err) < 0)
		return 0;
	dcp_copies_init(&s.copies);
	for (int joined = 0; joined < 2; joined++) {
		const struct dcp_torch_state ts = {
			.t = t, .sink = &sink, .shard = joined ? on_shard : NULL, .ctx = &s
		};

		s.told = 0;
		dcp_torch_state_emit(&ts);
	}
	for (uint32_t k = 0; k < s.copies.names.n; k++) {
		s.told = 0;
		must(dcp_copies_emit(&s.copies, k, &sink, NULL) == 0);
	}
	dcp_copies_finish(&s.copies);
	dcp_torch_close(t);
	return 0;
}
