/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base: macros for all files. Nothing here has state.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DCP_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define DCP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define DCP_MAX(a, b) ((a) > (b) ? (a) : (b))

#define DCP_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define DCP_LIKELY(x) __builtin_expect(!!(x), 1)
#define DCP_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* The cleanup function for dcp_auto_* of a pointer type: @release##_ptr, which calls
 * @release. */
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
