/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes of a paddle.save file: what is told has a key, and pieces that lie inside
 * the file; nothing to be told has a reason.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/origin/origin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A few nested lists can stand for gigabytes of JSON; it is bounded, but not in a moment. */
enum { STOP = -ECANCELED, MOST = 4096, JSON = 4 << 20 };

struct seen {
	const struct dcp_source *src;
	size_t told, json;
};

static void must(bool ok)
{
	if (!ok)
		abort();
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct seen *s = ctx;

	must(t->key && t->dtype_name && t->ndim <= DCP_MAX_NDIM);
	must(!t->error || t->error[0]);
	for (size_t i = 0; i < t->npieces; i++)
		must(dcp_range_ok(t->pieces[i].off, t->pieces[i].nbytes, s->src->size));
	return ++s->told > MOST ? STOP : 0;
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	struct seen *s = ctx;

	must(o->key && o->type && (o->json ? o->json_len > 0 : o->error && o->error[0]));
	s->json += o->json_len;
	return ++s->told > MOST || s->json > JSON ? STOP : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct seen s = { .src = &src };
	struct dcp_sink sink = { .tensor = on_tensor, .object = on_object, .ctx = &s };
	struct dcp_plain_part part = { .file = "f", .label = "pdparams", .sink = &sink };
	struct dcp_err err = { 0 };
	int rc = dcp_plain_state_emit(&part, &src, 0, &err);

	must(rc == 0 || rc == STOP || (err.code == rc && err.msg[0]));
	return 0;
}
