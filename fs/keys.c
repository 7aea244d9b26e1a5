/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/store/index/index.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions.h"

struct key {
	uint64_t hash;    /* of the stem: who it is */
	uint64_t number;  /* its upper bits, or a little more where two would be equal */
	uint32_t version; /* that has it, in versions */
	uint32_t row;
};

struct dcpfs_keys {
	pthread_mutex_t lock; /* everything below */
	bool made;
	struct dcp_buf versions; /* struct dcpfs_version *, counted */
	struct dcp_buf keys;     /* struct key, by number; the hash table while it is made */
	size_t n;
};

struct dcpfs_keys *dcpfs_keys_create(void)
{
	struct dcpfs_keys *k = calloc(1, sizeof(*k));

	if (k)
		pthread_mutex_init(&k->lock, NULL);
	return k;
}

static void empty(struct dcpfs_keys *k)
{
	struct dcpfs_version **v = (struct dcpfs_version **)(void *)k->versions.p;

	for (size_t i = 0; i < k->versions.n / sizeof(*v); i++)
		dcpfs_version_put(v[i]);
	dcp_buf_finish(&k->versions);
	dcp_buf_finish(&k->keys);
	k->n = 0;
	k->made = false;
}

void dcpfs_keys_destroy(struct dcpfs_keys *k)
{
	if (!k)
		return;
	empty(k);
	pthread_mutex_destroy(&k->lock);
	free(k);
}

void dcpfs_keys_drop(struct dcpfs_keys *k)
{
	pthread_mutex_lock(&k->lock);
	empty(k);
	pthread_mutex_unlock(&k->lock);
}

/* ---- making ---- */

/* Open addressing over a power of two; hash 0 is free. */
struct table {
	struct key *slot;
	size_t size, n;
};

static struct key *place(const struct table *t, uint64_t hash)
{
	size_t i = hash & (t->size - 1);

	while (t->slot[i].hash && t->slot[i].hash != hash)
		i = (i + 1) & (t->size - 1);
	return &t->slot[i];
}

static int add(struct table *t, const struct key *k)
{
	struct key *at;

	if (4 * (t->n + 1) > 3 * t->size) {
		struct table wider = { .size = t->size ? 2 * t->size : 1024, .n = t->n };

		wider.slot = calloc(wider.size, sizeof(*wider.slot));
		if (!wider.slot)
			return -ENOMEM;
		for (size_t i = 0; i < t->size; i++)
			if (t->slot[i].hash)
				*place(&wider, t->slot[i].hash) = t->slot[i];
		free(t->slot);
		*t = wider;
	}
	at = place(t, k->hash);
	if (!at->hash) {
		*at = *k;
		t->n++;
	}
	return 0;
}

static uint64_t hash_of(const char *stem)
{
	return dcp_hash64(stem, strlen(stem)) | 1;
}

