/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock: time in nanoseconds.
 */
#pragma once
#include <stdint.h>
#include <time.h>

#define DCP_NS_PER_MS 1000000ll
#define DCP_NS_PER_S 1000000000ll

/* Nanoseconds of @clock: CLOCK_MONOTONIC, CLOCK_REALTIME. */
static inline int64_t dcp_now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * DCP_NS_PER_S + t.tv_nsec;
}

static inline int64_t dcp_now_ms(void)
{
	return dcp_now_ns(CLOCK_MONOTONIC) / DCP_NS_PER_MS;
}
