/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions/versions.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/err.h"
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/hf/hf.h"
#include "core/origin/origin.h"
#include "core/remote/http.h"
#include "core/store/index/index.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/tree/tree.h"

enum {
	BUILDERS = 2,
	LOOK_MS = 100, /* between checks of the stop flag */
	EAGER = 8, /* versions on a server whose metadata is asked for before they are entered */
};

/* A thread that waits for a version; on the stack of that thread. */
struct want {
	struct dcpfs_version *ver;
	struct want *next;
};

struct builder {
	struct dcpfs *fs;
	bool background; /* in addition to requested versions */
};

struct dcpfs_opener {
	struct builder builders[BUILDERS];
	pthread_t thread[BUILDERS]; /* this and nthreads: only for the starting thread */
	unsigned nthreads;
	bool stop; /* atomic */

	pthread_mutex_t lock; /* everything below; inside it only the list's lock is taken */
	pthread_cond_t changed;
	unsigned running;                    /* threads that have not ended */
	struct want *wants;                  /* most recent first */
	const struct dcp_progress *progress; /* of the next build */
	bool said;                           /* atomic: the missing config.json was logged */
	bool opened, over; /* a version is open; there was nothing left to open */
	bool held; /* the first refusal is not logged yet: it may become the mount's error */
	struct dcp_err first; /* the first refusal; no code: none */
};

struct dcpfs_opener *dcpfs_opener_create(void)
{
	struct dcpfs_opener *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->held = true;
	pthread_mutex_init(&o->lock, NULL);
	dcp_cond_init(&o->changed);
	return o;
}

void dcpfs_opener_destroy(struct dcpfs_opener *o)
{
	if (!o)
		return;
	pthread_cond_destroy(&o->changed);
	pthread_mutex_destroy(&o->lock);
	free(o);
}

static bool is_stopped(void *ctx)
{
	const struct dcpfs *fs = ctx;
	const struct dcpfs_kernel *k = fs->opts.kernel;

	return __atomic_load_n(&fs->opener->stop, __ATOMIC_RELAXED) || (k && k->ended(k->ctx));
}

/* ---- one version ---- */

static bool is_open(const struct dcpfs_version *ver)
{
	return dcpfs_opened(ver) != NULL;
}

static bool is_decided(const struct dcpfs_version *ver)
{
	return is_open(ver) || dcpfs_version_refusal(ver);
}

static void refuse_version(struct dcpfs *fs, struct dcpfs_version *ver,
			   const struct dcp_err *err)
{
	ver->refused_code = err->code;
	snprintf(ver->refusal, DCPFS_REFUSAL_MAX, "%s", err->msg);
	__atomic_store_n(&ver->refused, ver->refusal, __ATOMIC_RELEASE);
	dcpfs_errors_add(fs->errors, ver->name, NULL, NULL, err->msg);
}

/* Log that not all of a version can be read. */
static void log_broken(const struct dcpfs *fs, struct dcp_version *v)
{
	const struct dcp_index_counts *n = dcp_index_counts(dcp_version_index(v));
	struct dcp_err err = { 0 };

	if (n->broken)
		dcp_log(fs->opts.log, DCP_LOG_WARN,
			"%s: %llu of %llu key%s cannot be read (EIO); .dcpfs/errors.json of "
			"the "
			"mount says why",
			dcp_version_name(v), (unsigned long long)n->broken,
			(unsigned long long)(n->tensors + n->objects),
			dcp_s(n->tensors + n->objects));
	if (fs->opts.hf_part && dcp_hf_part(v, fs->opts.hf_part, &err) < 0)
		dcp_log(fs->opts.log, DCP_LOG_WARN, "%s: hf/ cannot be read (EIO): %s",
			dcp_version_name(v), err.msg);
}

/* One line for all versions: they are of one run. */
static void log_no_config(struct dcpfs *fs, const struct dcpfs_version *ver,
			  struct dcp_version *v)
{
	const struct dcp_hf_opts how = { .assets = fs->opts.hf_assets,
					 .source = fs->opts.source,
					 .where = ver->found.where };
	dcp_auto_buf struct dcp_buf says = DCP_BUF_INIT;

