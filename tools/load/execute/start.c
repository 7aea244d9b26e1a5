/* SPDX-License-Identifier: Apache-2.0 */
/* An execution in a thread of its own. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "tools/load/load.h"

struct load_running {
	struct dcpload_plan *plan;
	pthread_t thread;
	bool threaded; /* false: it is executed by who waits for it */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool done; /* lock; what follows is set then */
	struct dcpload_error err;
	int rc;
};

static void *execute(void *arg)
{
	struct load_running *r = arg;

	r->rc = dcpload_execute(r->plan, &r->err);
	pthread_mutex_lock(&r->lock);
	r->done = true;
	pthread_cond_signal(&r->changed);
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

static void finish(struct load_running *r)
{
	if (r->threaded)
		pthread_join(r->thread, NULL);
	pthread_cond_destroy(&r->changed);
	pthread_mutex_destroy(&r->lock);
	free(r);
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
	pthread_mutex_init(&r->lock, NULL);
	dcp_cond_init(&r->changed);
	p->running = r;
	r->threaded = !(p->ck->comm->flags & DCPLOAD_COMM_ONE_THREAD) &&
		      pthread_create(&r->thread, NULL, execute, r) == 0;
	return 0;
}

static bool is_done(struct load_running *r, int32_t timeout_ms)
{
	int64_t until = dcp_now_ns(CLOCK_MONOTONIC) + timeout_ms * DCP_NS_PER_MS;
	struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
	int rc = 0;
	bool done;

	pthread_mutex_lock(&r->lock);
	while (!r->done && rc == 0)
		rc = timeout_ms < 0 ? pthread_cond_wait(&r->changed, &r->lock)
				    : pthread_cond_timedwait(&r->changed, &r->lock, &at);
	done = r->done;
	pthread_mutex_unlock(&r->lock);
	return done;
}

int dcpload_wait(struct dcpload_plan *p, int32_t timeout_ms, struct dcpload_error *err)
{
	struct load_running *r = p->running;
	int rc;

	if (!r)
		return load_fail(err, -EINVAL, "no execution was started");
	if (!r->threaded)
		execute(r);
	if (!is_done(r, timeout_ms))
		return load_fail(err, -EAGAIN, "the plan is still being executed");
	rc = r->rc;
	if (err)
		*err = r->err;
	p->running = NULL;
	finish(r);
	return rc;
}

void load_stop(struct dcpload_plan *p)
{
	if (p->running)
		finish(p->running);
	p->running = NULL;
}
