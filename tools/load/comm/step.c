/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/comm/step.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/base/clock.h"

void load_step_init(struct load_step *s)
{
	pthread_mutex_init(&s->lock, NULL);
	dcp_cond_init(&s->ended);
}

static void *run(void *arg)
{
	struct load_step *s = arg;
	int rc = s->fn(s->ctx);

	pthread_mutex_lock(&s->lock);
	s->rc = rc;
	s->done = true;
	pthread_cond_signal(&s->ended);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void load_step_start(struct load_step *s, int (*fn)(void *ctx), void *ctx)
{
	sigset_t all, before;
	int rc;

	s->fn = fn;
	s->ctx = ctx;
	s->rc = 0;
	s->done = false;
	/* Signals are the program's: SIGXFSZ, too, so that a limit of file sizes is an error. */
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* of the thread that reads a mapped file which was cut */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&s->thread, NULL, run, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	s->running = rc == 0;
	if (rc) {
		s->rc = -rc;
		s->done = true;
	}
}

/* Has this rank's ended? Waits some time for it. */
static bool has_ended(struct load_step *s, int ms)
{
	int64_t end = dcp_now_ns(CLOCK_MONOTONIC) + ms * DCP_NS_PER_MS;
	struct timespec until = { end / DCP_NS_PER_S, end % DCP_NS_PER_S };
	bool done;

	pthread_mutex_lock(&s->lock);
	while (!s->done && pthread_cond_timedwait(&s->ended, &s->lock, &until) != ETIMEDOUT)
		;
	done = s->done;
	pthread_mutex_unlock(&s->lock);
	return done;
}

int load_step_wait(struct load_step *s, const struct dcpload_comm *comm, bool hasty,
		   int timeout_ms, struct dcpload_error *err)
{
	enum { WORKING, ENDED, FAILED };
	int pause = 1, most = DCP_MIN(timeout_ms / 4 + 1, 1000);
	uint8_t *all = malloc(comm->ranks);
	bool going = true;
	int rc = load_agree(comm, all ? 0 : -ENOMEM, err, timeout_ms);

	while (rc == 0 && going) {
		uint8_t mine = !has_ended(s, pause) ? WORKING : s->rc == 0 ? ENDED : FAILED;

		/* What ends soon is not waited for long. */
		pause = DCP_MIN(2 * pause, most);
		rc = load_comm_say(comm, comm->allgather(comm->ctx, &mine, 1, all, timeout_ms),
				   err);
		going = false;
		for (uint32_t r = 0; rc == 0 && r < comm->ranks; r++) {
			if (all[r] == FAILED && hasty) {
				going = false;
				break;
			}
			going |= all[r] == WORKING;
		}
	}
	free(all);
	return rc;
}

int load_step_join(struct load_step *s)
{
	if (s->running)
		pthread_join(s->thread, NULL);
	s->running = false;
	return s->rc;
}

int load_step_run(const struct dcpload_comm *comm, int (*fn)(void *ctx),
		  void (*stop)(void *ctx), void *ctx, int *done, int timeout_ms,
		  struct dcpload_error *err)
{
	struct load_step s = { 0 };
	int rc;

	if (comm->ranks == 1) {
		*done = fn(ctx);
		return 0;
	}
	load_step_init(&s);
	load_step_start(&s, fn, ctx);
	rc = load_step_wait(&s, comm, false, timeout_ms, err);
	if (rc < 0 && stop)
		stop(ctx);
	*done = load_step_join(&s);
	return rc;
}
