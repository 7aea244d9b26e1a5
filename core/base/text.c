/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/text.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"

static size_t clipped_length(const char *s)
{
	return strnlen(s, DCP_NEAR_MAX);
}

/* Optimal string alignment over three rows; row minima give the early end. */
size_t dcp_near_distance(const char *a, const char *b, size_t limit)
{
	size_t rows[3][DCP_NEAR_MAX + 1];
	size_t *before = rows[0], *prev = rows[1], *cur = rows[2];
	size_t na = clipped_length(a), nb = clipped_length(b);

	if ((na > nb ? na - nb : nb - na) > limit)
		return limit + 1;
	for (size_t j = 0; j <= nb; j++)
		prev[j] = j;
	for (size_t i = 1; i <= na; i++) {
		size_t best = cur[0] = i, *spare = before;

		for (size_t j = 1; j <= nb; j++) {
			size_t d = prev[j - 1] + (a[i - 1] != b[j - 1]);

			d = DCP_MIN(d, DCP_MIN(prev[j], cur[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d = DCP_MIN(d, before[j - 2] + 1);
			cur[j] = d;
			best = DCP_MIN(best, d);
		}
		if (best > limit)
			return limit + 1;
		before = prev;
		prev = cur;
		cur = spare;
	}
	return prev[nb] > limit ? limit + 1 : prev[nb];
}

size_t dcp_near_limit(const char *name)
{
	size_t n = clipped_length(name);

	return n < 5 ? 1 : 1 + n / 3;
}

bool dcp_near_take(struct dcp_near *near, const char *name)
{
	size_t d = dcp_near_distance(near->word, name, near->best);
	bool nearer = d < near->best;

	near->best = nearer ? d : near->best;
	return nearer;
}

static locale_t c_locale; /* (locale_t)0: out of memory, so the program's is used */

static void make_locale(void)
{
	c_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

static locale_t enter_locale(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_locale);
	return c_locale ? uselocale(c_locale) : (locale_t)0;
}

static void leave_locale(locale_t before)
{
	if (before)
		uselocale(before);
}

double dcp_read_float(const char *s, const char **end)
{
	locale_t before = enter_locale();
	char *after;
	double v = strtod(s, &after);

	leave_locale(before);
	*end = after;
	return v;
}

void dcp_print_float(char text[DCP_FLOAT_CHARS], double v)
{
	locale_t before = enter_locale();

	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, DCP_FLOAT_CHARS, "%.*g", digits, v);
		if (strtod(text, NULL) == v)
			break;
	}
	leave_locale(before);
}

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

/* Control characters, separators of lines, annotations, and Default_Ignorable_Code_Point of Unicode
 * 16, in order. */
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
