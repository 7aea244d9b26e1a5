/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse: what parsers share: Python's regular expressions, bytes written as text, and names for
 * files that are something else than their names say.
 */
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
 * Patterns and texts are foreign. PCRE2 follows all paths through a pattern at the same time
 * (pcre2_dfa_match), in at most DCP_REGEX_MAX_STATES states at once, so time is bounded whatever
 * the pattern. Supported is what means the same in both languages: literals, ., [..], \d \w \s
 * and their opposites, \A \Z ^ $ \b \B, groups that only group, |, * + ? {m,n} and their lazy
 * forms. Refused: lookahead, lookbehind, references to groups, flags.
 */

#define DCP_REGEX_MAX_STATES 256
#define DCP_REGEX_MAX_DEPTH 32 /* groups inside each other */

/*
 * Returns 0, -EINVAL (not a pattern), -ENOTSUP (a construct not known here, named), -E2BIG,
 * -ENOMEM. @out lives in @arena; one thread at a time.
 */
int dcp_regex_compile(const char *pattern, struct dcp_arena *arena, struct dcp_regex **out,
		      struct dcp_err *err);

/* 1: it does; 0: it does not; -E2BIG: more states than the limit; -EINVAL: @text is not UTF-8. */
int dcp_regex_match(const struct dcp_regex *re, const char *text);

/* "10.42 2022-12-11" */
const char *dcp_regex_pcre2_version(void);

/*
 * latin1: bytes that were written as text.
 *
 * Pickle protocol 2 has no type for bytes: Python 3 takes each byte as the character of that
 * number and writes the text as UTF-8, so bytes from 0x80 up take two.
 */

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

/*
 * magic: what kind of file has a misleading name?
 *
 * For messages: the parser has refused the file already, and the message explains why.
 */

/* Bytes at the start of a file that are examined; fewer will do. */
#define DCP_MAGIC_HEAD 64

/* Does @head begin like a safetensors file: the length of a header, and '{'? */
bool dcp_magic_is_safetensors(const void *head, size_t n);

/*
 * What begins like @head: "a Git LFS pointer; fetch the file with: git lfs pull", or NULL when
 * it is nothing known.
 */
const char *dcp_magic(const void *head, size_t n);
