/* SPDX-License-Identifier: Apache-2.0 */
/* parse: helpers of several parsers: Python's regular expressions, bytes written as text, and the
 * kind of a file whose name is misleading. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_arena;
struct dcp_err;
struct dcp_regex;
struct dcp_source;

/*
 * regex: does a Python regular expression match the beginning of a text (re.match)?
 *
 * Patterns and texts are untrusted. PCRE2 follows all paths through a pattern at the same time
 * (pcre2_dfa_match), in at most DCP_REGEX_MAX_STATES states at once, so the time is bounded for
 * every pattern. Only constructs that mean the same in both languages are supported: literals,
 * ., [..], \d \w \s and their opposites, \A \Z ^ $ \b \B, groups that only group, |, * + ? {m,n}
 * and their lazy forms. Refused: lookahead, lookbehind, references to groups, flags.
 */

#define DCP_REGEX_MAX_STATES 256
#define DCP_REGEX_MAX_DEPTH 32 /* groups inside each other */

/* Returns 0, -EINVAL (not a pattern), -ENOTSUP (an unsupported construct, named in @err), -E2BIG,
 * -ENOMEM. @out lives in @arena; only one thread at a time may use it. */
int dcp_regex_compile(const char *pattern, struct dcp_arena *arena, struct dcp_regex **out,
		      struct dcp_err *err);

/* Returns 1 for a match, 0 for none, -E2BIG (more states than the limit), -EINVAL (@text is not
 * UTF-8). */
int dcp_regex_match(const struct dcp_regex *re, const char *text);

/* The version of the PCRE2 in use: "10.42 2022-12-11". */
const char *dcp_regex_pcre2_version(void);

/*
 * latin1: bytes that were written as text.
 *
 * Pickle protocol 2 has no type for bytes: Python 3 converts each byte to the character of the
 * same number and writes the text as UTF-8, where bytes from 0x80 up take two bytes.
 */

/*
 * Decode @n bytes of @text into @out, which has room for @n bytes; with @out NULL, only count the
 * decoded bytes in @nout. Returns the number of bytes of @text that were used: all, or all but
 * the last if that is the first half of a character; or -1 if a character is not Latin-1.
 */
ptrdiff_t dcp_latin1_narrow(const void *text, size_t n, uint8_t *out, size_t *nout);

/* Decode the text @src and write its bytes, exactly @want, to @out_fd at its current position.
 * Returns 0, -EBADMSG (not such a text, or another length), or the error of reading or writing. */
int dcp_latin1_decode_fd(const struct dcp_source *src, int out_fd, uint64_t want,
			 struct dcp_err *err);

/*
 * magic: the real kind of a file whose name misleads.
 *
 * Used for messages: a parser has refused the file, and the message explains why.
 */

/* Number of bytes at the start of a file that are examined; a shorter file has fewer. */
#define DCP_MAGIC_HEAD 64

/* Does @head begin like a safetensors file: with the length of a header, then '{'? */
bool dcp_magic_is_safetensors(const void *head, size_t n);

/* Describe the kind of file that begins like @head: "a Git LFS pointer; fetch the file with: git
 * lfs pull". NULL: an unknown kind. */
const char *dcp_magic(const void *head, size_t n);
