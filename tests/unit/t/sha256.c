/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/sha256.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The first 32 bits of the fractional parts of the roots of the first primes. */
static void make_constants(uint32_t h[8], uint32_t k[64])
{
	int n = 0;

	for (int p = 2; n < 64; p++) {
		int d = 2;
		long double root;

		while (d * d <= p && p % d)
			d++;
		if (d * d <= p)
			continue;
		root = cbrtl(p);
		k[n] = (uint32_t)((root - floorl(root)) * 4294967296.0L);
		root = sqrtl(p);
		if (n < 8)
			h[n] = (uint32_t)((root - floorl(root)) * 4294967296.0L);
		n++;
	}
}

static uint32_t rotate_right(uint32_t v, int n)
{
	return v >> n | v << (32 - n);
}

static void add_block(uint32_t h[8], const uint32_t k[64], const uint8_t *p)
{
	uint32_t w[64], s[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++)
		w[i] = w[i - 16] + w[i - 7] +
		       (rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^
			w[i - 15] >> 3) +
		       (rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^
			w[i - 2] >> 10);
	memcpy(s, h, sizeof(s));
	for (int i = 0; i < 64; i++) {
		uint32_t t1 = s[7] +
			      (rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^
			       rotate_right(s[4], 25)) +
			      ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
		uint32_t t2 = (rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^
			       rotate_right(s[0], 22)) +
			      ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));

		memmove(s + 1, s, 7 * sizeof(*s));
		s[4] += t1;
		s[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		h[i] += s[i];
}

void t_sha256(const void *p, size_t n, char hex[65])
{
	uint32_t h[8], k[64];
	uint8_t last[128] = { 0 };
	size_t tail = n % 64, whole = n - tail, end = tail < 56 ? 64 : 128;

	make_constants(h, k);
	for (size_t i = 0; i < whole; i += 64)
		add_block(h, k, (const uint8_t *)p + i);
	if (tail)
		memcpy(last, (const uint8_t *)p + whole, tail);
	last[tail] = 0x80;
	for (int i = 0; i < 8; i++)
		last[end - 1 - i] = (uint8_t)((uint64_t)n * 8 >> (8 * i));
	for (size_t i = 0; i < end; i += 64)
		add_block(h, k, last + i);
	for (int i = 0; i < 8; i++)
		snprintf(hex + 8 * i, 9, "%08x", h[i]);
}
