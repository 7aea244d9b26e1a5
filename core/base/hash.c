/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/hash.h"

#include <xxhash.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *dcp_hash_xxhash_version(void)
{
	return TEXT(XXH_VERSION_MAJOR) "." TEXT(XXH_VERSION_MINOR) "." TEXT(
		XXH_VERSION_RELEASE);
}

uint64_t dcp_hash64(const void *p, size_t n)
{
	return XXH3_64bits(p, n);
}

uint64_t dcp_hash64_more(uint64_t prev, const void *p, size_t n)
{
	return XXH3_64bits_withSeed(p, n, prev);
}
