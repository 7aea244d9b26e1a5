/* SPDX-License-Identifier: Apache-2.0 */
/* near: the known name that is nearest to a mistyped one, by edit distance, for messages. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Longer names are compared by their first DCP_NEAR_MAX bytes: keys differ early or not at all.
 */
#define DCP_NEAR_MAX 512

/*
 * The number of insertions, deletions, replacements or swaps of neighbours that turn @a into
 * @b, or @limit + 1 if it is more than @limit.
 */
size_t dcp_near_distance(const char *a, const char *b, size_t limit);

/* The greatest distance at which "did you mean" is useful for @name. */
size_t dcp_near_limit(const char *name);

/* Finds the name nearest to a word; of equally near names, the first. */
struct dcp_near {
	const char *word;
	/* distance of the nearest name so far; at first 1 + the greatest useful distance */
	size_t best;
};

static inline struct dcp_near dcp_near_to(const char *word)
{
	return (struct dcp_near){ word, dcp_near_limit(word) + 1 };
}

/* Try @name: is it nearer than all names before? */
bool dcp_near_take(struct dcp_near *near, const char *name);
