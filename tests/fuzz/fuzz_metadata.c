/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A .metadata of any bytes, read twice as if by two ranks: no crash, no leak, a reason with
 * every refusal, and whatever is told is well formed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/format/dcp/dcp_int.h"
#include "core/model/geometry/tiling.h"
#include "core/origin/origin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static size_t path_bytes(const char *const *path, size_t n)
{
	size_t sum = 0;

	must(n > 0);
	for (size_t i = 0; i < n; i++)
		sum += strlen(path[i]);
	return sum;
}

static int on_file(void *ctx, const char *name, uint32_t *number)
{
	uint32_t *count = ctx;

	must(name[0] && name[0] != '/');
	*number = (*count)++;
	return 0;
}

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	const uint32_t *count = ctx;
	struct dcp_arena arena;
	struct dcp_tiling tl;
	uint64_t nbytes;

	must(t->key && t->dtype_name && t->ndim <= DCP_MAX_NDIM);
	must(path_bytes(t->path, t->npath) < SIZE_MAX);
	must(!t->error || (t->error[0] && t->npieces == 0));
	for (size_t i = 0; i < t->npieces; i++)
		must(t->pieces[i].file < *count && t->pieces[i].run_n > 0);
	if (t->error || !dcp_tensor_nbytes(t, &nbytes))
		return 0;
	dcp_arena_init(&arena, 1 << 20);
	(void)dcp_tiling_init(&tl, t, &arena, NULL);
	dcp_arena_finish(&arena);
	return 0;
}

static int on_object(void *ctx, const struct dcp_object *o)
{
	(void)ctx;
	must(o->key && o->type && !o->json && o->error[0]); /* there is no directory */
	must(path_bytes(o->path, o->npath) < SIZE_MAX);
	return 0;
}

static int on_meta(void *ctx, const char *name, const char *value)
{
	(void)ctx;
	must(name[0] && value[0]);
	return 0;
}

static void run(const uint8_t *data, size_t n, int times)
{
	static const char *const ranks[] = { "rank0", "rank1" };
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_err err = { 0 };
	uint32_t count = 0;
	struct dcp_sink sink = {
		.file = on_file,
		.tensor = on_tensor,
		.object = on_object,
		.meta = on_meta,
		.ctx = &count,
	};
	struct dcp_load in = { .sink = &sink };
	struct dcp_dcp d = { .in = &in,
			     .missing = times > 1 ? "of some ranks" : NULL,
			     .rank = ranks };
	int rc = dcp_dcp_meta_init(&d.meta);

	for (int i = 0; i < times && rc == 0; i++)
		rc = dcp_dcp_meta_read(&d.meta, &src, &err);
	if (rc == 0)
		rc = dcp_dcp_emit(&d, &err);
	must(rc == 0 || (err.code == rc && err.msg[0]));
	dcp_dcp_meta_finish(&d.meta);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	run(data, n, 1);
	run(data, n, 2);
	return 0;
}
