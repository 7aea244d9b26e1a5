/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json: strict JSON in, through jansson; the only file that sees jansson.h.
 *
 * A value is a borrowed pointer into its document. Every accessor accepts NULL and
 * any type, and answers NULL, false or 0 for what is not there.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_json; /* opaque; a document's root or a value inside it */

/* Duplicate names are refused, nesting is limited to 64. -EBADMSG with the byte offset,
 * -ENOMEM. */
int dcp_json_parse(const char *text, size_t n, struct dcp_json **root, struct dcp_err *err);
void dcp_json_free(struct dcp_json *root);

const struct dcp_json *dcp_json_get(const struct dcp_json *object, const char *key);
bool dcp_json_is_object(const struct dcp_json *v);
bool dcp_json_is_array(const struct dcp_json *v);
size_t dcp_json_len(const struct dcp_json *v); /* array elements or object members */
const struct dcp_json *dcp_json_at(const struct dcp_json *array, size_t i);
const char *dcp_json_str(const struct dcp_json *v);
/* Non-negative integer. */
bool dcp_json_u64(const struct dcp_json *v, uint64_t *out);

/* Members in the order of the text: start with iter = NULL, ends with NULL. */
const void *dcp_json_next(const struct dcp_json *object, const void *iter, const char **key,
			  const struct dcp_json **value);
