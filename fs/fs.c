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
#include "core/base/log.h"
#include "core/parse/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/index/pool.h"
#include "core/store/io/handles.h"
#include "core/store/io/queue.h"
#include "core/store/version/grants.h"
#include "fs/dir_int.h"
#include "fs/errors.h"
#include "fs/file.h"
#include "fs/hot.h"
#include "fs/ino.h"
#include "fs/keys.h"
#include "fs/layouts.h"
#include "fs/opener.h"
#include "fs/ranks.h"
#include "fs/rights.h"
#include "fs/tree.h"
#include "fs/versions.h"

enum {
	IDLE_CONNECTIONS = 256, /* to indexes */
	GRACE_MS = 300,         /* in which a source that is broken altogether is found out */
};

/* What everything shows while nobody but the user who mounts gets in: who owns the source. */
static void choose_owner(struct dcpfs *fs, const struct stat *source)
{
	const struct dcpfs_opts *o = &fs->opts;

	fs->uid = o->uid == (uid_t)-1 ? source->st_uid : o->uid;
	fs->gid = o->gid == (gid_t)-1 ? source->st_gid : o->gid;
	fs->mode = source->st_mode & 0444;
	if (o->umask != (mode_t)-1)
		fs->mode &= ~o->umask;
	fs->mode |= 0400;
}

/* Nothing is complete yet: a run that has just begun. */
static void tell_empty(const struct dcpfs *fs)
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
	struct dcpfs_layout_opts opts = { .files = fs->opts.layouts,
					  .nfiles = fs->opts.nlayouts,
					  .source = fs->opts.source,
					  .scan = &fs->scan,
					  .user_dir = fs->opts.layout_dir,
					  .log = fs->opts.log };

	return dcpfs_layouts_create(&opts, &fs->layouts, err);
}

/* Its parts, empty. */
static int make_parts(struct dcpfs *fs, const struct dcpfs_opts *opts)
{
	int rc;

	fs->errors = dcpfs_errors_create();
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

/* A checkpoint that is all there is to show is waited for, and how far it is may be shown. */
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
	struct stat st;
	int rc;

	/* Of what is not there nobody knows who may read it: only who mounts it. */
	if (stat(opts->source, &st) < 0 && opts->wait && errno == ENOENT)
		st = (struct stat){ .st_mode = 0400, .st_uid = geteuid(), .st_gid = getegid() };
	else if (stat(opts->source, &st) < 0)
		return dcp_fail(err, -errno, DCP_ERR_NO_OFFSET, "%s: %m", opts->source);
	fs = calloc(1, sizeof(*fs));
	if (!fs)
		return -ENOMEM;
	fs->opts = *opts;
	fs->opts.store.counts = &fs->stats.io;
	fs->opts.store.queue = NULL;
	fs->opts.store.handles = NULL;
	clock_gettime(CLOCK_REALTIME, &fs->started);
	if (getrandom(fs->id, sizeof(fs->id), 0) < 0)
		memcpy(fs->id, &fs->started, sizeof(fs->started));
	pthread_rwlock_init(&fs->lock, NULL);
	choose_owner(fs, &st);
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
		tell_empty(fs);
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
	dcpfs_layouts_destroy(fs->layouts);
	dcp_scan_finish(&fs->scan);
	dcp_grants_free(fs->grants);
	dcpfs_errors_destroy(fs->errors);
	pthread_rwlock_destroy(&fs->lock);
	if (fs->suspicion >= 0)
		close(fs->suspicion);
	free(fs);
}

bool dcpfs_is_settled(uint64_t ino)
{
	return dcpfs_ino_unpack(ino).slot != 0;
}

/* ---- attributes ---- */

static void set_time(struct stat *st, struct timespec t)
{
	st->st_atim = st->st_mtim = st->st_ctim = t;
}

static void attr_base(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		      enum dcpfs_type type, struct stat *st)
{
	struct timespec when = ver ? dcp_file_time(ver->found.commit_ns) : fs->started;

	*st = (struct stat){ .st_ino = ino,
			     .st_mode = type == DCPFS_DIR    ? S_IFDIR
					: type == DCPFS_FILE ? S_IFREG
							     : S_IFLNK,
			     .st_nlink = 1,
			     .st_blksize = 128 << 10 };
	dcpfs_rights_show(fs, ver, ino, st);
	set_time(st, when);
}

static void set_size(struct stat *st, uint64_t size)
{
	st->st_size = (off_t)size;
	st->st_blocks = (blkcnt_t)(size / 512 + (size % 512 != 0));
}

void dcpfs_attr_of_row(struct dcpfs *fs, const struct dcpfs_version *ver, uint64_t ino,
		       const struct dcp_row *row, struct stat *st)
{
	const struct dcpfs_rows *r = dcpfs_rows_of(dcpfs_ino_unpack(ino).kind);
	uint64_t size = row->nbytes;

	attr_base(fs, ver, ino, DCPFS_FILE, st);
	st->st_nlink = 1 + (ver->of ? 0 : row->naliases);
	if (r->rows == DCP_ROW_TENSOR && dcp_view_size_of(row, r->as, &size) < 0)
		size = 0; /* opening it gives the error */
	if (row->broken && size == 0 && fs->opts.no_open)
		size = 1; /* or the kernel, not asking us, would find it empty and sound */
	set_size(st, size);
}

