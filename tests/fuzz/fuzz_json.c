/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the bytes: no crash, no leak, a reason with every refusal, and the walk over an
 * object's text agrees with the tree about its members.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/parse/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static size_t visit(const struct dcp_json *v, unsigned depth)
{
	const struct dcp_json *value;
	const void *iter = NULL;
	const char *key;
	size_t seen = 1, members = 0;
	uint64_t u;

	must(depth <= DCP_JSON_MAX_DEPTH);
	if (dcp_json_str(v))
		seen += strlen(dcp_json_str(v));
	if (dcp_json_u64(v, &u))
		must(u <= INT64_MAX);
	for (size_t i = 0; dcp_json_is_array(v) && i < dcp_json_len(v); i++)
		seen += visit(dcp_json_at(v, i), depth + 1);
	while ((iter = dcp_json_next(v, iter, &key, &value)) != NULL) {
		must(dcp_json_get(v, key) == value);
		seen += visit(value, depth + 1);
		members++;
	}
	must(!dcp_json_is_object(v) || members == dcp_json_len(v));
	return seen;
}

static void walk(const char *text, size_t n, const struct dcp_json *root)
{
	struct dcp_json_walk w = { .text = text, .n = n };
	struct dcp_bytes name, value;
	struct dcp_json *piece;
	struct dcp_err err = { 0 };
	int code;

	while ((code = dcp_json_walk(&w, &name, &value, &err)) == 1) {
		must(name.n >= 1 && name.p >= (const uint8_t *)text);
		must(value.n >= 1 && value.p + value.n <= (const uint8_t *)text + n);
		if (!dcp_json_is_object(root))
			continue;
		must(dcp_json_parse((const char *)name.p, name.n, &piece, NULL) == 0);
		must(dcp_json_get(root, dcp_json_str(piece)) != NULL);
		dcp_json_free(piece);
		must(dcp_json_parse((const char *)value.p, value.n, &piece, NULL) == 0);
		dcp_json_free(piece);
	}
	must(code == 0 || (err.msg[0] && err.off <= n));
	if (dcp_json_is_object(root))
		must(code == 0 && w.members == dcp_json_len(root));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct dcp_json *root = NULL;
	struct dcp_err err = { 0 };
	int code = dcp_json_parse((const char *)data, n, &root, &err);

	must(code == 0 ? root != NULL : err.code == code && err.msg[0]);
	if (code == 0)
		must(visit(root, 0) > 0);
	walk((const char *)data, n, root);
	dcp_json_free(root);
	return 0;
}