static int add_version(struct table *t, const struct dcpfs_version *ver, uint32_t number)
{
	struct dcp_index_scan *scan;
	struct dcp_row row;
	int rc = dcp_index_scan(dcpfs_index(ver), DCP_ROW_TENSOR, 0, true, &scan);

	if (rc < 0)
		return rc;
	while ((rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct key k = { .hash = hash_of(row.name),
				 .version = number,
				 .row = (uint32_t)row.id };

		rc = add(t, &k);
		if (rc < 0)
			break;
	}
	dcp_index_scan_end(scan);
	return rc;
}

static int by_number(const void *a, const void *b)
{
	const struct key *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

/* Those that are open now, newest first. */
static int list_versions(struct dcpfs *fs, struct dcp_buf *out)
{
	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = fs->nversions; i-- > 0;) {
		struct dcpfs_version *ver = fs->versions[i];

		if (!dcpfs_opened(ver) || out->failed)
			continue;
		dcpfs_version_hold(ver);
		dcp_buf_add(out, &ver, sizeof(ver));
	}
	pthread_rwlock_unlock(&fs->lock);
	return dcp_buf_error(out) ? -ENOMEM : 0;
}

/* Sorted, with numbers of their own. */
static int hand_over(struct dcpfs_keys *k, const struct table *t)
{
	struct key *keys;

	for (size_t i = 0; i < t->size; i++) {
		struct key key = t->slot[i];

		key.number = key.hash >> (64 - DCPFS_ROW_BITS);
		if (key.hash)
			dcp_buf_add(&k->keys, &key, sizeof(key));
	}
	if (dcp_buf_error(&k->keys))
		return -ENOMEM;
	keys = (struct key *)(void *)k->keys.p;
	k->n = t->n;
	if (k->n)
		qsort(keys, k->n, sizeof(*keys), by_number);
	for (size_t i = 1; i < k->n; i++)
		if (keys[i].number <= keys[i - 1].number)
			keys[i].number = keys[i - 1].number + 1;
	k->made = true;
	return 0;
}

/* The lock is held. */
static int make(struct dcpfs *fs)
{
	struct dcpfs_keys *k = fs->keys;
	struct table t = { 0 };
	struct dcpfs_version **v;
	int rc;

	if (k->made)
		return 0;
	empty(k);
	rc = list_versions(fs, &k->versions);
	v = (struct dcpfs_version **)(void *)k->versions.p;
	for (size_t i = 0; rc == 0 && i < k->versions.n / sizeof(struct dcpfs_version *); i++)
		rc = add_version(&t, v[i], (uint32_t)i);
	if (rc == 0)
		rc = hand_over(k, &t);
	free(t.slot);
	if (rc < 0)
		empty(k);
	return rc;
}

/* ---- asking ---- */

static const struct key *at_least(const struct dcpfs_keys *k, uint64_t number)
{
	const struct key *keys = (const struct key *)(const void *)k->keys.p;
	size_t lo = 0, hi = k->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (keys[mid].number < number)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < k->n ? &keys[lo] : NULL;
}

int dcpfs_keys_find(struct dcpfs *fs, const char *stem, uint64_t *number)
{
	uint64_t hash = hash_of(stem);
	const struct key *key, *end;
	int rc;

	pthread_mutex_lock(&fs->keys->lock);
	rc = make(fs);
	if (rc == 0) {
		end = (const struct key *)(const void *)fs->keys->keys.p + fs->keys->n;
		key = at_least(fs->keys, hash >> (64 - DCPFS_ROW_BITS));
		rc = -ENOENT;
		/* numbers were only ever raised past equal ones */
		for (; key && key < end && rc == -ENOENT; key++) {
			if (key->hash >> (64 - DCPFS_ROW_BITS) > hash >> (64 - DCPFS_ROW_BITS))
				break;
			if (key->hash == hash) {
				*number = key->number;
				rc = 0;
			}
		}
	}
	pthread_mutex_unlock(&fs->keys->lock);
	return rc;
}

int dcpfs_keys_next(struct dcpfs *fs, uint64_t *number, char stem[DCP_NAME_MAX + 1])
{
	struct dcpfs_keys *k = fs->keys;
	struct dcpfs_version *ver = NULL;
	struct dcp_arena arena;
	struct dcp_row row;
	struct key key = { 0 };
	int rc;

	pthread_mutex_lock(&k->lock);
	rc = make(fs);
	if (rc == 0) {
		const struct key *at = at_least(k, *number);

		rc = at ? 0 : -ENOENT;
		if (at) {
			key = *at;
			ver = dcpfs_version_hold(
				((struct dcpfs_version **)(void *)k->versions.p)[key.version]);
		}
	}
	pthread_mutex_unlock(&k->lock);
	if (rc < 0)
		return rc;
	dcp_arena_init(&arena, 1 << 20);
	rc = dcp_index_by_id(dcpfs_index(ver), DCP_ROW_TENSOR, key.row, &arena, &row);
	if (rc == 0) {
		stpcpy(stem, row.name);
		*number = key.number;
	}
	dcp_arena_finish(&arena);
	dcpfs_version_put(ver);
	return rc;
}