int dcpfs_index_asked(struct dcpfs *fs, const struct dcpfs_version *ver, int rc)
{
	if (rc == -EIO || rc == -EBADMSG)
		dcpfs_errors_add(fs->errors, ver->of ? ver->of->name : ver->name, NULL, NULL,
				 "its index is damaged: unmount, and mount with --rebuild");
	return rc;
}

static int attr_of_row_ino(struct dcpfs *fs, struct dcpfs_version *ver, struct dcpfs_ino i,
			   uint64_t ino, struct stat *st)
{
	const struct dcpfs_rows *r = dcpfs_rows_of(i.kind);
	struct dcp_arena arena;
	struct dcp_row row;
	int rc;

	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_index_by_id(dcpfs_index(ver), r->rows, (int64_t)i.row, &arena, &row);
	dcpfs_index_asked(fs, ver, rc);
	if (rc == 0 && r->rows == DCP_ROW_TENSOR)
		rc = dcpfs_rank_cut(ver, &row, &arena, NULL, NULL) == 0 ? -ENOENT : 0;
	if (rc == 0)
		dcpfs_attr_of_row(fs, ver, ino, &row, st);
	dcp_arena_finish(&arena);
	return rc;
}

/* A file made by us: as big as its text. */
static int attr_of_text(struct dcpfs *fs, uint64_t ino, struct stat *st)
{
	struct dcpfs_file *file;
	int rc = dcpfs_file_get(fs, ino, &file, NULL);

	if (rc < 0)
		return rc;
	set_size(st, dcpfs_file_size(file));
	if (!dcpfs_is_settled(ino))
		set_time(st, dcpfs_file_made(file));
	dcpfs_file_put(fs, file);
	return 0;
}

static int attr_of_node(struct dcpfs *fs, struct dcpfs_version *ver,
			const struct dcpfs_node *node, uint64_t ino, struct stat *st)
{
	char to[PATH_MAX];
	int rc;

	/* An open version tells who may read what is in it; of one that cannot be opened only
	 * the user who mounts may read why. */
	if (ver && fs->opts.allow_other && node->kind != DCPFS_VERSION)
		dcpfs_version_open(fs, ver, NULL);
	attr_base(fs, ver, ino, node->type, st);
	if (node->kind == DCPFS_SIDECAR) {
		rc = ver ? dcpfs_version_open(fs, ver, NULL) : -ESTALE;
		return rc < 0 ? rc : dcpfs_sidecar_attr(ver, dcpfs_ino_unpack(ino).row, st);
	}
	if (node->type == DCPFS_FILE)
		return attr_of_text(fs, ino, st);
	if (node->type == DCPFS_LINK) {
		rc = dcpfs_readlink(fs, ino, to, sizeof(to));
		set_size(st, rc == 0 ? strlen(to) : 0);
		return rc;
	}
	if (node->kind == DCPFS_BY_KEY) {
		rc = dcpfs_by_key_check(fs, dcpfs_ino_unpack(ino));
		if (rc < 0)
			return rc;
	}
	st->st_nlink = 2 + dcpfs_child_dirs(node->kind, ver && ver->of);
	if (node->kind == DCPFS_ROOT) {
		pthread_rwlock_rdlock(&fs->lock);
		st->st_nlink += fs->nversions;
		pthread_rwlock_unlock(&fs->lock);
	}
	return 0;
}

int dcpfs_getattr(struct dcpfs *fs, uint64_t ino, struct stat *st)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	const struct dcpfs_node *node = dcpfs_node(i.kind);
	struct dcpfs_version *ver = NULL;
	int rc = 0;

	if (!node)
		return -ENOENT;
	if (i.slot) {
		ver = dcpfs_version_by_slot(fs, i.slot);
		if (!ver)
			return -ESTALE;
	}
	if (dcpfs_rows_of(i.kind)) {
		rc = ver ? dcpfs_version_open(fs, ver, NULL) : -ENOENT;
		if (rc == 0)
			rc = attr_of_row_ino(fs, ver, i, ino, st);
	} else {
		rc = attr_of_node(fs, ver, node, ino, st);
	}
	dcpfs_version_put(ver);
	return rc;
}

uint32_t dcpfs_latest(struct dcpfs *fs)
{
	uint32_t slot;

	pthread_rwlock_rdlock(&fs->lock);
	slot = fs->latest ? fs->latest->slot : 0;
	pthread_rwlock_unlock(&fs->lock);
	return slot;
}

int dcpfs_readlink(struct dcpfs *fs, uint64_t ino, char *buf, size_t size)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);

	if (i.kind == DCPFS_LATEST)
		return dcpfs_slot_name(fs, i.row, buf, size);
	if (i.kind == DCPFS_BY_KEY_LINK)
		return dcpfs_by_key_readlink(fs, i, buf, size);
	if (i.kind != DCPFS_TAG || size < 3)
		return -EINVAL;
	memcpy(buf, "../", 3);
	return dcpfs_slot_name(fs, i.slot, buf + 3, size - 3);
}

int dcpfs_slot_name(struct dcpfs *fs, uint64_t slot, char *buf, size_t size)
{
	struct dcpfs_version *ver = dcpfs_version_by_slot(fs, (uint32_t)slot);
	int rc = ver && strlen(ver->name) < size ? 0 : -ESTALE;

	if (rc == 0)
		strcpy(buf, ver->name);
	dcpfs_version_put(ver);
	return rc;
}
