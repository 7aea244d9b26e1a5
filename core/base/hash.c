/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/hash.h"

#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

#include "core/base/base.h"
#include "core/base/bytes.h"

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

/* struct dcp_hash128 is only another name for the state of xxHash. */
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

/* Add @x to @more, which comes later. To keep the remainder, each half of @x is multiplied by its
 * half of @k. */
static inline PCLMUL __m128i fold_register(__m128i x, __m128i k, __m128i more)
{
	x = _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11));
	return _mm_xor_si128(x, more);
}

/*
 * Process most of @n bytes (at least STEP) by carry-less multiplication, which reduces them to 16
 * bytes with the same remainder; zlib divides these. The constants are x^544, x^480 and x^160, x^96
 * modulo the polynomial, with bits in the order of the CRC. Returns the number of processed bytes.
 */
static PCLMUL size_t fold_bytes(uint32_t *crc, const uint8_t *p, size_t n)
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
			x[i] = fold_register(x[i], far, _mm_loadu_si128(from++));
	for (unsigned i = 1; i < 4; i++)
		x[0] = fold_register(x[0], near, x[i]);
	_mm_storeu_si128((void *)last, x[0]);
	*crc = (uint32_t)crc32_z(UINT32_MAX, last, sizeof(last)); /* the register begins at 0 */
	return at;
}

static size_t fold_if_can(uint32_t *crc, const uint8_t *p, size_t n)
{
	return n >= STEP && __builtin_cpu_supports("pclmul") ? fold_bytes(crc, p, n) : 0;
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

enum { BLOCK = 128, ROUNDS = 12 };

/* As RFC 7693 calls them. */
struct blake2b {
	uint64_t h[8], t; /* t: number of compressed bytes; 64 bits are enough */
	uint8_t b[BLOCK];
	size_t c; /* bytes in b */
};

struct dcp_filehash {
	enum dcp_filehash_kind kind;
	union {
		struct sha256_ctx sha256;
		struct blake2b blake2b;
	};
};

static const uint64_t iv[8] = { 0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
				0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
				0x1f83d9abfb41bd6b, 0x5be0cd19137e2179 };

static const uint8_t sigma[10][16] = {
	{ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
	{ 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
	{ 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 },
	{ 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
	{ 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 },
	{ 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
	{ 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 },
	{ 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
	{ 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 },
	{ 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
};

static uint64_t turn_word(uint64_t x, unsigned n)
{
	return x >> n | x << (64 - n);
}

static void mix_words(uint64_t v[16], unsigned a, unsigned b, unsigned c, unsigned d,
		      uint64_t x, uint64_t y)
{
	v[a] += v[b] + x;
	v[d] = turn_word(v[d] ^ v[a], 32);
	v[c] += v[d];
	v[b] = turn_word(v[b] ^ v[c], 24);
	v[a] += v[b] + y;
	v[d] = turn_word(v[d] ^ v[a], 16);
	v[c] += v[d];
	v[b] = turn_word(v[b] ^ v[c], 63);
}

static void compress_block(struct blake2b *s, const uint8_t *p, bool last)
{
	uint64_t v[16], m[16];

	for (unsigned i = 0; i < 8; i++) {
		v[i] = s->h[i];
		v[i + 8] = iv[i];
	}
	v[12] ^= s->t;
	if (last)
		v[14] = ~v[14];
	for (unsigned i = 0; i < 16; i++)
		m[i] = dcp_load_le64(p + 8 * i);
	for (unsigned r = 0; r < ROUNDS; r++) {
		const uint8_t *k = sigma[r % 10];

		for (unsigned i = 0; i < 4; i++)
			mix_words(v, i, i + 4, i + 8, i + 12, m[k[2 * i]], m[k[2 * i + 1]]);
		for (unsigned i = 0; i < 4; i++)
			mix_words(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4,
				  m[k[8 + 2 * i]], m[k[9 + 2 * i]]);
	}
	for (unsigned i = 0; i < 8; i++)
		s->h[i] ^= v[i] ^ v[i + 8];
}

/* The last block is compressed differently, so a full block waits until more bytes come. */
static void add_blake2b(struct blake2b *s, const uint8_t *p, size_t n)
{
	while (n) {
		size_t now;

		if (s->c == BLOCK) {
			s->t += BLOCK;
			compress_block(s, s->b, false);
			s->c = 0;
		}
		now = DCP_MIN(n, BLOCK - s->c);
		memcpy(s->b + s->c, p, now);
		s->c += now;
		p += now;
		n -= now;
	}
}

enum dcp_filehash_kind dcp_filehash_named(const char *name, size_t n)
{
	if (n == 6 && memcmp(name, "sha256", n) == 0)
		return DCP_FILEHASH_SHA256;
	return n == 7 && memcmp(name, "blake2b", n) == 0 ? DCP_FILEHASH_BLAKE2B
							 : DCP_FILEHASH_NONE;
}

size_t dcp_filehash_size(enum dcp_filehash_kind kind)
{
	return kind == DCP_FILEHASH_SHA256 ? SHA256_DIGEST_SIZE
	       : kind == DCP_FILEHASH_NONE ? 0
					   : DCP_FILEHASH_MOST;
}

struct dcp_filehash *dcp_filehash_new(enum dcp_filehash_kind kind)
{
	struct dcp_filehash *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->kind = kind;
	if (kind == DCP_FILEHASH_SHA256) {
		sha256_init(&h->sha256);
	} else {
		memcpy(h->blake2b.h, iv, sizeof(iv));
		h->blake2b.h[0] ^= 0x01010000 ^ DCP_FILEHASH_MOST;
	}
	return h;
}

void dcp_filehash_add(struct dcp_filehash *h, const void *p, size_t n)
{
	if (h->kind == DCP_FILEHASH_SHA256)
		sha256_update(&h->sha256, n, p);
	else
		add_blake2b(&h->blake2b, p, n);
}

void dcp_filehash_end(struct dcp_filehash *h, uint8_t out[DCP_FILEHASH_MOST])
{
	struct blake2b *s = &h->blake2b;

	if (h->kind == DCP_FILEHASH_SHA256) {
		sha256_digest(&h->sha256, SHA256_DIGEST_SIZE, out);
	} else {
		s->t += s->c;
		memset(s->b + s->c, 0, BLOCK - s->c);
		compress_block(s, s->b, true);
		for (unsigned i = 0; i < 8; i++)
			dcp_store_le64(out + 8 * i, s->h[i]);
	}
	free(h);
}
