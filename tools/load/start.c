/* SPDX-License-Identifier: Apache-2.0 */
/* An execution in a thread of its own. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "tools/load/load_int.h"

struct load_running {
	struct dcpload_plan *plan;
	pthread_t thread;
	bool threaded; /* false: it is executed by who waits for it */
	struct dcpload_error err;
	int rc;
};

static void *execute(void *arg)
{
	struct load_running *r = arg;

	r->rc = dcpload_execute(r->plan, &r->err);
	return NULL;
}

int dcpload_start(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_running *r;

	if (p->running)
		return load_fail(err, -EBUSY, "the plan is being executed");
	r = calloc(1, sizeof(*r));
	/* The others wait for this rank in any case: it is for them to hear of the failure. */
	if (!r)
		return load_agree(p->ck->comm, load_fail(err, -ENOMEM, "out of memory"), err,
				  (int)p->ck->config.timeout_ms);
	r->plan = p;
	p->running = r;
	r->threaded = !(p->ck->comm->flags & DCPLOAD_COMM_ONE_THREAD) &&
		      pthread_create(&r->thread, NULL, execute, r) == 0;
	return 0;
}

/* 0: it is done; -EAGAIN. */
static int join(struct load_running *r, int32_t timeout_ms)
{
	int64_t until = dcp_now_ns(CLOCK_MONOTONIC) + timeout_ms * DCP_NS_PER_MS;
	struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };

	if (!r->threaded)
		execute(r);
	else if (timeout_ms < 0)
		pthread_join(r->thread, NULL);
	else if (pthread_clockjoin_np(r->thread, NULL, CLOCK_MONOTONIC, &at) != 0)
		return -EAGAIN;
	return 0;
}

int dcpload_wait(struct dcpload_plan *p, int32_t timeout_ms, struct dcpload_error *err)
{
	struct load_running *r = p->running;
	int rc;

	if (!r)
		return load_fail(err, -EINVAL, "nothing was begun");
	rc = join(r, timeout_ms);
	if (rc < 0)
		return load_fail(err, rc, "the plan is still being executed");
	rc = r->rc;
	if (err)
		*err = r->err;
	p->running = NULL;
	free(r);
	return rc;
}

void load_stop(struct dcpload_plan *p)
{
	if (p->running && p->running->threaded)
		pthread_join(p->running->thread, NULL);
	free(p->running);
	p->running = NULL;
}
