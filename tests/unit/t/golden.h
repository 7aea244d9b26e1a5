/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_golden: the checkpoints in tests/golden and what their manifests say of them.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"

struct dcp_source;

/* The manifest of tests/golden/<name>; the test fails when it cannot be read. Caller:
 * json_decref(). */
json_t *t_golden_manifest(const char *name);

/* SHA-256 of a tensor's elements, row-major and little-endian. */
void t_golden_digest(const struct dcp_source *src, const struct dcp_torch_tensor *x,
		     char hex[65]);

/* What dcp_pyjson_walk() told, kept. */
struct t_leaf {
	char *key;
	struct dcp_pv value;
	bool is_tensor, nested;
	char *json;       /* NULL when it could not be written */
	const char *type; /* as long as the stream is open */
	bool used;        /* for the test */
};

struct t_leaves {
	struct t_leaf *leaf;
	size_t n;
};

void t_leaves_collect(struct t_leaves *l, const struct dcp_torch *t, unsigned how);
void t_leaves_free(struct t_leaves *l);
struct t_leaf *t_leaves_find(struct t_leaves *l, const char *key);
