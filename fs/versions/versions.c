/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/versions/versions.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "core/base/arena.h"
#include "core/base/cache.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/hf/hf.h"
#include "core/model/layout/layout.h"
#include "core/origin/dir/dir.h"
#include "core/store/index/index.h"
#include "core/store/layouts/layouts.h"
#include "core/store/version/version.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
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

	return rc < 0 ? rc : dcp_grants_files(*out, &root->place, root->id, root->n);
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
		return *search = dcp_rights_alone();
	a = dcp_hf_assets(dcpfs_opened(ver));
	*search = ver->of->grants->way;
	r = i->kind == DCPFS_VERSION ? ver->of->grants->data : hf->common;
	if (i->kind == DCPFS_SIDECAR) {
		if (!i->row || i->row > a->n)
			return dcp_rights_alone();
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

/* ---- ranks ---- */

enum {
	BUCKETS = 1 << 16,
	SLOTS = 1 << DCPFS_SLOT_BITS,
	LOOKS = 64, /* entries examined for an unused rank, each time one is made */
};

struct entry {
	struct dcp_lru_link use;
	struct dcp_table_link slot, of; /* by its slot; by hash_of() */
	struct dcpfs_version *ver;      /* a reference */
	struct entry *next;             /* link in a chain of removed entries */
};

struct dcpfs_ranks {
	pthread_mutex_t lock; /* everything below */
	uint8_t given[SLOTS / 8];
	uint8_t generation[SLOTS]; /* how often each slot was given; read without the lock */
	uint32_t ngiven;
	struct dcp_lru used; /* all of them */
	struct dcp_table slots, of;
	struct dcp_table_link *bucket[2][BUCKETS]; /* of these two */
	size_t n;
};

struct dcpfs_ranks *dcpfs_ranks_create(void)
{
	struct dcpfs_ranks *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	pthread_mutex_init(&t->lock, NULL);
	t->slots = (struct dcp_table){ t->bucket[0], BUCKETS };
	t->of = (struct dcp_table){ t->bucket[1], BUCKETS };
	return t;
}

static void mark_slot(struct dcpfs_ranks *t, uint32_t slot)
{
	t->given[slot / 8] |= (uint8_t)(1u << slot % 8);
	t->ngiven++;
}

/* All eight million slots were given, so reuse those that are free now. The kernel may still know
 * inodes of former owners; another generation tells them apart. */
static void start_over(struct dcpfs *fs)
{
	struct dcpfs_ranks *t = fs->ranks;

	memset(t->given, 0, sizeof(t->given));
	t->ngiven = 0;
	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = 0; i < fs->nversions; i++)
		mark_slot(t, fs->versions[i]->slot);
	pthread_rwlock_unlock(&fs->lock);
	for (const struct dcp_lru_link *l = t->used.oldest; l; l = l->newer)
		mark_slot(t, ((const struct entry *)l)->ver->slot);
}

static uint32_t slot_of_hash(uint64_t hash)
{
	return (uint32_t)(hash & (SLOTS - 1));
}

/* The slot that the hash names, or the next unused one: the kernel may still hold pages of a former
 * owner. */
static uint32_t next_slot(const struct dcpfs_ranks *t, uint64_t hash)
{
	uint32_t slot = slot_of_hash(hash);

	while (slot == 0 || t->given[slot / 8] >> slot % 8 & 1)
		slot = slot_of_hash(slot + 1u);
	return slot;
}

/* The lock is held. */
static uint32_t take_slot(struct dcpfs *fs, uint64_t hash)
{
	struct dcpfs_ranks *t = fs->ranks;
	uint32_t slot;

	if (t->ngiven >= SLOTS - SLOTS / 8)
		start_over(fs);
	slot = next_slot(t, hash);
	mark_slot(t, slot);
	__atomic_fetch_add(&t->generation[slot], 1, __ATOMIC_RELAXED);
	return slot;
}

uint8_t dcpfs_slot_generation(const struct dcpfs *fs, uint32_t slot)
{
	return slot < SLOTS ? __atomic_load_n(&fs->ranks->generation[slot], __ATOMIC_RELAXED)
			    : 0;
}

uint32_t dcpfs_slot_take(struct dcpfs *fs, uint64_t hash)
{
	uint32_t slot;

	pthread_mutex_lock(&fs->ranks->lock);
	slot = take_slot(fs, hash);
	pthread_mutex_unlock(&fs->ranks->lock);
	return slot;
}

static uint64_t hash_of(const struct dcpfs_version *ver, const struct dcp_named_layout *layout,
			uint32_t rank)
{
	uint64_t id[3] = { ver->slot, layout ? layout->id : UINT64_MAX, rank };

	return dcp_hash64(id, sizeof(id));
}

/* ---- the table; the lock is held ---- */

static struct dcpfs_version *use_rank(struct dcpfs_ranks *t, struct entry *e)
{
	dcp_lru_use(&t->used, &e->use);
	return dcpfs_version_hold(e->ver);
}

