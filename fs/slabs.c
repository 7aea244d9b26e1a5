/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/slabs.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 /* size of a huge page on x86-64, and on arm64 with 4 KiB pages */ };

/* A free slab's first bytes link it to the next. */
struct dcpfs_slabs {
	size_t most;
	pthread_mutex_t lock;         /* free */
	void *free_short, *free_long; /* lists */
};

struct dcpfs_slabs *dcpfs_slabs_create(size_t most)
{
	struct dcpfs_slabs *s = calloc(1, sizeof(*s));

	if (s) {
		s->most = (most + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
		pthread_mutex_init(&s->lock, NULL);
	}
	return s;
}

static void **list_of(struct dcpfs_slabs *s, size_t n)
{
	return n <= DCPFS_SLAB_SHORT ? &s->free_short : &s->free_long;
}

static void *pop(void **list)
{
	void *slab = *list;

	if (slab)
		*list = *(void **)slab;
	return slab;
}

void dcpfs_slabs_destroy(struct dcpfs_slabs *s)
{
	void *slab;

	if (!s)
		return;
	while ((slab = pop(&s->free_short)) || (slab = pop(&s->free_long)))
		free(slab);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

static void *make(const struct dcpfs_slabs *s, size_t n)
{
	void *slab;

	if (n <= DCPFS_SLAB_SHORT)
		return aligned_alloc((size_t)sysconf(_SC_PAGESIZE), DCPFS_SLAB_SHORT);
	slab = aligned_alloc(HUGE_PAGE, s->most);
	if (slab)
		madvise(slab, s->most, MADV_HUGEPAGE);
	return slab;
}

void *dcpfs_slab_take(struct dcpfs_slabs *s, size_t n)
{
	void *slab;

	pthread_mutex_lock(&s->lock);
	slab = pop(list_of(s, n));
	pthread_mutex_unlock(&s->lock);
	return slab ? slab : make(s, n);
}

void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab, size_t n)
{
	void **list = list_of(s, n);

	pthread_mutex_lock(&s->lock);
	*(void **)slab = *list;
	*list = slab;
	pthread_mutex_unlock(&s->lock);
}
