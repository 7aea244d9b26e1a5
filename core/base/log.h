/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log: messages for a person, handed to the program, which owns the terminal.
 *
 * Core never prints. A caller gives a struct dcp_log (or NULL: silence); its
 * function must be safe from any thread.
 */
#pragma once
#include "core/base/base.h"

enum dcp_log_level { DCP_LOG_ERROR, DCP_LOG_WARN, DCP_LOG_INFO, DCP_LOG_DEBUG };

struct dcp_log {
	enum dcp_log_level max; /* messages above this level are dropped unformatted */
	void (*emit)(void *ctx, enum dcp_log_level level, const char *line);
	void *ctx;
};

/* One line, lower case, no full stop, no newline. */
void dcp_log(const struct dcp_log *log, enum dcp_log_level level, const char *fmt, ...)
	DCP_PRINTF(3, 4);