	if (!__atomic_load_n(&fs->opener->said, __ATOMIC_RELAXED) &&
	    dcp_hf_ask_config(v, &how, &says) > 0 &&
	    !__atomic_exchange_n(&fs->opener->said, true, __ATOMIC_RELAXED))
		dcp_log(fs->opts.log, DCP_LOG_WARN, "%s: %s", dcp_version_name(v), says.p);
}

/* Log a hf/ that can be read but is not the model that its config.json describes. */
static void log_misfit(const struct dcpfs *fs, const struct dcpfs_version *ver)
{
	dcp_auto_buf struct dcp_buf why = DCP_BUF_INIT;

	if (dcp_hf_fit(dcpfs_opened(ver), &why, NULL) < DCP_MISFIT)
		return;
	dcp_log(fs->opts.log, DCP_LOG_WARN, "%s is %s", ver->name, why.p);
}

/* Log a refusal once; the first only when it is known whether any version can be shown. The lock is
 * held. */
static void note_result(struct dcpfs *fs, const struct dcpfs_version *ver, int rc,
			const struct dcp_err *err)
{
	struct dcpfs_opener *o = fs->opener;

	o->opened |= rc == 0;
	if (rc < 0 && o->held && !o->first.code)
		o->first = *err;
	else if (rc < 0 && !ver->tries)
		dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s", err->msg);
}

/* Find out who may read @v; close it if that fails. */
static int find_rights(struct dcpfs_version *ver, struct dcp_version *v, struct dcp_err *err)
{
	int rc = dcpfs_rights_open(ver, v);

	if (rc == 0)
		return 0;
	dcp_version_close(v);
	return dcp_fail(err, rc, "%s: cannot find out who may read it: %s", ver->name,
			strerror(-rc));
}

/*
 * Open @ver from the cache, or with @build by building its index if need be, and publish the
 * result. Call with the lock held, which is released meanwhile, and when no other thread is
 * opening @ver.
 */
static void open_now(struct dcpfs *fs, struct dcpfs_version *ver, bool build)
{
	struct dcpfs_opener *o = fs->opener;
	struct dcp_store_opts opts = fs->opts.store;
	struct dcp_err err = { 0 };
	struct dcp_version *v;
	int rc;

	opts.cached_only = !build;
	opts.rebuild |= ver->rebuild;
	opts.stop = is_stopped;
	opts.stop_ctx = fs;
	opts.progress = build ? o->progress : NULL;
	if (build)
		o->progress = NULL; /* no command waits for the others */
	ver->opening = true;
	pthread_mutex_unlock(&o->lock);
	if (build) /* an interrupt does not stop it */
		dcp_http_watch(NULL, NULL);
	rc = dcp_version_open(fs->opts.source, &ver->found, &opts, &v, &err);
	if (opts.progress)
		opts.progress->report(opts.progress->ctx, 0, 0, NULL);
	if (rc == 0)
		rc = find_rights(ver, v, &err);
	/* An interrupted attempt says nothing about the version: the next request opens it. */
	if (rc < 0 && dcp_http_stopped())
		rc = -ECANCELED;
	if (rc == 0) {
		log_broken(fs, v);
		log_no_config(fs, ver, v);
		__atomic_store_n(&ver->v, v, __ATOMIC_RELEASE);
		dcpfs_keys_grow(fs->keys);
	} else if (rc != -EAGAIN && rc != -ECANCELED) {
		err.code = rc;
		refuse_version(fs, ver, &err);
	}
	pthread_rwlock_wrlock(&fs->lock);
	dcpfs_versions_choose_latest(fs);
	pthread_rwlock_unlock(&fs->lock);
	if (rc != -EAGAIN)
		dcpfs_versions_suspect(fs); /* to watch its files, or to try again */
	pthread_mutex_lock(&o->lock);
	ver->opening = false;
	ver->unindexed = rc == -EAGAIN;
	if (rc != -EAGAIN && rc != -ECANCELED)
		note_result(fs, ver, rc, &err);
	pthread_cond_broadcast(&o->changed);
}

