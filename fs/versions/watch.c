/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A full scan lists the source and compares every indexed file. It happens at once when inotify
 * reports a change or a read meets one; otherwise a minute after the last scan, then after two
 * minutes, up to eight, while nothing changes, to find changes that inotify does not report.
 * Where inotify is not reliable (another machine may change the file system, or no watches are
 * left), a short check every POLL_MS compares the state of everything that the last scan
 * depended on (core/origin/dir/dir.h), and of the files of versions that are being read. A
 * difference leads to a full scan, and so does the passing of a minute. A server is asked for its
 * list every SERVER_MS, give or take a tenth, so that many mounts do not ask at once.
 */
#include "fs/versions/versions.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/system.h"
#include "core/hf/hf.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/version/version.h"
#include "fs/fs.h"

enum {
	POLL_MS = 3000,        /* between short looks */
	SERVER_MS = 30000,     /* between lists of a server */
	WHOLE_MS = 60000,      /* between full scans, at first */
	WHOLE_MAX_MS = 480000, /* between full scans, finally, where inotify works */
	SETTLE_MS = 200,       /* a writer seldom causes just one event */
	SETTLE_MAX_MS = 2000, /* while events change no version: a log that grows beside them */
	CALM_MS = 10000,      /* without events, after which the next one counts as the first */
	SHARE = 4,            /* scans take at most a fifth of the time */
};

enum cause { BY_CLOCK, BY_CHANGE, TO_END };

struct dcpfs_watch {
	struct dcpfs *fs;
	pthread_t thread;
	int stop; /* eventfd */
	struct dcp_notify notify;
	struct dcp_seen seen;
	int64_t seen_ns; /* CLOCK_REALTIME: begin of the last scan */
};

/* ---- what to watch ---- */

/* The mount depends on the file @name at @at, on device @dev. True: watches of @path, its real
 * path, report all its changes. */
static bool need_file(struct dcpfs_watch *w, const struct dcp_site *at, const char *name,
		      uint64_t dev, char path[PATH_MAX])
{
	if (dcp_site_path(at, name, path) == 0)
		return dcp_notify_need(&w->notify, path, dev);
	w->notify.blind = true;
	return false;
}

/* Watch the directory @name, of @n bytes, at @at. */
static void watch_dir(struct dcpfs_watch *w, const struct dcp_site *at, const char *name,
		      size_t n)
{
	dcp_auto_free char *dir = strndup(name, n);
	char path[PATH_MAX];

	if (dir && dcp_site_path(at, dir, path) == 0)
		dcp_notify_add(&w->notify, path, DCP_NOTIFY_ALL);
}

/* Is @path @dir/@name? If not, a link leads there. */
static bool is_below(const char *path, const char *dir, const char *name)
{
	size_t n = strlen(dir);

	return strncmp(path, dir, n) == 0 && path[n] == '/' && !strcmp(path + n + 1, name);
}

/* Watch the files of @ver outside the directory that it was found in. */
static void watch_files(struct dcpfs_watch *w, struct dcpfs_version *ver)
{
	const struct dcp_version *v = dcpfs_opened(ver);
	const struct dcp_site *at = v ? dcp_version_place(v) : NULL;
	const struct dcp_file_id *ids;
	char dir[PATH_MAX] = "";
	bool plain = true;
	size_t n = 0;

	if (!v || ver->plain)
		return;
	dcp_site_path(at, ".", dir);
	ids = dcp_index_files(dcp_version_index(v), &n);
	for (size_t i = 0; i < n; i++) {
		const char *name = ids[i].name, *slash = strrchr(name, '/');
		char path[PATH_MAX];
		bool local, link;

		if (*name == '/' || !ids[i].ino)
			continue;
		local = need_file(w, at, name, ids[i].dev, path);
		link = local && !is_below(path, dir, name);
		if (link)
			dcp_notify_add(&w->notify, path, DCP_NOTIFY_ALL);
		if (slash)
			watch_dir(w, at, name, (size_t)(slash - name));
		plain &= local && !link && !slash;
	}
	ver->plain = plain;
}

/* Watch the directories above the source: renaming one causes no event below it. */
static void watch_above(struct dcpfs_watch *w)
{
	char *path = strdup(w->fs->opts.source), *slash;

	while (path && (slash = strrchr(path, '/')) != NULL && slash > path) {
		*slash = '\0';
		dcp_notify_add(&w->notify, path, DCP_NOTIFY_NAME);
	}
	free(path);
}

