/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions/versions.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "core/store/version/grants.h"
#include "fs/fs.h"
#include "fs/versions/hf.h"

struct dcpfs_version *dcpfs_version_hold(struct dcpfs_version *ver)
{
	if (ver)
		__atomic_fetch_add(&ver->refs, 1, __ATOMIC_RELAXED);
	return ver;
}

void dcpfs_version_put(struct dcpfs_version *ver)
{
	if (!ver || __atomic_sub_fetch(&ver->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	if (!dcpfs_is_rank(ver))
		dcp_version_close(dcpfs_opened(ver));
	dcpfs_hf_free(ver->hf);
	dcpfs_version_put(ver->of);
	dcp_grants_free(ver->grants);
	dcp_arena_finish(&ver->arena);
	free(ver);
}

struct dcpfs_version *dcpfs_version_by_name(struct dcpfs *fs, const char *name)
{
	struct dcpfs_version *ver = NULL;

	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = 0; i < fs->nversions && !ver; i++)
		if (!strcmp(fs->versions[i]->name, name))
			ver = dcpfs_version_hold(fs->versions[i]);
	pthread_rwlock_unlock(&fs->lock);
	return ver;
}

struct dcpfs_version *dcpfs_version_behind(struct dcpfs *fs, uint64_t place)
{
	struct dcpfs_version *best = NULL;

	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = 0; i < fs->nversions; i++) {
		struct dcpfs_version *ver = fs->versions[i];

		if (ver->place > place && (!best || ver->place < best->place))
			best = ver;
	}
	dcpfs_version_hold(best);
	pthread_rwlock_unlock(&fs->lock);
	return best;
}

uint32_t dcpfs_latest(struct dcpfs *fs)
{
	uint32_t slot;

	pthread_rwlock_rdlock(&fs->lock);
	slot = fs->latest ? fs->latest->slot : 0;
	pthread_rwlock_unlock(&fs->lock);
	return slot;
}

void dcpfs_versions_suspect(struct dcpfs *fs)
{
	if (fs->suspicion >= 0)
		(void)eventfd_write(fs->suspicion, 1);
}

/* The newest version with a tensor that can be read; where there is none, the newest, to say what is wrong. */
void dcpfs_versions_choose_latest(struct dcpfs *fs)
{
	struct dcpfs_version *broken = NULL;

	fs->latest = NULL;
	for (size_t i = fs->nversions; i-- > 0 && !fs->latest;) {
		struct dcpfs_version *ver = fs->versions[i];
		const struct dcp_version *v = dcpfs_opened(ver);

		if (v && dcp_version_is_broken(v))
			broken = broken ? broken : ver;
		else if (v || (ver->trusted && !dcpfs_version_refusal(ver)))
			fs->latest = ver;
	}
	if (!fs->latest)
		fs->latest = broken;
}
