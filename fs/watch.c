/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/watch.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/log.h"
#include "fs/fs.h"
#include "fs/opener.h"
#include "fs/versions.h"

enum {
	POLL_MS = 2000,  /* between looks where inotify says nothing */
	SETTLE_MS = 200, /* a writer is seldom done with one event */
	SHARE = 4,       /* nor is looking to take more than a fifth of the time */
	EVENTS = IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM | IN_CLOSE_WRITE |
		 IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF,
};

struct dcpfs_watch {
	struct dcpfs *fs;
	pthread_t thread;
	int stop; /* eventfd */
	int inotify;
};

/* The directory that @path lies in: a file that is replaced by another tells there. */
static void watch_above(const struct dcpfs_watch *w, char *path)
{
	char *slash = strrchr(path, '/');

	if (!slash)
		return;
	slash[slash == path] = '\0';
	inotify_add_watch(w->inotify, path, EVENTS | IN_ONLYDIR);
}

/* Watch the source and each directory the last scan found; adding one again changes nothing. */
static void add_watches(struct dcpfs_watch *w)
{
	struct dcpfs *fs = w->fs;
	char path[PATH_MAX];
	int n;

	if (w->inotify < 0)
		return;
	n = snprintf(path, sizeof(path), "%s", fs->opts.source);
	if (inotify_add_watch(w->inotify, path, EVENTS | IN_ONLYDIR) < 0 && n < PATH_MAX)
		watch_above(w, path);
	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = 0; i < fs->scan.n; i++) {
		const char *where = fs->scan.found[i].where;

		n = snprintf(path, sizeof(path), "%s/%s", fs->opts.source, where);
		if (!*where || n < 0 || (size_t)n >= sizeof(path))
			continue;
		inotify_add_watch(w->inotify, path, EVENTS | IN_ONLYDIR);
		if (strchr(where, '/'))
			watch_above(w, path);
	}
	pthread_rwlock_unlock(&fs->lock);
}

static void drain(int fd)
{
	char events[4096];

	while (read(fd, events, sizeof(events)) > 0)
		;
}

/* Wait for an event and then @settle_ms, or for the clock; false: asked to stop. */
static bool wait_for_change(const struct dcpfs_watch *w, int timeout_ms, int settle_ms)
{
	struct pollfd fds[2] = { { .fd = w->stop, .events = POLLIN },
				 { .fd = w->inotify, .events = POLLIN } };
	int n = poll(fds, 2, timeout_ms);

	if (n > 0 && fds[0].revents)
		return false;
	if (n > 0 && fds[1].revents) {
		n = poll(fds, 1, settle_ms);
		drain(w->inotify);
		return n <= 0;
	}
	return true;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

static void *run(void *arg)
{
	struct dcpfs_watch *w = arg;
	struct dcpfs *fs = w->fs;
	int every = fs->opts.poll_ms ? (int)fs->opts.poll_ms : POLL_MS;
	struct dcp_err err;
	int64_t took;

	do {
		took = -now_ms();
		add_watches(w);
		err = (struct dcp_err){ .msg = "" };
		if (dcpfs_versions_refresh(fs, &err) < 0 && *err.msg)
			dcp_log(fs->opts.log, DCP_LOG_INFO, "%s", err.msg);
		dcpfs_opener_wake(fs);
		took += now_ms();
	} while (wait_for_change(
		w, every,
		(int)DCP_MIN(DCP_MAX(took * SHARE, SETTLE_MS), DCP_MAX(every, SETTLE_MS))));
	return NULL;
}

/* Signals are for the thread that runs the loop: another one would not wake it. */
static int start_thread(struct dcpfs_watch *w)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* raised by the thread itself */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&w->thread, NULL, run, w);
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
	w->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC); /* -1: the clock has to do */
	w->stop = eventfd(0, EFD_CLOEXEC);
	rc = w->stop < 0 ? -errno : start_thread(w);
	if (rc < 0) {
		if (w->stop >= 0)
			close(w->stop);
		if (w->inotify >= 0)
			close(w->inotify);
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
	if (w->inotify >= 0)
		close(w->inotify);
	free(w);
}
