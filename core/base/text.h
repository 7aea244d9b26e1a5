/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text: what a name ends with and is without, and a noun behind a number.
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

/* Is @name something, and @extension (".tar") behind it? */
static inline bool dcp_has_extension(const char *name, const char *extension)
{
	size_t n = strlen(name);

	return n > strlen(extension) && dcp_ends_with(name, n, extension);
}

/* What stands behind a noun that @n counts: "%llu key%s", n, dcp_s(n). */
static inline const char *dcp_s(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* How long @name is without its extension. */
static inline size_t dcp_stem(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot && dot > name ? (size_t)(dot - name) : strlen(name);
}
