/* SPDX-License-Identifier: Apache-2.0 */
/*
 * latin1: bytes that were written as text.
 *
 * Pickle protocol 2 has no type for bytes: Python 3 takes each byte as the character of that
 * number and writes the text as UTF-8, so bytes from 0x80 up take two.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct dcp_err;
struct dcp_source;

/*
 * The bytes that @n bytes of @text stand for, to @out, which has room for as many; NULL: they are
 * only counted. Returns how many of the text were taken: all, or all but the first half of a
 * character at the end; or -1 at one that is no Latin-1.
 */
ptrdiff_t dcp_latin1_narrow(const void *text, size_t n, uint8_t *out, size_t *nout);

/*
 * Write the bytes that the text @src stands for to @out_fd at its current position: exactly
 * @want of them. Returns 0, -EBADMSG (no such text, or of another length), or what reading or
 * writing gave.
 */
int dcp_latin1_decode_fd(const struct dcp_source *src, int out_fd, uint64_t want,
			 struct dcp_err *err);
