/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: no crash, no leak, bounded memory, a reason with every refusal, and every
 * element of every tensor inside the stream. Leaves are written as JSON, too.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A few nested lists can stand for gigabytes of JSON; it is bounded, but not in a moment. */
enum { MEMORY = 8 << 20, LEAVES = 4096, JSON = 4 << 20 };

struct seen {
	const struct dcp_torch *t;
	const struct dcp_source *src;
	size_t leaves, json;
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check_tensor(const struct seen *s, struct dcp_pv v)
{
	struct dcp_torch_tensor x;
	struct dcp_err err = { 0 };
	uint64_t last = 0;
	int r = dcp_torch_tensor(s->t, v, &x, &err);

	must(r == 1 || (r < 0 && err.code == r && err.msg[0]));
	if (r < 0)
		return;
	must(x.ndim <= DCP_MAX_NDIM && x.itemsize && x.dtype_name[0]);
	must(x.storage_off <= x.off && x.off <= s->src->size);
	for (uint32_t i = 0; i < x.ndim; i++) {
		if (x.shape[i] == 0)
			return;
		last += (x.shape[i] - 1) * x.stride[i]; /* found not to overflow */
	}
	must(dcp_range_ok(x.off, (last + 1) * x.itemsize, s->src->size));
}

static int see(void *ctx, const struct dcp_leaf *leaf)
{
	struct seen *s = ctx;
	struct dcp_buf json = DCP_BUF_INIT;
	struct dcp_torch_parts parts;
	int r;

	must(leaf->key && (leaf->is_tensor == dcp_torch_is_tensor(leaf->value) ||
			   (leaf->is_tensor && dcp_torch_parts(leaf->value, &parts))));
	must(dcp_pyjson_type(leaf->value)[0]);
	for (size_t i = 0; i < leaf->npath; i++)
		must(leaf->path[i] && strlen(leaf->path[i]) <= strlen(leaf->key));
	if (leaf->is_tensor) {
		check_tensor(s, leaf->value);
	} else {
		r = dcp_pyjson_write(&json, s->t, leaf->value, leaf->path, leaf->npath);
		must(r == 0 ? json.n > 0 : r < 0 && json.n == 0);
	}
	s->json += json.n;
	dcp_buf_finish(&json);
	return ++s->leaves > LEAVES || s->json > JSON;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_torch *t = NULL;
	struct dcp_err err = { 0 };
	struct seen s = { .src = &src };
	int r = dcp_torch_open(&src, MEMORY, &t, &err);

	must(r == 0 || (r < 0 && err.code == r && err.msg[0]));
	if (r == 0) {
		s.t = t;
		r = dcp_pyjson_walk_with(t, dcp_torch_root(t),
					 &(struct dcp_walk){ .how = true }, see, &s);
		must(r == 0 || r == 1 || r == -E2BIG || r == -ENOMEM);
	}
	dcp_torch_close(t);
	return 0;
}
