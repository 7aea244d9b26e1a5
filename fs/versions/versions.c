/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions/versions.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/hf/hf.h"
#include "core/parse/safetensors/safetensors.h"
#include "core/store/index/index.h"
#include "core/store/version/grants.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
#include "fs/fs.h"
#include "fs/ino.h"

enum { PLAN_MEMORY = 1 << 30 }; /* names of keys */

struct plan {
	struct dcp_arena arena;
	struct dcp_buf items; /* struct dcp_safetensors_item, by row */
	const struct dcp_version *v;
};

static void dcpfs_hf_free(struct dcpfs_hf *hf)
{
	if (!hf)
		return;
	for (size_t i = 0; i < DCP_LEN(hf->grants); i++)
		dcp_grants_free(hf->grants[i]);
	free(hf->row);
	free(hf->first);
	free(hf);
}

/* ---- which tensor is in which file ---- */

static int add_item(struct plan *p, const struct dcp_row *row)
{
	struct dcp_safetensors_item item = { .number = (uint64_t)row->id,
					     .nbytes = row->nbytes,
					     .itemsize = dcp_dtype_info(row->dtype)->size };

	if (row->broken || dcp_hf_is_tied(p->v, row->id) ||
	    !dcp_view_can_show(row->key, row->dtype, DCP_AS_SAFETENSORS))
		return 0;
	item.key = dcp_arena_strdup(&p->arena, row->key);
	dcp_buf_add(&p->items, &item, sizeof(item));
	return item.key && !dcp_buf_error(&p->items) ? 0 : -ENOMEM;
}

static int arrange(struct dcpfs_hf *hf, struct plan *p, uint64_t size)
{
	struct dcp_safetensors_item *item = DCP_ITEMS(p->items, struct dcp_safetensors_item);
	size_t n = DCP_NITEMS(p->items, struct dcp_safetensors_item);

	hf->row = calloc(n + 1, sizeof(*hf->row));
	hf->first = calloc(n + 2, sizeof(*hf->first));
	if (!hf->row || !hf->first)
		return -ENOMEM;
	if (n)
		hf->nfiles = dcp_safetensors_arrange(item, n, size, hf->first);
	for (size_t i = 0; i < n; i++) {
		hf->row[i] = (int64_t)item[i].number;
		hf->nbytes += item[i].nbytes;
	}
	return 0;
}

static int make_plan(struct dcpfs_hf *hf, struct dcp_version *v, uint64_t size)
{
	struct plan p = { .arena = DCP_ARENA_INIT(PLAN_MEMORY), .v = v };
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(dcp_version_index(v), DCP_ROW_TENSOR, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0)
		rc = add_item(&p, &row);
	if (rc == 0)
		rc = arrange(hf, &p, size);
	dcp_arena_finish(&p.arena);
	dcp_buf_finish(&p.items);
	return rc;
}

/* Keep the facts of row @id, tensor number @at of a file. */
struct placed {
	uint64_t id;
	size_t at;
};

struct kept_row {
	const char *key, *name;
	uint64_t nbytes, *shape;
	enum dcp_dtype dtype;
	uint32_t ndim;
};

/* Rows are requested in ascending order, in one pass. */
static int keep_rows(struct dcp_index *ix, const struct placed *p, size_t n,
		     struct kept_row *out, struct dcp_arena *arena)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	size_t i = 0;
	int rc = dcp_index_scan(ix, DCP_ROW_TENSOR, (int64_t)p[0].id - 1, false, &scan);

	if (rc < 0)
		return rc;
	while (i < n && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct kept_row *to = &out[p[i].at];

		if ((uint64_t)row.id != p[i].id)
			continue;
		i++;
		*to = (struct kept_row){ .key = dcp_arena_strdup(arena, row.key),
					 .name = dcp_arena_strdup(arena, row.name),
					 .shape = dcp_arena_calloc(arena, row.ndim + 1,
								   sizeof(*to->shape)),
					 .nbytes = row.nbytes,
					 .dtype = row.dtype,
					 .ndim = row.ndim };
		if (!to->key || !to->name || !to->shape) {
			rc = -ENOMEM;
			break;
		}
		memcpy(to->shape, row.shape, row.ndim * sizeof(*to->shape));
	}
	return rc < 0 ? rc : i < n ? -EBADMSG : 0;
}

int dcpfs_hf_rows(const struct dcpfs_version *ver, uint64_t n,
		  int (*fn)(void *ctx, struct dcp_row *row), void *ctx)
{
	const struct dcpfs_hf *hf = ver->hf;
	size_t first, count;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(PLAN_MEMORY);
	struct kept_row *rows;
	struct placed *p;
	int rc = -ENOMEM;

	if (n >= hf->nfiles)
		return -ENOENT;
	first = hf->first[n];
	count = hf->first[n + 1] - first;
	if (count == 0)
		return 0;
	p = dcp_arena_calloc(&arena, count, sizeof(*p));
	rows = dcp_arena_calloc(&arena, count, sizeof(*rows));
	if (p && rows) {
		for (size_t i = 0; i < count; i++)
			p[i] = (struct placed){ (uint64_t)hf->row[first + i], i };
		DCP_SORT(p, count, dcp_by_u64);
		rc = keep_rows(dcpfs_index(ver), p, count, rows, &arena);
	}
	for (size_t i = 0; rc == 0 && i < count; i++) {
		struct dcp_row row = { .id = hf->row[first + i],
				       .key = rows[i].key,
				       .name = rows[i].name,
				       .nbytes = rows[i].nbytes,
				       .dtype = rows[i].dtype,
				       .ndim = rows[i].ndim };

		memcpy(row.shape, rows[i].shape, row.ndim * sizeof(*row.shape));
		rc = fn(ctx, &row);
	}
	return rc;
}

void dcpfs_hf_name(const struct dcpfs_version *ver, uint64_t n, char name[DCP_SAFETENSORS_NAME])
{
	dcp_safetensors_file_name(name, dcp_hf_stem(dcpfs_opened(ver)), n, ver->hf->nfiles);
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
		rc = make_plan(hf, v,
			       dcp_hf_adapter(v)        ? UINT64_MAX
			       : fs->opts.hf_shard_size ? fs->opts.hf_shard_size
							: DCPFS_HF_SHARD_SIZE);
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

/*
 * The newest version with a tensor that can be read; where there is none, the newest, to say what
 * is wrong.
 */
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
