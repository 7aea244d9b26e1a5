/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/errors.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/base/jsonw.h"

struct entry {
	uint64_t hash; /* of version and key */
	char *version, *key, *message;
	struct dcpfs_fault at;
	uint64_t count;
};

struct dcpfs_errors {
	pthread_mutex_t lock; /* everything below */
	struct entry *entries;
	size_t n, cap; /* n: atomic */
	uint64_t dropped;
	const struct dcp_log *log;
};

struct dcpfs_errors *dcpfs_errors_create(const struct dcp_log *log)
{
	struct dcpfs_errors *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->log = log;
	pthread_mutex_init(&e->lock, NULL);
	return e;
}

static void finish_entry(struct entry *entry)
{
	free(entry->version);
	free(entry->key);
	free(entry->message);
}

void dcpfs_errors_destroy(struct dcpfs_errors *e)
{
	if (!e)
		return;
	for (size_t i = 0; i < e->n; i++)
		finish_entry(&e->entries[i]);
	free(e->entries);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

static uint64_t hash_of(const char *version, const char *key)
{
	uint64_t hash = dcp_hash64(version, strlen(version));

	return key ? dcp_hash64_more(hash, key, strlen(key) + 1) : hash;
}

static struct entry *find_entry(struct dcpfs_errors *e, uint64_t hash)
{
	for (size_t i = 0; i < e->n; i++)
		if (e->entries[i].hash == hash)
			return &e->entries[i];
	return NULL;
}

static void set_count(struct dcpfs_errors *e, size_t n)
{
	__atomic_store_n(&e->n, n, __ATOMIC_RELAXED);
}

static struct entry *find_or_add(struct dcpfs_errors *e, uint64_t hash)
{
	struct entry *entry = find_entry(e, hash);

	if (entry)
		return entry;
	if (e->n == DCPFS_ERRORS_MAX || DCP_GROW(e->entries, e->cap, e->n) < 0)
		return NULL;
	entry = &e->entries[e->n];
	*entry = (struct entry){ .hash = hash };
	set_count(e, e->n + 1);
	return entry;
}

void dcpfs_errors_add(struct dcpfs_errors *e, const char *version, const char *key,
		      const struct dcpfs_fault *at, const char *message)
{
	struct entry *entry;
	size_t logged = 0;

	pthread_mutex_lock(&e->lock);
	entry = find_or_add(e, hash_of(version, key));
	if (entry) {
		if (!entry->version)
			entry->version = strdup(version);
		if (!entry->key && key)
			entry->key = strdup(key);
		free(entry->message);
		entry->message = strdup(message);
		entry->at = at ? *at : (struct dcpfs_fault){ 0, DCPFS_NO_OFFSET };
		if (entry->count++ == 0 && key)
			logged = e->n;
	} else {
		e->dropped++;
	}
	pthread_mutex_unlock(&e->lock);
	if (logged && logged <= DCPFS_ERRORS_LOGGED)
		dcp_log(e->log, DCP_LOG_WARN, "%s%s", message,
			logged < DCPFS_ERRORS_LOGGED
				? ""
				: "; only .dcpfs/errors.json has the next ones");
}

size_t dcpfs_errors_count(const struct dcpfs_errors *e)
{
	return __atomic_load_n(&e->n, __ATOMIC_RELAXED);
}

bool dcpfs_errors_find(struct dcpfs_errors *e, const char *version, const char *key,
		       struct dcpfs_fault *at)
{
	const struct entry *entry;

	pthread_mutex_lock(&e->lock);
	entry = find_entry(e, hash_of(version, key));
	if (entry && at)
		*at = entry->at;
	pthread_mutex_unlock(&e->lock);
	return entry != NULL;
}

void dcpfs_errors_forget(struct dcpfs_errors *e, const char *version, const char *key)
{
	size_t kept = 0;

	pthread_mutex_lock(&e->lock);
	for (size_t i = 0; i < e->n; i++) {
		struct entry *entry = &e->entries[i];

		if (entry->version && strcmp(entry->version, version) == 0 &&
		    (!key || (entry->key && strcmp(entry->key, key) == 0)))
			finish_entry(entry);
		else
			e->entries[kept++] = *entry;
	}
	set_count(e, kept);
	pthread_mutex_unlock(&e->lock);
}

void dcpfs_errors_write(struct dcpfs_errors *e, struct dcp_jsonw *w)
{
	pthread_mutex_lock(&e->lock);
	for (size_t i = 0; i < e->n; i++) {
		const char *version = e->entries[i].version;

		dcp_jsonw_object(w);
		dcp_jsonw_put_str_or_null(w, "version", version && *version ? version : NULL);
		dcp_jsonw_put_str_or_null(w, "key", e->entries[i].key);
		dcp_jsonw_put_str_or_null(w, "error", e->entries[i].message);
		dcp_jsonw_put_u64(w, "count", e->entries[i].count);
		dcp_jsonw_end(w);
	}
	pthread_mutex_unlock(&e->lock);
}

struct line {
	time_t when;
	char *text;
};

struct dcpfs_log {
	struct dcp_log sink;
	const struct dcp_log *next;
	pthread_mutex_t lock; /* the members below */
	struct line lines[DCPFS_LOG_LINES];
	size_t n; /* logged so far: line i is at i % DCPFS_LOG_LINES */
};

static void emit_line(void *ctx, enum dcp_log_level level, const char *text)
{
	struct dcpfs_log *l = ctx;
	char *copy = strdup(text);
	struct line *line;

	if (!copy)
		return;
	if (l->next)
		dcp_log(l->next, level, "%s", copy);
	pthread_mutex_lock(&l->lock);
	line = &l->lines[l->n++ % DCPFS_LOG_LINES];
	free(line->text);
	*line = (struct line){ time(NULL), copy };
	pthread_mutex_unlock(&l->lock);
}

struct dcpfs_log *dcpfs_log_create(const struct dcp_log *next)
{
	struct dcpfs_log *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->sink = (struct dcp_log){ DCP_LOG_INFO, emit_line, l };
	l->next = next;
	pthread_mutex_init(&l->lock, NULL);
	return l;
}

void dcpfs_log_destroy(struct dcpfs_log *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < DCPFS_LOG_LINES; i++)
		free(l->lines[i].text);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

const struct dcp_log *dcpfs_log_sink(const struct dcpfs_log *l)
{
	return &l->sink;
}

void dcpfs_log_text(struct dcpfs_log *l, struct dcp_buf *b)
{
	pthread_mutex_lock(&l->lock);
	for (size_t i = l->n > DCPFS_LOG_LINES ? l->n - DCPFS_LOG_LINES : 0; i < l->n; i++) {
		const struct line *line = &l->lines[i % DCPFS_LOG_LINES];
		char when[32];
		struct tm tm;

		gmtime_r(&line->when, &tm);
		strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
		dcp_buf_printf(b, "%s %s\n", when, line->text);
	}
	pthread_mutex_unlock(&l->lock);
}
