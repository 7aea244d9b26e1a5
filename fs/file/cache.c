/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "core/base/system.h"
#include "fs/file/file_int.h"
#include "fs/fs.h"
#include "fs/ino.h"

enum {
	BUCKETS = 2048,
	LIVE_MS = 1000,     /* limit of the age of a live file's text, */
	READING_MS = 250,   /* extended by this after each use while it is being read, */
	LIVE_MAX_MS = 2000, /* but never beyond this */
};

enum idle { PLAIN, WITH_TEXT, WITH_PARTS, IDLE_COUNT };

struct dcpfs_cache {
	pthread_mutex_t lock;   /* everything below; never held while a file is made or read */
	struct dcp_table table; /* by inode */
	struct dcp_table_link *bucket[BUCKETS];
	/* Files that only the cache holds. Only these are evicted, so open files do not slow down
	 * an insert. */
	struct dcp_lru idle[IDLE_COUNT];
	/* Files that are not in the table: live files, and files of versions that are gone. */
	struct dcp_lru loose;
	uint64_t uses;      /* count of uses that ended */
	unsigned n, models; /* files in the table; idle models, each with its parts */
	size_t text;        /* bytes */
	/* Without OPEN requests a live file belongs to no open file, so one file of each kind is
	 * kept, and a reader gets all parts of the same text. */
	struct {
		struct dcpfs_file *f;
		int64_t made_ms, used_ms; /* dcp_now_ms() */
	} live[DCPFS_KIND_COUNT];
};

struct dcpfs_cache *dcpfs_cache_create(void)
{
	struct dcpfs_cache *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	pthread_mutex_init(&c->lock, NULL);
	c->table = (struct dcp_table){ c->bucket, BUCKETS };
	return c;
}

/* The least recently used idle file. */
static struct dcpfs_file *oldest_file(const struct dcpfs_cache *c, enum idle kind)
{
	return (struct dcpfs_file *)c->idle[kind].oldest;
}

void dcpfs_cache_destroy(struct dcpfs *fs)
{
	struct dcpfs_cache *c = fs->files;

	if (!c)
		return;
	/* Free open files, too, because no RELEASE will come. */
	for (size_t i = 0; i < BUCKETS; i++)
		while (c->bucket[i]) {
			struct dcpfs_file *f = DCP_OF(c->bucket[i], struct dcpfs_file, at);

			dcp_table_remove(&c->table, &f->at);
			dcpfs_file_destroy(fs, f);
		}
	while (c->loose.oldest) {
		struct dcpfs_file *f = (struct dcpfs_file *)c->loose.oldest;

		dcp_lru_remove(&c->loose, &f->use);
		dcpfs_file_destroy(fs, f);
	}
	pthread_mutex_destroy(&c->lock);
	free(c);
}

size_t dcpfs_cache_count(struct dcpfs *fs)
{
	size_t n;

	pthread_mutex_lock(&fs->files->lock);
	n = fs->files->n;
	pthread_mutex_unlock(&fs->files->lock);
	return n;
}

/* Update the number of files in use in the version of the file. */
static void count_open(const struct dcpfs_file *f, int n)
{
	struct dcpfs_version *ver = dcpfs_version_whole(f->ver);

	if (ver)
		__atomic_fetch_add(&ver->open, n, __ATOMIC_RELAXED);
}

static size_t text_of(const struct dcpfs_file *f)
{
	return f->content == DCPFS_TEXT ? f->text.n : 0;
}

/* Note whether only the cache holds @f. */
static void set_idle(struct dcpfs_cache *c, struct dcpfs_file *f, bool idle)
{
	enum idle kind = f->content == DCPFS_PARTS ? WITH_PARTS
			 : text_of(f)              ? WITH_TEXT
						   : PLAIN;
	struct dcp_lru *list = &c->idle[kind];

	c->models += kind != WITH_PARTS ? 0 : idle ? 1 : -1;
	if (idle) {
		f->used = ++c->uses;
		dcp_lru_add(list, &f->use);
	} else {
		dcp_lru_remove(list, &f->use);
	}
	count_open(f, idle ? -1 : 1);
}

/* Remove the file from the table; the cache's reference passes to the caller. */
static void remove_file(struct dcpfs_cache *c, struct dcpfs_file *f)
{
	dcp_table_remove(&c->table, &f->at);
	if (__atomic_load_n(&f->refs, __ATOMIC_RELAXED) == 1)
		set_idle(c, f, false);
	count_open(f, -1);
	f->cached = false;
	dcp_lru_add(&c->loose, &f->use);
	c->n--;
	c->text -= text_of(f);
}

/* The idle file to evict next; NULL: all limits are kept, or no file is idle. */
static struct dcpfs_file *next_out(const struct dcpfs_cache *c)
{
	struct dcpfs_file *out = NULL;

	if (c->models > DCPFS_CACHE_MODELS)
		return oldest_file(c, WITH_PARTS);
	if (c->text > DCPFS_CACHE_TEXT)
		return oldest_file(c, WITH_TEXT);
	for (enum idle k = 0; c->n > DCPFS_CACHE_FILES && k < IDLE_COUNT; k++) {
		struct dcpfs_file *f = oldest_file(c, k);

		if (f && (!out || f->used < out->used))
			out = f;
	}
	return out;
}

/* Remove idle files over the limits; the caller puts the returned chain (linked by next). */
static struct dcpfs_file *evict_files(struct dcpfs_cache *c)
{
	struct dcpfs_file *out = NULL, *f;

	while ((f = next_out(c))) {
		remove_file(c, f);
		f->next = out;
		out = f;
	}
	return out;
}

