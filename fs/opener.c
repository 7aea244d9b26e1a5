/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/opener.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/err.h"
#include "core/base/log.h"
#include "core/store/index.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/keys.h"
#include "fs/versions.h"

enum { MAX_BUILDS = 2, LOOK_MS = 100 /* between looks whether to stop */ };

struct dcpfs_opener {
	pthread_t thread;
	bool running; /* the thread; of whoever starts and stops it */
	bool stop;    /* atomic */

	pthread_mutex_t lock; /* everything below; nothing is taken inside it */
	pthread_cond_t changed;
	unsigned building,
		waiting; /* builds under way; those that wait to build for somebody */
	bool woken;
	bool opened, over; /* a version is open; the first walk over all of them is done */
	bool held;         /* the first refusal is kept back: it may become the mount's own */
	struct dcp_err first; /* the first refusal; no code: none */
};

/* Who wants an index built. */
struct builder {
	struct dcpfs *fs;
	bool background;
};

struct dcpfs_opener *dcpfs_opener_create(void)
{
	struct dcpfs_opener *o = calloc(1, sizeof(*o));
	pthread_condattr_t attr;

	if (!o)
		return NULL;
	o->held = true;
	pthread_mutex_init(&o->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&o->changed, &attr);
	pthread_condattr_destroy(&attr);
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

static bool is_stopped(const struct dcpfs *fs)
{
	const struct dcpfs_kernel *k = fs->opts.kernel;

	return __atomic_load_n(&fs->opener->stop, __ATOMIC_RELAXED) || (k && k->ended(k->ctx));
}

static struct timespec in_ms(unsigned ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_sec++;
		t.tv_nsec -= 1000000000;
	}
	return t;
}

/* ---- builds ---- */

static bool must_wait(const struct dcpfs_opener *o, const struct builder *b)
{
	return o->building + (b->background ? o->waiting : 0) >= MAX_BUILDS;
}

static int gate_begin(void *ctx)
{
	const struct builder *b = ctx;
	struct dcpfs_opener *o = b->fs->opener;
	int rc = 0;

	pthread_mutex_lock(&o->lock);
	o->waiting += !b->background;
	while (rc == 0 && must_wait(o, b)) {
		struct timespec soon = in_ms(LOOK_MS);

		pthread_cond_timedwait(&o->changed, &o->lock, &soon);
		if (is_stopped(b->fs))
			rc = -ECANCELED;
	}
	o->waiting -= !b->background;
	o->building += rc == 0;
	pthread_mutex_unlock(&o->lock);
	return rc;
}

static void gate_end(void *ctx)
{
	const struct builder *b = ctx;
	struct dcpfs_opener *o = b->fs->opener;

	pthread_mutex_lock(&o->lock);
	o->building--;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
}

static bool gate_stop(void *ctx)
{
	const struct builder *b = ctx;

	return is_stopped(b->fs);
}

/* ---- one version ---- */

const char *dcpfs_version_refusal(const struct dcpfs_version *ver)
{
	return __atomic_load_n(&ver->refused, __ATOMIC_ACQUIRE);
}

/* Called with the lock of @ver held. */
static void refuse(struct dcpfs *fs, struct dcpfs_version *ver, int rc, const char *why)
{
	ver->refused_code = rc;
	__atomic_store_n(&ver->refused, strdup(why), __ATOMIC_RELEASE);
	dcpfs_errors_add(fs->errors, ver->name, NULL, why);
}

/* A version that is shown though not all of it can be read. */
static void tell_broken(const struct dcpfs *fs, const struct dcp_version *v)
{
	const struct dcp_index_counts *n = dcp_index_counts(dcp_version_index(v));

	if (n->broken)
		dcp_log(fs->opts.log, DCP_LOG_WARN,
			"%s: %llu of %llu keys cannot be read (EIO); .dcpfs/errors.json of the "
			"mount tells why",
			dcp_version_name(v), (unsigned long long)n->broken,
			(unsigned long long)(n->tensors + n->objects));
}

/* The lock of @ver is held. */
static int open_locked(struct dcpfs *fs, struct dcpfs_version *ver, bool background,
		       const struct dcp_progress *progress, struct dcp_err *err)
{
	struct builder b = { fs, background };
	struct dcp_gate gate = { gate_begin, gate_end, gate_stop, &b };
	struct dcp_store_opts opts = fs->opts.store;
	struct dcp_version *v;
	int rc;

	if (ver->refused)
		return dcp_fail(err, ver->refused_code, DCP_ERR_NO_OFFSET, "%s", ver->refused);
	if (ver->v)
		return 0;
	opts.gate = &gate;
	opts.progress = progress;
	rc = dcp_version_open(fs->opts.source, &ver->found, &opts, &v, err);
	if (rc == 0) {
		tell_broken(fs, v);
		__atomic_store_n(&ver->v, v, __ATOMIC_RELEASE);
	} else if (rc != -ECANCELED) {
		refuse(fs, ver, rc, err->msg);
	}
	return rc;
}

