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
