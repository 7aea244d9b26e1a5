/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_source: a source that counts its reads and can fail at a chosen one, and
 * the list of malformed inputs that stands beside them in tests/bad.
 */
#pragma once
#include <stddef.h>

#include "core/origin/origin.h"

struct t_source {
	struct dcp_source base; /* hand out &s.base */
	const struct dcp_source *under;
	unsigned calls;
	unsigned fail_at; /* 1: the first read fails; 0: none does */
	int code;
};

void t_source_init(struct t_source *s, const struct dcp_source *under);

/* A whole file; the test fails when it cannot be read. Freed by the caller. */
char *t_file(const char *path, size_t *n);

/*
 * Lines of @dir/EXPECT: "name code message part", code as in "EBADMSG".
 * Calls @fn with the bytes of every input named there.
 */
typedef void (*t_bad_fn)(const char *name, const char *p, size_t n, int code, const char *says);
void t_bad_each(const char *dir, t_bad_fn fn);
