/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: a reason with every refusal; else members inside the archive, in order,
 * each of another name, none of which leads outside.
 */
#include <stdbool.h>
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

/* By other means than the parser's. */
static bool leads_outside(const char *name)
{
	size_t n = strlen(name);

	return name[0] == '/' || strcmp(name, "..") == 0 || strncmp(name, "../", 3) == 0 ||
	       strstr(name, "/../") || (n >= 3 && strcmp(name + n - 3, "/..") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_source src = dcp_source_mem(data, n);
	struct dcp_tar_member *m = NULL;
	struct dcp_err err = { 0 };
	struct dcp_arena arena;
	size_t count = 0;
	int rc;

	dcp_arena_init(&arena, 8 << 20);
	rc = dcp_tar_list(&src, &arena, &m, &count, &err);
	must(rc == 0 || (rc < 0 && err.code == rc && err.msg[0] && !m));
	for (size_t i = 0; i < count; i++) {
		must(dcp_range_ok(m[i].off, m[i].size, n));
		must(m[i].name[0] && !leads_outside(m[i].name));
		must(i == 0 || strcmp(m[i - 1].name, m[i].name) < 0);
	}
	dcp_arena_finish(&arena);
	return 0;
}