static void drop_want(struct dcpfs_opener *o, const struct want *w)
{
	struct want **at = &o->wants;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
}

/* Wait for a change, but not long, so that the caller can check is_stopped(). The lock is held. */
static void wait_some(struct dcpfs_opener *o)
{
	struct timespec soon = dcp_in_ms(LOOK_MS);

	pthread_cond_timedwait(&o->changed, &o->lock, &soon);
}

/* Wait until @ver is opened or refused, the mount ends, or the program that asks is interrupted. */
static void await_version(struct dcpfs *fs, struct dcpfs_version *ver)
{
	struct dcpfs_opener *o = fs->opener;
	struct want want = { ver, NULL };
	bool wanted = false;

	pthread_mutex_lock(&o->lock);
	while (!is_decided(ver) && !is_stopped(fs) && !dcp_http_stopped()) {
		if (!ver->opening && !ver->unindexed) {
			open_now(fs, ver, false);
			continue;
		}
		if (!wanted) {
			want.next = o->wants;
			o->wants = &want;
			wanted = true;
			pthread_cond_broadcast(&o->changed);
		}
		wait_some(o);
	}
	if (wanted)
		drop_want(o, &want);
	pthread_mutex_unlock(&o->lock);
}

/* Open hf/ of an open version; one thread at a time. After a failure it is tried again: defects of
 * single keys are not failures. */
static int map_version(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err)
{
	struct dcpfs_opener *o = fs->opener;
	struct dcp_err why = { 0 };
	int rc = 0;

	pthread_mutex_lock(&o->lock);
	while (ver->opening && !is_stopped(fs) && !dcp_http_stopped())
		wait_some(o);
	if (!is_open(ver) && is_stopped(fs)) {
		rc = dcp_fail(err, -ECANCELED, "%s: the mount ends", ver->name);
	} else if (ver->opening) {
		rc = dcp_fail(err, -EINTR, "%s: interrupted", ver->name);
	} else if (!is_open(ver)) {
		ver->opening = true;
		pthread_mutex_unlock(&o->lock);
		dcp_http_watch(NULL, NULL); /* an interrupt does not stop it */
		rc = dcpfs_hf_open(fs, ver, is_stopped, &why);
		if (rc < 0) {
			dcpfs_errors_add(fs->errors, ver->name, NULL, NULL, why.msg);
			dcp_fail(err, rc, "%s", why.msg);
		} else {
			log_misfit(fs, ver);
		}
		dcpfs_versions_suspect(fs); /* the watcher must watch its files */
		pthread_mutex_lock(&o->lock);
		ver->opening = false;
		pthread_cond_broadcast(&o->changed);
	}
	pthread_mutex_unlock(&o->lock);
	return rc;
}

int dcpfs_version_open(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err)
{
	int rc;

	if (DCP_LIKELY(is_open(ver)))
		return 0;
	if (ver->of) {
		rc = dcpfs_version_open(fs, ver->of, err);
		if (rc == 0 && dcpfs_is_hf(ver))
			return map_version(fs, ver, err);
		if (rc == 0)
			__atomic_store_n(&ver->v, dcpfs_opened(ver->of), __ATOMIC_RELEASE);
		return rc;
	}
	await_version(fs, ver);
	if (is_open(ver))
		return 0;
	if (dcpfs_version_refusal(ver))
		return dcp_fail(err, ver->refused_code, "%s", ver->refusal);
	if (dcp_http_stopped())
		return dcp_fail(err, -EINTR, "%s: interrupted", ver->name);
	return dcp_fail(err, -ECANCELED, "%s: the mount ends", ver->name);
}

/* ---- building ---- */

/* The version of the first request that waits; the lock is held. */
static struct dcpfs_version *next_wanted(const struct dcpfs_opener *o)
{
	struct dcpfs_version *ver = NULL;

	for (const struct want *w = o->wants; w; w = w->next)
		if (!w->ver->opening && !is_decided(w->ver))
			ver = w->ver;
	return dcpfs_version_hold(ver);
}

