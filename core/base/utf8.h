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

/* Is the valid sequence of @n bytes at @p a control character? Some terminals treat those
 * from U+0080 to U+009F as ESC. */
bool dcp_is_control(const char *p, size_t n);
