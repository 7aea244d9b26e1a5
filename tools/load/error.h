/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error: what went wrong, in the caller's struct dcpload_error.
 *
 * As with core/base/err, the first function that knows what is wrong describes it, and its callers
 * pass the code on. @err may be NULL in all of these; they return @code.
 */
#pragma once

#include <stdbool.h>

#include "tools/load/dcpload.h"

struct dcp_err;

/* "key: found X" on one line of printable text; the failure is the caller's own (rank -1). */
int load_fail(struct dcpload_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* The same with the text of core's @from, or of errno when that is NULL or empty. @code >= 0: does
 * nothing. */
int load_fail_err(struct dcpload_error *err, int code, const struct dcp_err *from);

/* Describe by its errno a failure that has no text yet. @code >= 0: does nothing. */
int load_say(struct dcpload_error *err, int code);

/* Is @code that of another rank, which died or does not answer? */
bool load_is_lost(int code);
/* Add to the text of such a failure what ranks were @doing. */
int load_while(struct dcpload_error *err, int code, const char *doing);

/* Does its text begin with the rank that failed? */
bool load_names_rank(const struct dcpload_error *err);
