/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/hash.h"

#include <xxhash.h>

uint64_t dcp_hash64(const void *p, size_t n)
{
	return XXH3_64bits(p, n);
}

uint64_t dcp_hash64_more(uint64_t prev, const void *p, size_t n)
{
	return XXH3_64bits_withSeed(p, n, prev);
}
