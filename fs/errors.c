/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/errors.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/base/jsonw.h"

struct entry {
	uint64_t hash; /* of version and key */
	char *version, *key, *message;
	uint64_t count;
};

struct dcpfs_errors {
	pthread_mutex_t lock; /* everything below */
	struct entry *entries;
	size_t n, cap;
	uint64_t dropped;
};

struct dcpfs_errors *dcpfs_errors_create(void)
{
	struct dcpfs_errors *e = calloc(1, sizeof(*e));

	if (e)
		pthread_mutex_init(&e->lock, NULL);
	return e;
}

void dcpfs_errors_destroy(struct dcpfs_errors *e)
{
	if (!e)
		return;
	for (size_t i = 0; i < e->n; i++) {
		free(e->entries[i].version);
		free(e->entries[i].key);
		free(e->entries[i].message);
	}
	free(e->entries);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

static struct entry *find_or_add(struct dcpfs_errors *e, uint64_t hash)
{
	for (size_t i = 0; i < e->n; i++)
		if (e->entries[i].hash == hash)
			return &e->entries[i];
	if (e->n == DCPFS_ERRORS_MAX)
		return NULL;
	if (e->n == e->cap) {
		size_t cap = e->cap ? e->cap * 2 : 16;
		struct entry *more = realloc(e->entries, cap * sizeof(*more));

		if (!more)
			return NULL;
		e->entries = more;
		e->cap = cap;
	}
	e->entries[e->n] = (struct entry){ .hash = hash };
	return &e->entries[e->n++];
}

void dcpfs_errors_add(struct dcpfs_errors *e, const char *version, const char *key,
		      const char *message)
{
	uint64_t hash = dcp_hash64(version, strlen(version));
	struct entry *entry;

	if (key)
		hash = dcp_hash64_more(hash, key, strlen(key) + 1);
	pthread_mutex_lock(&e->lock);
	entry = find_or_add(e, hash);
	if (entry) {
		if (!entry->version)
			entry->version = strdup(version);
		if (!entry->key && key)
			entry->key = strdup(key);
		free(entry->message);
		entry->message = strdup(message);
		entry->count++;
	} else {
		e->dropped++;
	}
	pthread_mutex_unlock(&e->lock);
}

void dcpfs_errors_write(struct dcpfs_errors *e, struct dcp_jsonw *w)
{
	pthread_mutex_lock(&e->lock);
	for (size_t i = 0; i < e->n; i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str_or_null(w, "version", e->entries[i].version);
		dcp_jsonw_put_str_or_null(w, "key", e->entries[i].key);
		dcp_jsonw_put_str_or_null(w, "error", e->entries[i].message);
		dcp_jsonw_put_u64(w, "count", e->entries[i].count);
		dcp_jsonw_end(w);
	}
	pthread_mutex_unlock(&e->lock);
}
