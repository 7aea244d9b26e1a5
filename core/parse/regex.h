/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regex: does a Python regular expression match the beginning of a text (re.match)?
 *
 * Patterns and texts are foreign. PCRE2 follows all paths through a pattern at the same time
 * (pcre2_dfa_match), in at most DCP_REGEX_MAX_STATES states at once, so time is bounded whatever
 * the pattern. Supported is what means the same in both languages: literals, ., [..], \d \w \s
 * and their opposites, \A \Z ^ $ \b \B, groups that only group, |, * + ? {m,n} and their lazy
 * forms. Refused: lookahead, lookbehind, references to groups, flags.
 */
#pragma once

struct dcp_arena;
struct dcp_err;
struct dcp_regex;

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
