/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pattern, a NUL, and a text: no crash, bounded time, a reason with every refusal.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/parse/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	char *text = malloc(n + 2);
	struct dcp_arena arena;
	struct dcp_err err = { 0 };
	struct dcp_regex *re;
	size_t at;
	int rc;

	if (!text)
		abort();
	memcpy(text, data, n);
	text[n] = text[n + 1] = '\0';
	at = strlen(text) + 1;
	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_regex_compile(text, &arena, &re, &err);
	if (rc == 0)
		(void)dcp_regex_match(re, at <= n ? text + at : "");
	else if (rc != err.code || !err.msg[0])
		abort();
	dcp_arena_finish(&arena);
	free(text);
	return 0;
}