/*
 * The newest version that is not open yet; the lock is held. If the source is on a server, where
 * each request has a cost, older versions are opened only if the cache has their index (*build is
 * false).
 */
static struct dcpfs_version *next_listed(struct dcpfs *fs, bool *build)
{
	bool served = dcp_origin_of(fs->opts.source)->scheme;
	struct dcpfs_version *found = NULL;
	unsigned n = 0;

	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = fs->nversions; i-- > 0 && !found;) {
		struct dcpfs_version *ver = fs->versions[i];

		n += is_open(ver) || ver->opening;
		*build = !served || n < EAGER;
		if (!ver->opening && !is_decided(ver) && (*build || !ver->unindexed))
			found = dcpfs_version_hold(ver);
	}
	pthread_rwlock_unlock(&fs->lock);
	return found;
}

static void *run_builder(void *arg)
{
	const struct builder *b = arg;
	struct dcpfs_opener *o = b->fs->opener;

	pthread_mutex_lock(&o->lock);
	while (!is_stopped(b->fs)) {
		struct dcpfs_version *ver = next_wanted(o);
		bool build = true;

		if (!ver && b->background)
			ver = next_listed(b->fs, &build);
		if (ver) {
			open_now(b->fs, ver, build);
			pthread_mutex_unlock(&o->lock);
			dcpfs_version_put(ver);
			pthread_mutex_lock(&o->lock);
			continue;
		}
		if (b->background && !o->over) {
			o->over = true;
			pthread_cond_broadcast(&o->changed);
		}
		pthread_cond_wait(&o->changed, &o->lock);
	}
	o->running--;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
	return NULL;
}

int dcpfs_opener_start(struct dcpfs *fs, const struct dcp_progress *progress)
{
	struct dcpfs_opener *o = fs->opener;
	sigset_t all, before;
	int rc = 0;

	o->progress = progress;
	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* raised by the thread itself */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_mutex_lock(&o->lock);
	for (unsigned i = 0; rc == 0 && i < BUILDERS; i++) {
		o->builders[i] = (struct builder){ fs, i == 0 };
		rc = -pthread_create(&o->thread[i], NULL, run_builder, &o->builders[i]);
		o->nthreads += rc == 0;
		o->running += rc == 0;
	}
	pthread_mutex_unlock(&o->lock);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

void dcpfs_opener_wake(struct dcpfs *fs)
{
	pthread_mutex_lock(&fs->opener->lock);
	pthread_cond_broadcast(&fs->opener->changed);
	pthread_mutex_unlock(&fs->opener->lock);
}

bool dcpfs_opener_stop(struct dcpfs *fs, unsigned ms)
{
	struct dcpfs_opener *o = fs->opener;
	struct timespec until = dcp_in_ms(ms);
	bool ended;
	int late = 0;

	if (!o)
		return true;
	__atomic_store_n(&o->stop, true, __ATOMIC_RELAXED);
	dcpfs_opener_wake(fs);
	pthread_mutex_lock(&o->lock);
	while (o->running && !late)
		late = pthread_cond_timedwait(&o->changed, &o->lock, &until);
	ended = !o->running;
	pthread_mutex_unlock(&o->lock);
	for (; o->nthreads; o->nthreads--)
		if (ended)
			pthread_join(o->thread[o->nthreads - 1], NULL);
		else
			pthread_detach(o->thread[o->nthreads - 1]);
	return ended;
}

int dcpfs_opener_first(struct dcpfs *fs, unsigned ms, struct dcp_err *err)
{
	struct dcpfs_opener *o = fs->opener;
	struct timespec until = dcp_in_ms(ms);
	int rc = 0, late = 0;

	pthread_mutex_lock(&o->lock);
	while (!o->opened && !o->over && !late)
		late = pthread_cond_timedwait(&o->changed, &o->lock, &until);
	if (!o->opened && o->over && o->first.code)
		rc = dcp_fail_at(err, o->first.code, o->first.off, "%s", o->first.msg);
	else if (o->first.code)
		dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s", o->first.msg);
	o->held = false;
	pthread_mutex_unlock(&o->lock);
	return rc;
}
