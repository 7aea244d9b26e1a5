/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept: what was found in the tensors of a version, one record a tensor, from one call to the next (core/store/cache/cache.h).
 *
 * A record begins with a struct kept_head. Records lie in the order of the rows' ids.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/buf.h"

struct dcp_version;
struct walk_key;

struct kept_head {
	int64_t id;
	uint64_t key;  /* hash of the key */
	uint64_t done; /* 0: nothing is known of it */
};

/* Those called @name, of @size bytes each; none if there are none. -ENOMEM. */
int kept_read(const struct dcp_version *v, const char *name, size_t size, struct dcp_buf *out);
/* The record of @k; NULL: nothing is known. */
const void *kept_at(const struct dcp_buf *all, size_t size, const struct walk_key *k);
/* Make @record that of @k, with its head. -ENOMEM. */
int kept_put(struct dcp_buf *all, size_t size, const struct walk_key *k, const void *record);

/* The digest by XXH3 of a tensor. */
struct kept_digest {
	struct kept_head head;
	char text[40]; /* 32 digits and a NUL */
};
