/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "fs/errors.h"
#include "fs/fs.h"
#include "fs/ino.h"

static struct dcpfs_version *hold(struct dcpfs_version *ver)
{
	if (ver)
		__atomic_fetch_add(&ver->refs, 1, __ATOMIC_RELAXED);
	return ver;
}

void dcpfs_version_put(struct dcpfs_version *ver)
{
	if (!ver || __atomic_sub_fetch(&ver->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	dcp_version_close(ver->v);
	dcp_arena_finish(&ver->arena);
	pthread_mutex_destroy(&ver->lock);
	free(ver->refused);
	free(ver);
}

struct dcpfs_version *dcpfs_version_by_slot(struct dcpfs *fs, uint32_t slot)
{
	struct dcpfs_version *ver = NULL;

	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = fs->nversions; i-- > 0 && !ver;)
		if (fs->versions[i]->slot == slot)
			ver = hold(fs->versions[i]);
	pthread_rwlock_unlock(&fs->lock);
	return ver;
}

struct dcpfs_version *dcpfs_version_by_name(struct dcpfs *fs, const char *name)
{
	struct dcpfs_version *ver = NULL;

	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = 0; i < fs->nversions && !ver; i++)
		if (!strcmp(fs->versions[i]->name, name))
			ver = hold(fs->versions[i]);
	pthread_rwlock_unlock(&fs->lock);
	return ver;
}

struct dcpfs_version *dcpfs_version_at(struct dcpfs *fs, size_t n)
{
	struct dcpfs_version *ver;

	pthread_rwlock_rdlock(&fs->lock);
	ver = n < fs->nversions ? hold(fs->versions[n]) : NULL;
	pthread_rwlock_unlock(&fs->lock);
	return ver;
}

int dcpfs_version_open(struct dcpfs *fs, struct dcpfs_version *ver, struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	struct dcp_version *v;
	int rc = 0;

	if (DCP_LIKELY(__atomic_load_n(&ver->v, __ATOMIC_ACQUIRE) != NULL))
		return 0;
	pthread_mutex_lock(&ver->lock);
	if (ver->refused) {
		rc = dcp_fail(err, -EIO, DCP_ERR_NO_OFFSET, "%s", ver->refused);
	} else if (!ver->v) {
		rc = dcp_version_open(fs->opts.source, &ver->found, &fs->opts.store, &v, &why);
		if (rc == 0) {
			__atomic_store_n(&ver->v, v, __ATOMIC_RELEASE);
		} else {
			ver->refused = strdup(why.msg);
			dcpfs_errors_add(fs->errors, ver->name, NULL, why.msg);
			if (!err)
				dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s", why.msg);
			dcp_fail(err, rc, why.off, "%s", why.msg);
		}
	}
	pthread_mutex_unlock(&ver->lock);
	return rc;
}

/* A free slot for this content of the version: the hash decides, so a remount finds the same.
 */
static uint32_t choose_slot(const struct dcpfs *fs, const struct dcp_found *found,
			    uint32_t epoch)
{
	uint64_t h = dcp_hash64(found->name, strlen(found->name));
	uint32_t slot;

	h = dcp_hash64_more(h, &found->commit_ns, sizeof(found->commit_ns));
	h = dcp_hash64_more(h, &epoch, sizeof(epoch));
	slot = (uint32_t)(h & ((1u << DCPFS_SLOT_BITS) - 1));
	for (size_t i = 0; i < fs->nversions; i++)
		if (fs->versions[i]->slot == slot || slot == 0) {
			slot = (slot + 1) & ((1u << DCPFS_SLOT_BITS) - 1);
			i = (size_t)-1; /* look at all of them again */
		}
	return slot ? slot : 1;
}

static struct dcpfs_version *new_version(const struct dcpfs *fs, const struct dcp_found *found,
					 uint32_t epoch)
{
	struct dcpfs_version *ver = calloc(1, sizeof(*ver));

	if (!ver)
		return NULL;
	dcp_arena_init(&ver->arena, 1 << 20);
	ver->refs = 1;
	ver->found = *found;
	ver->name = dcp_arena_strndup(&ver->arena, found->name, strlen(found->name));
	ver->found.name = ver->name;
	ver->found.where = dcp_arena_strndup(&ver->arena, found->where, strlen(found->where));
	ver->found.why = NULL;
	if (!ver->name || !ver->found.where) {
		dcp_arena_finish(&ver->arena);
		free(ver);
		return NULL;
	}
	pthread_mutex_init(&ver->lock, NULL);
	ver->slot = choose_slot(fs, &ver->found, epoch);
	return ver;
}

static bool same_commit(const struct dcpfs_version *ver, const struct dcp_found *found)
{
	return !strcmp(ver->name, found->name) && ver->found.commit_ns == found->commit_ns &&
	       ver->found.format == found->format;
}

