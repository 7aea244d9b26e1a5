/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number: decimal numbers in foreign text. Digits only: no sign, no blank, no locale.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/ckd.h"

#define DCP_ANY_DIGITS SIZE_MAX /* as many as 64 bits hold, and zeros before them */

static inline bool dcp_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/*
 * The number at *@p, before @end (NULL: the text ends in a NUL), of at most @most digits; *@p is
 * moved past it. False: there is none, or a longer one; nothing is written then.
 */
static inline bool dcp_take_number(const char **p, const char *end, size_t most, uint64_t *out)
{
	const char *s = *p;
	uint64_t v = 0;

	for (; s != end && dcp_is_digit(*s); s++)
		if ((size_t)(s - *p) == most || dcp_ckd_mul(&v, v, 10) ||
		    dcp_ckd_add(&v, v, (uint64_t)(*s - '0')))
			return false;
	if (s == *p)
		return false;
	*p = s;
	*out = v;
	return true;
}

/* Where the digits begin that end before @end; @end: there are none. */
static inline const char *dcp_digits_before(const char *start, const char *end)
{
	while (end > start && dcp_is_digit(end[-1]))
		end--;
	return end;
}
