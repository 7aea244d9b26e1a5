/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/slabs.h"

#include <pthread.h>
#include <stdlib.h>

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
		s->bytes = bytes;
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
	return slab ? slab : aligned_alloc(4096, s->bytes);
}

void dcpfs_slab_give(struct dcpfs_slabs *s, void *slab)
{
	pthread_mutex_lock(&s->lock);
	*(void **)slab = s->free;
	s->free = slab;
	pthread_mutex_unlock(&s->lock);
}
