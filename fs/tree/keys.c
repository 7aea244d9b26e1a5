/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree/tree.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/hash.h"
#include "core/store/index/index.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions/versions.h"

struct key {
	uint64_t hash;    /* hash of the stem: identifies the key */
	uint64_t number;  /* upper bits of the hash, or slightly more to be unique */
	uint32_t version; /* index in versions of a version that has the key */
	uint32_t row;
};

struct dcpfs_keys {
	pthread_mutex_t lock;    /* everything below */
	bool made;               /* all open versions are included */
	struct dcp_buf versions; /* struct dcpfs_version *, references */
	struct dcp_buf keys;     /* struct key, by hash and so by number */
	size_t n;
};

struct dcpfs_keys *dcpfs_keys_create(void)
{
	struct dcpfs_keys *k = calloc(1, sizeof(*k));

	if (k)
		pthread_mutex_init(&k->lock, NULL);
	return k;
}

static void empty_keys(struct dcpfs_keys *k)
{
	for (size_t i = 0; i < DCP_NITEMS(k->versions, struct dcpfs_version *); i++)
		dcpfs_version_put(DCP_ITEMS(k->versions, struct dcpfs_version *)[i]);
	dcp_buf_finish(&k->versions);
	dcp_buf_finish(&k->keys);
	k->n = 0;
	k->made = false;
}

void dcpfs_keys_destroy(struct dcpfs_keys *k)
{
	if (!k)
		return;
	empty_keys(k);
	pthread_mutex_destroy(&k->lock);
	free(k);
}

void dcpfs_keys_drop(struct dcpfs_keys *k)
{
	pthread_mutex_lock(&k->lock);
	empty_keys(k);
	pthread_mutex_unlock(&k->lock);
}

void dcpfs_keys_grow(struct dcpfs_keys *k)
{
	pthread_mutex_lock(&k->lock);
	k->made = false;
	pthread_mutex_unlock(&k->lock);
}

static uint64_t number_of(uint64_t hash)
{
	return hash >> (64 - DCPFS_ROW_BITS);
}

static const struct key *at_least(const struct dcpfs_keys *k, uint64_t number)
{
	const struct key *keys = DCP_ITEMS(k->keys, struct key);
	size_t i;

	DCP_BISECT(i, 0, k->n, keys[i].number < number);
	return i < k->n ? &keys[i] : NULL;
}

/* Numbers were only raised to be unique, so the search starts at the number that the hash
 * gives. */
static const struct key *find_key(const struct dcpfs_keys *k, uint64_t hash)
{
	const struct key *key = at_least(k, number_of(hash)), *end;

	if (!key)
		return NULL;
	for (end = DCP_ITEMS(k->keys, struct key) + k->n; key < end && key->hash <= hash; key++)
		if (key->hash == hash)
			return key;
	return NULL;
}

/* ---- making ---- */

static uint64_t hash_of(const char *stem)
{
	return dcp_hash64(stem, strlen(stem));
}

/* Sort the keys, remove duplicates, and number them. */
static void set_in_order(struct dcpfs_keys *k)
{
	struct key *keys = DCP_ITEMS(k->keys, struct key);
	size_t n = DCP_NITEMS(k->keys, struct key);

	DCP_SORT(keys, n, dcp_by_u64);
	k->n = 0;
	for (size_t i = 0; i < n; i++) {
		if (k->n && keys[k->n - 1].hash == keys[i].hash)
			continue;
		keys[k->n] = keys[i];
		keys[k->n].number = number_of(keys[i].hash);
		if (k->n && keys[k->n].number <= keys[k->n - 1].number)
			keys[k->n].number = keys[k->n - 1].number + 1;
		k->n++;
	}
	k->keys.n = k->n * sizeof(*keys);
}