/* How it went, for latest, by-key/ and who waits for the first. @err is news. */
static void note(struct dcpfs *fs, const struct dcpfs_version *ver, int rc,
		 const struct dcp_err *err)
{
	struct dcpfs_opener *o = fs->opener;

	if (rc == 0)
		dcpfs_keys_drop(fs->keys);
	dcpfs_versions_choose_latest(fs);
	pthread_mutex_lock(&o->lock);
	o->opened |= rc == 0;
	if (rc < 0 && o->held && !o->first.code)
		o->first = *err;
	else if (rc < 0 && !ver->tries)
		dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s", err->msg);
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
}

static int open_it(struct dcpfs *fs, struct dcpfs_version *ver, bool background,
		   const struct dcp_progress *progress, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	bool news;
	int rc;

	pthread_mutex_lock(&ver->lock);
	news = !ver->v && !ver->refused;
	rc = open_locked(fs, ver, background, progress, &why);
	pthread_mutex_unlock(&ver->lock);
	if (news && rc != -ECANCELED)
		note(fs, ver, rc, &why);
	if (rc < 0 && err)
		*err = why;
	return rc;
}

int dcpfs_version_open(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err)
{
	int rc;

	if (DCP_LIKELY(__atomic_load_n(&ver->v, __ATOMIC_ACQUIRE) != NULL))
		return 0;
	if (!ver->of)
		return open_it(fs, ver, false, fs->opts.store.progress, err);
	rc = dcpfs_version_open(fs, ver->of, err);
	if (rc == 0)
		__atomic_store_n(&ver->v, ver->of->v, __ATOMIC_RELEASE);
	return rc;
}

/* ---- all of them, in the background ---- */

/* The newest that nobody opened yet, counted. */
static struct dcpfs_version *next(struct dcpfs *fs)
{
	struct dcpfs_version *ver = NULL;

	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = fs->nversions; i-- > 0 && !ver;)
		if (!__atomic_load_n(&fs->versions[i]->v, __ATOMIC_ACQUIRE) &&
		    !dcpfs_version_refusal(fs->versions[i]))
			ver = dcpfs_version_hold(fs->versions[i]);
	pthread_rwlock_unlock(&fs->lock);
	return ver;
}

static void open_all(struct dcpfs *fs)
{
	struct dcpfs_version *ver;
	bool done = true;

	while (done && !is_stopped(fs) && (ver = next(fs)) != NULL) {
		const struct dcp_progress *progress = fs->progress;

		open_it(fs, ver, true, progress, NULL);
		if (progress)
			progress->tell(progress->ctx, 0, 0, NULL);
		fs->progress = NULL; /* nobody waits for the others */
		/* out of memory for a refusal: when there is something new */
		done = __atomic_load_n(&ver->v, __ATOMIC_ACQUIRE) || dcpfs_version_refusal(ver);
		dcpfs_version_put(ver);
	}
}

static void *run(void *arg)
{
	struct dcpfs *fs = arg;
	struct dcpfs_opener *o = fs->opener;

	pthread_mutex_lock(&o->lock);
	while (!is_stopped(fs)) {
		o->woken = false;
		pthread_mutex_unlock(&o->lock);
		open_all(fs);
		pthread_mutex_lock(&o->lock);
		o->over = true;
		pthread_cond_broadcast(&o->changed);
		while (!o->woken && !is_stopped(fs))
			pthread_cond_wait(&o->changed, &o->lock);
	}
	pthread_mutex_unlock(&o->lock);
	return NULL;
}

int dcpfs_opener_start(struct dcpfs *fs)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* raised by the thread itself */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&fs->opener->thread, NULL, run, fs);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	fs->opener->running = rc == 0;
	return rc;
}

void dcpfs_opener_wake(struct dcpfs *fs)
{
	pthread_mutex_lock(&fs->opener->lock);
	fs->opener->woken = true;
	pthread_cond_broadcast(&fs->opener->changed);
	pthread_mutex_unlock(&fs->opener->lock);
}

void dcpfs_opener_stop(struct dcpfs *fs)
{
	if (!fs->opener)
		return;
	__atomic_store_n(&fs->opener->stop, true, __ATOMIC_RELAXED);
	dcpfs_opener_wake(fs);
	if (fs->opener->running)
		pthread_join(fs->opener->thread, NULL);
	fs->opener->running = false;
}

int dcpfs_opener_first(struct dcpfs *fs, unsigned ms, struct dcp_err *err)
{
	struct dcpfs_opener *o = fs->opener;
	struct timespec until = in_ms(ms);
	int rc = 0, late = 0;

	pthread_mutex_lock(&o->lock);
	while (!o->opened && !o->over && !late)
		late = pthread_cond_timedwait(&o->changed, &o->lock, &until);
	if (!o->opened && o->over && o->first.code)
		rc = dcp_fail(err, o->first.code, o->first.off, "%s", o->first.msg);
	else if (o->first.code)
		dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s", o->first.msg);
	o->held = false;
	pthread_mutex_unlock(&o->lock);
	return rc;
}
