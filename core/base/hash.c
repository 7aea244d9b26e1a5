/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/hash.h"

#include <xxhash.h>
#include <zlib.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *dcp_hash_zlib_version(void)
{
	return zlibVersion();
}

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

#if defined(__x86_64__)
#include <immintrin.h>

enum { STEP = 64 };

#define PCLMUL __attribute__((target("pclmul")))

/*
 * Of two halves of 64 bits, each times x to the power that its half of @k stands for: the same
 * remainder, further on.
 */
static inline PCLMUL __m128i further(__m128i x, __m128i k, __m128i more)
{
	x = _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11));
	return _mm_xor_si128(x, more);
}

/*
 * Most of @n bytes, at least STEP, by multiplication without carries: what is left of them are 16
 * bytes with the same remainder, which zlib divides. The constants are x^544, x^480 and x^160, x^96
 * modulo the polynomial, with bits in the order of the CRC. How many bytes were taken.
 */
static PCLMUL size_t fold(uint32_t *crc, const uint8_t *p, size_t n)
{
	const __m128i far = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
	const __m128i near = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
	const __m128i *from = (const void *)p;
	uint8_t last[16];
	__m128i x[4];
	size_t at = STEP;

	for (unsigned i = 0; i < 4; i++)
		x[i] = _mm_loadu_si128(from++);
	x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~*crc));
	for (; at + STEP <= n; at += STEP)
		for (unsigned i = 0; i < 4; i++)
			x[i] = further(x[i], far, _mm_loadu_si128(from++));
	for (unsigned i = 1; i < 4; i++)
		x[0] = further(x[0], near, x[i]);
	_mm_storeu_si128((void *)last, x[0]);
	*crc = (uint32_t)crc32_z(UINT32_MAX, last, sizeof(last)); /* from a register of 0 */
	return at;
}

static size_t fold_if_can(uint32_t *crc, const uint8_t *p, size_t n)
{
	return n >= STEP && __builtin_cpu_supports("pclmul") ? fold(crc, p, n) : 0;
}
#else
static size_t fold_if_can(uint32_t *crc, const uint8_t *p, size_t n)
{
	return 0;
}
#endif

uint32_t dcp_crc32(uint32_t crc, const void *p, size_t n)
{
	size_t done = n ? fold_if_can(&crc, p, n) : 0;

	return n ? (uint32_t)crc32_z(crc, (const uint8_t *)p + done, n - done) : crc;
}

uint32_t dcp_crc32_join(uint32_t a, uint32_t b, uint64_t n)
{
	return (uint32_t)crc32_combine(a, b, (z_off_t)n);
}