static void take_out(struct dcpfs_ranks *t, struct entry *e)
{
	dcp_table_remove(&t->slots, &e->slot);
	dcp_table_remove(&t->of, &e->of);
	dcp_lru_remove(&t->used, &e->use);
	t->n--;
}

/* Remove the ranks of @ver (NULL: all) from the table; the caller puts them after releasing the
 * lock. */
static struct entry *take_ranks(struct dcpfs_ranks *t, const struct dcpfs_version *ver)
{
	struct entry *out = NULL, *newer;

	for (struct entry *e = (struct entry *)t->used.oldest; e; e = newer) {
		newer = (struct entry *)e->use.newer;
		if (ver && dcpfs_version_whole(e->ver) != ver)
			continue;
		take_out(t, e);
		e->next = out;
		out = e;
	}
	return out;
}

/* A rank with open files, cached or not, has more references than the table's, and references are
 * taken under the lock. */
static bool is_unused(const struct dcp_lru_link *l)
{
	return __atomic_load_n(&((const struct entry *)l)->ver->refs, __ATOMIC_ACQUIRE) == 1;
}

/* Over the limit, remove the least recently used ranks that are not in use. If the first entries
 * are all in use, none is removed and the table grows by one. */
static struct entry *evict_ranks(struct dcpfs_ranks *t)
{
	struct entry *out = NULL, *e;

	while (t->n > DCPFS_RANKS_KEPT &&
	       (e = (struct entry *)dcp_lru_oldest(&t->used, LOOKS, is_unused))) {
		take_out(t, e);
		e->next = out;
		out = e;
	}
	return out;
}

static void put_all(struct entry *e)
{
	while (e) {
		struct entry *next = e->next;

		dcpfs_version_put(e->ver);
		free(e);
		e = next;
	}
}

