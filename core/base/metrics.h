/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics: text of metrics that Prometheus' parsers take, those of OpenMetrics and the older one,
 * which also files for its node exporter are read by. So there are counters, gauges and histograms,
 * and what only describes is a gauge of 1: the older parser knows no other type.
 */
#pragma once
#include <stdint.h>

struct dcp_buf;

/*
 * What stands before the samples of ROOM_NAME: type, unit (a suffix of the name; NULL: none) and
 * help.
 */
void dcp_metric_head(struct dcp_buf *out, const char *room, const char *name, const char *type,
		     const char *unit, const char *help);
/* The same, and one sample. */
void dcp_metric_gauge(struct dcp_buf *out, const char *room, const char *name, const char *unit,
		      const char *help, uint64_t value);
void dcp_metric_seconds(struct dcp_buf *out, const char *room, const char *name,
			const char *help, uint64_t ns);
/* name="text", escaped. */
void dcp_metric_label(struct dcp_buf *out, const char *name, const char *text);
