/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near: which known name did a person mean? Edit distance, for messages.
 */
#pragma once
#include <stddef.h>

/* Longer names are compared by their first DCP_NEAR_MAX bytes: keys differ early or not at all.
 */
#define DCP_NEAR_MAX 512

/*
 * How many insertions, deletions, replacements or swaps of neighbours turn @a into @b;
 * @limit + 1 as soon as it is known to be more than @limit.
 */
size_t dcp_near_distance(const char *a, const char *b, size_t limit);

/* The greatest distance at which "did you mean" is of use for @name. */
size_t dcp_near_limit(const char *name);
