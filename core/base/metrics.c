/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/metrics.h"

#include <string.h>

#include "core/base/buf.h"

void dcp_metric_head(struct dcp_buf *out, const char *room, const char *name, const char *type,
		     const char *unit, const char *help)
{
	dcp_buf_printf(out, "# TYPE %s_%s %s\n", room, name, type);
	if (unit)
		dcp_buf_printf(out, "# UNIT %s_%s %s\n", room, name, unit);
	dcp_buf_printf(out, "# HELP %s_%s %s\n", room, name, help);
}

void dcp_metric_gauge(struct dcp_buf *out, const char *room, const char *name, const char *unit,
		      const char *help, uint64_t value)
{
	dcp_metric_head(out, room, name, "gauge", unit, help);
	dcp_buf_printf(out, "%s_%s %llu\n", room, name, (unsigned long long)value);
}

void dcp_metric_seconds(struct dcp_buf *out, const char *room, const char *name,
			const char *help, uint64_t ns)
{
	dcp_metric_head(out, room, name, "gauge", "seconds", help);
	dcp_buf_printf(out, "%s_%s %llu.%09llu\n", room, name,
		       (unsigned long long)(ns / 1000000000),
		       (unsigned long long)(ns % 1000000000));
}

/* A backslash, a quotation mark and the end of a line are escaped. */
void dcp_metric_label(struct dcp_buf *out, const char *name, const char *text)
{
	dcp_buf_printf(out, "%s=\"", name);
	for (; *text; text++)
		dcp_buf_printf(out, "%s%c", strchr("\"\\\n", *text) ? "\\" : "",
			       *text == '\n' ? 'n' : *text);
	dcp_buf_str(out, "\"");
}
