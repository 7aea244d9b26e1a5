/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckd: checked arithmetic on foreign numbers. Every function returns true on overflow (as C23's
 * stdckdint); *r is then unspecified and must not be used.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

static inline bool dcp_ckd_add(uint64_t *r, uint64_t a, uint64_t b)
{
	return __builtin_add_overflow(a, b, r);
}

static inline bool dcp_ckd_mul(uint64_t *r, uint64_t a, uint64_t b)
{
	return __builtin_mul_overflow(a, b, r);
}

/* r = a rounded up to a multiple of the power of two align. */
static inline bool dcp_ckd_align(uint64_t *r, uint64_t a, uint64_t align)
{
	if (__builtin_add_overflow(a, align - 1, r))
		return true;
	*r &= ~(align - 1);
	return false;
}

/* Is the half-open range [off, off + n) inside [0, limit)? Never overflows. */
static inline bool dcp_range_ok(uint64_t off, uint64_t n, uint64_t limit)
{
	return off <= limit && n <= limit - off;
}
