/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash: xxHash, for names, staleness and digests. Not for secrets. The only file that
 * sees xxhash.h.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* XXH3, 64 bits, seed 0. */
uint64_t dcp_hash64(const void *p, size_t n);

/* Hash of @prev and the new bytes: for hashing a record field by field. */
uint64_t dcp_hash64_more(uint64_t prev, const void *p, size_t n);

/* "0.8.1": the library this was built with. */
const char *dcp_hash_xxhash_version(void);