/* Add the keys of @ver that no earlier version has. */
static int add_version(struct dcpfs_keys *k, struct dcpfs_version *ver)
{
	uint32_t number = (uint32_t)DCP_NITEMS(k->versions, struct dcpfs_version *);
	dcp_auto_buf struct dcp_buf new = DCP_BUF_INIT;
	struct dcp_index_scan *scan;
	struct dcp_row row;
	int rc = dcp_index_scan(dcpfs_index(ver), DCP_ROW_TENSOR, 0, true, &scan);

	if (rc < 0)
		return rc;
	while ((rc = dcp_index_scan_next(scan, &row)) > 0) {
		struct key key = { .hash = hash_of(row.name),
				   .version = number,
				   .row = (uint32_t)row.id };

		if (!find_key(k, key.hash))
			dcp_buf_add(&new, &key, sizeof(key));
	}
	dcp_index_scan_end(scan);
	if (!dcp_buf_error(&new)) /* list the version only if its new keys are complete */
		dcp_buf_add(&k->versions, &ver, sizeof(ver));
	if (dcp_buf_error(&new) || dcp_buf_error(&k->versions))
		return -ENOMEM;
	dcpfs_version_hold(ver);
	if (rc < 0 || !new.n)
		return rc;
	if (dcp_buf_add(&k->keys, new.p, new.n) < 0)
		return -ENOMEM;
	set_in_order(k);
	return 0;
}

static bool has_version(const struct dcpfs_keys *k, const struct dcpfs_version *ver)
{
	for (size_t i = 0; i < DCP_NITEMS(k->versions, struct dcpfs_version *); i++)
		if (DCP_ITEMS(k->versions, struct dcpfs_version *)[i] == ver)
			return true;
	return false;
}

/* List the open versions that are not included yet, newest first. */
static int list_versions(struct dcpfs *fs, struct dcp_buf *out)
{
	pthread_rwlock_rdlock(&fs->lock);
	for (size_t i = fs->nversions; i-- > 0;) {
		struct dcpfs_version *ver = fs->versions[i];

		if (!dcpfs_opened(ver) || out->failed || has_version(fs->keys, ver))
			continue;
		dcpfs_version_hold(ver);
		dcp_buf_add(out, &ver, sizeof(ver));
	}
	pthread_rwlock_unlock(&fs->lock);
	return dcp_buf_error(out) ? -ENOMEM : 0;
}

/* The lock is held. */
static int make_keys(struct dcpfs *fs)
{
	dcp_auto_buf struct dcp_buf list = DCP_BUF_INIT;
	struct dcpfs_keys *k = fs->keys;
	struct dcpfs_version **v;
	int rc;

	if (k->made)
		return 0;
	rc = list_versions(fs, &list);
	v = DCP_ITEMS(list, struct dcpfs_version *);
	for (size_t i = 0; i < DCP_NITEMS(list, struct dcpfs_version *); i++) {
		if (rc == 0)
			rc = add_version(k, v[i]);
		dcpfs_count(&fs->stats, DCPFS_STAT_KEY_SCANS, 1);
		dcpfs_version_put(v[i]);
	}
	if (rc < 0)
		empty_keys(k);
	else
		k->made = true;
	return rc;
}

/* ---- asking ---- */

int dcpfs_keys_find(struct dcpfs *fs, const char *stem, uint64_t *number)
{
	const struct key *key;
	int rc;

	pthread_mutex_lock(&fs->keys->lock);
	rc = make_keys(fs);
	key = rc == 0 ? find_key(fs->keys, hash_of(stem)) : NULL;
	if (key)
		*number = key->number;
	pthread_mutex_unlock(&fs->keys->lock);
	return rc < 0 ? rc : key ? 0 : -ENOENT;
}

int dcpfs_keys_next(struct dcpfs *fs, uint64_t *number, char stem[DCP_NAME_MAX + 1])
{
	struct dcpfs_keys *k = fs->keys;
	struct dcpfs_version *ver = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(1 << 20);
	struct dcp_row row;
	struct key key = { 0 };
	int rc;

	pthread_mutex_lock(&k->lock);
	rc = make_keys(fs);
	if (rc == 0) {
		const struct key *at = at_least(k, *number);

		rc = at ? 0 : -ENOENT;
		if (at) {
			key = *at;
			ver = dcpfs_version_hold(
				DCP_ITEMS(k->versions, struct dcpfs_version *)[key.version]);
		}
	}
	pthread_mutex_unlock(&k->lock);
	if (rc < 0)
		return rc;
	rc = dcp_index_by_id(dcpfs_index(ver), DCP_ROW_TENSOR, key.row, &arena, &row);
	if (rc == 0) {
		stpcpy(stem, row.name);
		*number = key.number;
	}
	dcpfs_version_put(ver);
	return rc;
}
