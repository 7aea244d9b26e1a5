/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step: work that takes as long as it takes, in a thread, while the ranks let each other know that
 * they are there: a rank with much to do is not a dead one, and a rank that is stopped is found out
 * within the timeout.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>

#include "tools/load/comm/comm.h"

struct load_step {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	int (*fn)(void *ctx); /* 0 or a negative errno, which @ctx describes */
	void *ctx;
	bool running;
	bool done; /* lock */
	int rc;
};

void load_step_init(struct load_step *s);
void load_step_start(struct load_step *s, int (*fn)(void *ctx), void *ctx);
/*
 * Collective: wait until the work of every rank has ended; with @hasty only until that of one has
 * failed. 0, or a failure of the transport. This rank's work may go on: call load_step_join().
 */
int load_step_wait(struct load_step *s, const struct dcpload_comm *comm, bool hasty,
		   int timeout_ms, struct dcpload_error *err);
/* What the work of this rank came to, once it has ended. */
int load_step_join(struct load_step *s);

/*
 * Collective. All of it: *@done is what @fn returned, which is for load_agree(). If another rank is
 * lost, @stop (may be NULL) lets the work end early, and the failure, in @err and the same on all
 * ranks, is returned. Alone, @fn is just called.
 */
int load_step_run(const struct dcpload_comm *comm, int (*fn)(void *ctx),
		  void (*stop)(void *ctx), void *ctx, int *done, int timeout_ms,
		  struct dcpload_error *err);
