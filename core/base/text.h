/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: extensions, stems and components of names, and the plural of a noun after a number.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