/* Watch the directories on the real path from /, whose modes the rights @g depend on. */
static void watch_rights(struct dcpfs_watch *w, const struct dcp_grants *g)
{
	const char *path;

	for (size_t i = 0; g && (path = dcp_grants_dir(g, i)) != NULL; i++) {
		dcp_notify_add(&w->notify, path, DCP_NOTIFY_RIGHTS);
		dcp_notify_need(&w->notify, path, 0);
	}
}

/* Watch the files that hf/ of @ver shows beside the weights, which may lie elsewhere. */
static void watch_assets(struct dcpfs_watch *w, const struct dcpfs_version *ver)
{
	struct dcpfs_version *hf = dcpfs_hf_find(w->fs, ver);
	const struct dcp_assets *a =
		hf && dcpfs_opened(hf) ? dcp_hf_assets(dcpfs_opened(hf)) : NULL;

	for (size_t i = 0; a && i < a->n; i++) {
		const struct dcp_file_id *id = dcp_asset_id(a, i);
		char path[PATH_MAX];

		need_file(w, &a->root[a->at[i].root].place, id->name, id->dev, path);
	}
	/* Watch directories in which files may appear and disappear. */
	for (size_t i = 0; a && i < a->ndirs; i++)
		watch_dir(w, &a->root[a->dir[i].root].place, a->dir[i].path,
			  strlen(a->dir[i].path));
	for (size_t i = 0; a && i < DCP_LEN(hf->hf->grants); i++)
		watch_rights(w, hf->hf->grants[i]);
	dcpfs_version_put(hf);
}

/* Watch exactly what the last scan depended on. */
static void set_watches(struct dcpfs_watch *w)
{
	struct dcp_notify *n = &w->notify;

	dcp_notify_begin(n);
	if (n->fd < 0)
		return;
	n->blind |= w->seen.failed;
	watch_above(w);
	for (size_t i = 0; i < dcp_seen_count(&w->seen); i++) {
		const struct dcp_look *look = dcp_seen_at(&w->seen, i);
		const char *path = dcp_seen_path(&w->seen, i);
		int rc = look->listed ? dcp_notify_add(n, path, DCP_NOTIFY_ALL) : 0;

		/* Only the first must be watched: a directory reports changes of those in it. */
		n->blind |= i == 0 && rc < 0;
		if (look->id.ino)
			dcp_notify_need(n, path, look->id.dev);
	}
	watch_rights(w, w->fs->grants);
	for (size_t i = 0; i < w->fs->nversions; i++) {
		watch_files(w, w->fs->versions[i]);
		watch_rights(w, w->fs->versions[i]->grants);
		watch_assets(w, w->fs->versions[i]);
	}
	dcpfs_gauge(&w->fs->stats, DCPFS_STAT_WATCHES, dcp_notify_end(n));
}

/* ---- looking ---- */

/* True: the list of versions changed. */
static bool look_for_changes(struct dcpfs_watch *w)
{
	struct dcpfs *fs = w->fs;
	struct dcp_err err = { .msg = "" };
	int rc;

	set_watches(
		w); /* for versions opened since the last check: they are compared from now on */
	dcp_seen_finish(&w->seen);
	w->seen_ns = dcp_now_ns(CLOCK_REALTIME);
	rc = dcpfs_versions_refresh(fs, &w->seen, &err);
	w->seen.failed |= rc < 0; /* looked at again soon */
	if (rc > 0)
		dcpfs_opener_wake(fs);
	set_watches(w);
	return rc > 0;
}

/* Do a few stat calls show a difference from the last scan? */
static bool looks_different(struct dcpfs_watch *w)
{
	struct dcpfs_stats *stats = &w->fs->stats;
	uint64_t calls = 0;
	/* A file that changed just before the scan may have changed again within the same tick of
	 * its clock. */
	bool racy = w->seen.newest_ns > w->seen_ns - DCP_TICK_NS &&
		    w->seen.newest_ns < w->seen_ns + WHOLE_MS * 1000000ll;
	bool differs = racy || !dcp_seen_same(&w->seen, &calls) ||
		       dcpfs_versions_went_stale(w->fs, &calls);

	dcpfs_count(stats, DCPFS_STAT_LOOKS, 1);
	dcpfs_count(stats, DCPFS_STAT_LOOK_CALLS, calls);
	return differs;
}