void dcpfs_ranks_destroy(struct dcpfs_ranks *t)
{
	if (!t)
		return;
	put_all(take_ranks(t, NULL));
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void dcpfs_ranks_forget(struct dcpfs *fs, struct dcpfs_version *ver, bool rewritten,
			void (*forget)(struct dcpfs *fs, struct dcpfs_version *rank,
				       bool rewritten))
{
	struct dcpfs_ranks *t = fs->ranks;
	struct entry *gone;

	pthread_mutex_lock(&t->lock);
	gone = take_ranks(t, ver);
	pthread_mutex_unlock(&t->lock);
	for (struct entry *e = gone; e; e = e->next)
		forget(fs, e->ver, rewritten);
	put_all(gone);
}

/* The lock is held. */
static struct entry *find_rank(struct dcpfs_ranks *t, const struct dcpfs_version *ver,
			       const struct dcp_named_layout *layout, uint32_t rank)
{
	struct dcp_table_link *l = dcp_table_find(&t->of, hash_of(ver, layout, rank));
	struct entry *e = DCP_OF(l, struct entry, of);

	while (e && (e->ver->of != ver || e->ver->layout != layout || e->ver->rank != rank))
		e = DCP_OF(dcp_table_before(&e->of), struct entry, of);
	return e;
}

static struct dcpfs_version *make_rank(struct dcpfs *fs, struct dcpfs_version *ver,
				       const struct dcp_named_layout *layout, uint32_t rank)
{
	size_t n = strlen(ver->name) + (layout ? strlen(layout->name) : 0) + 32;
	struct dcpfs_version *r = calloc(1, sizeof(*r) + n); /* there may be a million */

	if (!r)
		return NULL;
	dcp_arena_init(&r->arena, 0);
	r->name = (char *)(r + 1);
	if (layout)
		snprintf(r->name, n, "%s/shard/%s/%u", ver->name, layout->name, rank);
	else
		snprintf(r->name, n, "%s/hf", ver->name);
	r->refs = 1;
	r->of = dcpfs_version_hold(ver);
	r->found = ver->found;
	r->layout = layout;
	r->rank = rank;
	r->slot = take_slot(fs, hash_of(ver, layout, rank));
	return r;
}

/* The lock is held. */
static struct entry *enter_rank(struct dcpfs *fs, struct dcpfs_version *ver,
				const struct dcp_named_layout *layout, uint32_t rank)
{
	struct dcpfs_ranks *t = fs->ranks;
	struct entry *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->ver = make_rank(fs, ver, layout, rank);
	if (!e->ver) {
		free(e);
		return NULL;
	}
	dcp_table_add(&t->slots, &e->slot, e->ver->slot);
	dcp_table_add(&t->of, &e->of, hash_of(ver, layout, rank));
	dcp_lru_add(&t->used, &e->use);
	t->n++;
	return e;
}

int dcpfs_rank_get(struct dcpfs *fs, struct dcpfs_version *ver,
		   const struct dcp_named_layout *layout, uint32_t rank,
		   struct dcpfs_version **out)
{
	struct dcpfs_ranks *t = fs->ranks;
	struct entry *e, *gone = NULL;

	if (layout && rank >= dcp_layout_ranks(layout->l))
		return -ENOENT;
	pthread_mutex_lock(&t->lock);
	e = find_rank(t, ver, layout, rank);
	if (!e)
		e = enter_rank(fs, ver, layout, rank);
	*out = e ? use_rank(t, e) : NULL;
	gone = evict_ranks(t);
	pthread_mutex_unlock(&t->lock);
	put_all(gone);
	return e ? 0 : -ENOMEM;
}

uint32_t dcpfs_rank_slot(struct dcpfs *fs, const struct dcpfs_version *ver,
			 const struct dcp_named_layout *layout, uint32_t rank)
{
	struct dcpfs_ranks *t = fs->ranks;
	const struct entry *e;
	uint32_t slot;

	pthread_mutex_lock(&t->lock);
	e = find_rank(t, ver, layout, rank);
	slot = e ? e->ver->slot : next_slot(t, hash_of(ver, layout, rank));
	pthread_mutex_unlock(&t->lock);
	return slot;
}

static struct dcpfs_version *rank_by_slot(struct dcpfs_ranks *t, uint32_t slot)
{
	struct dcpfs_version *ver;
	struct entry *e;

	pthread_mutex_lock(&t->lock);
	e = DCP_OF(dcp_table_find(&t->slots, slot), struct entry, slot);
	ver = e ? use_rank(t, e) : NULL;
	pthread_mutex_unlock(&t->lock);
	return ver;
}

struct dcpfs_version *dcpfs_version_by_slot(struct dcpfs *fs, uint32_t slot)
{
	struct dcpfs_version *ver = NULL;

	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = fs->nversions; i-- > 0 && !ver;)
		if (fs->versions[i]->slot == slot)
			ver = dcpfs_version_hold(fs->versions[i]);
	pthread_rwlock_unlock(&fs->lock);
	return ver ? ver : rank_by_slot(fs->ranks, slot);
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

struct dcpfs_version *dcpfs_hf_find(struct dcpfs *fs, const struct dcpfs_version *ver)
{
	struct dcpfs_ranks *t = fs->ranks;
	struct dcpfs_version *hf = NULL;
	const struct entry *e;

	pthread_mutex_lock(&t->lock);
	e = find_rank(t, ver, NULL, 0);
	if (e)
		hf = dcpfs_version_hold(e->ver);
	pthread_mutex_unlock(&t->lock);
	return hf;
}

int dcpfs_rank_cut(const struct dcpfs_version *ver, struct dcp_row *row,
		   struct dcp_arena *arena, struct dcp_cut *cut, struct dcp_err *err)
{
	uint32_t itemsize = dcp_dtype_info(row->dtype)->size;
	struct dcp_cut mine;
	uint64_t volume, whole;
	int rc;

	if (!dcpfs_is_rank(ver))
		return 1;
	rc = dcp_layout_cut(ver->layout->l, ver->rank, row->key, row->ndim, row->shape, arena,
			    &mine, err);
	if (rc <= 0)
		return rc;
	if (!dcp_shape_volume(row->shape, row->ndim, &whole) || !dcp_cut_volume(&mine, &volume))
		return -EBADMSG;
	if (!itemsize && whole) /* a type of the framework's own */
		itemsize = (uint32_t)(row->nbytes / whole);
	row->ndim = dcp_cut_shape(&mine, row->shape);
	row->nbytes = volume * itemsize;
	if (cut)
		*cut = mine;
	return 1;
}

int dcpfs_rank_view(const struct dcpfs_version *ver, int64_t id, enum dcp_as as,
		    struct dcp_view **out, struct dcp_err *err)
{
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(64 << 20);
	struct dcp_cut cut;
	struct dcp_row row;
	int rc;

	if (!dcpfs_is_rank(ver))
		return dcp_view_open(dcpfs_opened(ver), id, as, NULL, out, err);
	rc = dcp_index_by_id(dcpfs_index(ver), DCP_ROW_TENSOR, id, &arena, &row);
	if (rc == 0)
		rc = dcpfs_rank_cut(ver, &row, &arena, &cut, err);
	if (rc == 0)
		rc = -ENOENT;
	if (rc > 0)
		rc = dcp_view_open(dcpfs_opened(ver), id, as, &cut, out, err);
	return rc;
}

int dcpfs_rank_can_read(const struct dcpfs_version *ver, const struct dcp_row *row,
			const struct dcp_cut *cut, struct dcp_err *err)
{
	dcp_auto_view struct dcp_view *view = NULL;

	if (!row->broken)
		return 0;
	if (!dcpfs_is_rank(ver) || !row->partly)
		return dcp_fail(err, -EIO, "see the version's index.json");
	return dcp_view_open(dcpfs_opened(ver), row->id, DCP_AS_RAW, cut, &view, err);
}

bool dcpfs_rank_has_object(const struct dcpfs_version *ver, const char *key)
{
	return !dcpfs_is_rank(ver) || dcp_layout_has_object(ver->layout->l, ver->rank, key);
}
