/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/base/err.h"

void dcp_log(const struct dcp_log *log, enum dcp_log_level level, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	if (!log || !log->emit || level > log->max)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	dcp_printable(line, sizeof(line));
	log->emit(log->ctx, level, line);
}
