/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number: numbers in text. Whole ones are digits only: no sign, no blank. Nothing here depends on
 * the locale of the program that uses a library of dcpfs: where people write a decimal comma, JSON
 * and pickles still have a point.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/ckd.h"

#define DCP_ANY_DIGITS SIZE_MAX /* the digits of a 64-bit number, and leading zeros */

static inline bool dcp_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The value of a hexadecimal digit, or -1. */
static inline int dcp_hex_digit(char c)
{
	if (dcp_is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/*
 * Parse the number at *@p, before @end (NULL: the text ends in a NUL), of at most @most digits,
 * and move *@p past it. False: no digit, or more digits; then nothing is written.
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

/* Parse @s, which must be a number of at most 64 bits. False: it is not. */
static inline bool dcp_is_number(const char *s, uint64_t *out)
{
	return dcp_take_number(&s, NULL, DCP_ANY_DIGITS, out) && *s == '\0';
}

/* strtod() of @s. */
double dcp_read_float(const char *s, const char **end);

#define DCP_FLOAT_CHARS 32
/* The shortest text of 15 to 17 digits that reads back as @v, which is finite. */
void dcp_print_float(char text[DCP_FLOAT_CHARS], double v);

/* The start of the run of digits that ends at @end; @end if there are none. */
static inline const char *dcp_digits_before(const char *start, const char *end)
{
	while (end > start && dcp_is_digit(end[-1]))
		end--;
	return end;
}
