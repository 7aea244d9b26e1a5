/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/origin/dir/dir.h"
#include "core/origin/origin.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "core/store/io/queue.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "fs/errors.h"
#include "fs/file/file.h"
#include "fs/tree/tree.h"
#include "fs/versions/versions.h"

enum {
	IDLE_CONNECTIONS = 64, /* to indexes */
	GRACE_MS = 1000,       /* time to find that every version is refused */
};

/* While only the user who mounts may enter, every node shows the owner of the source. */
static void choose_owner(struct dcpfs *fs, const struct dcp_rights *source)
{
	const struct dcpfs_opts *o = &fs->opts;

	fs->uid = o->uid == (uid_t)-1 ? source->uid : o->uid;
	fs->gid = o->gid == (gid_t)-1 ? source->gid : o->gid;
	fs->mode = source->mode;
	if (o->umask != (mode_t)-1)
		fs->mode &= ~o->umask;
	fs->mode |= 0400;
}

/* Log that no version is complete yet, as at the beginning of a run. */
static void log_empty(const struct dcpfs *fs)
{
	const struct dcp_found *f = fs->scan.n ? &fs->scan.found[fs->scan.n - 1] : NULL;

	dcp_log(fs->opts.log, DCP_LOG_WARN,
		"%s: no complete version%s%s%s%s; mounted empty, the first to be completed "
		"appears",
		fs->opts.source, f ? ": " : "", f ? f->name : "", f && f->why ? ": " : "",
		f && f->why ? f->why : "");
}

static int find_layouts(struct dcpfs *fs, struct dcp_err *err)
{
	struct dcp_layouts_opts opts = { .files = fs->opts.layouts,
					 .nfiles = fs->opts.nlayouts,
					 .source = fs->opts.source,
					 .scan = &fs->scan,
					 .user_dir = fs->opts.layout_dir,
					 .log = fs->opts.log };

	return dcp_layouts_create(&opts, &fs->layouts, err);
}

/* Create the parts of the mount, empty. */
static int make_parts(struct dcpfs *fs, const struct dcpfs_opts *opts)
{
	int rc;

	fs->log = dcpfs_log_create(opts->log);
	if (!fs->log)
		return -ENOMEM;
	fs->opts.log = fs->opts.store.log = dcpfs_log_sink(fs->log);
	fs->errors = dcpfs_errors_create(fs->opts.log);
	fs->files = dcpfs_cache_create();
	fs->hot = opts->passthrough_mib
			  ? dcpfs_hot_create((uint64_t)opts->passthrough_mib << 20)
			  : NULL;
	fs->ranks = dcpfs_ranks_create();
	fs->keys = dcpfs_keys_create();
	fs->opener = dcpfs_opener_create();
	if (!fs->errors || !fs->files || !fs->ranks || !fs->keys || !fs->opener ||
	    (!fs->hot && opts->passthrough_mib))
		return -ENOMEM;
	rc = dcp_index_pool_create(IDLE_CONNECTIONS, &fs->pool);
	if (rc == 0)
		rc = dcp_handles_create(&fs->opts.store.handles);
	return rc < 0 ? rc : dcp_queue_create(&fs->opts.store.queue);
}

/* If the source is a single checkpoint, wait until it is opened, with its progress shown. */
static int open_first(struct dcpfs *fs, struct dcp_err *err)
{
	bool single = fs->scan.single && fs->nversions;
	const struct dcp_progress *progress = fs->opts.store.progress;
	int rc;

	fs->opts.store.pool = fs->pool;
	fs->opts.store.progress = NULL;
	rc = dcpfs_opener_start(fs, single || fs->opts.foreground ? progress : NULL);
	if (rc == 0 && single)
		rc = dcpfs_version_open(fs, fs->versions[0], err);
	return rc < 0 ? rc : dcpfs_opener_first(fs, GRACE_MS, err);
}

int dcpfs_create(const struct dcpfs_opts *opts, struct dcpfs **out, struct dcp_err *err)
{
	struct dcpfs *fs;
	struct dcp_rights shown;
	int rc = dcp_rights_shown(opts->source, &shown);

	/* The rights of a missing or remote source are unknown: let in only the user who mounts
	 * it. */
	if (dcp_origin_of(opts->source) != &dcp_origin_local || (rc == -ENOENT && opts->wait))
		shown = dcp_rights_alone();
	else if (rc < 0)
		return dcp_fail(err, rc, "%s: %s", opts->source, strerror(-rc));
	fs = calloc(1, sizeof(*fs));
	if (!fs)
		return -ENOMEM;
	fs->opts = *opts;
	fs->nodes = dcpfs_nodes;
	fs->opts.store.counts = &fs->stats.io;
	fs->opts.store.queue = NULL;
	fs->opts.store.handles = NULL;
	clock_gettime(CLOCK_REALTIME, &fs->started);
	if (getrandom(fs->id, sizeof(fs->id), 0) < 0)
		memcpy(fs->id, &fs->started, sizeof(fs->started));
	pthread_rwlock_init(&fs->lock, NULL);
	choose_owner(fs, &shown);
	fs->suspicion = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	rc = make_parts(fs, opts);
	if (rc == 0)
		rc = DCP_MIN(dcpfs_versions_refresh(fs, NULL, err), 0);
	if (rc == 0 && opts->allow_other && !fs->grants)
		rc = -ENOMEM;
	if (rc == 0)
		rc = find_layouts(fs, err);
	if (rc == 0)
		rc = open_first(fs, err);
	if (rc < 0) {
		dcpfs_destroy(fs);
		return rc;
	}
	if (fs->nversions == 0)
		log_empty(fs);
	*out = fs;
	return 0;
}

void dcpfs_destroy(struct dcpfs *fs)
{
	if (!fs)
		return;
	dcpfs_opener_stop(fs, UINT_MAX);
	dcpfs_cache_destroy(fs);
	dcpfs_hot_destroy(fs->hot);
	dcpfs_ranks_destroy(fs->ranks);
	dcpfs_keys_destroy(fs->keys);
	for (size_t i = 0; i < fs->nversions; i++)
		dcpfs_version_put(fs->versions[i]);
	free(fs->versions);
	dcp_handles_destroy(fs->opts.store.handles);
	dcp_index_pool_destroy(fs->pool);
	dcpfs_opener_destroy(fs->opener);
	dcp_queue_destroy(fs->opts.store.queue);
	dcp_layouts_destroy(fs->layouts);
	dcp_scan_finish(&fs->scan);
	dcp_grants_free(fs->grants);
	dcpfs_errors_destroy(fs->errors);
	dcpfs_log_destroy(fs->log);
	pthread_rwlock_destroy(&fs->lock);
	if (fs->suspicion >= 0)
		close(fs->suspicion);
	free(fs);
}
