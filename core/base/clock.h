/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock: time in nanoseconds; conditions that are waited for until such a time.
 */
#pragma once
#include <pthread.h>
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

/*
 * When @ms milliseconds are over, for conditions of dcp_cond_init(): by a clock that nobody sets.
 */
static inline struct timespec dcp_in_ms(int64_t ms)
{
	int64_t ns = dcp_now_ns(CLOCK_MONOTONIC) + ms * DCP_NS_PER_MS;

	return (struct timespec){ .tv_sec = ns / DCP_NS_PER_S, .tv_nsec = ns % DCP_NS_PER_S };
}

/*
 * A condition whose pthread_cond_timedwait() takes times of CLOCK_MONOTONIC.
 * (pthread_cond_clockwait() would need glibc 2.30, and the wheel is for 2.28.)
 */
static inline int dcp_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t how;
	int rc = pthread_condattr_init(&how);

	if (rc)
		return rc;
	pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
	rc = pthread_cond_init(cond, &how);
	pthread_condattr_destroy(&how);
	return rc;
}
