/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regex: does a Python regular expression match the beginning of a text (re.match)?
 *
 * Patterns and texts are foreign. A pattern becomes a program of at most DCP_PYRE_MAX steps,
 * and a text is read once, all ways through the program at the same time: time is their
 * product, whatever the pattern. Known: literals, ., [..], \d \w \s and their opposites, \A \Z
 * ^ $ \b \B, groups of every kind that only group, |, * + ? {m,n} and their lazy forms.
 * Refused: what looks ahead or back, refers to groups, or sets flags.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_arena;
struct dcp_err;
struct dcp_pyre;

#define DCP_PYRE_MAX 1024
#define DCP_PYRE_MAX_DEPTH 32 /* groups inside each other */

/*
 * Returns 0, -EINVAL (not a pattern), -ENOTSUP (a construct not known here, named), -E2BIG,
 * -ENOMEM.
 * @out lives in @arena.
 */
int dcp_pyre_compile(const char *pattern, struct dcp_arena *arena, struct dcp_pyre **out,
		     struct dcp_err *err);

/* Both UTF-8. False also when memory is out. */
bool dcp_pyre_match(const struct dcp_pyre *re, const char *text);
