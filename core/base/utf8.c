/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/utf8.h"

size_t dcp_utf8_len(const char *s, size_t left)
{
	const unsigned char *p = (const unsigned char *)s;
	static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = *p < 0x80   ? 1
		   : *p < 0xc2 ? 0
		   : *p < 0xe0 ? 2
		   : *p < 0xf0 ? 3
		   : *p < 0xf5 ? 4
			       : 0;
	uint32_t c;

	if (n == 0 || n > left)
		return 0;
	if (n == 1)
		return 1;
	c = *p & (0xffu >> (n + 1));
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

uint32_t dcp_utf8_surrogate(const char *s, size_t left)
{
	const unsigned char *p = (const unsigned char *)s;

	if (left >= 3 && p[0] == 0xed && p[1] >= 0xa0 && p[1] < 0xc0 && (p[2] & 0xc0) == 0x80)
		return 0xd000u | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3fu);
	return 0;
}

bool dcp_is_control(const char *p, size_t n)
{
	const unsigned char *u = (const unsigned char *)p;

	return (n == 1 && (*u < 0x20 || *u == 0x7f)) || (n == 2 && *u == 0xc2 && u[1] < 0xa0);
}
