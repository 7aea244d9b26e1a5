/* SPDX-License-Identifier: Apache-2.0 */
/* Records events of the threads of an execution, up to a number of events. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/system.h"
#include "tools/load/load.h"

int dcpload_plan_trace(struct dcpload_plan *p, uint32_t events)
{
	struct dcpload_event *room = events ? calloc(events, sizeof(*room)) : NULL;

	if (events && !room)
		return -ENOMEM;
	free(p->event);
	p->event = room;
	p->nevent = 0;
	p->cap_event = events;
	return 0;
}

void load_trace_begin(struct dcpload_plan *p)
{
	p->nevent = 0;
	p->began = dcp_now_ns(CLOCK_MONOTONIC);
}

void load_trace_as(struct dcpload_plan *p, uint32_t kind, uint32_t lane, int64_t start,
		   uint64_t bytes)
{
	uint64_t i;

	if (!p->event)
		return;
	i = atomic_fetch_add(&p->nevent, 1);
	if (i < p->cap_event)
		p->event[i] = (struct dcpload_event){
			.kind = kind,
			.thread = lane,
			.start_ns = (uint64_t)(start - p->began),
			.end_ns = (uint64_t)(dcp_now_ns(CLOCK_MONOTONIC) - p->began),
			.bytes = bytes
		};
}

void load_trace(struct dcpload_plan *p, uint32_t kind, int64_t start, uint64_t bytes)
{
	if (p->event)
		load_trace_as(p, kind, (uint32_t)syscall(SYS_gettid), start, bytes);
}

int dcpload_plan_event(const struct dcpload_plan *p, uint64_t i, struct dcpload_event *out)
{
	if (i >= p->nevent || i >= p->cap_event)
		return -ENOENT;
	*out = p->event[i];
	return 0;
}
