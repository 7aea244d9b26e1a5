/* SPDX-License-Identifier: Apache-2.0 */
/* text: extensions, stems and components of names, and the plural of a noun after a number; the
 * nearest known name; numbers in text; characters. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/bytes.h"

/* Do the @n bytes at @s end with @end? */
static inline bool dcp_ends_with(const char *s, size_t n, const char *end)
{
	size_t m = strlen(end);

	return n >= m && memcmp(s + n - m, end, m) == 0;
}

/* Does @name end with @extension (".tar"), with something before it? */
static inline bool dcp_has_extension(const char *name, const char *extension)
{
	size_t n = strlen(name);

	return n > strlen(extension) && dcp_ends_with(name, n, extension);
}

/* Does *@p begin with @text? If so, move *@p past it. */
static inline bool dcp_take_text(const char **p, const char *text)
{
	size_t n = strlen(text);

	if (strncmp(*p, text, n) != 0)
		return false;
	*p += n;
	return true;
}

/* The plural ending of a noun that @n counts: "%llu key%s", n, dcp_s(n). */
static inline const char *dcp_s(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* Length of @name without its extension. */
static inline size_t dcp_stem(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && dot > name ? (size_t)(dot - name) : strlen(name);
}

/* Is ".." one of the components of @name? */
static inline bool dcp_climbs(const char *name)
{
	for (const char *p = name; *p; p += strcspn(p, "/"), p += *p == '/')
		if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2]))
			return true;
	return false;
}

/* near: the known name that is nearest to a mistyped one, by edit distance, for messages. */

/* Longer names are compared by their first DCP_NEAR_MAX bytes: keys differ early or not at all. */
#define DCP_NEAR_MAX 512

/* The number of insertions, deletions, replacements or swaps of neighbours that turn @a into @b, or
 * @limit + 1 if it is more than @limit. */
size_t dcp_near_distance(const char *a, const char *b, size_t limit);

/* The greatest distance at which "did you mean" is useful for @name. */
size_t dcp_near_limit(const char *name);

/* Finds the name nearest to a word; of equally near names, the first. */
struct dcp_near {
	const char *word;
	/* distance of the nearest name so far; at first 1 + the greatest useful distance */
	size_t best;
};

static inline struct dcp_near dcp_near_to(const char *word)
{
	return (struct dcp_near){ word, dcp_near_limit(word) + 1 };
}

/* Try @name: is it nearer than all names before? */
bool dcp_near_take(struct dcp_near *near, const char *name);

/*
 * number: numbers in text. Whole numbers are digits only: no sign, no blank. No function depends on
 * the locale of the program that uses a library of dcpfs, since JSON and pickles have a decimal
 * point in every country.
 */

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

/* Parse the number at *@p, before @end (NULL: the text ends in a NUL), of at most @most digits, and
 * move *@p past it. False: no digit, or more digits; then nothing is written. */
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

/* Parse @s. False: it is not a number of at most 64 bits. */
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

/* utf8: characters of foreign text: which are valid, and which may be shown. */

/* Length of the valid UTF-8 sequence at @p, or 0. C0 80, dcpfs's form of a NUL inside a key, is not
 * valid here. */
size_t dcp_utf8_len(const char *p, size_t left);

/* The lone surrogate that the three bytes at @p encode, as Python's surrogatepass writes it; or
 * 0. */
uint32_t dcp_utf8_surrogate(const char *p, size_t left);

/* The code point of the valid sequence of @n bytes at @p. */
uint32_t dcp_utf8_code(const char *p, size_t n);

/*
 * Length of the valid sequence at @p if the character may be shown unchanged. 0: show the first
 * byte as \xNN, %NN or the like, because it is not UTF-8, or because the character is invisible
 * or misleading: control characters (some terminals treat U+0080 to U+009F as ESC), line
 * separators, marks that turn the direction of text, and characters that Unicode calls default
 * ignorable, such as those of zero width.
 */
size_t dcp_utf8_shown(const char *p, size_t left);
/* May all characters of @s be shown unchanged? */
bool dcp_utf8_all_shown(const char *s);
