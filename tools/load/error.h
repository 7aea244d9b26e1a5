/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error: what went wrong, in the caller's struct dcpload_error.
 *
 * As with core/base/err: the first function that knows what is wrong describes it, callers pass the
 * code on. All of these take NULL for @err and return @code.
 */
#pragma once
#include "tools/load/dcpload.h"

struct dcp_err;

/* "key: found X" on one line of printable text; the failure is the caller's own (rank -1). */
int load_fail(struct dcpload_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The same with a failure that core described; NULL: it has no words. @code may be no failure. */
int load_fail_err(struct dcpload_error *err, int code, const struct dcp_err *from);

/* A failure nobody described gets what the system calls its code. @code may be no failure. */
int load_say(struct dcpload_error *err, int code);
