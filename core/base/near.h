/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near: which known name did a person mean? Edit distance, for messages.
 */
#pragma once
#include <stdbool.h>
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

/* The name that is nearest to a word, of many that are tried: the first of those equally near. */
struct dcp_near {
	const char *word;
	size_t best; /* of the nearest name so far; at first 1 + the greatest that is useful */
};

static inline struct dcp_near dcp_near_to(const char *word)
{
	return (struct dcp_near){ word, dcp_near_limit(word) + 1 };
}

/* Is @name nearer than all before it? */
bool dcp_near_take(struct dcp_near *near, const char *name);
