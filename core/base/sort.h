/* SPDX-License-Identifier: Apache-2.0 */
/* sort: comparing, sorting and finding elements of arrays. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* -1, 0 or 1: is the number @a less than, equal to or greater than @b? */
#define DCP_CMP(a, b) (((a) > (b)) - ((a) < (b)))

/* Compare elements that are, or begin with, a const char *, a uint32_t or a uint64_t. */
static inline int dcp_by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static inline int dcp_by_u32(const void *a, const void *b)
{
	return DCP_CMP(*(const uint32_t *)a, *(const uint32_t *)b);
}

static inline int dcp_by_u64(const void *a, const void *b)
{
	return DCP_CMP(*(const uint64_t *)a, *(const uint64_t *)b);
}

/* qsort() and bsearch() of the @n elements of @array, which may be NULL when there are none. */
#define DCP_SORT(array, n, compare)                                                            \
	((n) ? qsort((array), (n), sizeof(*(array)), (compare)) : (void)0)
#define DCP_FIND(key, array, n, compare)                                                       \
	((n) ? bsearch((key), (array), (n), sizeof(*(array)), (compare)) : NULL)

/*
 * Set @i to the first number in [lo, hi) for which @before, an expression with @i, is false, or
 * to hi. @before must then be false for all higher numbers, too.
 */
#define DCP_BISECT(i, lo, hi, before)                                                          \
	do {                                                                                   \
		__typeof__(i) low_ = (lo), high_ = (hi);                                       \
		while (low_ < high_) {                                                         \
			(i) = low_ + (high_ - low_) / 2;                                       \
			if (before)                                                            \
				low_ = (i) + 1;                                                \
			else                                                                   \
				high_ = (i);                                                   \
		}                                                                              \
		(i) = low_;                                                                    \
	} while (0)
