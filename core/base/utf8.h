/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8: the characters of foreign text.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Length of the valid UTF-8 sequence at @p, or 0. C0 80, dcpfs's form of a NUL inside a key, is
 * not valid here.
 */
size_t dcp_utf8_len(const char *p, size_t left);

/* The lone surrogate that the three bytes at @p spell as Python's surrogatepass does; 0: none. */
uint32_t dcp_utf8_surrogate(const char *p, size_t left);

/* The code point of the valid sequence of @n bytes at @p. */
uint32_t dcp_utf8_code(const char *p, size_t n);

/*
 * Length of the valid sequence at @p if it may be shown as it is. 0: its first byte is shown as \xNN, %NN or the like,
 * because it is not UTF-8, or because the character is seen as something else or not at all: control characters (some
 * terminals treat those from U+0080 to U+009F as ESC), separators of lines, marks that turn the direction of text, and
 * all that Unicode calls default ignorable, as characters of no width are.
 */
size_t dcp_utf8_shown(const char *p, size_t left);
/* May all of @s be shown as it is? */
bool dcp_utf8_all_shown(const char *s);
