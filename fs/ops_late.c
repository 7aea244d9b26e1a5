/* SPDX-License-Identifier: Apache-2.0 */
#define FUSE_USE_VERSION 312
#include "fs/ops.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "core/base/base.h"
#include "core/base/system.h"

struct waiting {
	struct dcpfs_late_call call;
	struct dcpfs_late *late;
	struct waiting *next;
};

struct worker {
	struct dcpfs_late *late;
	pthread_t thread;
	fuse_ino_t ino; /* inode of the file that is being answered; 0: none */
};

struct dcpfs_late {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct waiting *first,
		**end; /* the thread that takes a call out of the list answers it */
	bool stop;
	struct worker worker[DCPFS_LATE_MOST];
	unsigned nthreads, running; /* running: threads that have not ended */
};

/* Take @w out of the list. False: it does not wait any more. */
static bool take_out(struct dcpfs_late *l, struct waiting *w)
{
	struct waiting **at = &l->first;

	while (*at && *at != w)
		at = &(*at)->next;
	if (!*at)
		return false;
	*at = w->next;
	if (l->end == &w->next)
		l->end = at;
	return true;
}

/* The program was interrupted. */
static void give_up(fuse_req_t req, void *data)
{
	struct waiting *w = data;
	struct dcpfs_late *l = w->late;
	bool waited;

	pthread_mutex_lock(&l->lock);
	waited = take_out(l, w);
	pthread_mutex_unlock(&l->lock);
	if (waited) {
		fuse_reply_err(req, EINTR);
		free(w);
	}
}

/* libfuse calls give_up() at once for a request that is interrupted already. */
void dcpfs_late_add(struct dcpfs_late *l, const struct dcpfs_late_call *call)
{
	struct waiting *w = malloc(sizeof(*w));
	bool takes;

	if (!w) {
		fuse_reply_err(call->req, ENOMEM);
		return;
	}
	*w = (struct waiting){ .call = *call, .late = l };
	fuse_req_interrupt_func(call->req, give_up, w);
	pthread_mutex_lock(&l->lock);
	takes = !l->stop && !fuse_req_interrupted(call->req);
	if (takes) {
		*l->end = w;
		l->end = &w->next;
		pthread_cond_signal(&l->changed);
	}
	pthread_mutex_unlock(&l->lock);
	if (!takes) {
		fuse_req_interrupt_func(call->req, NULL, NULL);
		fuse_reply_err(call->req, EINTR);
		free(w);
	}
}

static bool is_made(const struct dcpfs_late *l, fuse_ino_t ino)
{
	for (unsigned i = 0; i < l->nthreads; i++)
		if (l->worker[i].ino == ino)
			return true;
	return false;
}

/* The first waiting call for a file that no thread is making, because otherwise several threads
 * would read the same tensor. */
static struct waiting *choose_call(const struct dcpfs_late *l)
{
	struct waiting *w = l->first;

	while (w && is_made(l, w->call.ino))
		w = w->next;
	return w;
}

static void *run_worker(void *arg)
{
	struct worker *own = arg;
	struct dcpfs_late *l = own->late;
	struct waiting *w;

	pthread_mutex_lock(&l->lock);
	while (!l->stop) {
		w = choose_call(l);
		if (!w) {
			pthread_cond_wait(&l->changed, &l->lock);
			continue;
		}
		take_out(l, w);
		own->ino = w->call.ino;
		pthread_mutex_unlock(&l->lock);
		/* Also waits for a give_up() that came too late. */
		fuse_req_interrupt_func(w->call.req, NULL, NULL);
		w->call.answer(&w->call);
		free(w);
		pthread_mutex_lock(&l->lock);
		own->ino = 0;
	}
	l->running--;
	pthread_cond_broadcast(&l->changed);
	pthread_mutex_unlock(&l->lock);
	return NULL;
}

int dcpfs_late_start(unsigned threads, struct dcpfs_late **out)
{
	struct dcpfs_late *l = calloc(1, sizeof(*l));
	sigset_t all, before;
	int rc = 0;

	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->lock, NULL);
	dcp_cond_init(&l->changed);
	l->end = &l->first;
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* raised by the thread itself */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&l->lock);
	while (rc == 0 && l->nthreads < DCP_MIN(threads, DCPFS_LATE_MOST)) {
		struct worker *w = &l->worker[l->nthreads];

		w->late = l;
		rc = -pthread_create(&w->thread, NULL, run_worker, w);
		l->nthreads += rc == 0;
	}
	l->running = l->nthreads;
	pthread_mutex_unlock(&l->lock);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (l->nthreads == 0) {
		dcpfs_late_stop(l, 0);
		return rc;
	}
	*out = l;
	return 0;
}

bool dcpfs_late_stop(struct dcpfs_late *l, unsigned ms)
{
	struct timespec until = dcp_in_ms(ms);
	struct waiting *w;
	bool ended;
	int late = 0;

	if (!l)
		return true;
	pthread_mutex_lock(&l->lock);
	l->stop = true;
	pthread_cond_broadcast(&l->changed);
	while ((w = l->first)) {
		take_out(l, w);
		pthread_mutex_unlock(&l->lock);
		fuse_req_interrupt_func(w->call.req, NULL, NULL);
		fuse_reply_err(w->call.req, EINTR);
		free(w);
		pthread_mutex_lock(&l->lock);
	}
	while (l->running && !late)
		late = pthread_cond_timedwait(&l->changed, &l->lock, &until);
	ended = l->running == 0;
	pthread_mutex_unlock(&l->lock);
	for (unsigned i = 0; i < l->nthreads; i++)
		if (ended)
			pthread_join(l->worker[i].thread, NULL);
		else
			pthread_detach(l->worker[i].thread);
	if (!ended)
		return false;
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->changed);
	free(l);
	return true;
}
