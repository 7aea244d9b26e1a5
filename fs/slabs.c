/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/slabs.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 }; /* of x86-64 and, where pages are of 4 KiB, arm64 */

/* A free slab's first bytes link it to the next. */
struct dcpfs_slabs {
	size_t bytes;
	pthread_mutex_t lock; /* free */
	void *free;
};

struct dcpfs_slabs *dcpfs_slabs_create(size_t bytes)
{
	struct dcpfs_slabs *s = calloc(1, sizeof(*s));

	if (s) {
		s->bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
		pthread_mutex_init(&s->lock, NULL);
	}
	return s;
}

void dcpfs_slabs_destroy(struct dcpfs_slabs *s)
{
	if (!s)
		return;
	while (s->free) {
		void *slab = s->free;

		s->free = *(void **)slab;
		free(slab);
	}
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void *dcpfs_slab_take(struct dcpfs_slabs *s)
{
	void *slab;

	pthread_mutex_lock(&s->lock);
	slab = s->free;
	if (slab)
		s->free = *(void **)slab;
	pthread_mutex_unlock(&s->lock);
	if (slab)
		return slab;
	slab = aligned_alloc(HUGE_PAGE, s->bytes);
	if (slab)
		madvise(slab, s->bytes, MADV_HUGEPAGE);
	return slab;
}

void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab)
{
	pthread_mutex_lock(&s->lock);
	*(void **)slab = s->free;
	s->free = slab;
	pthread_mutex_unlock(&s->lock);
}
