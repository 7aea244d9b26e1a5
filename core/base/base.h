/* SPDX-License-Identifier: Apache-2.0 */
/* base: macros for all files, and locals that release themselves. Nothing in this file has
 * state. */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DCP_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define DCP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define DCP_MAX(a, b) ((a) > (b) ? (a) : (b))

#define DCP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define DCP_LIKELY(x) __builtin_expect(!!(x), 1)
#define DCP_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Define @release##_ptr(), the cleanup function for a dcp_auto_* of the type @type *. */
#define DCP_AUTO_PTR(type, release)                                                            \
	static inline void release##_ptr(type **p)                                             \
	{                                                                                      \
		release(*p);                                                                   \
	}

/* n / by, rounded up. */
static inline uint64_t dcp_div_up(uint64_t n, uint64_t by)
{
	return n / by + (n % by != 0);
}

/*
 * cleanup: locals that release themselves on every path.
 *
 *	dcp_auto_fd int fd = open(...);   closed at the end of scope, errno kept
 *	dcp_auto_free char *s = strdup(); freed at the end of scope
 *	*out = dcp_take_fd(&fd);          handed over: the local no longer owns it
 */

static inline void dcp_close_fd(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

static inline void dcp_free_ptr(void *p)
{
	free(*(void **)p);
	*(void **)p = NULL;
}

static inline int dcp_take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

static inline void dcp_close_file(FILE **f)
{
	if (*f)
		fclose(*f);
}

#define dcp_auto_fd __attribute__((cleanup(dcp_close_fd)))
#define dcp_auto_free __attribute__((cleanup(dcp_free_ptr)))
#define dcp_auto_file __attribute__((cleanup(dcp_close_file)))

/* sort: comparing, sorting and finding elements of arrays. */

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

/* Set @i to the first number in [lo, hi) for which @before, an expression with @i, is false, or to
 * hi. @before must then be false for all higher numbers, too. */
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
