/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work that takes as long as it takes, in a thread, while this rank and the others let each other know that
 * they are there: a rank with much to write is not a dead one, and a failure ends the work of all.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "core/base/base.h"
#include "core/base/clock.h"
#include "tools/save/ranks/ranks_int.h"

static void *run(void *arg)
{
	struct dcpsave *s = arg;
	struct save_step *step = &s->step;
	int rc = step->fn(s, &step->err);

	pthread_mutex_lock(&step->lock);
	step->rc = dcp_err_say(&step->err, rc);
	step->done = true;
	pthread_cond_signal(&step->ended);
	pthread_mutex_unlock(&step->lock);
	return NULL;
}

void save_step_start(struct dcpsave *s, save_step_fn fn)
{
	struct save_step *step = &s->step;
	sigset_t all, before;
	int rc;

	step->fn = fn;
	step->rc = 0;
	step->done = step->stop = false;
	step->err = (struct dcp_err){ 0 };
	/* Signals are the program's: SIGXFSZ, too, so that a limit of file sizes is an error. */
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* of the thread that reads a mapped file which was cut */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&step->thread, NULL, run, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	step->running = rc == 0;
	if (rc) {
		step->rc = -rc;
		step->done = true;
	}
}

/* Has this rank's ended? Waits some time for it. */
static bool has_ended(struct save_step *step, int ms)
{
	int64_t end = dcp_now_ns(CLOCK_MONOTONIC) + ms * DCP_NS_PER_MS;
	struct timespec until = { end / DCP_NS_PER_S, end % DCP_NS_PER_S };
	bool done;

	pthread_mutex_lock(&step->lock);
	while (!step->done && pthread_cond_clockwait(&step->ended, &step->lock, CLOCK_MONOTONIC,
						     &until) != ETIMEDOUT)
		;
	done = step->done;
	pthread_mutex_unlock(&step->lock);
	return done;
}

static void join(struct save_step *step)
{
	if (step->running)
		pthread_join(step->thread, NULL);
	step->running = false;
}

/* Until all have ended or one has failed. */
static int keep_in_touch(struct dcpsave *s)
{
	enum { WORKING, ENDED, FAILED };
	const struct dcpload_comm *comm = s->comm;
	int timeout = (int)s->config.timeout_ms, pause = DCP_MIN(timeout / 4 + 1, 1000);
	uint8_t *all = malloc(comm->ranks);
	bool going = true;
	int rc = load_agree(comm, all ? 0 : -ENOMEM, NULL, timeout);

	while (rc == 0 && going) {
		uint8_t mine = !has_ended(&s->step, pause) ? WORKING
			       : s->step.rc == 0           ? ENDED
							   : FAILED;

		rc = comm->allgather(comm->ctx, &mine, 1, all, timeout);
		going = false;
		for (uint32_t r = 0; rc == 0 && r < comm->ranks; r++) {
			if (all[r] == FAILED) {
				going = false;
				break;
			}
			going |= all[r] == WORKING;
		}
	}
	free(all);
	return rc;
}

int save_step_end(struct dcpsave *s, struct dcpload_error *err)
{
	struct save_step *step = &s->step;
	int rc = keep_in_touch(s);

	__atomic_store_n(&step->stop, true, __ATOMIC_RELAXED);
	join(step);
	if (rc < 0)
		return load_comm_say(s->comm, rc, err);
	rc = load_fail_err(err, step->rc, &step->err);
	return load_agree(s->comm, rc, err, (int)s->config.timeout_ms);
}

int save_step(struct dcpsave *s, save_step_fn fn, struct dcpload_error *err)
{
	save_step_start(s, fn);
	return save_step_end(s, err);
}

void save_step_drop(struct dcpsave *s)
{
	__atomic_store_n(&s->step.stop, true, __ATOMIC_RELAXED);
	join(&s->step);
}
