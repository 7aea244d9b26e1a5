/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: no crash, no leak, a reason with every refusal, and every member and its
 * data inside the archive.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void check_member(const struct dcp_source *src, const struct dcp_zip_member *m)
{
	struct dcp_err err = { 0 };
	uint64_t off = 0;
	int r;

	must(m->name && m->name[0]);
	must(m->header_off < src->size);
	must(!m->stored || dcp_range_ok(m->header_off, m->size, src->size));
	r = dcp_zip_data(src, m, &off, &err);
	must(r == 0 ? off > m->header_off : err.code == r && err.msg[0]);
	must(r < 0 || dcp_range_ok(off, m->stored ? m->size : 0, src->size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_zip_member *m = NULL;
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	size_t count = 0;
	int r;

	dcp_arena_init(&arena, 16u << 20);
	r = dcp_zip_list(&src, &arena, &m, &count, &err);
	must(r == 0 || (err.code == r && err.msg[0]));
	for (size_t i = 0; r == 0 && i < count; i++)
		check_member(&src, &m[i]);
	dcp_arena_finish(&arena);
	return 0;
}
