/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/utf8.h"

#include <string.h>

#include "core/base/base.h"

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
	for (size_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	c = dcp_utf8_code(s, n);
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

uint32_t dcp_utf8_surrogate(const char *s, size_t left)
{
	const unsigned char *p = (const unsigned char *)s;

	if (left >= 3 && p[0] == 0xed && p[1] >= 0xa0 && p[1] < 0xc0 && (p[2] & 0xc0) == 0x80)
		return 0xd000u | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3fu);
	return 0;
}

uint32_t dcp_utf8_code(const char *p, size_t n)
{
	const unsigned char *u = (const unsigned char *)p;
	uint32_t c = n == 1 ? *u : *u & (0xffu >> (n + 1));

	for (size_t i = 1; i < n; i++)
		c = c << 6 | (u[i] & 0x3f);
	return c;
}

/*
 * Control characters, separators of lines, annotations, and Default_Ignorable_Code_Point of Unicode
 * 16, in order.
 */
static bool is_hidden(uint32_t c)
{
	static const uint32_t ranges[][2] = {
		{ 0x0000, 0x001f },   { 0x007f, 0x009f },   { 0x00ad, 0x00ad },
		{ 0x034f, 0x034f },   { 0x061c, 0x061c },   { 0x115f, 0x1160 },
		{ 0x17b4, 0x17b5 },   { 0x180b, 0x180f },   { 0x200b, 0x200f },
		{ 0x2028, 0x202e },   { 0x2060, 0x206f },   { 0x3164, 0x3164 },
		{ 0xfe00, 0xfe0f },   { 0xfeff, 0xfeff },   { 0xffa0, 0xffa0 },
		{ 0xfff0, 0xfffb },   { 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a },
		{ 0xe0000, 0xe0fff },
	};

	for (size_t i = 0; i < DCP_LEN(ranges) && c >= ranges[i][0]; i++)
		if (c <= ranges[i][1])
			return true;
	return false;
}

size_t dcp_utf8_shown(const char *p, size_t left)
{
	size_t n = dcp_utf8_len(p, left);

	return n && !is_hidden(dcp_utf8_code(p, n)) ? n : 0;
}

bool dcp_utf8_all_shown(const char *s)
{
	for (size_t left = strlen(s), n; left; s += n, left -= n)
		if (!(n = dcp_utf8_shown(s, left)))
			return false;
	return true;
}
