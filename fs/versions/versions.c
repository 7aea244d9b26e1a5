/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions/versions.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "core/base/arena.h"
#include "core/base/err.h"
#include "core/hf/hf.h"
#include "core/store/version/grants.h"
#include "core/store/view/measure.h"
#include "fs/fs.h"
#include "fs/ino.h"

static void dcpfs_hf_free(struct dcpfs_hf *hf)
{
	if (!hf)
		return;
	for (size_t i = 0; i < DCP_LEN(hf->grants); i++)
		dcp_grants_free(hf->grants[i]);
	dcp_hf_weights_finish(&hf->weights);
	free(hf);
}

/* ---- rights ---- */

/* @dir: SOURCE, or the directory of --hf-assets. */
static int ask_root(const struct dcp_grants *dir, const char *where,
		    const struct dcp_beside *root, struct dcp_grants **out)
{
	int rc = dcp_grants_version(dir, where, out);

	return rc < 0 ? rc : dcp_grants_files(*out, root->place.fd, root->id, root->n);
}

static int ask_extra(const struct dcp_beside *root, struct dcpfs_hf *hf)
{
	int rc = dcp_grants_source(root->path, &hf->grants[DCP_ASSET_ROOTS]);

	return rc < 0 ? rc : ask_root(hf->grants[DCP_ASSET_ROOTS], "", root, &hf->grants[0]);
}

/* Files that describe all keys depend on config.json, so its rights count, too. */
static void meet_config(struct dcpfs_hf *hf, const struct dcp_assets *a)
{
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->at[i].name, "config.json") == 0)
			hf->common = dcp_rights_meet(
				hf->common, hf->grants[a->at[i].root]->files[a->at[i].number]);
}

static int find_rights(struct dcpfs *fs, const struct dcpfs_version *ver, struct dcpfs_hf *hf,
		       const struct dcp_assets *a)
{
	size_t i = 0;
	int rc = 0;

	if (!fs->opts.allow_other)
		return 0;
	hf->common = ver->of->grants->data;
	if (fs->opts.hf_assets) {
		rc = ask_extra(&a->root[0], hf);
		i = 1;
	}
	pthread_rwlock_rdlock(&fs->lock);
	for (bool first = true; rc == 0 && i < a->nroots; i++, first = false)
		rc = ask_root(fs->grants, first ? ver->found.where : "", &a->root[i],
			      &hf->grants[i]);
	pthread_rwlock_unlock(&fs->lock);
	if (rc == 0)
		meet_config(hf, a);
	return rc;
}

struct dcp_rights dcpfs_hf_rights(const struct dcpfs_version *ver, const struct dcpfs_ino *i,
				  struct dcp_rights *search)
{
	const struct dcpfs_hf *hf = ver->hf;
	const struct dcp_assets *a;
	struct dcp_rights r;

	if (!dcpfs_opened(ver))
		return *search = dcp_grants_alone();
	a = dcp_hf_assets(dcpfs_opened(ver));
	*search = ver->of->grants->way;
	r = i->kind == DCPFS_VERSION ? ver->of->grants->data : hf->common;
	if (i->kind == DCPFS_SIDECAR) {
		if (!i->row || i->row > a->n)
			return dcp_grants_alone();
		return hf->grants[a->at[i->row - 1].root]->files[a->at[i->row - 1].number];
	}
	for (size_t k = 0; i->kind == DCPFS_VERSION && k < a->nroots; k++)
		r = dcp_rights_meet(r, hf->grants[k]->beside);
	return r;
}

/* ---- opening ---- */

int dcpfs_hf_open(struct dcpfs *fs, struct dcpfs_version *ver, bool (*stop)(void *ctx),
		  struct dcp_err *err)
{
	const struct dcp_hf_opts how = { .rules = fs->opts.hf_rules,
					 .part = fs->opts.hf_part,
					 .assets = fs->opts.hf_assets,
					 .cast = fs->opts.hf_dtype,
					 .source = fs->opts.source,
					 .where = ver->found.where,
					 .even_none = true };
	struct dcp_store_opts opts = fs->opts.store;
	struct dcpfs_hf *hf = calloc(1, sizeof(*hf));
	struct dcp_version *v = NULL;
	int rc = -ENOMEM;

	opts.rebuild |= ver->of->rebuild;
	opts.stop = stop;
	opts.stop_ctx = fs;
	if (hf)
		rc = dcp_hf_open(dcpfs_opened(ver->of), &how, &opts, &v, err);
	if (rc == 0)
		rc = dcp_hf_weights_plan(v, fs->opts.hf_shard_size ?: DCPFS_HF_SHARD_SIZE,
					 &hf->weights);
	if (rc == 0)
		rc = find_rights(fs, ver, hf, dcp_hf_assets(v));
	if (rc < 0) {
		dcp_version_close(v);
		dcpfs_hf_free(hf);
		return dcp_err_say(err, rc);
	}
	ver->hf = hf;
	__atomic_store_n(&ver->v, v, __ATOMIC_RELEASE);
	return 0;
}

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
	dcp_measures_close(ver->measures);
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

/* The newest version with a readable tensor; if there is none, the newest, so that users see its
 * error. */
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