static void put_chain(struct dcpfs *fs, struct dcpfs_file *f)
{
	while (f) {
		struct dcpfs_file *next = f->next;

		dcpfs_file_put(fs, f);
		f = next;
	}
}

/* The directories of a version, whose listings the kernel keeps. */
static void drop_dirs(const struct dcpfs *fs, uint32_t slot)
{
	const struct dcpfs_kernel *k = fs->opts.kernel;

	for (size_t i = 0; i < DCPFS_KIND_COUNT; i++) {
		const struct dcpfs_node *node = &fs->nodes[i];

		if (node->type == DCPFS_DIR &&
		    (node->kind == DCPFS_VERSION || node->parent == DCPFS_VERSION))
			k->drop(k->ctx, dcpfs_ino_pack(slot, node->kind, 0));
	}
}

void dcpfs_cache_forget(struct dcpfs *fs, struct dcpfs_version *ver, bool rewritten)
{
	const struct dcpfs_kernel *k = fs->opts.kernel;
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *out = NULL;

	pthread_mutex_lock(&c->lock);
	__atomic_store_n(&ver->rewritten, rewritten, __ATOMIC_RELEASE);
	__atomic_store_n(&ver->gone, true, __ATOMIC_RELEASE);
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct dcp_table_link *l = c->bucket[i], *next; l; l = next) {
			struct dcpfs_file *f = DCP_OF(l, struct dcpfs_file, at);

			next = l->next;
			if (f->ver != ver)
				continue;
			remove_file(c, f);
			f->next = out;
			out = f;
		}
	pthread_mutex_unlock(&c->lock);
	for (struct dcpfs_file *f = out; f && k && rewritten; f = f->next)
		k->drop(k->ctx, f->ino);
	if (k)
		drop_dirs(fs, ver->slot);
	put_chain(fs, out);
}

static struct dcpfs_file *find_file(struct dcpfs_cache *c, uint64_t ino)
{
	struct dcpfs_file *f = DCP_OF(dcp_table_find(&c->table, ino), struct dcpfs_file, at);

	if (f && __atomic_fetch_add(&f->refs, 1, __ATOMIC_RELAXED) == 1)
		set_idle(c, f, false);
	return f;
}

struct dcpfs_file *dcpfs_cache_find(struct dcpfs *fs, uint64_t ino)
{
	struct dcpfs_file *f;

	pthread_mutex_lock(&fs->files->lock);
	f = find_file(fs->files, ino);
	pthread_mutex_unlock(&fs->files->lock);
	return f;
}

void dcpfs_file_put(struct dcpfs *fs, struct dcpfs_file *f)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *out = NULL;
	uint32_t refs = __atomic_load_n(&f->refs, __ATOMIC_RELAXED);

	/* Only the last two references need the lock. */
	while (refs > 2)
		if (__atomic_compare_exchange_n(&f->refs, &refs, refs - 1, true,
						__ATOMIC_RELEASE, __ATOMIC_RELAXED))
			return;
	pthread_mutex_lock(&c->lock);
	refs = __atomic_sub_fetch(&f->refs, 1, __ATOMIC_ACQ_REL);
	if (refs == 1 && f->cached) {
		set_idle(c, f, true);
		out = evict_files(c);
	} else if (refs == 0) {
		dcp_lru_remove(&c->loose, &f->use);
	}
	pthread_mutex_unlock(&c->lock);
	if (refs == 0)
		dcpfs_file_destroy(fs, f);
	put_chain(fs, out);
}

void dcpfs_cache_begin(struct dcpfs *fs, struct dcpfs_file *f)
{
	pthread_mutex_lock(&fs->files->lock);
	dcp_lru_add(&fs->files->loose, &f->use);
	pthread_mutex_unlock(&fs->files->lock);
}

struct dcpfs_file *dcpfs_cache_insert(struct dcpfs *fs, struct dcpfs_file *f)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *out = NULL, *other;

	pthread_mutex_lock(&c->lock);
	other = find_file(c, f->ino);
	if (other) {
		f->next = NULL;
		out = f;
		f = other;
	} else if (!dcpfs_file_is_gone(f)) {
		dcp_table_add(&c->table, &f->at, f->ino);
		dcpfs_file_hold(f);
		dcp_lru_remove(&c->loose, &f->use);
		f->cached = true;
		count_open(f, 1);
		c->n++;
		c->text += text_of(f);
		out = evict_files(c);
	}
	pthread_mutex_unlock(&c->lock);
	put_chain(fs, out);
	return f;
}

struct dcpfs_file *dcpfs_cache_find_live(struct dcpfs *fs, enum dcpfs_kind kind)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *f;
	int64_t now = dcp_now_ms(), age;

	pthread_mutex_lock(&c->lock);
	f = c->live[kind].f;
	age = now - c->live[kind].made_ms;
	if (f && (age < LIVE_MS ||
		  (age < LIVE_MAX_MS && now - c->live[kind].used_ms < READING_MS))) {
		c->live[kind].used_ms = now;
		dcpfs_file_hold(f);
	} else {
		f = NULL;
	}
	pthread_mutex_unlock(&c->lock);
	return f;
}

void dcpfs_cache_keep_live(struct dcpfs *fs, enum dcpfs_kind kind, struct dcpfs_file *f)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *old;

	dcpfs_file_hold(f);
	pthread_mutex_lock(&c->lock);
	old = c->live[kind].f;
	c->live[kind].f = f;
	c->live[kind].made_ms = c->live[kind].used_ms = dcp_now_ms();
	pthread_mutex_unlock(&c->lock);
	if (old)
		dcpfs_file_put(fs, old);
}
