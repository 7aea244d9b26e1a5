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

/* Ours is only a name for theirs. */
static XXH3_state_t *state_of(struct dcp_hash128 *h)
{
	return (XXH3_state_t *)(void *)h;
}

struct dcp_hash128 *dcp_hash128_new(void)
{
	XXH3_state_t *s = XXH3_createState();

	if (s)
		XXH3_128bits_reset(s);
	return (struct dcp_hash128 *)(void *)s;
}

void dcp_hash128_add(struct dcp_hash128 *h, const void *p, size_t n)
{
	XXH3_128bits_update(state_of(h), p, n);
}

void dcp_hash128_end(struct dcp_hash128 *h, uint64_t out[2])
{
	XXH128_hash_t value = XXH3_128bits_digest(state_of(h));

	out[0] = value.high64;
	out[1] = value.low64;
	XXH3_freeState(state_of(h));
}
