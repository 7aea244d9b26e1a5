/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "fs/file_int.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions.h"

enum { BUCKETS = 2048 };

struct dcpfs_cache {
	pthread_mutex_t lock; /* everything below; never held while a file is made or read */
	struct dcpfs_file *bucket[BUCKETS];
	struct dcpfs_lru used; /* all of them */
	unsigned n;
	size_t text; /* bytes */
	/* Without OPEN a live file belongs to nobody: one of each is kept for a second. */
	struct dcpfs_file *live[DCPFS_KIND_COUNT];
};

struct dcpfs_cache *dcpfs_cache_create(void)
{
	struct dcpfs_cache *c = calloc(1, sizeof(*c));

	if (c)
		pthread_mutex_init(&c->lock, NULL);
	return c;
}

static struct dcpfs_file *oldest(const struct dcpfs_cache *c)
{
	return (struct dcpfs_file *)c->used.oldest;
}

static struct dcpfs_file *newer_than(const struct dcpfs_file *f)
{
	return (struct dcpfs_file *)f->use.newer;
}

void dcpfs_cache_destroy(struct dcpfs *fs)
{
	struct dcpfs_cache *c = fs->files;

	if (!c)
		return;
	while (c->used.oldest) {
		struct dcpfs_file *f = oldest(c);

		dcpfs_lru_remove(&c->used, &f->use);
		dcpfs_file_destroy(fs, f); /* also what is open: no RELEASE comes any more */
	}
	for (size_t i = 0; i < DCPFS_KIND_COUNT; i++)
		if (c->live[i])
			dcpfs_file_put(fs, c->live[i]);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static struct dcpfs_file **bucket_of(struct dcpfs_cache *c, uint64_t ino)
{
	return &c->bucket[(ino * 0x9e3779b97f4a7c15ull) >> 53];
}

static void remove_file(struct dcpfs_cache *c, struct dcpfs_file *f)
{
	struct dcpfs_file **at = bucket_of(c, f->ino);

	while (*at != f)
		at = &(*at)->next;
	*at = f->next;
	dcpfs_lru_remove(&c->used, &f->use);
	c->n--;
	c->text -= f->text.n;
}

/* Files over the limit that nobody else uses, taken out; the caller puts the chain (by next).
 */
static struct dcpfs_file *evict(struct dcpfs_cache *c)
{
	struct dcpfs_file *out = NULL, *f = oldest(c);

	while (f && (c->n > DCPFS_CACHE_FILES || c->text > DCPFS_CACHE_TEXT)) {
		struct dcpfs_file *newer = newer_than(f);
		bool helps = c->n > DCPFS_CACHE_FILES || f->text.n;

		/* a second count comes from find(), under the lock, or from a second count */
		if (helps && __atomic_load_n(&f->refs, __ATOMIC_ACQUIRE) == 1) {
			remove_file(c, f);
			f->next = out;
			out = f;
		}
		f = newer;
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
static void drop_dirs(const struct dcpfs_kernel *k, uint32_t slot)
{
	for (unsigned i = 0; i < DCPFS_KIND_COUNT; i++) {
		const struct dcpfs_node *node = dcpfs_node((enum dcpfs_kind)i);

		if (node->type == DCPFS_DIR &&
		    (node->kind == DCPFS_VERSION || node->parent == DCPFS_VERSION))
			k->drop(k->ctx, dcpfs_ino_pack(slot, node->kind, 0));
	}
}

void dcpfs_cache_forget(struct dcpfs *fs, struct dcpfs_version *ver)
{
	const struct dcpfs_kernel *k = fs->opts.kernel;
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *out = NULL, *newer;

	pthread_mutex_lock(&c->lock);
	__atomic_store_n(&ver->gone, true, __ATOMIC_RELEASE);
	for (struct dcpfs_file *f = oldest(c); f; f = newer) {
		newer = newer_than(f);
		if (f->ver != ver)
			continue;
		remove_file(c, f);
		f->next = out;
		out = f;
	}
	pthread_mutex_unlock(&c->lock);
	for (struct dcpfs_file *f = out; f && k; f = f->next)
		k->drop(k->ctx, f->ino);
	if (k)
		drop_dirs(k, ver->slot);
	put_chain(fs, out);
}

static struct dcpfs_file *find(struct dcpfs_cache *c, uint64_t ino)
{
	struct dcpfs_file *f = *bucket_of(c, ino);

	while (f && f->ino != ino)
		f = f->next;
	if (f) {
		dcpfs_file_hold(f);
		dcpfs_lru_use(&c->used, &f->use);
	}
	return f;
}

struct dcpfs_file *dcpfs_cache_find(struct dcpfs *fs, uint64_t ino)
{
	struct dcpfs_file *f;

	pthread_mutex_lock(&fs->files->lock);
	f = find(fs->files, ino);
	pthread_mutex_unlock(&fs->files->lock);
	return f;
}

struct dcpfs_file *dcpfs_cache_insert(struct dcpfs *fs, struct dcpfs_file *f)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *out = NULL, *other;

	pthread_mutex_lock(&c->lock);
	other = find(c, f->ino);
	if (other) {
		f->next = NULL;
		out = f;
		f = other;
	} else if (!dcpfs_file_is_gone(f)) {
		struct dcpfs_file **b = bucket_of(c, f->ino);

		f->next = *b;
		*b = f;
		dcpfs_file_hold(f);
		dcpfs_lru_add(&c->used, &f->use);
		c->n++;
		c->text += f->text.n;
		out = evict(c);
	}
	pthread_mutex_unlock(&c->lock);
	put_chain(fs, out);
	return f;
}

struct dcpfs_file *dcpfs_cache_find_live(struct dcpfs *fs, enum dcpfs_kind kind)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *f;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	pthread_mutex_lock(&c->lock);
	f = c->live[kind];
	if (f && f->made.tv_sec == now.tv_sec)
		dcpfs_file_hold(f);
	else
		f = NULL;
	pthread_mutex_unlock(&c->lock);
	return f;
}

void dcpfs_cache_keep_live(struct dcpfs *fs, enum dcpfs_kind kind, struct dcpfs_file *f)
{
	struct dcpfs_cache *c = fs->files;
	struct dcpfs_file *old;

	dcpfs_file_hold(f);
	pthread_mutex_lock(&c->lock);
	old = c->live[kind];
	c->live[kind] = f;
	pthread_mutex_unlock(&c->lock);
	if (old)
		dcpfs_file_put(fs, old);
}