/* Did files of an opened version change behind the same commit mark? */
static bool went_stale(const struct dcpfs_version *ver)
{
	struct dcp_version *v = __atomic_load_n(&ver->v, __ATOMIC_ACQUIRE);

	return v && dcp_version_check(v, NULL) < 0;
}

/* The new list: versions kept as they are, new ones for what came or changed. */
static struct dcpfs_version **merge(struct dcpfs *fs, const struct dcp_scan *scan, size_t *n)
{
	struct dcpfs_version **list = calloc(scan->n ? scan->n : 1, sizeof(*list));

	*n = 0;
	for (size_t i = 0; list && i < scan->n; i++) {
		const struct dcp_found *found = &scan->found[i];
		struct dcpfs_version *old = NULL, *ver;
		uint32_t epoch = 0;

		if (!found->complete)
			continue;
		for (size_t k = 0; k < fs->nversions && !old; k++)
			if (same_commit(fs->versions[k], found))
				old = fs->versions[k];
		if (old && went_stale(old)) {
			dcp_log(fs->opts.log, DCP_LOG_WARN,
				"%s: files changed, indexing it again", old->name);
			epoch = old->slot;
			old = NULL;
		}
		ver = old ? hold(old) : new_version(fs, found, epoch);
		if (ver)
			list[(*n)++] = ver;
	}
	return list;
}

/* Called with the lock held for writing. */
static void choose_latest(struct dcpfs *fs)
{
	fs->latest = NULL;
	for (size_t i = fs->nversions; i-- > 0 && !fs->latest;)
		if (__atomic_load_n(&fs->versions[i]->v, __ATOMIC_ACQUIRE))
			fs->latest = fs->versions[i];
}

static void set_latest(struct dcpfs *fs)
{
	pthread_rwlock_wrlock(&fs->lock);
	choose_latest(fs);
	pthread_rwlock_unlock(&fs->lock);
}

static void publish(struct dcpfs *fs, struct dcp_scan *scan, struct dcpfs_version **list,
		    size_t n)
{
	struct dcpfs_version **old = fs->versions;
	struct dcp_scan old_scan = fs->scan;
	size_t nold = fs->nversions;

	pthread_rwlock_wrlock(&fs->lock);
	fs->versions = list;
	fs->nversions = n;
	fs->scan = *scan;
	choose_latest(fs);
	pthread_rwlock_unlock(&fs->lock);
	for (size_t i = 0; i < nold; i++)
		dcpfs_version_put(old[i]);
	free(old);
	dcp_scan_finish(&old_scan);
}

/* What a walk over the list met. A refusal that becomes the walk's own error is not logged. */
struct walk {
	struct dcp_err first; /* the first refusal */
	int rc;               /* its code; 0: none yet */
	bool opened;          /* one version at least can be shown */
	bool owed;            /* first is news and was not said yet */
};

static void open_listed(struct dcpfs *fs, struct dcpfs_version *ver, struct walk *w)
{
	bool known = __atomic_load_n(&ver->refused, __ATOMIC_RELAXED) != NULL;
	struct dcp_err why = { 0 };
	int rc = dcpfs_version_open(fs, ver, &why);

	if (rc == 0) {
		w->opened = true;
		set_latest(fs);
	} else if (w->rc == 0) {
		w->first = why;
		w->rc = rc;
		w->owed = !known;
	} else if (!known) {
		dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s", why.msg);
	}
	if (w->opened && w->owed) {
		dcp_log(fs->opts.log, DCP_LOG_ERROR, "%s", w->first.msg);
		w->owed = false;
	}
}

int dcpfs_versions_refresh(struct dcpfs *fs, bool newest_only, struct dcp_err *err)
{
	struct dcpfs_version **list;
	struct walk walk = { 0 };
	struct dcp_scan scan;
	size_t n;
	int rc;

	rc = dcp_scan(fs->opts.source, &scan, err);
	if (rc == -EINVAL && !newest_only)
		scan = (struct dcp_scan){ 0 }; /* all versions were taken away */
	else if (rc < 0)
		return rc;
	list = merge(fs, &scan, &n);
	if (!list) {
		dcp_scan_finish(&scan);
		return -ENOMEM;
	}
	publish(fs, &scan, list, n);
	dcpfs_count(&fs->stats, DCPFS_STAT_RESCANS, 1);
	for (size_t i = n; i-- > 0 && !(newest_only && walk.opened);)
		open_listed(fs, list[i], &walk);
	if (n == 0 || walk.opened)
		return 0;
	return dcp_fail(err, walk.rc, walk.first.off, "%s", walk.first.msg);
}