/* Take the pending reports; true if any is of a change. */
static bool drain_events(const struct dcpfs_watch *w)
{
	eventfd_t asked;
	bool read_badly = w->fs->suspicion >= 0 && eventfd_read(w->fs->suspicion, &asked) == 0;

	return dcp_notify_take(&w->notify) || read_badly;
}

/* Wait for a change and then until events cease, or for the next poll or scan. */
static enum cause wait_for_change(const struct dcpfs_watch *w, int64_t timeout_ms,
				  int settle_ms)
{
	struct pollfd fds[3] = { { .fd = w->stop, .events = POLLIN },
				 { .fd = w->notify.fd, .events = POLLIN },
				 { .fd = w->fs->suspicion, .events = POLLIN } };
	int64_t began = dcp_now_ms();
	int n = poll(fds, 3, (int)DCP_MIN(DCP_MAX(timeout_ms, 0), WHOLE_MAX_MS));

	if (n > 0 && fds[0].revents)
		return TO_END;
	if (n <= 0 || !drain_events(w))
		return BY_CLOCK;
	n = poll(fds, 1, dcp_now_ms() - began > CALM_MS ? SETTLE_MS : settle_ms);
	drain_events(w);
	return n > 0 ? TO_END : BY_CHANGE;
}

static int64_t poll_ms(const struct dcpfs_watch *w)
{
	int64_t part = dcp_now_ns(CLOCK_MONOTONIC) / 1000 % (SERVER_MS / 5);

	return dcp_origin_of(w->fs->opts.source)->settled ? SERVER_MS - SERVER_MS / 10 + part
							  : POLL_MS;
}

static void *run_watch(void *arg)
{
	struct dcpfs_watch *w = arg;
	int64_t idle_ms = WHOLE_MS, whole_at = 0;
	int settle_ms = SETTLE_MS;
	enum cause cause = BY_CHANGE;

	while (cause != TO_END) {
		int64_t began = dcp_now_ms(), next, now;

		if (cause == BY_CHANGE || began >= whole_at ||
		    (w->notify.blind && looks_different(w))) {
			bool changed = look_for_changes(w);

			settle_ms = changed ? SETTLE_MS : DCP_MIN(2 * settle_ms, SETTLE_MAX_MS);
			idle_ms = changed || cause == BY_CHANGE || w->notify.blind
					  ? WHOLE_MS
					  : DCP_MIN(2 * idle_ms, WHOLE_MAX_MS);
			whole_at = DCP_MIN(dcp_now_ms() + idle_ms, w->fs->due_ns / 1000000 + 1);
			/* changes between the scan and its watches caused no event */
			if (w->notify.added && !w->notify.blind && looks_different(w))
				whole_at = 0;
		}
		now = dcp_now_ms();
		next = w->notify.blind ? DCP_MIN(whole_at, now + poll_ms(w)) : whole_at;
		cause = wait_for_change(
			w, DCP_MAX(next - now, SETTLE_MS),
			(int)DCP_MIN(DCP_MAX((now - began) * SHARE, settle_ms), SETTLE_MAX_MS));
	}
	return NULL;
}

/* Block signals, so that they reach the thread that runs the loop and wake it. */
static int start_thread(struct dcpfs_watch *w)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* raised by the thread itself */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&w->thread, NULL, run_watch, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int dcpfs_watch_start(struct dcpfs *fs, struct dcpfs_watch **out)
{
	struct dcpfs_watch *w = calloc(1, sizeof(*w));
	int rc;

	if (!w)
		return -ENOMEM;
	w->fs = fs;
	dcp_notify_open(&w->notify); /* if that fails, only the timer is used */
	w->stop = eventfd(0, EFD_CLOEXEC);
	rc = w->stop < 0 ? -errno : start_thread(w);
	if (rc < 0) {
		if (w->stop >= 0)
			close(w->stop);
		dcp_notify_finish(&w->notify);
		free(w);
		return rc;
	}
	*out = w;
	return 0;
}

void dcpfs_watch_stop(struct dcpfs_watch *w)
{
	if (!w)
		return;
	if (eventfd_write(w->stop, 1) == 0)
		pthread_join(w->thread, NULL);
	close(w->stop);
	dcp_notify_finish(&w->notify);
	dcp_seen_finish(&w->seen);
	free(w);
}
