/* SPDX-License-Identifier: Apache-2.0 */
/*
 * judge: what comes of importing a name that a pickle has, and of calling it?
 *
 * A table of judgements, not a proof: OWN are names that torch, numpy and the trainers that dcpfs
 * knows save, and that only make values of what they are given; DANGEROUS ones run commands or
 * code, open files or connections, or lead to such names. All others are UNKNOWN.
 */
#pragma once

enum judgement { JUDGED_OWN, JUDGED_UNKNOWN, JUDGED_DANGEROUS };
extern const char *const judgements[]; /* "own", "unknown", "dangerous" */

/* @name may have dots: attributes of what the module has, which are own by no pattern. */
enum judgement judge(const char *module, const char *name);
