/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/number.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static locale_t c_locale; /* (locale_t)0: out of memory, then the program's is used */

static void make_locale(void)
{
	c_locale = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

static locale_t enter(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_locale);
	return c_locale ? uselocale(c_locale) : (locale_t)0;
}

static void leave(locale_t before)
{
	if (before)
		uselocale(before);
}

double dcp_read_float(const char *s, const char **end)
{
	locale_t before = enter();
	char *after;
	double v = strtod(s, &after);

	leave(before);
	*end = after;
	return v;
}

void dcp_print_float(char text[DCP_FLOAT_CHARS], double v)
{
	locale_t before = enter();

	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, DCP_FLOAT_CHARS, "%.*g", digits, v);
		if (strtod(text, NULL) == v)
			break;
	}
	leave(before);
}
