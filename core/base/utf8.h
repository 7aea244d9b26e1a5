/* SPDX-License-Identifier: Apache-2.0 */
/* utf8: characters of foreign text: which are valid, and which may be shown. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Length of the valid UTF-8 sequence at @p, or 0. C0 80, dcpfs's form of a NUL inside a key, is
 * not valid here.
 */
size_t dcp_utf8_len(const char *p, size_t left);

/*
 * The lone surrogate that the three bytes at @p encode, as Python's surrogatepass writes it; or
 * 0.
 */
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
