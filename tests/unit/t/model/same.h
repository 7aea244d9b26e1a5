/* SPDX-License-Identifier: Apache-2.0 */
/*
 * t_same: do two versions show the same keys, values and bytes?
 */
#pragma once
#include <stddef.h>

struct dcp_store_opts;
struct dcp_version;

/* The version called @name, or the newest one where that is NULL; the test fails when there is
 * none, or it cannot be opened. @opts may be NULL: nothing is cached. */
struct dcp_version *t_open_version(const char *source, const char *name,
				   const struct dcp_store_opts *opts);

/*
 * Every tensor and object of @a must be one of @b, under the same key behind @prefix ("" or
 * "deepspeed."), with the same dtype, shape and bytes, or JSON. Broken ones must be broken in
 * both. Returns how many there were; those of @b that are behind @prefix may be no more.
 */
size_t t_same(struct dcp_version *a, struct dcp_version *b, const char *prefix);

/* All bytes of a tensor, freed by the caller; NULL, with the reason in @why (512 bytes), when
 * it is broken. */
char *t_tensor_bytes(struct dcp_version *v, const char *key, size_t *n, char *why);
